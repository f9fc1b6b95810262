"""The names of text corpora in a contract: what they ask for, and which kinds of text that will give.

`hansard`, `hansard+python-source`, `fastapi-docs?languages=de,ja`, `fastapi-docs:FOLDER?languages=de`, `path:FOLDER`,
`hansard+path:FOLDER`.
Loading is `kvassay.workloads.corpus`; a contract needs the names alone, to refuse a slice that no text has.
"""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.slices import slice_cell
from kvassay.errors import WorkloadError

PATH = "path"
FASTAPI_DOCS = "fastapi-docs"
FASTAPI_LANGUAGES = ("de", "en", "fr", "ja", "ko", "pt", "ru", "zh")
"""Those with 25 pages or more of 512 tokens; Latin, Cyrillic, Chinese, Japanese and Korean script."""
_ONE_KIND = ("hansard", "python-topics", "python-source")


class CorpusPart(NamedTuple):
    """One corpus of a name that joins several with `+`."""

    text: str
    """As it was written."""
    name: str
    path: str | None
    languages: tuple[str, ...]
    """Empty for corpora that are not told apart by language."""

    @property
    def cells(self) -> tuple[str, ...] | None:
        """The `slice` cells of its documents; None where only the files tell."""
        if self.name in _ONE_KIND:
            return (self.name,)
        if self.name == FASTAPI_DOCS:
            return tuple(fastapi_cell(language) for language in self.languages)
        return None


def fastapi_cell(language: str) -> str:
    return slice_cell((FASTAPI_DOCS, f"language={language}"))


def parse_corpus(text: str) -> tuple[CorpusPart, ...]:
    """Raises WorkloadError for a malformed name; whether a corpus of that name exists is not asked."""
    # A path is taken as it stands: its own + and ? mean nothing.
    parts = [text] if text.startswith(f"{PATH}:") else text.split("+")
    return tuple(_parse_part(part.strip()) for part in parts)


def corpus_cells(text: str) -> tuple[str, ...] | None:
    """The kinds of text that documents are shared among, in their order; None where only the files tell."""
    cells: set[str] = set()
    for part in parse_corpus(text):
        if part.cells is None:
            return None
        cells.update(part.cells)
    return tuple(sorted(cells))


def _parse_part(text: str) -> CorpusPart:
    if text.startswith(f"{PATH}:"):
        return CorpusPart(text, PATH, text.removeprefix(f"{PATH}:").strip(), ())
    head, asked, query = text.partition("?")
    name, colon, path = (piece.strip() for piece in head.partition(":"))
    if name != FASTAPI_DOCS:
        if asked or colon:
            raise WorkloadError(f"corpus {text!r}: only {FASTAPI_DOCS} takes a path or a query here; remove it")
        return CorpusPart(text, name, None, ())
    if colon and not path:
        raise WorkloadError(f"corpus {text!r} names no path; write {FASTAPI_DOCS}:FOLDER_OR_FILE, or no colon")
    if not asked:
        return CorpusPart(text, name, path or None, FASTAPI_LANGUAGES)
    key, _, value = query.partition("=")
    languages = tuple(language.strip() for language in value.split(","))
    if key.strip() != "languages" or not all(language.isascii() and language.isalpha() for language in languages):
        raise WorkloadError(f"corpus {text!r}: found the query {query!r}; expected languages=de,ja")
    if len(set(languages)) < len(languages):
        raise WorkloadError(f"corpus {text!r} names a language twice; remove one")
    if unknown := [language for language in languages if language not in FASTAPI_LANGUAGES]:
        raise WorkloadError(
            f"corpus {text!r}: {', '.join(unknown)} has too few translated pages for a verdict; "
            f"languages: {', '.join(FASTAPI_LANGUAGES)}"
        )
    return CorpusPart(text, name, path or None, languages)
