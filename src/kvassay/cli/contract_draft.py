"""From five answers to a contract: bounds by purpose and grade, a sample sized by the power plan, and its cost.

What is assumed here (spread of the documents, discordance of the items, tokens a line and a second) sizes a draft and
decides nothing: `kvassay plan` measures all of it on the model in a pilot.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from kvassay.core.contract import SCHEMA, Contract
from kvassay.errors import ContractError
from kvassay.stats.planning import PairsPlan, plan_documents, plan_pairs

FORMATS = ("int8-token-head", "kivi-4,recent=32", "int4-g32")
MOST_SCORED_TOKENS = 256
LEAST_CONTEXT = 128
LEAST_DOCUMENTS = 24
EXPECTED_SHARE = 0.5
"""A candidate worth judging is expected at half of a limit."""
MEAN_VARIATION, RATE_VARIATION = 0.5, 1.5
"""Coefficient of variation between documents of a mean, and of a rare event's rate."""
DISCORDANCE = 0.05
"""Share of items that the candidate changes. The demo saw 2 of 88 for int8 and 6 of 88 for KIVI-4."""
LINE_TOKENS, ITEM_TOKENS, ANSWER_TOKENS = 10, 40, 14
"""Of a recall item: a line of its list, heading and question with answer, and what is run again for each format.
Measured with SmolLM2's tokenizer: 8.4, 32 and 14."""
MOST_LINES = 400
CORPUS_TOKENS = {"hansard": 1024, "python-source": 4096}
"""Length to which a corpus has texts enough for a pilot and a verdict."""
SEARCHED_MARGINS = tuple(points / 1000 for points in range(5, 201, 5))


class Purpose(StrEnum):
    CHAT = "chat"
    RETRIEVAL = "retrieval"
    CODE = "code"


class Grade(StrEnum):
    STRICT = "strict"
    USUAL = "usual"
    LOOSE = "loose"


class Loss(StrEnum):
    """Clauses that a draft can hold."""

    KL_MEAN = "kl_mean"
    KL_EXCEED = "kl_exceed"
    NLL_DELTA = "nll_delta"
    RECALL = "recall"


class Limits(NamedTuple):
    """What one grade allows."""

    kl_mean_nats: float
    tau_nats: float
    max_rate: float
    nll_nats: float
    margin: float


LIMITS = {
    Grade.STRICT: Limits(kl_mean_nats=0.01, tau_nats=0.1, max_rate=0.01, nll_nats=0.01, margin=0.01),
    Grade.USUAL: Limits(kl_mean_nats=0.03, tau_nats=0.3, max_rate=0.01, nll_nats=0.02, margin=0.02),
    Grade.LOOSE: Limits(kl_mean_nats=0.1, tau_nats=1.0, max_rate=0.01, nll_nats=0.05, margin=0.05),
}


class Defaults(NamedTuple):
    """What a purpose suggests, and why."""

    words: str
    corpus: str
    losses: tuple[Loss, ...]
    grade: Grade
    context: int
    minutes: float
    why_text: str
    why_mean: str
    why_tail: str
    why_recall: str


PURPOSES = {
    Purpose.CHAT: Defaults(
        words="chat",
        corpus="hansard",
        losses=(Loss.KL_MEAN, Loss.KL_EXCEED, Loss.RECALL),
        grade=Grade.USUAL,
        context=512,
        minutes=60,
        why_text="Speeches: connected talk by many people, each a document of its own.",
        why_mean="A reader of a chat notices a changed word less than a changed fact, so the mean may drift somewhat.",
        why_tail="One badly wrong step turns an answer that is read to its end, so such steps must be rare.",
        why_recall="What the user said earlier must still be found; a chat can ask again where it was not.",
    ),
    Purpose.RETRIEVAL: Defaults(
        words="retrieval over long documents",
        corpus="hansard",
        losses=(Loss.KL_MEAN, Loss.RECALL),
        grade=Grade.USUAL,
        context=2048,
        minutes=150,
        why_text='Connected prose. Your own documents are better evidence: corpus = "path:FOLDER".',
        why_mean="The answer is short and stands in the document, so fidelity of the text is the lesser concern.",
        why_tail="A step far off the reference is where a wrong passage is quoted.",
        why_recall="This is the task itself: a figure far back in a long context, found or not found.",
    ),
    Purpose.CODE: Defaults(
        words="code and tool calls",
        corpus="python-source",
        losses=(Loss.KL_MEAN, Loss.KL_EXCEED, Loss.RECALL),
        grade=Grade.STRICT,
        context=512,
        minutes=150,
        why_text="Python's standard library: brackets, indentation and names that must recur exactly.",
        why_mean="Most tokens of code are certain, so a mean that looks small may hide damage at the others.",
        why_tail="One wrong character makes a call invalid or a program wrong: the tail counts, not the mean alone.",
        why_recall="Names and numbers are copied into arguments, and nobody reads a tool call before it runs.",
    ),
}


class Answers(NamedTuple):
    """The five answers, and what may be said besides."""

    purpose: Purpose
    losses: tuple[Loss, ...]
    grade: Grade
    context: int
    """Longest context, in tokens."""
    minutes: float
    """How long the run may take."""
    corpus: str
    formats: tuple[str, ...] = FORMATS
    name: str | None = None
    margin: float | None = None
    """In place of the grade's."""
    tokens_per_second: float = 240.0
    """Of the machine and model; the default is SmolLM2-135M on two cores."""

    @property
    def limits(self) -> Limits:
        limits = LIMITS[self.grade]
        return limits if self.margin is None else limits._replace(margin=self.margin)


class Cost(NamedTuple):
    """Tokens through the model, by what asks for them, and the minutes they take."""

    text_tokens: int
    item_tokens: int
    minutes: float


class Draft(NamedTuple):
    contract: Contract
    cost: Cost
    notes: tuple[str, ...]
    """What the contract leaves out of what was asked."""


def answers_for(purpose: Purpose, **given: Any) -> Answers:
    """The purpose's defaults, with those replaced that are given and not None."""
    defaults = PURPOSES[purpose]
    fields = {"losses": defaults.losses, "grade": defaults.grade, "context": defaults.context}
    fields |= {"minutes": defaults.minutes, "corpus": defaults.corpus}
    return Answers(purpose=purpose, **{**fields, **{key: value for key, value in given.items() if value is not None}})


def draft_contract(answers: Answers) -> Draft:
    """A contract that is expected to be decided within the time; raises ContractError where that cannot be.

    A margin is never widened to fit: what may be lost is the user's to say, and the message says what would fit.
    """
    if answers.context < LEAST_CONTEXT or not answers.losses:
        raise ContractError(
            f"found a longest context of {answers.context} tokens and losses {list(answers.losses)}; expected at least "
            f"{LEAST_CONTEXT} tokens, of which formats keep some at full precision, and at least one loss"
        )
    fields = _fields(answers)
    contract = Contract.model_validate(fields)
    cost = _cost(answers, contract)
    if cost.minutes > answers.minutes:
        raise ContractError(_too_long(answers, cost))
    return Draft(contract, cost, tuple(_notes(answers, contract)))


def _fields(answers: Answers) -> dict[str, Any]:
    """What the contract says, in the form of its TOML; what is not here keeps the models' defaults."""
    limits, chosen = answers.limits, answers.losses
    fidelity: dict[str, Any] = {}
    if Loss.KL_MEAN in chosen:
        fidelity["kl_mean"] = {"max": limits.kl_mean_nats}
    if Loss.KL_EXCEED in chosen:
        fidelity["kl_exceed"] = {"tau_nats": limits.tau_nats, "max_rate": limits.max_rate}
    if Loss.NLL_DELTA in chosen:
        fidelity["nll_delta"] = {"max": limits.nll_nats}
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "name": answers.name or answers.purpose.value,
        "candidates": {"order": list(answers.formats), "multiplicity": "fixed-sequence"},
        "inference": {"alpha": 0.05, "power": 0.8, "seed": 7},
        "controls": {"aa_runs": 1, "canary": "kivi-2,recent=32"},
    }
    if fidelity:
        scored = min(MOST_SCORED_TOKENS, _text_context(answers) // 2)
        fields["text"] = {
            "corpus": answers.corpus,
            "documents": _documents(limits, chosen),
            "prompt_tokens": _text_context(answers) - scored,
            "scored_tokens": scored,
        }
        fields["fidelity"] = fidelity
    if Loss.RECALL in chosen:
        lines = max(4, min(MOST_LINES, (answers.context - ITEM_TOKENS) // LINE_TOKENS))
        items = _items(limits.margin)
        fields["task"] = {"recall": {"margin": limits.margin, "ref_floor": 0.5, "items": items, "context_lines": lines}}
    return fields


def _text_context(answers: Answers) -> int:
    return min(answers.context, CORPUS_TOKENS.get(answers.corpus, answers.context))


def _documents(limits: Limits, losses: tuple[Loss, ...]) -> int:
    """Documents that the most demanding clause needs for the power of the contract."""
    asked = [LEAST_DOCUMENTS]
    for loss, limit, variation in (
        (Loss.KL_MEAN, limits.kl_mean_nats, MEAN_VARIATION),
        (Loss.KL_EXCEED, limits.max_rate, RATE_VARIATION),
        (Loss.NLL_DELTA, limits.nll_nats, MEAN_VARIATION),
    ):
        if loss in losses:
            asked.append(plan_documents(EXPECTED_SHARE * limit, variation, limit).documents or LEAST_DOCUMENTS)
    return max(asked)


@cache
def planned_pairs(margin: float) -> PairsPlan:
    """Items for a margin; the power behind it is enumerated, which takes the better part of a second."""
    return plan_pairs(margin, DISCORDANCE)


def _items(margin: float) -> int:
    pairs = planned_pairs(margin).pairs
    assert pairs is not None, "a difference of zero is inside every margin"
    return pairs


def _item_tokens(contract: Contract, arms: int) -> int:
    """Of one item: its list once, question and answer for the reference and again for every format."""
    lines = contract.task["recall"].context_lines if contract.task else 0
    return lines * LINE_TOKENS + ITEM_TOKENS + arms * ANSWER_TOKENS if lines else 0


def _cost(answers: Answers, contract: Contract) -> Cost:
    """By the same account as the plan's, under `prefill_reads = "exact"`, pilot included."""
    arms = len(answers.formats) + 1 + contract.controls.aa_runs
    inference, text = contract.inference, contract.text
    documents = (text.documents + inference.pilot_documents) if contract.has_fidelity else 0
    text_tokens = documents * (text.prompt_tokens + text.scored_tokens + arms * text.scored_tokens)
    items = contract.task["recall"].items + inference.pilot_items if contract.task else 0
    item_tokens = items * _item_tokens(contract, arms)
    return Cost(text_tokens, item_tokens, (text_tokens + item_tokens) / answers.tokens_per_second / 60)


def _too_long(answers: Answers, cost: Cost) -> str:
    wider = ""
    if cost.item_tokens:
        place = bisect_left(SEARCHED_MARGINS, True, key=lambda margin: _fits(answers, margin))
        fitting = SEARCHED_MARGINS[place] if place < len(SEARCHED_MARGINS) else None
        wider = f"a margin of {100 * fitting:g} points would fit (--margin {fitting:g}), else " if fitting else ""
    return (
        f"this contract is expected to take {math.ceil(cost.minutes)} minutes ({cost.text_tokens:,} tokens of text and "
        f"{cost.item_tokens:,} of task items at {answers.tokens_per_second:g} tokens a second), more than the "
        f"{answers.minutes:g} allowed; {wider}give more --minutes, a shorter --context, fewer --format, or the "
        "--tokens-per-second of your machine"
    )


def _fits(answers: Answers, margin: float) -> bool:
    wider = answers._replace(margin=margin)
    return _cost(wider, Contract.model_validate(_fields(wider))).minutes <= answers.minutes


def _notes(answers: Answers, contract: Contract) -> list[str]:
    notes: list[str] = []
    text = contract.text.prompt_tokens + contract.text.scored_tokens
    if contract.has_fidelity and text < answers.context:
        notes.append(
            f"{answers.corpus} has too few texts of {answers.context:,} tokens, so fidelity is judged to {text:,}; "
            'longer texts of your own: --corpus "path:FOLDER"'
        )
    if contract.task and contract.task["recall"].context_lines == MOST_LINES:
        notes.append(f"recall items have at most {MOST_LINES} lines, about {MOST_LINES * LINE_TOKENS:,} tokens")
    if not contract.task:
        notes.append("no task is bounded: a small KL alone does not show that a task is still solved")
    return notes
