"""Text corpora: sets of documents that are independent of each other, with their source, licence and digest.

A document is the unit of independence of every interval (docs/design/corpus.md says how the default was chosen). No
corpus text is part of this package: it is read from an installed package, from Python itself or from the user's files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kvassay.core.corpus_names import FASTAPI_DOCS, PATH, CorpusPart, parse_corpus
from kvassay.core.derived_slices import DERIVED, is_derived_cut
from kvassay.core.digest import sha256_bytes, sha256_json
from kvassay.core.slices import ALL, ROLE, slice_labels
from kvassay.errors import WorkloadError


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str


class Document(NamedTuple):
    id: str
    text: str
    slice: str
    """What kind of text it is, as a `slice` cell; verdicts can be given per slice."""
    messages: tuple[Message, ...] = ()
    """The turns, where it is a conversation; a model reads them in its tokenizer's chat template and not as `text`."""


class Corpus(NamedTuple):
    name: str
    documents: tuple[Document, ...]
    source: str
    version: str
    licence: str
    sha256: str
    """Of ids, slices and texts in their order, so it names the content and not the file it came in."""


DEFAULT_CORPUS = "hansard"


def load_corpus(name: str) -> Corpus:
    """A corpus by name (`core.corpus_names`): `hansard`, `python-topics`, `python-source`, `fastapi-docs` in chosen
    languages, or `path:FOLDER_OR_FILE` for own texts.

    Several are joined with `+` (`hansard+python-source`), each keeping its slice. Raises WorkloadError for an unknown
    name, a missing package, and files that cannot be used, with counts and the way out.
    """
    parts = [_load_one(part) for part in parse_corpus(name)]
    if len(parts) == 1:
        return parts[0]
    if len({part.name for part in parts}) < len(parts):
        raise WorkloadError(f"corpus {name!r} names the same corpus twice")
    return build_corpus(
        name,
        (document for part in parts for document in part.documents),
        source="; ".join(part.source for part in parts),
        version="; ".join(part.version for part in parts),
        licence="; ".join(part.licence for part in parts),
    )


def build_corpus(name: str, documents: Iterable[Document], *, source: str, version: str, licence: str) -> Corpus:
    """Assemble a corpus and its digest. Of documents with one text the first is kept: a copy is no new evidence."""
    kept: dict[str, Document] = {}
    for document in documents:
        _check_labels(document)
        kept.setdefault(sha256_bytes(document.text.encode()), document)
    if not kept:
        raise WorkloadError(f"corpus {name!r} has no document with text in it")
    content = [[document.id, document.slice, digest] for digest, document in kept.items()]
    return Corpus(name, tuple(kept.values()), source, version, licence, sha256_json(content))


def _check_labels(document: Document) -> None:
    """A document's labels must be told apart from each other and from those that tokens have."""
    labels = slice_labels(document.slice)
    reserved = [label for label in labels if label == ALL or label.startswith(ROLE) or is_derived_cut(label)]
    if reserved or any(label != label.strip() or not label for label in labels):
        raise WorkloadError(
            f"{document.id}: found the slice {document.slice!r}; expected names joined by commas without spaces, and "
            f"not 'all', {ROLE}..., or one of the derived slices {', '.join(DERIVED)}; rename it"
        )


def _load_one(part: CorpusPart) -> Corpus:
    # Imported here, since each of them builds on this module.
    from kvassay.workloads import hansard, own_texts, python_texts, translated_docs

    if part.name == PATH:
        return own_texts.load(part.text)
    corpora: dict[str, Callable[[], Corpus]] = {
        "hansard": hansard.load,
        "python-topics": python_texts.load_topics,
        "python-source": python_texts.load_source,
        FASTAPI_DOCS: lambda: translated_docs.load(part),
    }
    if part.name not in corpora:
        raise WorkloadError(
            f"unknown corpus {part.name!r}; known: {', '.join(corpora)}, and path:FOLDER_OR_FILE for your own texts"
        )
    return corpora[part.name]()
