"""Canary, A/A, reference floor and engagement: without them nothing is MET."""

from __future__ import annotations

import numpy as np
import pytest

from kvassay.core.format_names import parse_format
from kvassay.core.records import Outcome, Role
from kvassay.judge.engagement import expected_reads
from tests.judge.runs import (
    CANARY,
    PROMPT_TOKENS,
    ArmRun,
    again,
    canary,
    candidate,
    clause_of,
    contract,
    control_of,
    judged,
    verdict_of,
    with_items,
    with_tokens,
)

NAME = "int8-token-head"
TASK = "[task.recall]\nmargin = 0.05\nitems = 64\n"


def task_runs(canary_losses=50, losses=0, again_losses=0, **items):
    return (
        with_items(ArmRun(NAME), losses, **items),
        with_items(ArmRun(CANARY, Role.CANARY), canary_losses, **items),
        with_items(ArmRun("f32 again 1", Role.REFERENCE_AGAIN, "f32"), again_losses, **items),
    )


def engaged_of(verdicts, arm=NAME):
    return next(control for control in verdict_of(verdicts, arm).controls if control.name == "engaged")


def test_all_controls_pass():
    verdicts = judged(contract(), candidate(), canary(), again())
    assert [(control.name, control.passed) for control in verdicts.controls] == [("canary", True), ("aa", True)]
    assert [control.passed for control in verdict_of(verdicts, NAME).controls] == [True, True]
    assert verdicts.exit_code == 0


@pytest.mark.parametrize("canary_kl", [0.001, 0.0098])
def test_a_canary_that_is_not_breached_stops_every_met(canary_kl):
    verdicts = judged(contract(), candidate(), canary(mean_kl=canary_kl), again())
    assert control_of(verdicts, "canary").passed is False
    clause = clause_of(verdicts, NAME)
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert "would not see damage" in clause.reason
    assert verdicts.exit_code == 3


def test_a_missing_canary_stops_every_met():
    verdicts = judged(contract(), candidate(), again())
    assert control_of(verdicts, "canary").passed is None
    assert verdicts.exit_code == 3


def test_another_canary_than_the_contracts_does_not_count():
    stranger = with_tokens(ArmRun("kv=int2:group32", Role.CANARY), 0.8)
    assert judged(contract(), candidate(), stranger, again()).exit_code == 3


def test_the_canary_is_required_in_each_level():
    """A canary seen by the text alone leaves the task undiscriminating."""
    text = "[fidelity.kl_mean]\nmax = 0.01\n" + TASK
    runs = [with_tokens(run, kl) for run, kl in zip(task_runs(canary_losses=2), (0.001, 0.8, 0.0), strict=True)]
    verdicts = judged(contract(text), *runs)
    assert clause_of(verdicts, NAME).outcome is Outcome.MET
    assert clause_of(verdicts, NAME, "task.recall").outcome is Outcome.INCONCLUSIVE
    assert "task.recall" in control_of(verdicts, "canary").reason
    assert verdicts.exit_code == 3


def test_one_breached_clause_of_a_level_is_enough():
    text = "[fidelity.kl_mean]\nmax = 0.01\n[fidelity.nll_delta]\nmax = 5.0\n"
    verdicts = judged(contract(text), candidate(), canary(), again())
    assert clause_of(verdicts, CANARY, "fidelity.nll_delta").outcome is Outcome.MET
    assert control_of(verdicts, "canary").passed is True
    assert verdicts.exit_code == 0


def test_a_breach_stands_without_a_canary():
    assert judged(contract(), candidate(mean_kl=0.1), canary(mean_kl=0.001), again()).exit_code == 1


def test_a_contract_may_waive_the_canary_by_name():
    text = "[fidelity.kl_mean]\nmax = 0.01\n[controls]\nrequire_canary_fail = false\n"
    verdicts = judged(contract(text), candidate(), again())
    assert control_of(verdicts, "canary").passed is None
    assert verdicts.exit_code == 0


def test_a_missing_reference_run_stops_every_met():
    verdicts = judged(contract(), candidate(), canary())
    assert control_of(verdicts, "aa").passed is None
    assert clause_of(verdicts, NAME).outcome is Outcome.INCONCLUSIVE
    assert verdicts.exit_code == 3


def test_fewer_reference_runs_than_the_contract_asks():
    text = "[fidelity.kl_mean]\nmax = 0.01\n[controls]\naa_runs = 2\n"
    assert judged(contract(text), candidate(), canary(), again()).exit_code == 3
    second = with_tokens(ArmRun("f32 again 2", Role.REFERENCE_AGAIN, "f32"), 0.0)
    assert judged(contract(text), candidate(), canary(), again(), second).exit_code == 0


def test_a_breached_reference_makes_the_clause_invalid_for_all():
    verdicts = judged(contract(), candidate(mean_kl=0.1), canary(), again(mean_kl=0.05))
    assert control_of(verdicts, "aa").passed is False
    assert control_of(verdicts, "canary").passed is False
    assert clause_of(verdicts, NAME).outcome is Outcome.INVALID_EVIDENCE
    assert clause_of(verdicts, "f32 again 1").outcome is Outcome.BREACHED
    assert verdicts.exit_code == 3


def test_false_pass_a_noisier_reference_never_loosens_the_gate():
    """CONTRACT: noise widens intervals and never the margin; B58: the reference's own noise is printed beside."""
    rank = {Outcome.MET: 0, Outcome.INCONCLUSIVE: 1, Outcome.INVALID_EVIDENCE: 1, Outcome.BREACHED: 2}
    for mean_kl in (0.002, 0.0098, 0.02):
        quiet = judged(contract(), candidate(mean_kl=mean_kl), canary(), again())
        outcome = clause_of(quiet, NAME).outcome
        for noise in (0.001, 0.005, 0.0098, 0.05, 1.0):
            noisy = judged(contract(), candidate(mean_kl=mean_kl), canary(), again(mean_kl=noise))
            clause = clause_of(noisy, NAME)
            assert clause.limit == 0.01
            assert clause.upper == clause_of(quiet, NAME).upper, "the noise floor is not subtracted"
            if outcome is not Outcome.MET:
                assert clause.outcome is not Outcome.MET
            assert rank[clause.outcome] >= min(rank[outcome], 1)
    assert "noise floor" in control_of(judged(contract(), candidate(), canary(), again(mean_kl=0.001)), "aa").reason


def test_noise_of_the_task_widens_its_interval():
    """Random flips both ways, as many gains as losses: the change is zero still, and no longer met."""
    text = TASK.replace("64", "100")
    options = {"items": 100, "reference_wrong": 20}
    assert judged(contract(text), *task_runs(losses=0, gains=0, **options)).exit_code == 0
    runs = task_runs(losses=0, **options)
    noisy = with_items(ArmRun(NAME), 10, 10, **options)
    verdicts = judged(contract(text), noisy, *runs[1:])
    clause = clause_of(verdicts, NAME, "task.recall")
    assert clause.estimate == 0
    assert clause.outcome is Outcome.INCONCLUSIVE


def test_a_reference_below_its_floor_cannot_show_a_loss():
    """CONTRACT: such a task is non-discriminative and yields INCONCLUSIVE, never MET."""
    for losses in (0, 20):
        verdicts = judged(contract(TASK), *task_runs(losses=losses, canary_losses=30, reference_wrong=33))
        assert control_of(verdicts, "reference_floor.recall").passed is False
        assert (
            "is right in 31 of 64 items (0.4844) and misses its floor"
            in control_of(verdicts, "reference_floor.recall").reason
        )
        clause = clause_of(verdicts, NAME, "task.recall")
        assert clause.outcome is Outcome.INCONCLUSIVE
        assert "below its floor" in clause.reason
        assert verdicts.exit_code == 3
    at_floor = judged(contract(TASK), *task_runs(canary_losses=30, reference_wrong=32))
    floor = control_of(at_floor, "reference_floor.recall")
    assert floor.passed is True
    assert floor.reason == "the reference is right in 32 of 64 items (0.5) and reaches its floor 0.5"


@pytest.mark.parametrize("reads", ["none", "one token", "few positions", "missing"])
def test_false_pass_a_cache_that_compressed_nothing_or_one_token(reads):
    """CONTRACT: a quantized cache that compressed 0 bytes or 1 token is invalid (B27)."""
    run = candidate(mean_kl=1e-6)
    rows = len(run.tokens["stored_reads"])
    run.tokens["stored_reads"] = {
        "none": [0] * rows,
        "one token": [1] * rows,
        "few positions": [PROMPT_TOKENS if index % 16 > 8 else 0 for index in range(rows)],
        "missing": [None, *run.tokens["stored_reads"][1:]],
    }[reads]
    verdicts = judged(contract(), run, canary(), again())
    assert engaged_of(verdicts).passed is False
    clause = clause_of(verdicts, NAME)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "not engaged" in clause.reason
    assert (verdicts.outcome, verdicts.exit_code) == (Outcome.INVALID_EVIDENCE, 3)


def test_false_pass_nothing_was_encoded():
    run = candidate()
    run.encoded_values = 0
    assert judged(contract(), run, canary(), again()).outcome is Outcome.INVALID_EVIDENCE


def test_false_pass_a_ledger_without_codes():
    """Fewer tokens than the recent window: a ledger of nothing but full precision, priced as if compressed."""
    run = candidate("kivi-4,recent=32")
    text = "[bytes]\npersistent_per_token_max = 100000\n"
    verdicts = judged(contract(text, order=(run.name,)), run, ledgers={run.name: run.ledger(tokens=20)})
    assert clause_of(verdicts, run.name, "bytes.persistent_per_token_max").outcome is Outcome.INVALID_EVIDENCE
    assert verdicts.exit_code == 3


def test_false_pass_no_drift_at_all():
    """Reads are counted and every logit is the reference's: the store was not what attention used."""
    run = candidate(mean_kl=0.0)
    verdicts = judged(contract(), run, canary(), again())
    assert [control.passed for control in verdict_of(verdicts, NAME).controls] == [True, False]
    assert clause_of(verdicts, NAME).outcome is Outcome.INVALID_EVIDENCE
    assert verdicts.exit_code == 3


def test_false_pass_items_that_did_not_read_the_store():
    runs = task_runs()
    runs[0].items["stored_reads"] = [1] * 64
    verdicts = judged(contract(TASK), *runs)
    assert clause_of(verdicts, NAME, "task.recall").outcome is Outcome.INVALID_EVIDENCE
    assert verdicts.exit_code == 3


def test_an_unengaged_canary_shows_nothing():
    bad = canary()
    bad.tokens["stored_reads"] = [0] * len(bad.tokens["stored_reads"])
    verdicts = judged(contract(), candidate(), bad, again())
    assert control_of(verdicts, "canary").passed is False
    assert verdicts.exit_code == 3


def test_engagement_that_is_not_required_is_still_reported():
    text = "[fidelity.kl_mean]\nmax = 0.01\n[controls]\nrequire_engaged = false\n"
    run = candidate()
    run.tokens["stored_reads"] = [0] * len(run.tokens["stored_reads"])
    verdicts = judged(contract(text), run, canary(), again())
    assert engaged_of(verdicts).passed is False
    assert verdicts.exit_code == 0


def test_expected_reads_follow_the_format():
    older = np.array([0, 10, 40, 75, 100])
    assert expected_reads(parse_format("int8-token-head"), older).tolist() == [0, 10, 40, 75, 100]
    windowed = parse_format("int8-token-head,sinks=4,recent=32")
    assert expected_reads(windowed, older).tolist() == [0, 0, 4, 39, 64]
    one_side = parse_format("k=int4:channel32,v=f16")
    assert expected_reads(one_side, older).tolist() == [0, 0, 32, 64, 96]
