"""Several clauses and several formats: Holm and the fixed sequence (R93, R94)."""

from __future__ import annotations

import pytest

from kvassay.core.records import Outcome
from kvassay.judge.formats import conclude
from tests.judge.runs import again, canary, candidate, clause_of, contract, judged, verdict_of

ORDER = ("int8-token-head", "q8_0", "q4_0")


def run(qualities, **options):
    runs = [candidate(name, kl) for name, kl in zip(ORDER, qualities, strict=True)]
    return judged(contract(order=ORDER, **options), *runs, canary(), again())


def outcomes(verdicts):
    return [verdict_of(verdicts, name).outcome for name in ORDER]


def test_a_sequence_of_three_that_are_met():
    verdicts = run((0.001, 0.002, 0.003))
    assert outcomes(verdicts) == [Outcome.MET] * 3
    assert verdicts.exit_code == 0


def test_the_sequence_stops_at_the_first_that_is_not_met():
    verdicts = run((0.001, 0.0098, 0.001))
    assert outcomes(verdicts) == [Outcome.MET, Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE]
    later = verdict_of(verdicts, "q4_0")
    assert "stopped at 'q8_0', which is inconclusive" in later.reason
    assert later.clauses[0].outcome is Outcome.MET, "the clause keeps its own verdict"


def test_a_breach_after_the_stop_stands():
    verdicts = run((0.0098, 0.001, 0.1))
    assert outcomes(verdicts) == [Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE, Outcome.BREACHED]
    assert verdicts.exit_code == 1


def test_the_order_is_the_contracts_and_not_that_of_the_arms():
    runs = [candidate("q4_0", 0.001), candidate("int8-token-head", 0.0098)]
    verdicts = judged(contract(order=("int8-token-head", "q4_0")), *runs, canary(), again())
    assert [verdict.arm for verdict in verdicts.formats][:2] == ["int8-token-head", "q4_0"]
    assert verdict_of(verdicts, "q4_0").outcome is Outcome.INCONCLUSIVE


def test_holm_judges_all_formats():
    verdicts = run((0.0098, 0.001, 0.002), multiplicity="holm")
    assert outcomes(verdicts) == [Outcome.INCONCLUSIVE, Outcome.MET, Outcome.MET]


def test_holm_corrects_a_claim_that_stands_alone():
    """Two formats just met: alone each stands, together the first needs half the level."""
    level = next(
        kl / 10_000
        for kl in range(60, 100)
        if 0.026 < clause_of(run((kl / 10_000, 0.0098, 0.0098)), ORDER[0]).details["p_met"] <= 0.05
    )
    alone = run((level, 0.0098, 0.0098))
    assert verdict_of(alone, ORDER[0]).outcome is Outcome.MET
    verdicts = run((level, 0.0098, 0.0098), multiplicity="holm")
    assert verdict_of(verdicts, ORDER[0]).outcome is Outcome.INCONCLUSIVE
    assert "not after Holm over 3 formats" in verdict_of(verdicts, ORDER[0]).reason


def test_holm_among_the_clauses_of_a_breach():
    """A breach just at its level alone is not one among three clauses."""
    text = "[fidelity.kl_mean]\nmax = 0.01\n[fidelity.kl_exceed]\ntau_nats = 1.0\nmax_rate = 0.9\n"
    text += "[fidelity.nll_delta]\nmax = 0.9\n"
    alone = next(
        candidate(mean_kl=kl / 10_000)
        for kl in range(100, 140)
        if 0.02
        < (clause_of(judged(contract(), candidate(mean_kl=kl / 10_000)), ORDER[0]).details["p_breached"] or 1)
        <= 0.05
    )
    assert judged(contract(), alone, canary(), again()).exit_code == 1
    verdicts = judged(contract(text), alone, canary(), again())
    clause = clause_of(verdicts, ORDER[0])
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert clause.details["p_breached_holm"] == pytest.approx(3 * clause.details["p_breached"])
    assert "not after Holm over 3 clauses" in clause.reason
    assert verdicts.exit_code == 3


def test_met_needs_every_clause():
    estimate = clause_of(judged(contract(), candidate(mean_kl=0.001), canary(), again()), ORDER[0]).estimate
    text = f"[fidelity.kl_mean]\nmax = 0.01\n[fidelity.nll_delta]\nmax = {1.02 * estimate}\n"
    verdicts = judged(contract(text), candidate(mean_kl=0.001), canary(), again())
    assert clause_of(verdicts, ORDER[0]).outcome is Outcome.MET
    assert clause_of(verdicts, ORDER[0], "fidelity.nll_delta").outcome is Outcome.INCONCLUSIVE
    assert verdict_of(verdicts, ORDER[0]).outcome is Outcome.INCONCLUSIVE
    assert verdict_of(verdicts, ORDER[0]).reason.startswith("fidelity.nll_delta inconclusive")


def test_a_breach_outweighs_invalid_evidence():
    """Bytes are counted whatever the rows are worth."""
    text = "[fidelity.kl_mean]\nmax = 0.01\n[bytes]\npersistent_per_token_max = 1\n"
    bad = candidate()
    bad.tokens["kl_nats"][0] = None
    verdicts = judged(contract(text), bad, canary(), again())
    assert verdicts.exit_code == 1


def test_no_clause_concludes_nothing():
    assert conclude([]).outcome is Outcome.INCONCLUSIVE
