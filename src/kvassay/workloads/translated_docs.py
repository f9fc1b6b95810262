"""The corpus `fastapi-docs`: one software manual in eight languages, a page a document.

The source distribution of FastAPI 0.110.2 (MIT, 12 MB, the last that holds its manual) has pages that volunteers wrote
in one language after the other. Neither package nor text is part of this one: the archive is downloaded as a file, is
never installed, and its SHA-256 is pinned, so the name always means the same texts. Code blocks and markup are left
out, since code is the same in all languages.
"""

from __future__ import annotations

import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from kvassay.core.corpus_names import FASTAPI_DOCS, FASTAPI_LANGUAGES, CorpusPart, fastapi_cell
from kvassay.core.digest import sha256_bytes
from kvassay.errors import WorkloadError
from kvassay.workloads.corpus import Corpus, Document, build_corpus

VERSION = "0.110.2"
ARCHIVE = f"fastapi-{VERSION}.tar.gz"
_SHA256 = "b53d673652da3b65e8cd787ad214ec0fe303cad00d2b529b86ce7db13f17518d"
_MAX_NBYTES = 1 << 25
_MAX_PAGE_NBYTES = 1 << 20
_PAGE = re.compile(rf"fastapi-{re.escape(VERSION)}/docs/([a-z-]+)/docs/(.+)\.md")
_LICENCE = "MIT: Copyright (c) 2018 Sebastián Ramírez"
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_TAG = re.compile(r"<[^<>\n]+>")
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


def default_folder() -> Path:
    """Where the archive is looked for: beside the packages of this Python."""
    return Path(sys.prefix) / "share" / "kvassay"


def load(part: CorpusPart) -> Corpus:
    """Pages of the languages that `part` asks for; raises WorkloadError where the archive is missing or another."""
    languages = part.languages or FASTAPI_LANGUAGES
    documents = [
        Document(f"{FASTAPI_DOCS}/{language}/{page}", text, fastapi_cell(language))
        for language, page, text in _pages(_archive(part.path))
        if language in languages
    ]
    return build_corpus(
        part.text,
        sorted(documents),
        source=f"manual of FastAPI, pages in {', '.join(sorted(languages))}, without code",
        version=f"fastapi {VERSION}, {ARCHIVE} sha256 {_SHA256}",
        licence=_LICENCE,
    )


def _archive(given: str | None) -> Path:
    place = default_folder() if given is None else Path(given).expanduser()
    file = place / ARCHIVE if place.is_dir() or given is None else place
    folder = file.parent
    way_out = (
        f"get it with: {sys.executable} -m pip download --no-deps --no-binary :all: --dest {folder} fastapi=={VERSION}"
    )
    try:
        if file.stat().st_size > _MAX_NBYTES:
            raise WorkloadError(f"{str(file)!r} is not the known archive: larger than {_MAX_NBYTES} bytes; {way_out}")
        found = sha256_bytes(file.read_bytes())
    except FileNotFoundError as error:
        raise WorkloadError(
            f"corpus {FASTAPI_DOCS!r} reads {ARCHIVE}, which is not in {str(folder)!r}; {way_out}"
        ) from error
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{str(file)!r} cannot be read ({error}); {way_out}") from error
    if found != _SHA256:
        raise WorkloadError(f"{str(file)!r} has SHA-256 {found}; expected {_SHA256} (fastapi {VERSION}); {way_out}")
    return file


def _pages(archive: Path) -> Iterator[tuple[str, str, str]]:
    """Language, page and text of every page that holds prose. Nothing is unpacked to disk."""
    with tarfile.open(archive) as file:
        for member in file:
            place = _PAGE.fullmatch(member.name)
            if place is None or not member.isfile() or member.size > _MAX_PAGE_NBYTES:
                continue
            data = file.extractfile(member)
            assert data is not None, "a plain file has content"
            markdown = data.read().decode("utf-8")
            # Pages that a program fills in, and a list of changes that is English in every language.
            if "{%" not in markdown and place[2] != "release-notes" and (text := prose(markdown)):
                yield place[1], place[2], text


def prose(markdown: str) -> str:
    """The text without code blocks, tags, and more than one blank line in a row."""
    kept: list[str] = []
    fence = ""
    for line in markdown.splitlines():
        opened = _FENCE.match(line)
        if fence:
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif opened:
            fence = opened[1]
        else:
            kept.append(line)
    text = _TAG.sub("", "\n".join(kept))
    return _BLANK_LINES.sub("\n\n", text).strip()
