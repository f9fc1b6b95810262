"""Outcomes of clauses, formats and runs, with their exit codes (R54, R55, R57, R101)."""

from __future__ import annotations

import pytest

from kvassay.core.contract import parse_contract
from kvassay.core.records import ExitCode, Outcome, Role
from tests.judge.runs import (
    CANARY,
    ArmRun,
    again,
    canary,
    candidate,
    clause_of,
    contract,
    item,
    judged,
    verdict_of,
    with_items,
    with_tokens,
)

TASK = "[task.recall]\nmargin = 0.05\nitems = 64\n"
BOTH = "[fidelity.kl_mean]\nmax = 0.01\n" + TASK


def run_with_items(name="int8-token-head", role=Role.CANDIDATE, format_name=None, mean_kl=0.001, **items):
    return with_items(with_tokens(ArmRun(name, role, format_name), mean_kl), **items)


def controls_with_items():
    return (
        run_with_items(CANARY, Role.CANARY, mean_kl=0.8, losses=50),
        run_with_items("f32 again 1", Role.REFERENCE_AGAIN, "f32", mean_kl=0.0, losses=0),
    )


@pytest.mark.parametrize(
    ("mean_kl", "outcome", "exit_code"),
    [
        (0.002, Outcome.MET, ExitCode.MET),
        (0.0098, Outcome.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
        (0.05, Outcome.BREACHED, ExitCode.BREACHED),
    ],
)
def test_three_outcomes_and_their_exit_codes(mean_kl, outcome, exit_code):
    verdicts = judged(contract(), candidate(mean_kl=mean_kl), canary(), again())
    assert verdicts.outcome is outcome
    assert verdicts.exit_code == exit_code
    assert verdict_of(verdicts, "int8-token-head").outcome is outcome


def test_inconclusive_and_breached_never_share_an_exit_code_and_breached_never_exits_0():
    """CONTRACT: the false passes of exit codes, over every candidate quality and every pair of candidates."""
    qualities = (0.0005, 0.0098, 0.05, None)
    for first in qualities:
        for second in qualities:
            runs = [
                candidate(name, kl) for name, kl in (("int8-token-head", first), ("q8_0", second)) if kl is not None
            ]
            verdicts = judged(contract(order=("int8-token-head", "q8_0")), *runs, canary(), again())
            outcomes = [v.outcome for v in verdicts.formats if v.role is Role.CANDIDATE]
            assert len(outcomes) == 2
            if Outcome.BREACHED in outcomes:
                assert verdicts.exit_code == 1
            elif all(outcome is Outcome.MET for outcome in outcomes):
                assert verdicts.exit_code == 0
            else:
                assert verdicts.exit_code == 3


def test_the_reason_is_one_sentence_with_its_figures():
    verdicts = judged(contract(), candidate(mean_kl=0.002), canary(), again())
    clause = clause_of(verdicts, "int8-token-head")
    assert clause.reason == (
        f"mean KL {clause.estimate:.4g} nats/token, 95% upper bound {clause.upper:.4g} < 0.01 "
        "(24 documents, 384 tokens)"
    )
    assert (clause.n, clause.n_unit, clause.unit, clause.limit) == (24, "documents", "nats/token", 0.01)
    assert clause.lower < clause.estimate < clause.upper
    assert clause.details["design_effect"] > 0


def test_no_candidate_was_run():
    """CONTRACT: no result is an error or not measured, never an empty table with exit 0."""
    verdicts = judged(contract(), canary(), again())
    assert verdicts.outcome is Outcome.NOT_MEASURED
    assert verdicts.exit_code == 3
    assert verdict_of(verdicts, "int8-token-head").outcome is Outcome.NOT_MEASURED


def test_nothing_was_run():
    verdicts = judged(contract())
    assert (verdicts.outcome, verdicts.exit_code) == (Outcome.NOT_MEASURED, 3)


def test_canary_and_reference_never_count_in_the_exit_code():
    verdicts = judged(contract(), candidate(mean_kl=0.001), canary(), again())
    assert verdict_of(verdicts, CANARY).outcome is Outcome.BREACHED
    assert verdicts.exit_code == 0


def test_kl_alone_never_meets_a_contract_with_tasks():
    """CONTRACT: near the baseline KL and benchmark loss are uncorrelated (R84, R101)."""
    verdicts = judged(contract(BOTH), candidate(mean_kl=0.0001), *controls_with_items())
    assert clause_of(verdicts, "int8-token-head").outcome is Outcome.MET
    assert clause_of(verdicts, "int8-token-head", "task.recall").outcome is Outcome.NOT_MEASURED
    assert verdict_of(verdicts, "int8-token-head").outcome is Outcome.INCONCLUSIVE
    assert verdicts.exit_code == 3


def test_an_axis_that_did_not_run_is_not_measured_and_named():
    """CONTRACT: an axis that did not run is not_measured, never "intact"."""
    only_items = with_items(ArmRun("int8-token-head"), losses=0)
    verdicts = judged(contract(BOTH), only_items, *controls_with_items())
    clause = clause_of(verdicts, "int8-token-head")
    assert clause.outcome is Outcome.NOT_MEASURED
    assert (clause.estimate, clause.lower, clause.upper, clause.n) == (None, None, None, 0)
    assert "fidelity.kl_mean" in verdict_of(verdicts, "int8-token-head").reason


def test_task_and_text_together():
    good = run_with_items(losses=0)
    verdicts = judged(contract(BOTH), good, *controls_with_items())
    assert verdicts.outcome is Outcome.MET
    clause = clause_of(verdicts, "int8-token-head", "task.recall")
    assert (clause.estimate, clause.limit, clause.n, clause.n_unit) == (0.0, -0.05, 64, "contexts")
    assert clause.lower > -0.05
    lossy = run_with_items(losses=25)
    verdicts = judged(contract(BOTH), lossy, *controls_with_items())
    assert clause_of(verdicts, "int8-token-head", "task.recall").outcome is Outcome.BREACHED
    assert clause_of(verdicts, "int8-token-head").outcome is Outcome.MET
    assert verdicts.exit_code == 1


@pytest.mark.parametrize("items", [1, 3])
def test_false_pass_one_or_three_items(items):
    """CONTRACT: n = 1 or n = 3 with no discordance at margin 1% is not MET (R54)."""
    text = f"[task.recall]\nmargin = 0.01\nitems = {items}\n"
    runs = [
        with_items(ArmRun(name, role, kv_format), losses=losses, items=items, reference_wrong=0)
        for name, role, kv_format, losses in (
            ("int8-token-head", Role.CANDIDATE, None, 0),
            (CANARY, Role.CANARY, None, items),
            ("f32 again 1", Role.REFERENCE_AGAIN, "f32", 0),
        )
    ]
    verdicts = judged(contract(text), *runs)
    assert clause_of(verdicts, "int8-token-head", "task.recall").outcome is Outcome.INCONCLUSIVE
    assert verdicts.exit_code == 3


def test_few_documents_are_inconclusive():
    """R54: "preserved" is refused on a few prompts."""
    verdicts = judged(contract(), candidate(documents=19), canary(documents=19), again(documents=19))
    clause = clause_of(verdicts, "int8-token-head")
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert clause.estimate is not None
    assert (clause.lower, clause.upper) == (None, None)


@pytest.mark.parametrize("documents", [22, 30])
def test_another_number_of_documents_than_planned_is_inconclusive(documents):
    """CONTRACT: a fixed-n test that may stop when it pleases passes falsely; the plan's n is the contract's."""
    verdicts = judged(
        contract(), candidate(documents=documents), canary(documents=documents), again(documents=documents)
    )
    clause = clause_of(verdicts, "int8-token-head")
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert "24 documents" in clause.reason


def test_another_number_of_contexts_than_planned_is_inconclusive():
    text = "[task.recall]\nmargin = 0.05\nitems = 100\n"
    verdicts = judged(contract(text), run_with_items(losses=0), *controls_with_items())
    assert clause_of(verdicts, "int8-token-head", "task.recall").outcome is Outcome.INCONCLUSIVE


def test_exceedance_and_nll_clauses():
    text = "[fidelity.kl_exceed]\ntau_nats = 0.1\nmax_rate = 0.01\n[fidelity.nll_delta]\nmax = 0.01\n"
    verdicts = judged(contract(text), candidate(mean_kl=0.0005), canary(), again())
    rate = clause_of(verdicts, "int8-token-head", "fidelity.kl_exceed")
    assert rate.outcome is Outcome.MET
    assert (rate.estimate, rate.method, rate.unit) == (0.0, "second-moment", "share")
    assert rate.upper > 0
    assert clause_of(verdicts, "int8-token-head", "fidelity.nll_delta").outcome is Outcome.MET
    assert clause_of(verdicts, CANARY, "fidelity.kl_exceed").outcome is Outcome.BREACHED
    assert clause_of(verdicts, CANARY, "fidelity.nll_delta").outcome is Outcome.BREACHED
    assert verdicts.exit_code == 0


def test_an_exact_candidate_has_no_drift_and_is_met():
    verdicts = judged(contract(order=("f32",)), candidate("f32", 0.0), canary(), again())
    assert verdict_of(verdicts, "f32").outcome is Outcome.MET
    assert {control.passed for control in verdict_of(verdicts, "f32").controls} == {None}


def test_slices_of_text_are_descriptive():
    """R94: each slice is shown with its own figures and does not decide."""
    slices = {index: "code" if index < 21 else "prose" for index in range(24)}
    runs = [candidate(mean_kl=0.001, slices=slices), canary(), again()]
    for run in runs[1:]:
        run.tokens["slice"] = list(runs[0].tokens["slice"])
    verdicts = judged(contract(), *runs)
    code, prose = (clause_of(verdicts, "int8-token-head", part=name) for name in ("code", "prose"))
    assert code.details["descriptive"] is prose.details["descriptive"] is True
    assert (code.outcome, code.n) == (Outcome.MET, 21)
    assert (prose.outcome, prose.n) == (Outcome.INCONCLUSIVE, 3)
    assert verdicts.exit_code == 0


def test_slices_of_a_task_that_the_contract_names_decide():
    text = '[task.recall]\nmargin = 0.05\nitems = 64\nslices = ["depth=late"]\n'
    verdicts = judged(contract(text), run_with_items(losses=0), *controls_with_items())
    late, early = (clause_of(verdicts, "int8-token-head", "task.recall", f"depth={name}") for name in ("late", "early"))
    assert (late.details["descriptive"], early.details["descriptive"]) == (False, True)
    assert late.n == ["depth=late" in item(index).labels for index in range(64)].count(True) > 20
    assert late.outcome is Outcome.INCONCLUSIVE
    assert verdicts.exit_code == 3


def test_bytes_are_counted_by_owner():
    order = ("int8-token-head",)
    run = candidate()
    ledger = run.ledger()
    per_token = ledger.persistent_nbytes_per_token
    for limit, outcome in ((per_token, Outcome.MET), (per_token * 0.999, Outcome.BREACHED)):
        text = f"[bytes]\npersistent_per_token_max = {limit!r}\n"
        verdicts = judged(contract(text, order=order), run)
        clause = clause_of(verdicts, run.name, "bytes.persistent_per_token_max")
        assert clause.outcome is outcome
        assert clause.estimate == per_token
    codes = sum(side["codes"] for side in (ledger.keys_nbytes, ledger.values_nbytes)) / ledger.tokens
    text = f'[bytes]\npersistent_per_token_max = {codes}\ncount = ["codes"]\n'
    clause = clause_of(judged(contract(text, order=order), run), run.name, "bytes.persistent_per_token_max")
    assert (clause.outcome, clause.estimate) == (Outcome.MET, codes)
    assert "without scales" in clause.reason


def test_transient_bytes_that_were_not_measured():
    run = candidate()
    text = "[bytes]\npeak_transient_max = 1e9\n"
    assert judged(contract(text), run).exit_code == 0
    unknown = run.ledger().model_copy(update={"peak_transient_nbytes": None})
    verdicts = judged(contract(text), run, ledgers={run.name: unknown})
    assert clause_of(verdicts, run.name, "bytes.peak_transient_max").outcome is Outcome.NOT_MEASURED
    assert judged(contract(text), run, ledgers={}).exit_code == 3


def test_a_waived_clause_is_judged_and_does_not_decide():
    waiver = '[[waivers]]\nclause = "fidelity.nll_delta"\nreason = "known and accepted"\ngranted = 2026-01-31\n'
    text = "[fidelity.kl_mean]\nmax = 0.05\n[fidelity.nll_delta]\nmax = 0.001\n"
    run = candidate(mean_kl=0.01)
    assert judged(contract(text), run, canary(), again()).exit_code == 1
    verdicts = judged(contract(text + waiver), run, canary(), again())
    clause = clause_of(verdicts, run.name, "fidelity.nll_delta")
    assert clause.outcome is Outcome.BREACHED
    assert clause.details["waived"] is True
    assert "waived since 2026-01-31" in clause.reason
    assert verdicts.exit_code == 0
    assert "1 clause waived" in verdict_of(verdicts, run.name).reason


def test_a_contract_whose_only_clause_is_waived_proves_nothing():
    waiver = '[[waivers]]\nclause = "fidelity.kl_mean"\nreason = "known and accepted"\ngranted = 2026-01-31\n'
    text = "[fidelity.kl_mean]\nmax = 0.05\n" + waiver
    assert judged(contract(text), candidate(), canary(), again()).exit_code == 3


def test_the_hash_of_the_contract_is_in_the_verdicts():
    """CONTRACT: a margin edited after the run changes the hash."""
    edited = parse_contract(
        'schema = "kvassay.contract/1"\nname = "test"\n[candidates]\norder = ["int8-token-head"]\n'
        "[inference]\nbootstrap_replicates = 2000\n[fidelity.kl_mean]\nmax = 0.02\n"
    )
    runs = (candidate(), canary(), again())
    first, second = judged(contract(), *runs), judged(edited, *runs)
    assert first.contract_sha256 == contract().sha256
    assert first.contract_sha256 != second.contract_sha256
