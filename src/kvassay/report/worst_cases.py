"""The worst document and position of every arm, and the worst positions as text with the diverging token marked."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

from kvassay.core.records import Arm, Role
from kvassay.pack.reader import PackContent
from kvassay.report.figures import NOT_RECORDED, Shown, number, percent
from kvassay.report.findings import Findings
from kvassay.report.free_fields import number_at, objects_at, text_at
from kvassay.report.outcomes import ROLE_WORDS
from kvassay.report.token_summary import KlSummary
from kvassay.report.visible_text import clipped, clipped_start, visible_lines

MAX_BEFORE_CHARACTERS = 400
MAX_TOKEN_CHARACTERS = 60


class WorstRow(NamedTuple):
    arm: str
    role: str
    document: str
    document_mean: Shown
    worst_position: Shown
    worst_where: str
    p99: Shown
    mean: Shown
    top1_agreement: Shown
    unusable: Shown


class Example(NamedTuple):
    """One decode position. Texts are ready to be shown: hidden characters are visible."""

    document: str
    position: Shown
    kl: Shown
    before: str | None
    true_next: str | None
    reference_next: str | None
    reference_probability: Shown
    candidate_next: str | None
    candidate_probability: Shown
    diverges: bool | None
    """The most likely token differs; None where it is not recorded."""


class ArmExamples(NamedTuple):
    arm: str
    role: str
    examples: tuple[Example, ...]
    left_out: int


def worst_rows(findings: Findings) -> list[WorstRow]:
    """One row an arm with token rows, largest worst-document mean first."""
    roles = _roles(findings.content.arms)
    summaries = sorted(findings.kl, key=lambda s: -(s.worst_document.kl_mean_nats if s.worst_document else -1.0))
    return [_row(summary, roles.get(summary.arm, NOT_RECORDED)) for summary in summaries]


def worst_examples(content: PackContent, per_arm: int) -> list[ArmExamples]:
    """Examples of each arm, largest KL first; the arm with the worst example leads.

    The reference against itself is left out: it differs by rounding, which has no example.
    """
    roles = _roles(content.arms)
    again = {arm.name for arm in content.arms if arm.role is Role.REFERENCE_AGAIN}
    examples = [one for one in objects_at(content.subject, "examples") if text_at(one, "arm") not in again]
    found = sorted(examples, key=_badness, reverse=True)
    order = {arm: index for index, arm in reversed(list(enumerate(text_at(one, "arm") or "" for one in found)))}
    found.sort(key=lambda one: order[text_at(one, "arm") or ""])
    grouped: list[ArmExamples] = []
    for arm, members in groupby(found, key=lambda one: text_at(one, "arm") or ""):
        of_arm = list(members)
        shown = tuple(_example(one) for one in of_arm[:per_arm])
        grouped.append(ArmExamples(arm or NOT_RECORDED, roles.get(arm, NOT_RECORDED), shown, len(of_arm) - len(shown)))
    return grouped


def _roles(arms: tuple[Arm, ...]) -> dict[str, str]:
    return {arm.name: ROLE_WORDS[arm.role] for arm in arms}


def _badness(example: dict[str, Any]) -> float:
    kl = number_at(example, "kl_nats")
    return float("-inf") if kl is None else float(kl)


def _row(summary: KlSummary, role: str) -> WorstRow:
    document, position = summary.worst_document, summary.worst_position
    return WorstRow(
        arm=summary.arm,
        role=role,
        document=document.document if document else NOT_RECORDED,
        document_mean=number(document.kl_mean_nats if document else None),
        worst_position=number(position.kl_nats if position else None),
        worst_where=f"{position.document}, position {position.position}" if position else NOT_RECORDED,
        p99=number(summary.p99_nats),
        mean=number(summary.mean_nats),
        top1_agreement=percent(summary.top1_agreement),
        unusable=number(summary.unusable),
    )


def _example(example: dict[str, Any]) -> Example:
    reference, candidate = text_at(example, "reference_next"), text_at(example, "candidate_next")
    before = text_at(example, "before")
    return Example(
        document=text_at(example, "document") or NOT_RECORDED,
        position=number(number_at(example, "position")),
        kl=number(number_at(example, "kl_nats")),
        before=visible_lines(clipped_start(before, MAX_BEFORE_CHARACTERS)) if before else None,
        true_next=_token(text_at(example, "true_next")),
        reference_next=_token(reference),
        reference_probability=percent(number_at(example, "reference_probability")),
        candidate_next=_token(candidate),
        candidate_probability=percent(number_at(example, "candidate_probability")),
        diverges=None if reference is None or candidate is None else reference != candidate,
    )


def _token(text: str | None) -> str | None:
    """A token as text; spaces at its ends are part of it, so they are drawn."""
    if text is None:
        return None
    text = clipped(text, MAX_TOKEN_CHARACTERS)
    inner = text.strip(" ")
    if not inner:
        return "␣" * len(text)
    start = len(text) - len(text.lstrip(" "))
    return "␣" * start + visible_lines(inner) + "␣" * (len(text) - start - len(inner))
