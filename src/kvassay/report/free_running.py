"""Free-running level: how long outputs stay the reference's, and what becomes of them after. One prompt is one unit.

Descriptive: verdicts come from `kvassay.judge` alone. No figure here is one of the teacher-forced level.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kvassay.core.contract import Contract
from kvassay.core.free_running_rule import edit_distance, first_divergence, is_empty, repeated_share
from kvassay.core.records import Outcome, Role
from kvassay.judge.generation_rows import GenerationRow, read_generations
from kvassay.pack.reader import PackContent
from kvassay.report.figures import Figure, Shown, as_given, number, percent
from kvassay.report.outcomes import ROLE_WORDS
from kvassay.stats.survival import AgreementPoint, agreement_after, agreement_curve, median_divergence

LEVEL = "free_running"


class ArmOutputs(NamedTuple):
    """What the outputs of one arm show beside the reference's."""

    arm: str
    role: Role
    prompts: int
    curve: tuple[AgreementPoint, ...]
    """Share of prompts whose outputs are still equal, with pointwise intervals at two-sided 1 − 2·alpha."""
    at_lengths: tuple[AgreementPoint, ...]
    median_tokens: int | None
    edit_distance: float
    """Mean over prompts."""
    degenerate_reference: int
    degenerate_candidate: int
    empty_reference: int
    empty_candidate: int


class OutputRow(NamedTuple):
    arm: str
    role: str
    prompts: Shown
    median_tokens: Shown
    equal: tuple[tuple[Shown, Shown, Shown], ...]
    """Share, low and high end, at each length."""
    edit_distance: Shown
    degenerate_reference: Shown
    degenerate_candidate: Shown
    empty_reference: Shown
    empty_candidate: Shown


class FreeRunningLevel(NamedTuple):
    rows: tuple[OutputRow, ...]
    lengths: tuple[int, ...]
    interval_level: Shown
    sampling: str
    repeated_share: Shown
    left_out: tuple[str, ...]
    """Arms whose rows may not be used."""


def arm_outputs(content: PackContent) -> list[ArmOutputs]:
    """One an arm that has usable generation rows, in the order of the arms."""
    table = read_generations(content.tables.generations, [arm.name for arm in content.arms])
    unusable = unusable_arms(content)
    return [
        _outputs(arm.name, arm.role, table[arm.name], content.contract)
        for arm in content.arms
        if arm.name in table and arm.name not in unusable
    ]


def unusable_arms(content: PackContent) -> tuple[str, ...]:
    """A clause without an estimate rests on rows that may not be used, so they give no figure in the report either."""
    return tuple(
        verdict.arm
        for verdict in content.verdicts.formats
        if any(
            clause.clause.startswith(f"{LEVEL}.")
            and clause.outcome is Outcome.INVALID_EVIDENCE
            and clause.estimate is None
            for clause in verdict.clauses
        )
    )


def free_running_level(content: PackContent, outputs: tuple[ArmOutputs, ...]) -> FreeRunningLevel:
    """Candidates with the fewest equal outputs first, controls after them."""
    section, alpha = content.contract.free_running, content.contract.inference.alpha
    ordered = sorted(outputs, key=lambda one: (one.role is not Role.CANDIDATE, one.curve[-1].share))
    sampling = "greedy: the likeliest token each time"
    if section.sampling == "seeded":
        sampling = (
            f"seeded sampling at temperature {section.temperature:g} and top-p {section.top_p:g}, with noise that the "
            "reference and every format share"
        )
    return FreeRunningLevel(
        rows=tuple(map(_row, ordered)),
        lengths=shown_lengths(content.contract),
        interval_level=Figure(f"{as_given(round(100 * (1 - 2 * alpha), 10))}%", repr(1 - 2 * alpha)),
        sampling=sampling,
        repeated_share=percent(_repeated_limit(content.contract)),
        left_out=unusable_arms(content),
    )


def shown_lengths(contract: Contract) -> tuple[int, ...]:
    section = contract.free_running
    return (*(length for length in section.lengths if length < section.generated_tokens), section.generated_tokens)


def _outputs(arm: str, role: Role, rows: tuple[GenerationRow, ...], contract: Contract) -> ArmOutputs:
    interval = 1 - 2 * contract.inference.alpha
    horizon, most = contract.free_running.generated_tokens, _repeated_limit(contract)
    divergences = [first_divergence(row.reference, row.candidate) for row in rows]
    return ArmOutputs(
        arm=arm,
        role=role,
        prompts=len(rows),
        curve=tuple(agreement_curve(divergences, horizon, interval)),
        at_lengths=tuple(agreement_after(divergences, length, interval) for length in shown_lengths(contract)),
        median_tokens=median_divergence(divergences, horizon),
        edit_distance=math.fsum(edit_distance(row.reference, row.candidate) for row in rows) / len(rows),
        degenerate_reference=sum(repeated_share(row.reference) > most for row in rows),
        degenerate_candidate=sum(repeated_share(row.candidate) > most for row in rows),
        empty_reference=sum(is_empty(row.reference, row.end_ids) for row in rows),
        empty_candidate=sum(is_empty(row.candidate, row.end_ids) for row in rows),
    )


def _repeated_limit(contract: Contract) -> float:
    """From what share of repeated 4-grams an output counts as degenerate; a half where the contract does not say."""
    bound = contract.free_running.repetition
    return bound.repeated_share if bound else 0.5


def _row(one: ArmOutputs) -> OutputRow:
    return OutputRow(
        arm=one.arm,
        role=ROLE_WORDS[one.role],
        prompts=number(one.prompts),
        median_tokens="not reached" if one.median_tokens is None else number(one.median_tokens),
        equal=tuple(
            (percent(point.share), percent(point.interval.low), percent(point.interval.high))
            for point in one.at_lengths
        ),
        edit_distance=number(one.edit_distance),
        degenerate_reference=number(one.degenerate_reference),
        degenerate_candidate=number(one.degenerate_candidate),
        empty_reference=number(one.empty_reference),
        empty_candidate=number(one.empty_candidate),
    )
