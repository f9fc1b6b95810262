"""The sequential design in the judge: its verdicts, its stopping rule, and stops at a wrong place."""

from __future__ import annotations

import numpy as np
import pytest

from kvassay.core.contract import parse_contract
from kvassay.core.records import Outcome, Role
from kvassay.errors import ContractError
from kvassay.judge.sequential import Paired, stopping_look
from tests.judge.runs import CANARY, ArmRun, clause_of, contract, judged, verdict_of, with_items

NAME = "int8-token-head"
TEXT = "[task.recall]\nmargin = 0.1\nitems = 96\n"


def sequential(text: str = TEXT, **options):
    """A contract of the sequential design with a look every 16 items."""
    base = contract(text, **options)
    inference = base.inference.model_copy(update={"design": "sequential", "look_every": 16})
    return base.model_copy(update={"inference": inference})


def runs(items: int, losses: int = 0, canary_losses: int | None = None):
    """Losses come first, so a canary that loses every item is breached early."""
    lost = items - 8 if canary_losses is None else canary_losses
    return [
        with_items(ArmRun(NAME), losses=losses, items=items),
        with_items(ArmRun(CANARY, Role.CANARY), losses=lost, items=items),
        with_items(ArmRun("f32 again 1", Role.REFERENCE_AGAIN, "f32"), losses=0, items=items),
    ]


def test_it_stops_at_the_first_look_at_which_all_is_settled():
    """Without a discordant pair MET takes 40 items at a margin of 10%, so the look at 48 is the first."""
    verdicts = judged(sequential(), *runs(48))
    clause = clause_of(verdicts, NAME, "task.recall")
    assert clause.outcome is Outcome.MET, clause.reason
    assert (clause.method, clause.n, clause.details["decided_at"]) == ("betting e-process", 48, 40)
    assert clause.details["p_met"] <= 0.05
    assert clause_of(verdicts, CANARY, "task.recall").outcome is Outcome.BREACHED
    assert verdicts.exit_code == 0


@pytest.mark.parametrize(
    ("items", "reason"), [(32, "goes on to the next look"), (45, "goes on"), (64, "stops after 48 items and 64")]
)
def test_rows_after_the_stop_or_a_stop_at_a_wrong_place_are_refused(items, reason):
    verdicts = judged(sequential(), *runs(items))
    clause = clause_of(verdicts, NAME, "task.recall")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert reason in clause.reason
    assert verdicts.exit_code == 3


def test_items_out_of_order_are_refused():
    """An item that was left out, with a later one in its place."""
    found = runs(48)
    later = with_items(ArmRun(NAME), losses=0, items=60).items
    for run in found:
        for column in ("context", "question", "expected", "slice", "context_tokens"):
            run.items[column][5] = later[column][55]
        run.items["reference_answer"][5] = run.items["candidate_answer"][5] = later["expected"][55]
        run.items["candidate_correct"][5] = run.items["reference_correct"][5] = True
    clause = clause_of(judged(sequential(), *found), NAME, "task.recall")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "does not hold the first 48 items in the contract's order" in clause.reason


def test_a_run_that_never_settles_ends_with_the_last_item_and_is_inconclusive():
    found = runs(96)
    for index in range(0, 96, 10):  # ten losses far apart: close to the margin throughout
        found[0].items["candidate_answer"][index], found[0].items["candidate_correct"][index] = "9999", False
    verdicts = judged(sequential(), *found)
    clause = clause_of(verdicts, NAME, "task.recall")
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert clause.lower < -0.1 < clause.upper
    assert "confidence sequence" in clause.reason


def test_the_canary_must_be_settled_too():
    """A canary that loses nothing is settled as not breached, and then nothing is met."""
    verdicts = judged(sequential(), *runs(48, canary_losses=0))
    assert clause_of(verdicts, NAME, "task.recall").outcome is Outcome.INCONCLUSIVE
    assert "would not see damage" in clause_of(verdicts, NAME, "task.recall").reason


def test_the_order_of_rows_does_not_matter_and_the_number_of_an_item_does():
    """Item 10 comes after item 9, whatever the alphabet says."""
    ordered = runs(48, losses=0)
    turned = runs(48, losses=0)
    for run in turned:
        run.items = {name: values[::-1] for name, values in run.items.items()}
    assert judged(sequential(), *ordered) == judged(sequential(), *turned)


def test_a_breach_in_one_clause_settles_an_arm_and_corrections_ask_for_more_wealth():
    of = sequential()
    lost = Paired(np.full(96, -1), {"all": np.ones(96, dtype=bool)})
    kept = Paired(np.zeros(96, dtype=np.int64), {"all": np.ones(96, dtype=bool)})
    assert stopping_look(of, "recall", {"a": (Role.CANDIDATE, lost)}, 96) == 16
    assert stopping_look(of, "recall", {"a": (Role.CANDIDATE, lost), "b": (Role.CANDIDATE, kept)}, 96) == 48
    assert stopping_look(of, "recall", {"b": (Role.CANDIDATE, kept)}, 40) is None
    both = sequential(order=(NAME, "int4-g32", "kivi-4"), multiplicity="holm")
    assert stopping_look(both, "recall", {"b": (Role.CANDIDATE, kept)}, 96) == 64


def test_slices_that_decide_are_awaited():
    text = '[task.recall]\nmargin = 0.1\nitems = 96\nslices = ["depth=late"]\n'
    late = np.arange(96) % 3 == 0
    kept = Paired(np.zeros(96, dtype=np.int64), {"all": np.ones(96, dtype=bool), "depth=late": late})
    assert stopping_look(sequential(text), "recall", {"b": (Role.CANDIDATE, kept)}, 96) is None
    assert stopping_look(sequential(text), "recall", {"b": (Role.CANDIDATE, kept)}, 95) is None


@pytest.mark.parametrize(
    "clause",
    ["kl_mean]\nmax = 0.01", "nll_delta]\nmax = 0.01", "kl_exceed]\ntau_nats = 0.1\nmax_rate = 0.1"],
)
def test_means_over_documents_cannot_be_sequential(clause):
    toml = (
        'schema = "kvassay.contract/1"\nname = "test"\n[candidates]\norder = ["int8-token-head"]\n'
        f'[inference]\ndesign = "sequential"\n[fidelity.{clause}\n'
    )
    with pytest.raises(ContractError, match=r"no \[task.*\] to look at"):
        parse_contract(toml)
    with pytest.raises(ContractError, match=r'fidelity\.\w+ cannot follow.*contract of their own with design "fixed"'):
        parse_contract(toml + "[task.recall]\nmargin = 0.1\n")


def test_design_and_looks_are_part_of_the_hash():
    fixed, looked = contract(TEXT), sequential()
    other = looked.model_copy(update={"inference": looked.inference.model_copy(update={"look_every": 8})})
    assert len({fixed.sha256, looked.sha256, other.sha256}) == 3


def test_the_fixed_design_is_untouched_by_looks():
    verdicts = judged(contract(TEXT), *runs(96))
    assert clause_of(verdicts, NAME, "task.recall").method == "tango-score, exact floor"
    assert verdict_of(verdicts, NAME).outcome is Outcome.MET
