"""Text corpora: sets of documents that are independent of each other, with their source, licence and digest.

A document is the unit of independence of every interval (docs/design/corpus.md says how the default was chosen). No
corpus text is part of this package: it is read from an installed package, from Python itself or from the user's files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kvassay.core.digest import sha256_bytes, sha256_json
from kvassay.errors import WorkloadError


class Document(NamedTuple):
    id: str
    text: str
    slice: str
    """What kind of text it is; verdicts can be given per slice."""


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
    """A corpus by name: `hansard`, `python-topics`, `python-source`, or `path:FOLDER_OR_FILE` for own texts.

    Several are joined with `+` (`hansard+python-source`), each keeping its slice. Raises WorkloadError for an unknown
    name, a missing package, and files that cannot be used, with counts and the way out.
    """
    parts = [_load_one(part.strip()) for part in ([name] if name.startswith("path:") else name.split("+"))]
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
        kept.setdefault(sha256_bytes(document.text.encode()), document)
    if not kept:
        raise WorkloadError(f"corpus {name!r} has no document with text in it")
    content = [[document.id, document.slice, digest] for digest, document in kept.items()]
    return Corpus(name, tuple(kept.values()), source, version, licence, sha256_json(content))


def _load_one(name: str) -> Corpus:
    # Imported here, since each of them builds on this module.
    from kvassay.workloads import hansard, own_texts, python_texts

    if name.startswith("path:"):
        return own_texts.load(name)
    corpora: dict[str, Callable[[], Corpus]] = {
        "hansard": hansard.load,
        "python-topics": python_texts.load_topics,
        "python-source": python_texts.load_source,
    }
    if name not in corpora:
        raise WorkloadError(
            f"unknown corpus {name!r}; known: {', '.join(corpora)}, and path:FOLDER_OR_FILE for your own texts"
        )
    return corpora[name]()
