"""Inspect's `.json` logs (`--log-format json`, or `inspect log convert --to json`), format version 2.

`status`, `invalidated`, `eval.task`, and `samples` with `id`, `epoch`, `input`, `choices`, `target`, `output` and
`scores` by scorer (the class EvalLog of inspect_ai 0.3.285).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from kvassay.core.digest import sha256_bytes
from kvassay.errors import PackError, printable
from kvassay.pack.strict_json import parse_json
from kvassay.pack.suite_logs import MAX_LOG_NBYTES, Choice, LoggedItem, SuiteLog, add_item, as_object, digest, one_of

_RIGHT, _WRONG = ("C", 1, True), ("I", "N", 0, False)
"""Correct; incorrect and no answer, which Inspect's own accuracy counts alike."""


def read_inspect_log(path: Path, data: bytes, choice: Choice) -> SuiteLog:
    origin = path.name
    log = as_object(parse_json(data, origin, max_nbytes=MAX_LOG_NBYTES, any_integers=True), origin)
    if log.get("version") != 2 or "samples" not in log:
        found = f"{log.get('version')!r:.40}"
        raise PackError(f"{origin}: version is {found}; expected a log of Inspect, version 2, with samples")
    if log.get("status") != "success" or log.get("invalidated"):
        state = "invalidated" if log.get("invalidated") else repr(log.get("status"))[:40]
        raise PackError(f"{origin}: the run is {state}; expected one that ended in success")
    task = as_object(log.get("eval"), f"{origin}: eval").get("task")
    if task != choice.task:
        raise PackError(f"{origin}: the log is of task {task!r:.80}, expected {choice.task!r}")
    samples = log.get("samples")
    if not isinstance(samples, list) or not samples:
        raise PackError(f"{origin}: holds no sample")
    rows = [as_object(sample, f"{origin}: sample {index}") for index, sample in enumerate(cast("list[Any]", samples))]
    scorer = one_of("metric", choice.metric, as_object(rows[0].get("scores"), f"{origin}: scores"), origin)
    items: dict[str, LoggedItem] = {}
    for row in rows:
        key = row.get("id")
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise PackError(f"{origin}: a sample's id is {key!r:.80}, expected text or a whole number")
        where = f"{origin}: sample {printable(str(key))[:80]!r}"
        if row.get("epoch") != 1:
            raise PackError(
                f"{where}: epoch {row.get('epoch')!r:.40}; several epochs of one sample are no independent trials: "
                "run with 1"
            )
        if row.get("error"):
            raise PackError(f"{where} ended in an error; expected a score")
        asked = digest(_without_ids([row.get("input"), row.get("choices"), row.get("target")]))
        item = LoggedItem(asked, _correct(row, scorer, where), digest(_said(row)))
        add_item(items, repr(key), item, origin)
    return SuiteLog(path, sha256_bytes(data), "inspect", scorer, items, likelihoods=False)


def _correct(row: dict[str, Any], scorer: str, where: str) -> bool:
    score = as_object(row.get("scores"), f"{where}: scores").get(scorer)
    value: Any = cast("dict[str, Any]", score).get("value") if isinstance(score, dict) else None
    if isinstance(value, list | dict) or value not in (*_RIGHT, *_WRONG):
        raise PackError(
            f"{where}: {scorer} is {value!r:.80}, expected C or I, 1 or 0: the paired test is of right and wrong"
        )
    return value in _RIGHT


def _said(row: dict[str, Any]) -> Any:
    output = row.get("output")
    choices = cast("dict[str, Any]", output).get("choices") if isinstance(output, dict) else None
    return _without_ids(choices)


def _without_ids(value: Any) -> Any:
    """Messages carry a random id of each run."""
    if isinstance(value, dict):
        return {key: _without_ids(inner) for key, inner in cast("dict[str, Any]", value).items() if key != "id"}
    return [_without_ids(inner) for inner in cast("list[Any]", value)] if isinstance(value, list) else value
