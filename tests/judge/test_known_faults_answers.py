"""Faults of answers that averages hide: empty ones, unreadable ones, and formats that a contract might go easy on."""

from __future__ import annotations

import re

import pytest

from kvassay.core.records import Outcome, Role
from kvassay.core.tasks.kinds import KINDS
from tests.judge import generation_runs, runs
from tests.judge.generation_runs import END
from tests.judge.runs import CANARY, ArmRun, again, canary, candidate, clause_of, contract, item, judged, with_items

PROMPTS = 200


def _emptied(share: float):
    """That share of the prompts is answered by the end token alone."""
    return lambda prompt, ids: [END] if prompt < share * PROMPTS else ids


@pytest.mark.parametrize(
    ("share", "outcome"), [(0.0, Outcome.MET), (0.045, Outcome.INCONCLUSIVE), (0.2, Outcome.BREACHED)]
)
def test_b05_empty_answers_have_a_rate_and_a_bound_of_their_own(share: float, outcome: Outcome) -> None:
    """200 prompts; everything else of the outputs equals the reference's, so no other clause would see it."""
    text = (
        f"[free_running]\nprompts = {PROMPTS}\nprompt_tokens = {generation_runs.PROMPT_TOKENS}\n"
        f"generated_tokens = {generation_runs.TOKENS}\nlengths = []\n[free_running.empty]\nmargin = 0.05\n"
    )
    arms = generation_runs.arms(_emptied(share), _emptied(0.9), prompts=PROMPTS)
    verdicts = generation_runs.judged(runs.contract(text), arms)
    clause = clause_of(verdicts, "int8-token-head", "free_running.empty")
    assert clause.outcome is outcome
    assert clause.n == PROMPTS
    assert clause.estimate == pytest.approx(-share)
    assert (clause.limit, clause.n_unit) == (-0.05, "prompts")


ITEMS = 120
TOOL_CALLS = f"""
[fidelity.kl_mean]
max = 0.01
[task.calls]
kind = "tool-call"
margin = 0.05
items = {ITEMS}
"""


def _calls(run: ArmRun, of, broken: int) -> ArmRun:
    """Items of the task; the answers of the first `broken` lack their last brace."""
    settings = of.task["calls"].settings
    with_items(run, 0, 0, ITEMS, 0, "calls", settings)
    for index in range(broken):
        run.items["candidate_answer"][index] = item(index, "calls", settings).expected.rstrip("}")
        run.items["candidate_correct"][index] = False
    return run


def _parse_rate(run: ArmRun) -> float:
    pairs = zip(run.items["expected"], run.items["candidate_answer"], strict=True)
    scores = [KINDS["tool-call"].scored(expected, answer) for expected, answer in pairs]
    return sum(score.parses is True for score in scores) / len(scores)


def test_b06_calls_that_no_longer_parse_breach_though_fidelity_is_met() -> None:
    """The parse rate falls from 1 to 0.85 while the mean KL stays a tenth of its bound."""
    of = contract(TOOL_CALLS)
    good, bad = _calls(candidate(), of, 0), _calls(candidate(), of, 18)
    assert (_parse_rate(good), _parse_rate(bad)) == (1.0, 0.85)
    controls = [_calls(canary(), of, 100), _calls(again(), of, 0)]
    met, breached = judged(of, good, *controls), judged(of, bad, *controls)
    assert clause_of(met, good.name, "task.calls").outcome is Outcome.MET
    assert clause_of(breached, bad.name, "fidelity.kl_mean").outcome is Outcome.MET
    clause = clause_of(breached, bad.name, "task.calls")
    assert clause.outcome is Outcome.BREACHED
    assert clause.details["candidate_accuracy"] == 0.85
    assert breached.exit_code == 1


def test_b06_whether_a_call_parses_is_told_apart_from_whether_it_is_right() -> None:
    expected = item(0, "calls", contract(TOOL_CALLS).task["calls"].settings).expected
    other = item(1, "calls", contract(TOOL_CALLS).task["calls"].settings).expected
    scored = KINDS["tool-call"].scored
    assert scored(expected, expected) == (True, True)
    assert scored(expected, other) == (True, False), "a wrong call is read, and is wrong"
    assert scored(expected, expected[:-1]) == (False, False)
    assert scored(expected, "I will call the tool.") == (False, False)


@pytest.mark.parametrize("name", ["fp8-e5m2", "kv=fp8-e5m2:token-head", "fp8-e4m3", "int4-g32", "q4_0"])
def test_b15_no_dtype_is_exempt_and_all_are_refused_in_the_same_words(name: str) -> None:
    """Equal rows give equal verdicts whatever format they are of; only its name in them differs."""

    def reason(of: str) -> tuple[Outcome, str]:
        run = ArmRun(of)
        rows = candidate("int8-token-head", mean_kl=0.2).tokens
        run.tokens = {**rows, "arm": [of] * len(rows["arm"])}
        verdicts = judged(contract(order=(of,)), run, canary(mean_kl=0.9), again())
        clause = clause_of(verdicts, of)
        assert next(verdict for verdict in verdicts.formats if verdict.arm == of).outcome is clause.outcome
        return clause.outcome, re.sub(re.escape(of), "FORMAT", clause.reason)

    assert reason(name) == reason("int8-token-head")
    assert reason(name)[0] is Outcome.BREACHED


def test_b15_the_canary_is_the_only_role_that_may_be_bad() -> None:
    """A bad e5m2 candidate ends the run in exit code 1, whatever the canary does."""
    run = ArmRun("fp8-e5m2")
    rows = candidate("int8-token-head", mean_kl=0.2).tokens
    run.tokens = {**rows, "arm": [run.name] * len(rows["arm"])}
    verdicts = judged(contract(order=("fp8-e5m2",)), run, canary(), again())
    assert verdicts.exit_code == 1
    assert {verdict.role for verdict in verdicts.formats if verdict.arm == CANARY} == {Role.CANARY}
