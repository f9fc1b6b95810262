"""Logs of lm-eval and Inspect from a stranger: each is refused by name, whatever its fields hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fuzz.bounded import Outcome

from kvassay.pack.suite_logs import Choice, read_suite_log
from tests.hostile.odd_files import DATA, PLACES
from tests.pack.test_suite_logs import inspect_log, lm_eval_line
from tests.thorough import pairs

Bounded = Callable[[Callable[[], Any]], Outcome]


def read(path: Path) -> int:
    return len(read_suite_log(path, Choice("sums" if path.suffix == ".json" else "t", None, None)).items)


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a reader imports when it is first used is imported here once, and not in every child."""
    folder = tmp_path_factory.mktemp("valid")
    (folder / "samples_t_1.jsonl").write_text(json.dumps(lm_eval_line(0)))
    assert (read(folder / "samples_t_1.jsonl"), read(inspect_log(folder / "log.json"))) == (1, 4)


def _nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def _line(**changes: Any) -> str:
    return json.dumps(lm_eval_line(0, **changes))


LM_EVAL: dict[str, tuple[str, str]] = {
    "an answer beyond a double": (_line().replace('"acc": 1.0', '"acc": 1e400'), "beyond the range of a double"),
    "an answer that is NaN": (_line(acc=float("nan")), "NaN is no JSON number"),
    "an answer twice": (_line()[:-1] + ', "acc": 0.0}', "stands twice"),
    "an answer that is half right": (_line(acc=0.5), "expected 0 or 1"),
    "an answer that is text": (_line(acc="1"), "expected 0 or 1"),
    "an answer that is a list": (_line(acc=[1]), "expected 0 or 1"),
    "a number of many digits": (_line().replace('"doc_id": 0', '"doc_id": ' + "9" * 10_000), "not valid JSON"),
    "an id that is a truth": (_line(doc_id=True), "doc_id is True"),
    "an id that is a fraction": (_line(doc_id=0.5), "doc_id is 0.5"),
    "no id": (_line(doc_id=...), "doc_id is None"),
    "a hash that is a list": (_line(doc_hash=["a"]), "doc_hash is"),
    "metrics that are no names": (_line(metrics=[1]), "metrics is missing or no list"),
    "a metric that names another field": (_line(metrics=["doc"]), "doc is"),
    "an item twice": (_line() + "\n" + _line(), "item '0' stands twice"),
    "another value on the line": (_line() + "{}", "not valid JSON"),
    "nothing but lines": ("\n\n\n", "holds no sample"),
}


@pytest.mark.parametrize("case", LM_EVAL)
def test_hostile_logs_of_lm_eval_are_refused_by_name(case: str, inside: Path, bounded: Bounded) -> None:
    text, message = LM_EVAL[case]
    path = inside / "samples_t_2026-01-01.jsonl"
    path.write_text(text)
    outcome = bounded(lambda: read(path))
    assert (outcome.status, outcome.error) == ("refused", "PackError"), outcome
    assert message in outcome.message
    assert len(outcome.message) < 1000


INSPECT: dict[str, tuple[dict, dict, str]] = {
    "a question nested a thousandfold": ({}, {"input": _nested(900)}, "nested too deeply"),
    "an answer nested four hundredfold": ({}, {"output": {"choices": _nested(480)}}, "nested too deeply"),
    "another version": ({"version": 3}, {}, "version is 3"),
    "a version that is a list": ({"version": []}, {}, "version is []"),
    "a run that failed": ({"status": "error"}, {}, "the run is 'error'"),
    "another task": ({"eval": {"task": "\u202esmus"}}, {}, "the log is of task"),
    "samples that are none": ({"samples": {}}, {}, "holds no sample"),
    "a sample that is a number": ({"samples": [1]}, {}, "expected a JSON object, found int"),
    "a score that is a list": ({}, {"scores": {"match": {"value": [1]}}}, "match is [1]"),
    "a score that is NaN in words": ({}, {"scores": {"match": {"value": "NaN"}}}, "match is 'NaN'"),
    "several epochs": ({}, {"epoch": 2}, "epoch 2"),
    "an id that is an object": ({}, {"id": {}}, "a sample's id is {}"),
    "a sample twice": ({}, {"id": 1}, "stands twice"),
    "an id that turns around": ({}, {"id": "\u202e", "epoch": 2}, "\\u202e"),
}


@pytest.mark.parametrize("case", INSPECT)
def test_hostile_logs_of_inspect_are_refused_by_name(case: str, inside: Path, bounded: Bounded) -> None:
    changes, sample, message = INSPECT[case]
    path = inspect_log(inside / "log.json", changes, sample)
    outcome = bounded(lambda: read(path))
    assert (outcome.status, outcome.error) == ("refused", "PackError"), outcome
    assert message in outcome.message


@pytest.mark.parametrize(("name", "data"), pairs(["samples_t_2026-01-01.jsonl", "log.json"], list(DATA), each=7))
def test_other_bytes_are_refused(name: str, data: str, inside: Path, bounded: Bounded) -> None:
    (inside / name).write_bytes(DATA[data]())
    assert bounded(lambda: read(inside / name)).error == "PackError"


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_is_refused(place: str, inside: Path, outside: Path, bounded: Bounded) -> None:
    path = inside / "samples_t_2026-01-01.jsonl"
    PLACES[place](path, outside)
    assert bounded(lambda: read(path)).error == "PackError"


def test_a_folder_of_logs_is_not_left_by_its_links(inside: Path, outside: Path, bounded: Bounded) -> None:
    (inside / "logs").symlink_to(outside)
    (outside.parent / "inside" / "loop").symlink_to(inside)
    assert "holds 0 logs" in bounded(lambda: read(inside)).message
