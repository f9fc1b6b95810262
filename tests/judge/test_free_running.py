"""Clauses of the free-running level: what token ids show decides, and rows that cannot be are refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from kvassay.core.records import GENERATION_COLUMNS, ITEM_COLUMNS, TOKEN_COLUMNS, ClauseVerdict, Outcome
from kvassay.errors import PackError
from kvassay.judge import judge
from tests.judge.generation_runs import END, TOKENS, arms, contract, diverging, judged, reference_ids
from tests.judge.runs import candidate, table, verdict_of

CANDIDATE = "int8-token-head"


def clauses(verdicts, arm: str = CANDIDATE) -> dict[tuple[str, str], ClauseVerdict]:
    return {(clause.clause, clause.slice): clause for clause in verdict_of(verdicts, arm).clauses}


def test_r51_equal_outputs_are_met_with_the_uncertainty_of_the_prompts() -> None:
    verdicts = judged(contract(), arms())
    clause = clauses(verdicts)["free_running.diverged", "all"]
    assert clause.outcome is Outcome.MET
    assert clause.estimate == 0
    assert clause.upper == pytest.approx(1 - 0.05 ** (1 / 24))
    assert clause.n_unit == "prompts"
    assert verdict_of(verdicts, CANDIDATE).outcome is Outcome.MET
    assert verdicts.exit_code == 0


def test_r51_an_early_divergence_breaches_and_says_where() -> None:
    clause = clauses(judged(contract(), arms(diverging(0.75, at=4))))["free_running.diverged", "all"]
    assert clause.outcome is Outcome.BREACHED
    assert clause.estimate == 0.75
    assert clause.details["diverged_prompts"] == 18
    assert clause.details["median_tokens_to_divergence"] == 5
    assert clause.method == "exact binomial"


def test_r54_r57_a_few_equal_prompts_are_not_preserved() -> None:
    """20 prompts without any divergence do not show a rate below 5%."""
    clause = clauses(judged(contract("[free_running.diverged]\nmax_rate = 0.05\n"), arms()))
    assert clause["free_running.diverged", "all"].outcome is Outcome.INCONCLUSIVE


def test_r49_lengths_are_slices_of_every_clause() -> None:
    """Outputs that part at the 13th token are whole in the first 8 and part in the first 16."""
    text = (
        "[free_running.diverged]\nmax_rate = 0.3\nslices = ['generated=8']\n[free_running.edit_distance]\nmax = 0.3\n"
    )
    found = clauses(judged(contract(text), arms(diverging(1.0, at=12))))
    assert found["free_running.diverged", "generated=8"].estimate == 0
    assert found["free_running.diverged", "generated=8"].outcome is Outcome.MET
    assert found["free_running.diverged", "generated=8"].details["descriptive"] is False
    assert found["free_running.diverged", "generated=16"].estimate == 1
    assert found["free_running.diverged", "generated=16"].details["descriptive"] is True
    assert found["free_running.edit_distance", "generated=8"].estimate == 0
    assert found["free_running.edit_distance", "generated=16"].estimate == 4 / 16
    assert found["free_running.edit_distance", "all"].estimate == 20 / 32


def test_within_tokens_looks_no_further() -> None:
    text = "[free_running.diverged]\nmax_rate = 0.3\nwithin_tokens = 12\n"
    assert clauses(judged(contract(text), arms(diverging(1.0, 12))))["free_running.diverged", "all"].estimate == 0
    assert clauses(judged(contract(text), arms(diverging(1.0, 11))))["free_running.diverged", "all"].estimate == 1


def test_edit_distance_is_bootstrapped_only_where_enough_outputs_differ() -> None:
    text = "[free_running.edit_distance]\nmax = 0.3\n"
    few = clauses(judged(contract(text), arms(diverging(0.2, at=4))))["free_running.edit_distance", "all"]
    assert few.method == "Hoeffding's bound"
    none = clauses(judged(contract(text), arms()))["free_running.edit_distance", "all"]
    assert none.upper == pytest.approx(1 - 0.05 ** (1 / 24), abs=1e-9), "no change at all is no certainty"

    def spread(prompt: int, ids: list[int]) -> list[int]:
        return [*ids[: prompt + 4], *(token + 1000 for token in ids[prompt + 4 :])]

    many = clauses(judged(contract(text), arms(spread)))["free_running.edit_distance", "all"]
    assert many.method.startswith("bootstrap-t")
    assert many.details["changed_prompts"] == 24
    # The canary changes every output alike: without spread there is no bootstrap, and it is BREACHED all the same.
    canary = clauses(judged(contract(text), arms()), "kivi-2,recent=32")["free_running.edit_distance", "all"]
    assert canary.outcome is Outcome.BREACHED
    assert canary.method == "Hoeffding's bound"


def looping(share: float) -> Callable[[int, list[int]], list[int]]:
    return lambda prompt, ids: [5, 6] * (TOKENS // 2) if prompt < share * 24 else ids


def silent(share: float) -> Callable[[int, list[int]], list[int]]:
    return lambda prompt, ids: [END] if prompt < share * 24 else ids


@pytest.mark.parametrize(("name", "bad"), [("repetition", looping), ("empty", silent)])
def test_degenerate_outputs_may_rise_by_the_margin_only(name, bad) -> None:
    text = f"[free_running.{name}]\nmargin = 0.15\n"
    key = (f"free_running.{name}", "all")
    worse = clauses(judged(contract(text), arms(bad(0.75), canary=bad(0.9))))[key]
    assert worse.outcome is Outcome.BREACHED
    assert worse.estimate == -0.75
    assert worse.details["losses"] == 18
    assert worse.details["reference_share"] == 1
    same = clauses(judged(contract(text), arms(canary=bad(0.9))))[key]
    assert same.outcome is Outcome.MET
    assert (same.details["losses"], same.details["gains"]) == (0, 0)


def test_a_reference_that_loops_itself_leaves_no_rise() -> None:
    """What the format changes counts, not how bad the text is."""
    text = "[free_running.repetition]\nmargin = 0.15\n"
    looped = arms(lambda prompt, ids: ids, reference=lambda prompt: [5, 6, prompt + 7] * 10 + [8, 9])
    clause = clauses(judged(contract(text), looped))["free_running.repetition", "all"]
    assert clause.details["reference_share"] == 0
    assert clause.estimate == 0


def test_a_slice_of_prompts_can_decide() -> None:
    text = "[free_running.diverged]\nmax_rate = 0.3\nslices = ['code', 'verse']\n"
    found = clauses(judged(contract(text), arms(slices=("prose", "code"))))
    assert found["free_running.diverged", "prose"].details["descriptive"] is True
    assert found["free_running.diverged", "code"].outcome is Outcome.INCONCLUSIVE
    assert "from 12 prompts: at least 20 are needed" in found["free_running.diverged", "code"].reason
    assert found["free_running.diverged", "verse"].outcome is Outcome.NOT_MEASURED


def test_without_a_breached_canary_or_the_reference_again_nothing_is_met() -> None:
    found = arms(canary=diverging(0.3))
    clause = clauses(judged(contract(), found))["free_running.diverged", "all"]
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert "the canary 'kivi-2,recent=32' is not breached in free_running" in clause.reason
    del found["again"]
    assert (
        "A/A control lacks evidence for free_running"
        in clauses(judged(contract(), found))["free_running.diverged", "all"].reason
    )


def test_a_missing_arm_is_not_measured() -> None:
    found = arms()
    del found["candidate"]
    verdicts = judged(contract(), found)
    assert verdict_of(verdicts, CANDIDATE).outcome is Outcome.NOT_MEASURED
    assert verdicts.exit_code == 3


def set_all(column: str, value):
    def change(columns) -> None:
        columns[column] = [value] * len(columns[column])

    return change


def set_first(column: str, value):
    def change(columns) -> None:
        columns[column][0] = value(columns[column][0]) if callable(value) else value

    return change


def drop_last(columns) -> None:
    for values in columns.values():
        values.pop()


def double_first(columns) -> None:
    for values in columns.values():
        values.append(values[0])


def copy_prompt(columns) -> None:
    columns["prompt_ids"][1] = columns["prompt_ids"][0]


SHORT = " ".join(map(str, reference_ids(0)[:10]))

FAULTS = {
    "doubled prompt": (double_first, "several rows of one prompt: 'text-00'"),
    "lost prompt": (drop_last, "not paired: lacks the other arms' prompts 'text-23'"),
    "copied prompt": (copy_prompt, "prompts are copies, which are not independent: 'text-01' of 'text-00'"),
    "other prompt": (set_first("prompt_ids", lambda text: "7" + text), "prompt tokens differs between arms"),
    "short prompt": (set_first("prompt_ids", "1 2 3"), "the contract plans prompts of 96 tokens, 'text-00' has 3"),
    "other reference": (set_first("reference_ids", lambda text: "7" + text), "reference output differs between arms"),
    "other slice": (set_first("slice", "prose"), "slice differs between arms"),
    "other end tokens": (set_first("end_ids", "0 3"), "end tokens differs between arms"),
    "cut short": (set_first("candidate_ids", SHORT), "stops after 10 of 32 tokens without an end token"),
    "too long": (set_first("candidate_ids", lambda text: text + " 5"), "has 33 tokens, the contract plans 1 to 32"),
    "no token": (set_first("candidate_ids", ""), "has 0 tokens, the contract plans 1 to 32"),
    "goes on": (set_first("candidate_ids", f"5 {END} 6"), f"goes on for 1 tokens after its end token {END}"),
    "length slice": (set_all("slice", "generated=8"), "slices of lengths are the judge's own"),
    "reads nothing": (set_all("stored_reads", 0.0), "no query read a token from the quantized store"),
    "reads one": (set_all("stored_reads", 1.0), "at least a tenth must be read"),
    "few read": (set_all("reading_queries", 3), "of 744 queries read a stored token; at least half must"),
    "reads missing": (set_all("stored_reads", None), "reading_queries or stored_reads is missing for 24 of 24 prompts"),
    "reads too much": (set_all("stored_reads", 127.0), "more stored reads than queries or older tokens"),
    "too many queries": (set_all("reading_queries", 32), "more stored reads than queries or older tokens"),
    "no drift": (set_all("logit_drift", 0.0), "no logit moved for any of 24 prompts"),
    "drift missing": (set_all("logit_drift", None), "logit_drift is missing for all prompts"),
    "drift not finite": (set_first("logit_drift", float("nan")), "logit_drift is negative or not finite"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_that_cannot_be_are_invalid_evidence(fault) -> None:
    change, message = FAULTS[fault]
    found = arms()
    # What must be equal in every arm is a fault of its own where it is not; so some faults are put into all of them.
    for name in found if fault in ("short prompt", "length slice") else ["candidate"]:
        change(found[name][1])
    clause = clauses(judged(contract(), found))["free_running.diverged", "all"]
    assert clause.outcome is Outcome.INVALID_EVIDENCE, clause.reason
    reasons = [
        clause.reason,
        *(control.reason for control in verdict_of(judged(contract(), found), CANDIDATE).controls),
    ]
    assert any(message in reason for reason in reasons), reasons


def test_b02_a_generation_through_which_no_query_read_codes_is_invalid() -> None:
    """Every output ended with the token of the prompt's own pass, so the store was never read."""
    found = arms(silent(1.0))
    verdict = verdict_of(judged(contract(), found), CANDIDATE)
    assert verdict.outcome is Outcome.INVALID_EVIDENCE
    assert "no query read the store" in verdict.reason
    control = next(control for control in verdict.controls if control.name == "engaged.free_running")
    assert control.passed is False


def test_fewer_prompts_than_planned_decide_nothing() -> None:
    clause = clauses(judged(contract(), arms(prompts=23)))["free_running.diverged", "all"]
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert "the fixed design plans 24 prompts and 23 were run" in clause.reason


def test_ids_in_another_spelling_and_strange_arms_cannot_be_judged() -> None:
    for column, value in (("candidate_ids", "01 2"), ("prompt_ids", "1  2"), ("end_ids", "a")):
        found = arms()
        found["candidate"][1][column][0] = value
        with pytest.raises(PackError, match=column):
            judged(contract(), found)
    found = arms()
    found["candidate"][1]["arm"][0] = "stranger"
    with pytest.raises(PackError, match="stranger"):
        judged(contract(), found)
    with pytest.raises(PackError, match="lack the columns"):
        judge(
            contract(), [], {}, table([], TOKEN_COLUMNS), table([], ITEM_COLUMNS), generations=table([], TOKEN_COLUMNS)
        )


def test_the_order_of_rows_and_arms_does_not_matter() -> None:
    text = "".join(
        f"[free_running.{name}]\n{limit}\n"
        for name, limit in {
            "diverged": "max_rate = 0.3",
            "edit_distance": "max = 0.3",
            "repetition": "margin = 0.1",
            "empty": "margin = 0.1",
        }.items()
    )
    found = arms(diverging(0.5, at=9))
    first = judged(contract(text), found).model_dump_json()
    assert json.loads(first)["formats"][0]["clauses"]
    rng = np.random.default_rng(0)
    shuffled = {}
    for name, (run, columns) in reversed(found.items()):
        order = rng.permutation(len(columns["arm"]))
        shuffled[name] = (run, {column: [values[index] for index in order] for column, values in columns.items()})
    assert judged(contract(text), shuffled).model_dump_json() == first


def test_r51_r52_r53_teacher_forced_and_free_running_figures_never_stand_in_one_clause() -> None:
    """One contract of both levels: each clause rests on the rows of its own level and on nothing of the other's."""
    text = "[fidelity.kl_mean]\nmax = 0.01\n[free_running.diverged]\nmax_rate = 0.3\n"
    found = arms()
    tokens = {
        name: candidate(run.name, 0.8 if name == "canary" else 0.001).tokens if name != "again" else {}
        for name, (run, _) in found.items()
    }
    records = [run.record() for run, _ in found.values()]
    ledgers = {run.name: run.ledger() for run, _ in found.values()}
    generations = table([columns for _, columns in found.values()], GENERATION_COLUMNS)

    def figures(rows, outputs) -> dict[str, tuple]:
        verdicts = judge(contract(text), records, ledgers, rows, table([], ITEM_COLUMNS), generations=outputs)
        return {
            name: (clause.estimate, clause.lower, clause.upper, clause.n, clause.n_unit)
            for (name, part), clause in clauses(verdicts).items()
            if part == "all"
        }

    rows = table(tokens.values(), TOKEN_COLUMNS)
    both = figures(rows, generations)
    assert set(both) == {"fidelity.kl_mean", "free_running.diverged"}
    assert both["fidelity.kl_mean"][-1] == "documents"
    assert both["free_running.diverged"][-1] == "prompts"
    without_tokens = figures(table([], TOKEN_COLUMNS), generations)
    without_outputs = figures(rows, table([], GENERATION_COLUMNS))
    assert without_tokens["free_running.diverged"] == both["free_running.diverged"]
    assert without_tokens["fidelity.kl_mean"][0] is None
    assert without_outputs["fidelity.kl_mean"] == both["fidelity.kl_mean"]
    assert without_outputs["free_running.diverged"][0] is None
    shared = set(GENERATION_COLUMNS) & set(TOKEN_COLUMNS)
    assert shared == {"arm", "slice", "stored_reads"}, "no column of figures is of both levels"
