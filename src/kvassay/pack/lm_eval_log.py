"""lm-evaluation-harness's `samples_TASK_TIME.jsonl` (`--log_samples`), as version 0.4.13 writes it.

One JSON object a line and filter: `doc_id`, `doc_hash`, `prompt_hash`, `target_hash`, `filter`, `metrics` (names), a
field of each metric's name, and `resps` (lm_eval/evaluator.py and lm_eval/loggers/evaluation_tracker.py there).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from kvassay.core.digest import sha256_bytes
from kvassay.errors import PackError
from kvassay.pack.strict_json import parse_json
from kvassay.pack.suite_logs import Choice, LoggedItem, SuiteLog, add_item, as_object, digest, one_of

_HASHES = ("doc_hash", "prompt_hash", "target_hash")


def read_lm_eval_log(path: Path, data: bytes, choice: Choice) -> SuiteLog:
    rows: list[tuple[str, dict[str, Any]]] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            origin = f"{path.name}:{number}"
            rows.append((origin, as_object(parse_json(line, origin, any_integers=True), origin)))
    if not rows:
        raise PackError(f"{str(path)!r} holds no sample")
    chosen = one_of("filter", choice.filter, (_text(row, "filter", origin) for origin, row in rows), path.name)
    rows = [(origin, row) for origin, row in rows if row["filter"] == chosen]
    metric = one_of("metric", choice.metric, _metrics(*rows[0]), path.name)
    items: dict[str, LoggedItem] = {}
    likelihoods = True
    for origin, row in rows:
        key = row.get("doc_id")
        if not isinstance(key, int) or isinstance(key, bool):
            raise PackError(f"{origin}: doc_id is {key!r}, expected a whole number")
        asked = digest([_text(row, name, origin) for name in _HASHES])
        add_item(items, str(key), LoggedItem(asked, _correct(row, metric, origin), digest(row.get("resps"))), path.name)
        likelihoods = likelihoods and _is_likelihood(row.get("resps"))
    return SuiteLog(path, sha256_bytes(data), "lm-eval", f"{metric}, filter {chosen}", items, likelihoods)


def _metrics(origin: str, row: dict[str, Any]) -> list[str]:
    found = row.get("metrics")
    if not isinstance(found, list) or not all(isinstance(name, str) for name in cast("list[Any]", found)):
        raise PackError(f"{origin}: metrics is missing or no list of names; expected a log of lm-eval 0.4.5 or later")
    return cast("list[str]", found)


def _text(row: dict[str, Any], name: str, origin: str) -> str:
    found = row.get(name)
    if not isinstance(found, str):
        raise PackError(f"{origin}: {name} is {found!r:.80}, expected text; is this a log of lm-eval --log_samples?")
    return found


def _correct(row: dict[str, Any], metric: str, origin: str) -> bool:
    found = row.get(metric)
    if found not in (0, 1):
        raise PackError(
            f"{origin}: {metric} is {found!r:.80}, expected 0 or 1: the paired test is of right and wrong; "
            "choose another metric"
        )
    return bool(found)


def _is_likelihood(responses: Any) -> bool:
    """`[[["-3.25", "False"]], ...]`: a log likelihood, and whether greedy decoding would say it."""
    if not isinstance(responses, list) or not responses:
        return False
    for each in cast("list[Any]", responses):
        while isinstance(each, list) and each and isinstance(each[0], list):
            each = cast("list[Any]", each[0])
        if not isinstance(each, list) or len(cast("list[Any]", each)) != 2:
            return False
        try:
            float(cast("list[Any]", each)[0])
        except (TypeError, ValueError):
            return False
    return True
