"""Logs of other evaluation suites as items: one trial each, right or wrong, that can be paired with another run's.

A log comes from a stranger: sizes are bounded, JSON is read strictly, and what cannot be one independent yes-or-no
trial an item (another metric, several epochs, an item twice, a run that failed) is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

from kvassay.core.digest import sha256_bytes
from kvassay.core.regular_file import read_regular
from kvassay.errors import PackError, printable

MAX_LOG_NBYTES = 1 << 30
MAX_ITEMS = 1_000_000


class LoggedItem(NamedTuple):
    asked: str
    """Digest of what was asked and what is right: equal in two runs of one task."""
    correct: bool
    said: str
    """Digest of the raw responses."""


class SuiteLog(NamedTuple):
    """One run of one task under one metric."""

    path: Path
    sha256: str
    suite: str
    """`lm-eval` or `inspect`."""
    metric: str
    items: dict[str, LoggedItem]
    """By the suite's own id of the item."""
    likelihoods: bool
    """True where every response is a number: such responses differ in some digit if anything differs."""


class Choice(NamedTuple):
    """Which task, and which of a log's scores."""

    task: str
    metric: str | None
    filter: str | None


def read_suite_log(path: Path, choice: Choice) -> SuiteLog:
    """Read a log file, or the one log of the task in a folder of lm-eval; raises PackError for what is no evidence."""
    try:
        return _read(_one_log(path, choice.task) if path.is_dir() else path, choice)
    except RecursionError as error:
        raise PackError(f"{str(path)!r}: nested too deeply; no log of lm-eval or Inspect is") from error


def _read(file: Path, choice: Choice) -> SuiteLog:
    from kvassay.pack.inspect_log import read_inspect_log
    from kvassay.pack.lm_eval_log import read_lm_eval_log

    if file.suffix == ".jsonl":
        return read_lm_eval_log(file, read_log_bytes(file), choice)
    if file.suffix == ".json":
        return read_inspect_log(file, read_log_bytes(file), choice)
    hint = "; write it with: inspect log convert --to json" if file.suffix == ".eval" else ""
    missing = "" if file.exists() else " does not exist"
    raise PackError(
        f"{str(file)!r}{missing}: expected samples_TASK_TIME.jsonl of lm-eval (--log_samples) or a .json log of "
        f"Inspect{hint}"
    )


def read_log_bytes(path: Path) -> bytes:
    """The bytes of a regular file within the cap; a pipe is refused without waiting for its writer."""
    try:
        return read_regular(path, MAX_LOG_NBYTES)
    except OSError as error:
        raise PackError(f"{str(path)!r} cannot be read as a log: {error.strerror}") from error


def add_item(items: dict[str, LoggedItem], key: str, item: LoggedItem, origin: str) -> None:
    if key in items:
        raise PackError(f"{origin}: item {printable(key)[:80]!r} stands twice; each must be one trial")
    if len(items) >= MAX_ITEMS:
        raise PackError(f"{origin}: more than {MAX_ITEMS:,} items")
    items[key] = item


def one_of(what: str, given: str | None, found: Iterable[str], origin: str) -> str:
    """The given name if the log has it, or its only one; raises PackError listing what there is."""
    names = sorted(set(found))
    if given is None and len(names) == 1:
        return names[0]
    if given not in names:
        asked = f"has no {what} {given!r}" if given is not None else f"has more than one {what}"
        listed = ", ".join(printable(name)[:60] for name in names[:20]) or "none"
        raise PackError(f"{origin}: {asked}; give --{what} with one of: {listed}")
    return given


def as_object(value: Any, origin: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PackError(f"{origin}: expected a JSON object, found {type(value).__name__}")
    return cast("dict[str, Any]", value)


def digest(value: Any) -> str:
    """Of any JSON value, large integers included; equal values have equal digests within one version of Python."""
    import json

    return sha256_bytes(json.dumps(value, sort_keys=True, ensure_ascii=True).encode())


def _one_log(folder: Path, task: str) -> Path:
    found = sorted(path for path in folder.rglob("samples_*.jsonl") if _task_of(path) == task)
    if len(found) != 1:
        names = sorted({_task_of(path) for path in folder.rglob("samples_*.jsonl")})
        other = f"; tasks there: {', '.join(names[:20])}" if names and not found else ""
        raise PackError(
            f"{str(folder)!r} holds {len(found)} logs samples_{task}_TIME.jsonl, expected one{other}; name the file"
        )
    return found[0]


def _task_of(path: Path) -> str:
    """`samples_TASK_TIME.jsonl`: the time has no underscore."""
    return path.stem.removeprefix("samples_").rpartition("_")[0]
