"""Logs of lm-eval and Inspect: real ones are read, hostile and unpaired ones refused, verdicts need their controls."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.cli.app import run
from kvassay.core.records import Outcome
from kvassay.errors import PackError
from kvassay.pack.judge_logs import LogRuns, LogTest, judge_logs
from kvassay.pack.suite_logs import Choice, LoggedItem, SuiteLog, read_suite_log
from kvassay.stats.binary import paired_noninferiority

GOLDEN = Path(__file__).parents[1] / "golden" / "suite_logs"
"""Real logs: lm-eval 0.4.13 over a random tiny model with --log_samples, Inspect 0.3.285 over its mock model."""


def lm_eval_line(doc: int, correct: object = 1.0, likelihood: float = -3.0, **changes: object) -> dict:
    fields = {
        "doc_id": doc,
        "doc": {"question": f"{doc}?", "large": 1 << 70},
        "target": "0",
        "resps": [[[str(likelihood - doc), "False"]], [["-9.5", "False"]]],
        "filtered_resps": [["-3", "False"]],
        "filter": "none",
        "metrics": ["acc"],
        "doc_hash": f"{doc:064x}",
        "prompt_hash": "ab" * 32,
        "target_hash": "cd" * 32,
        "acc": correct,
    }
    return {key: value for key, value in {**fields, **changes}.items() if value is not ...}


def lm_eval_log(path: Path, wrong: set[int], items: int = 400, likelihood: float = -3.0) -> Path:
    lines = [lm_eval_line(doc, float(doc not in wrong), likelihood) for doc in range(items)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def inspect_log(path: Path, changes: dict | None = None, sample: dict | None = None) -> Path:
    samples = [
        {
            "id": index,
            "epoch": 1,
            "input": [{"id": f"random-{index}-{path.stem}", "role": "user", "content": f"{index}+1="}],
            "target": str(index + 1),
            "output": {"choices": [{"message": {"content": f"{index + 1}", "id": path.stem}}]},
            "scores": {"match": {"value": "C" if index else "N"}},
        }
        for index in range(4)
    ]
    samples[2] |= sample or {}
    log = {"version": 2, "status": "success", "eval": {"task": "sums"}, "samples": samples, **(changes or {})}
    path.write_text(json.dumps(log))
    return path


def arguments(reference: Path, candidate: Path, *more: str) -> list[str]:
    margin = [] if "--margin" in more else ["--margin", "0.02"]
    return ["judge-logs", str(reference), str(candidate), "--task", "t", *margin, *more]


@pytest.fixture
def four(tmp_path) -> dict[str, Path]:
    """Reference, a candidate that loses one of 400, a canary that loses half, the reference again."""
    return {
        "reference": lm_eval_log(tmp_path / "samples_t_1.jsonl", {0, 1}),
        "candidate": lm_eval_log(tmp_path / "samples_t_2.jsonl", {0, 1, 2}, likelihood=-3.01),
        "canary": lm_eval_log(tmp_path / "samples_t_3.jsonl", set(range(200)), likelihood=-9),
        "again": lm_eval_log(tmp_path / "samples_t_4.jsonl", {0, 1}),
    }


# Verdicts.


def test_a_task_is_met_only_with_its_controls_and_plain_only_with_the_hash(four, capsys) -> None:
    pair = (four["reference"], four["candidate"])
    assert run(arguments(*pair)) == 3
    text = capsys.readouterr().out
    assert "95% lower bound" in text
    assert "but no log of a known-bad format was given (--canary)" in text
    controls = ["--canary", str(four["canary"]), "--again", str(four["again"])]
    assert run(arguments(*pair, *controls[:2])) == 3
    assert "but no log of the reference run again was given (--again)" in capsys.readouterr().out
    assert run(arguments(*pair, *controls, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["post_hoc"], found["losses"], found["n"]) == ("met post hoc", True, 1, 400)
    assert run(arguments(*pair, *controls, "--json", "--test-sha256", found["test_sha256"])) == 0
    fixed = json.loads(capsys.readouterr().out)
    assert (fixed["outcome"], fixed["post_hoc"]) == ("met", False)
    result = paired_noninferiority(400, 1, 0, 0.02)
    assert (fixed["lower"], fixed["upper"], fixed["p_met"]) == (result.lower, result.upper, result.p_met)
    assert run(arguments(*pair, *controls, "--test-sha256", "0" * 64)) == 2
    assert "differ from what was fixed before the run" in capsys.readouterr().err


def test_a_margin_changed_after_the_run_has_another_hash(four, capsys) -> None:
    hashes = set()
    for more in ([], ["--margin", "0.03"], ["--alpha", "0.1"], ["--ref-floor", "0.2"]):
        run(arguments(four["reference"], four["candidate"], "--json", *more))
        hashes.add(json.loads(capsys.readouterr().out)["test_sha256"])
    assert len(hashes) == 4


def test_a_breach_needs_no_canary(four, capsys) -> None:
    assert run(arguments(four["reference"], four["canary"])) == 1
    assert "BREACHED POST HOC (exit code 1)" in capsys.readouterr().out


def test_a_canary_that_passes_and_a_reference_that_fails_itself_take_the_verdict_away(four, tmp_path, capsys) -> None:
    good, bad = str(four["again"]), str(four["canary"])
    pair = (four["reference"], four["candidate"])
    assert run(arguments(*pair, "--canary", good, "--again", good, "--json")) == 3
    assert json.loads(capsys.readouterr().out)["outcome"] == "inconclusive post hoc"
    assert run(arguments(*pair, "--canary", bad, "--again", bad, "--json")) == 3
    assert json.loads(capsys.readouterr().out)["outcome"] == "invalid_evidence post hoc"


def test_likelihoods_that_equal_the_reference_to_the_last_digit_measured_nothing(four, capsys) -> None:
    """A cache that was passed and never read looks perfect."""
    copy = four["again"]
    copy.write_text(copy.read_text() + "\n")  # other bytes, so that it is not taken for the same file
    more = ["--canary", str(four["canary"]), "--again", str(four["reference"])]
    assert run(arguments(four["reference"], copy, *more, "--json")) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "invalid_evidence post hoc"
    assert "the quantized cache was not used" in found["reason"]


def test_a_reference_below_its_floor_shows_nothing(tmp_path, capsys) -> None:
    wrong = set(range(300))
    reference = lm_eval_log(tmp_path / "samples_t_1.jsonl", wrong)
    candidate = lm_eval_log(tmp_path / "samples_t_2.jsonl", wrong, likelihood=-3.1)
    assert run(arguments(reference, candidate)) == 3
    assert "misses its floor 0.5" in capsys.readouterr().out


@pytest.mark.parametrize("items", [1, 3])
def test_few_items_without_a_loss_are_not_met(items, tmp_path, capsys) -> None:
    """The false pass of other tools: n = 1 or 3 with no discordance at a margin of 1%."""
    logs = [
        lm_eval_log(tmp_path / f"samples_t_{index}.jsonl", wrong, items, likelihood)
        for index, (wrong, likelihood) in enumerate([(set(), -3), (set(), -3.1), (set(range(items)), -9), (set(), -3)])
    ]
    more = ["--canary", str(logs[2]), "--again", str(logs[3]), "--json", "--margin", "0.01"]
    assert run(arguments(logs[0], logs[1], *more)) == 3
    assert json.loads(capsys.readouterr().out)["outcome"] == "inconclusive post hoc"


def test_items_that_ask_the_same_count_once(tmp_path) -> None:
    def log(name: str, correct: bool) -> SuiteLog:
        items = {
            str(index): LoggedItem(f"{index % 50}", correct or index > 0, f"{name}{index}") for index in range(200)
        }
        return SuiteLog(Path(name), name, "lm-eval", "acc", items, False)

    test = LogTest(task="t", metric="acc", margin=0.1)
    verdict = judge_logs(LogRuns(log("a", True), log("b", False), None, None), test)
    assert (verdict.result.n, verdict.copies) == (50, 150)
    assert verdict.outcome is not Outcome.MET


# Pairing.


def test_unpaired_logs_are_refused(four, tmp_path, capsys) -> None:
    fewer = lm_eval_log(tmp_path / "samples_t_5.jsonl", set(), items=399)
    other = lm_eval_log(tmp_path / "samples_t_6.jsonl", set())
    other.write_text(other.read_text().replace("abababab", "efefefef"))
    inspect = inspect_log(tmp_path / "t.json", {"eval": {"task": "t"}})
    for candidate, message in (
        (fewer, "not paired: 1 item stand in one of"),
        (other, "not paired: 400 items ask something else in"),
        (inspect, "is of inspect, match; the reference of lm-eval, acc, filter none"),
        (four["reference"], "is the reference's own log; give the candidate's"),
    ):
        assert run(arguments(four["reference"], candidate)) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


# Reading.


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object, found list"),
        ('{"doc_id": 1, "doc_id": 2}', "the key 'doc_id' stands twice"),
        ('{"acc": NaN}', "NaN is no JSON number"),
        ('{"acc": 1e999}', "beyond the range of a double"),
        ("[" * 100_000, "nested too deeply"),
        ('"\udcff"', "not valid JSON"),
        (lm_eval_line(7), "item '7' stands twice"),
        (lm_eval_line(8, doc_id=...), "doc_id is None, expected a whole number"),
        (lm_eval_line(8, doc_id=True), "doc_id is True"),
        (lm_eval_line(8, doc_hash=...), "doc_hash is None, expected text"),
        (lm_eval_line(8, filter=5), "filter is 5, expected text"),
        (lm_eval_line(8, filter="strict"), "has more than one filter; give --filter with one of: none, strict"),
        (lm_eval_line(8, correct=0.5), "acc is 0.5, expected 0 or 1"),
        (lm_eval_line(8, correct=...), "acc is None, expected 0 or 1"),
        (lm_eval_line(8, correct=[1]), "acc is [1], expected 0 or 1"),
    ],
)
def test_a_hostile_line_is_refused_with_its_place(line, message, tmp_path) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    path = tmp_path / "samples_t_1.jsonl"
    path.write_bytes((json.dumps(lm_eval_line(7)) + "\n" + text).encode("utf-8", "surrogateescape"))
    with pytest.raises(PackError, match=r"samples_t_1\.jsonl") as caught:
        read_suite_log(path, Choice("t", None, None))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("changes", "sample", "message"),
    [
        ({"status": "error"}, {}, "the run is 'error'; expected one that ended in success"),
        ({"status": "cancelled"}, {}, "the run is 'cancelled'"),
        ({"invalidated": True}, {}, "the run is invalidated"),
        ({"version": 1}, {}, "version is 1; expected a log of Inspect, version 2"),
        ({"samples": []}, {}, "holds no sample"),
        ({"eval": {"task": "other"}}, {}, "the log is of task 'other', expected 'sums'"),
        ({}, {"id": 1}, "item '1' stands twice"),
        ({}, {"id": None}, "a sample's id is None"),
        ({}, {"epoch": 2}, "several epochs of one sample are no independent trials"),
        ({}, {"error": {"message": "x"}}, "ended in an error"),
        ({}, {"scores": {"match": {"value": "P"}}}, "match is 'P', expected C or I"),
        ({}, {"scores": {"match": {"value": 0.5}}}, "match is 0.5"),
        ({}, {"scores": {"match": {"value": {"a": 1}}}}, "match is {'a': 1}"),
        ({}, {"scores": {}}, "match is None"),
        ({}, {"scores": None}, "expected a JSON object, found NoneType"),
    ],
)
def test_an_inspect_log_that_is_no_evidence_is_refused(changes, sample, message, tmp_path) -> None:
    path = inspect_log(tmp_path / "log.json", changes, sample)
    with pytest.raises(PackError) as caught:
        read_suite_log(path, Choice("sums", None, None))
    assert message in str(caught.value)


def test_inspect_runs_pair_whatever_ids_their_messages_have(tmp_path) -> None:
    first = read_suite_log(inspect_log(tmp_path / "a.json"), Choice("sums", None, None))
    second = read_suite_log(inspect_log(tmp_path / "b.json"), Choice("sums", None, None))
    assert first.items == second.items
    assert [item.correct for item in first.items.values()] == [False, True, True, True]
    other = read_suite_log(inspect_log(tmp_path / "c.json", {}, {"target": "9"}), Choice("sums", None, None))
    assert other.items["2"].asked != first.items["2"].asked


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("log.eval", "inspect log convert --to json"),
        ("log.txt", "expected samples_TASK_TIME.jsonl"),
        ("no.json", "cannot"),
    ],
)
def test_other_files_are_refused_with_the_way_out(name, message, tmp_path) -> None:
    if not name.startswith("no"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(PackError, match=message):
        read_suite_log(tmp_path / name, Choice("t", None, None))


def test_pipes_huge_and_empty_files_are_refused_at_once(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with (tmp_path / "huge.jsonl").open("wb") as file:
        file.truncate(2 << 30)
    (tmp_path / "empty.jsonl").write_text("\n\n")
    for name, message in (("pipe", "no regular file"), ("huge", "at most"), ("empty", "holds no sample")):
        with pytest.raises(PackError, match=message):
            read_suite_log(tmp_path / f"{name}.jsonl", Choice("t", None, None))


def test_the_one_log_of_a_task_in_a_folder_is_found(tmp_path) -> None:
    folder = tmp_path / "out" / "model"
    folder.mkdir(parents=True)
    lm_eval_log(folder / "samples_my_task_2026-01-31T12-00-00.1.jsonl", set(), 3)
    lm_eval_log(folder / "samples_other_2026-01-31T12-00-00.1.jsonl", set(), 4)
    assert len(read_suite_log(tmp_path / "out", Choice("my_task", None, None)).items) == 3
    with pytest.raises(PackError, match=r"holds 0 logs .*tasks there: my_task, other"):
        read_suite_log(tmp_path / "out", Choice("task", None, None))
    lm_eval_log(folder / "samples_my_task_2026-01-31T13-00-00.1.jsonl", set(), 3)
    with pytest.raises(PackError, match="holds 2 logs"):
        read_suite_log(tmp_path / "out", Choice("my_task", None, None))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["x.jsonl", "x.json"]))
def test_no_bytes_cause_another_error(tmp_path_factory, data, name) -> None:
    path = tmp_path_factory.mktemp("log") / name
    path.write_bytes(data)
    with pytest.raises(PackError):
        read_suite_log(path, Choice("t", None, None))


# Real logs.


def test_real_logs_of_lm_eval_are_read() -> None:
    choice = read_suite_log(GOLDEN / "samples_words_choice_f32.jsonl", Choice("words_choice", None, None))
    other = read_suite_log(GOLDEN / "samples_words_choice_kivi-4.jsonl", Choice("words_choice", None, None))
    assert (choice.suite, choice.metric, choice.likelihoods) == ("lm-eval", "acc, filter none", True)
    assert len(choice.items) == 8
    assert {key: item.asked for key, item in choice.items.items()} == {
        key: item.asked for key, item in other.items.items()
    }
    assert all(choice.items[key].said != other.items[key].said for key in choice.items)
    said = read_suite_log(GOLDEN / "samples_words_say_f32.jsonl", Choice("words_say", "exact_match", None))
    assert (len(said.items), said.likelihoods) == (8, False)


def test_a_real_log_of_inspect_is_read() -> None:
    with pytest.raises(PackError, match="more than one metric; give --metric with one of: includes, match"):
        read_suite_log(GOLDEN / "inspect_sums.json", Choice("sums", None, None))
    log = read_suite_log(GOLDEN / "inspect_sums.json", Choice("sums", "match", None))
    assert [item.correct for item in log.items.values()] == [True, True, False]
