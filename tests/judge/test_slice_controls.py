"""Every slice stands for itself: its own n, canary, A/A and engagement; a blind or noisy slice is never MET."""

from __future__ import annotations

import pytest

from kvassay.core.digest import canonical_json
from kvassay.core.records import Outcome, Role
from kvassay.core.slices import slice_labels
from tests.judge.runs import (
    CANARY,
    PROMPT_TOKENS,
    ArmRun,
    again,
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
DOCUMENTS = 44
KINDS = {index: "a,language=de" if index % 2 else "b,language=ja" for index in range(DOCUMENTS)}
TEXT = '[fidelity.kl_mean]\nmax = 0.01\nslices = ["a", "language=ja"]\n'


def text_contract(text=TEXT, **fields):
    return contract(text, corpus="path:texts", documents=DOCUMENTS, **fields)


def runs(candidate_kl=0.001, canary_kl=0.8, again_kl=0.0, documents=DOCUMENTS):
    return [
        with_tokens(run, kl, documents, KINDS)
        for run, kl in (
            (ArmRun(NAME), candidate_kl),
            (ArmRun(CANARY, Role.CANARY), canary_kl),
            (ArmRun("f32 again 1", Role.REFERENCE_AGAIN, "f32"), again_kl),
        )
    ]


def change(run, label, **values):
    """Set columns of the rows that carry a label."""
    for index, cell in enumerate(run.tokens["slice"]):
        if label in cell.split(","):
            for column, value in values.items():
                run.tokens[column][index] = value


def control(verdicts, arm, name):
    return next(one for one in verdict_of(verdicts, arm).controls if one.name == name)


def test_r45_r48_slices_that_decide_have_their_own_n_and_controls() -> None:
    verdicts = judged(text_contract(), *runs())
    assert verdicts.exit_code == 0
    for part in ("a", "language=ja"):
        clause = clause_of(verdicts, NAME, part=part)
        assert (clause.outcome, clause.n, clause.details["descriptive"]) == (Outcome.MET, 22, False)
        assert control_of(verdicts, f"canary.fidelity.{part}").passed is True
        assert control_of(verdicts, f"aa.fidelity.{part}").passed is True
        assert "noise floor" in control_of(verdicts, f"aa.fidelity.{part}").reason
        assert control(verdicts, NAME, f"engaged.fidelity.{part}").passed is True
    # Those that the contract does not name are shown, without weight and without controls of their own.
    assert clause_of(verdicts, NAME, part="language=de").details["descriptive"] is True
    assert not [one for one in verdicts.controls if "language=de" in one.name]


def test_false_pass_a_slice_in_which_the_canary_does_no_damage_is_blind() -> None:
    """The canary is breached over all rows and in one kind of text; nothing shows that the other would see damage."""
    candidate_run, canary_run, again_run = runs()
    change(canary_run, "language=ja", kl_nats=0.0005)
    verdicts = judged(text_contract(), candidate_run, canary_run, again_run)
    assert control_of(verdicts, "canary").passed is True
    assert control_of(verdicts, "canary.fidelity.a").passed is True
    blind = control_of(verdicts, "canary.fidelity.language=ja")
    assert blind.passed is False
    assert "would not see damage" in blind.reason
    clause = clause_of(verdicts, NAME, part="language=ja")
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert "in slice 'language=ja'" in clause.reason
    assert clause_of(verdicts, NAME).outcome is Outcome.MET
    assert clause_of(verdicts, NAME, part="a").outcome is Outcome.MET
    assert verdicts.exit_code == 3


def test_a_breach_in_a_blind_slice_stands() -> None:
    candidate_run, canary_run, again_run = runs()
    change(canary_run, "language=ja", kl_nats=0.0005)
    change(candidate_run, "language=ja", kl_nats=0.3)
    for index, cell in enumerate(candidate_run.tokens["slice"]):
        candidate_run.tokens["kl_nats"][index] *= 1 + (index // 16 % 5) / 10 if "language=ja" in cell else 1
    verdicts = judged(text_contract(), candidate_run, canary_run, again_run)
    assert clause_of(verdicts, NAME, part="language=ja").outcome is Outcome.BREACHED
    assert verdicts.exit_code == 1


def test_false_pass_noise_of_one_slice_invalidates_it_and_widens_no_margin() -> None:
    """B58: the reference's own noise is told apart by slice; its limit stays, and the quiet slice is not touched."""
    candidate_run, canary_run, again_run = runs()
    for index, cell in enumerate(again_run.tokens["slice"]):
        if "language=ja" in cell:
            again_run.tokens["kl_nats"][index] = 0.05 * (1 + (index // 16 % 7) / 10)
    verdicts = judged(text_contract(), candidate_run, canary_run, again_run)
    noisy = control_of(verdicts, "aa.fidelity.language=ja")
    assert noisy.passed is False
    assert "is breached in fidelity.kl_mean" in noisy.reason
    clause = clause_of(verdicts, NAME, part="language=ja")
    quiet = clause_of(judged(text_contract(), *runs()), NAME, part="language=ja")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert (clause.limit, clause.upper) == (quiet.limit, quiet.upper), "noise moves neither limit nor figure"
    assert control_of(verdicts, "aa.fidelity.a").passed is True
    assert clause_of(verdicts, NAME, part="a").outcome is Outcome.MET
    assert verdicts.exit_code == 3


def test_a_reference_without_evidence_in_a_slice_leaves_it_open() -> None:
    candidate_run, canary_run, again_run = runs()
    change(again_run, "language=ja", kl_nats=None)
    verdicts = judged(text_contract(), candidate_run, canary_run, again_run)
    assert control_of(verdicts, "aa.fidelity.language=ja").passed is None
    assert "lacks evidence" in control_of(verdicts, "aa.fidelity.language=ja").reason
    assert clause_of(verdicts, NAME, part="language=ja").outcome is Outcome.INCONCLUSIVE
    assert verdicts.exit_code == 3


@pytest.mark.parametrize("fault", ["no reads", "no drift"])
def test_false_pass_a_slice_that_did_not_read_the_store(fault) -> None:
    """Half of all queries read it, so the level is engaged; one kind of text never did."""
    candidate_run, canary_run, again_run = runs()
    change(candidate_run, "language=ja", **({"stored_reads": 0} if fault == "no reads" else {"kl_nats": 0.0}))
    verdicts = judged(text_contract(), candidate_run, canary_run, again_run)
    assert control(verdicts, NAME, "engaged").passed is True
    assert control(verdicts, NAME, "engaged.fidelity.language=ja").passed is False
    clause = clause_of(verdicts, NAME, part="language=ja")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "not engaged in slice 'language=ja'" in clause.reason
    assert clause_of(verdicts, NAME, part="a").outcome is Outcome.MET
    assert verdicts.exit_code == 3


def test_false_pass_items_of_a_slice_that_did_not_read_the_store() -> None:
    text = '[task.recall]\nmargin = 0.2\nitems = 150\nslices = ["depth=early", "depth=late"]\n'
    arms = (
        with_items(ArmRun(NAME), 0, items=150),
        with_items(ArmRun(CANARY, Role.CANARY), 140, items=150),
        with_items(ArmRun("f32 again 1", Role.REFERENCE_AGAIN, "f32"), 0, items=150),
    )
    rows = arms[0].items
    rows["stored_reads"] = [0 if "depth=early" in slice_labels(cell) else PROMPT_TOKENS for cell in rows["slice"]]
    verdicts = judged(contract(text), *arms)
    assert clause_of(verdicts, NAME, "task.recall").outcome is Outcome.MET
    assert clause_of(verdicts, NAME, "task.recall", "depth=late").outcome is Outcome.MET
    early = clause_of(verdicts, NAME, "task.recall", "depth=early")
    assert early.outcome is Outcome.INVALID_EVIDENCE
    assert "no query read a token" in early.reason
    assert control(verdicts, NAME, "engaged.task.recall.depth=early").passed is False
    assert verdicts.exit_code == 3


def test_false_pass_another_number_of_documents_than_the_slice_is_planned() -> None:
    """24 + 20 instead of 22 + 22: one kind of text was chosen more often, perhaps since it looks better."""
    arms = runs()
    for run in arms:
        for document in (1, 3):
            name = f"doc-{document:02}"
            for index, found in enumerate(run.tokens["document"]):
                if found == name:
                    run.tokens["slice"][index] = "b,language=ja"
    verdicts = judged(text_contract(), *arms)
    clause = clause_of(verdicts, NAME, part="language=ja")
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert "plans 22 documents and 24 were scored" in clause.reason
    assert clause_of(verdicts, NAME).outcome is Outcome.MET


def test_false_pass_a_whole_kind_of_text_left_out() -> None:
    arms = [with_tokens(run, kl, DOCUMENTS) for run, kl in zip(runs(), (0.001, 0.8, 0.0), strict=True)]
    for run in arms:
        run.tokens["slice"] = ["a,language=de"] * len(run.tokens["slice"])
    verdicts = judged(text_contract(), *arms)
    clause = clause_of(verdicts, NAME, part="language=ja")
    assert (clause.outcome, clause.n) == (Outcome.NOT_MEASURED, 0)
    assert control(verdicts, NAME, "engaged.fidelity.language=ja").passed is None
    assert verdicts.exit_code == 3


def test_a_derived_slice_of_another_number_of_documents_is_open() -> None:
    text = '[fidelity.kl_mean]\nmax = 0.01\nslices = ["position=late"]\n'
    for documents in (23, 25):
        arms = [with_tokens(run, kl, documents) for run, kl in zip(runs(), (0.001, 0.8, 0.0), strict=True)]
        clause = clause_of(judged(contract(text), *arms), NAME, part="position=late")
        assert clause.outcome is Outcome.INCONCLUSIVE
        assert f"plans 24 documents and {documents} were scored" in clause.reason


def test_r47_a_derived_slice_decides_where_the_mean_would_hide_it() -> None:
    """Damage in the last third alone: the mean over all is inside its limit, the slice is not."""
    text = '[fidelity.kl_mean]\nmax = 0.03\nslices = ["position=late"]\n'
    arms = [candidate(), with_tokens(ArmRun(CANARY, Role.CANARY), 0.8), again()]
    for index, position in enumerate(arms[0].tokens["position"]):
        if position - PROMPT_TOKENS >= 11:
            arms[0].tokens["kl_nats"][index] += 0.07 * (1 + (index // 16 % 4) / 10)
    verdicts = judged(contract(text), *arms)
    assert clause_of(verdicts, NAME).outcome is Outcome.MET
    assert clause_of(verdicts, NAME, part="position=late").outcome is Outcome.BREACHED
    assert verdicts.exit_code == 1


@pytest.mark.parametrize("clause", ["reverse_kl_mean", "top1_agreement", "topk_agreement"])
def test_r52_bounds_on_reverse_kl_and_agreement(clause) -> None:
    limit = "max = 0.01" if clause == "reverse_kl_mean" else "max_disagreement = 0.05"
    arms = [with_tokens(run, kl) for run, kl in zip(runs(), (0.001, 0.8, 0.0), strict=True)]
    for run in arms:
        kl = run.tokens["kl_nats"]
        run.tokens["top10_overlap"] = [max(0.0, 1 - value) for value in kl]
    verdicts = judged(contract(f"[fidelity.{clause}]\n{limit}\n"), *arms)
    assert clause_of(verdicts, NAME, f"fidelity.{clause}").outcome is Outcome.MET
    assert clause_of(verdicts, CANARY, f"fidelity.{clause}").outcome is Outcome.BREACHED
    assert verdicts.exit_code == 0


@pytest.mark.parametrize(("column", "clause"), [("top1_agrees", "top1_agreement"), ("top10_overlap", "topk_agreement")])
def test_false_pass_agreement_that_was_not_measured(column, clause) -> None:
    arms = [with_tokens(run, kl) for run, kl in zip(runs(), (0.001, 0.8, 0.0), strict=True)]
    arms[0].tokens[column][5] = None
    verdicts = judged(contract(f"[fidelity.{clause}]\nmax_disagreement = 0.05\n"), *arms)
    found = clause_of(verdicts, NAME, f"fidelity.{clause}")
    assert found.outcome is Outcome.INVALID_EVIDENCE
    assert "1 of 384 positions" in found.reason


def test_no_flip_at_all_is_not_a_zero_wide_interval() -> None:
    arms = [with_tokens(run, kl) for run, kl in zip(runs(), (1e-6, 0.8, 0.0), strict=True)]
    for limit, outcome in ((0.03, Outcome.INCONCLUSIVE), (0.05, Outcome.MET)):
        text = f"[fidelity.top1_agreement]\nmax_disagreement = {limit}\n"
        found = clause_of(judged(contract(text), *arms), NAME, "fidelity.top1_agreement")
        assert (found.estimate, found.method, found.outcome) == (0.0, "filled", outcome)


def test_only_the_assistants_turns_are_judged_where_the_contract_says_so() -> None:
    """R53: damage in what the user wrote is not what the assistant loses."""
    arms = [with_tokens(run, kl) for run, kl in zip(runs(), (0.001, 0.8, 0.0), strict=True)]
    for run in arms:
        run.tokens["slice"] = [
            "chat,role=user" if (position - PROMPT_TOKENS) % 4 == 0 else "chat,role=assistant"
            for position in run.tokens["position"]
        ]
    change(arms[0], "role=user", kl_nats=0.5)
    everything = judged(contract(corpus="path:chats"), *arms)
    assert everything.exit_code == 1
    assistants = judged(contract(corpus="path:chats", scored="assistant"), *arms)
    clause = clause_of(assistants, NAME)
    assert (clause.outcome, clause.details["tokens"]) == (Outcome.MET, 24 * 12)
    assert assistants.exit_code == 0


def test_the_order_of_rows_and_arms_changes_no_byte() -> None:
    arms = runs()
    before = judged(text_contract(), *arms)
    for run in arms:
        for column, values in run.tokens.items():
            run.tokens[column] = values[::-1]
    after = judged(text_contract(), *arms[::-1])
    assert canonical_json(before.model_dump(mode="json")) == canonical_json(after.model_dump(mode="json"))
