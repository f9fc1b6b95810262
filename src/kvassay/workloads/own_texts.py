"""A user's own texts: `path:FOLDER_OR_FILE`; a .txt or .md file is one document, a .jsonl file has one on each line.

A JSON line is a string or an object with `text` or `messages` and, if wanted, `id` and `slice`. `messages` is a
conversation: a list of objects with `role` and `content`, both strings. Without a slice of its own, a document's slice
is its first folder below the given one, else `own`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from kvassay.errors import WorkloadError
from kvassay.workloads.conversations import plain_conversation
from kvassay.workloads.corpus import Corpus, Document, Message, build_corpus

_SUFFIXES = (".txt", ".md", ".jsonl")
_MAX_NBYTES = 1 << 30
_ROLE = re.compile(r"[a-z][a-z_-]{0,30}")


def load(name: str) -> Corpus:
    """Read `path:...`. Raises WorkloadError for missing, unreadable, empty or non-UTF-8 input, naming the file."""
    given = name.removeprefix("path:").strip()
    if not given:
        raise WorkloadError(f"corpus {name!r} names no path; write path:FOLDER_OR_FILE")
    try:
        root = Path(given).expanduser()
    except RuntimeError as error:
        raise WorkloadError(f"corpus path {given!r} cannot be read: {error}") from error
    files = _files(root)
    total = sum(file.stat().st_size for file in files)
    if total > _MAX_NBYTES:
        raise WorkloadError(
            f"{str(root)!r} holds {total:,} bytes of text; expected at most {_MAX_NBYTES:,}; name a part of it"
        )
    documents: list[Document] = []
    empty = 0
    for file in files:
        for document in _documents(file, root):
            if document.text.strip():
                documents.append(document)
            else:
                empty += 1
    if not documents:
        raise WorkloadError(
            f"{str(root)!r} holds no text: {len(files)} files, {empty} empty documents; "
            "put one document in each file or line"
        )
    twice = [key for key, count in Counter(document.id for document in documents).items() if count > 1]
    if twice:
        raise WorkloadError(
            f"{str(root)!r}: {len(twice)} document ids stand more than once (first: {twice[0]!r}); rename them"
        )
    skipped = f", {empty} empty ones left out" if empty else ""
    return build_corpus(
        name,
        documents,
        source=f"{len(documents)} documents from {len(files)} files of {root.name!r}{skipped}",
        version="as read",
        licence="not stated",
    )


def _files(root: Path) -> list[Path]:
    try:
        if root.is_file():
            if root.suffix.lower() not in _SUFFIXES:
                raise WorkloadError(f"{str(root)!r} has suffix {root.suffix!r}; expected one of {', '.join(_SUFFIXES)}")
            return [root]
        if not root.is_dir():
            found = "is neither a folder nor a plain file" if root.exists() else "does not exist"
            raise WorkloadError(f"corpus path {str(root)!r} {found}; expected a folder or a file")
        every = sorted(path for path in root.rglob("*") if path.is_file())
    except (OSError, ValueError) as error:
        raise WorkloadError(f"corpus path {str(root)!r} cannot be read: {error}") from error
    files = [path for path in every if path.suffix.lower() in _SUFFIXES]
    if not files:
        raise WorkloadError(
            f"{str(root)!r} has no {', '.join(_SUFFIXES)} files ({len(every)} files of other kinds); "
            "expected plain texts"
        )
    return files


def _documents(file: Path, root: Path) -> Iterator[Document]:
    place = file.relative_to(root) if file != root else Path(file.name)
    kind = place.parts[0] if len(place.parts) > 1 else "own"
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"{str(file)!r} is not UTF-8 (byte {error.start}); convert it, for example with: iconv -f LATIN1 -t UTF-8"
        ) from error
    except OSError as error:
        raise WorkloadError(f"{str(file)!r} cannot be read: {error.strerror or error}") from error
    if file.suffix.lower() != ".jsonl":
        yield Document(place.as_posix(), text, kind)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _from_json_line(line, f"{place.as_posix()}:{number}", kind)


def _from_json_line(line: str, place: str, kind: str) -> Document:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(
            f"{place}: not a JSON value; expected a string or an object with 'text' on each line"
        ) from error
    if isinstance(entry, str):
        return Document(place, entry, kind)
    fields = cast(dict[str, object], entry) if isinstance(entry, dict) else {}
    name, label = _label(fields.get("id"), place), _label(fields.get("slice"), kind)
    if "messages" in fields:
        messages = _messages(fields["messages"], place)
        return Document(name, plain_conversation(messages), label, messages)
    text = fields.get("text")
    if not isinstance(text, str):
        raise WorkloadError(f"{place}: expected a string, or an object with 'text' (a string) or 'messages' (a list)")
    return Document(name, text, label)


def _messages(value: object, place: str) -> tuple[Message, ...]:
    turns = cast(list[object], value) if isinstance(value, list) else []
    messages: list[Message] = []
    for turn in turns:
        fields = cast(dict[str, object], turn) if isinstance(turn, dict) else {}
        role, content = fields.get("role"), fields.get("content")
        if not isinstance(role, str) or not isinstance(content, str) or not _ROLE.fullmatch(role):
            raise WorkloadError(
                f"{place}: turn {len(messages) + 1} of 'messages' is {str(turn)[:80]!r}; expected an object with "
                "'role' (system, user, assistant, ...) and 'content', both strings"
            )
        messages.append(Message(role, content))
    if not messages:
        raise WorkloadError(f"{place}: 'messages' holds no turn; expected a list of objects with 'role' and 'content'")
    return tuple(messages)


def _label(value: object, otherwise: str) -> str:
    """An id or slice name: short, of one line."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        label = str(value)
        if 0 < len(label) <= 200 and label.isprintable():
            return label
    return otherwise
