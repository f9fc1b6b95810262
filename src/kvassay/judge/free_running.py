"""Clauses on free-running outputs: divergence, edit distance, repetition, emptiness. One prompt is one observation.

No clause here takes a figure of the teacher-forced level, and none there takes one of these: what an output says after
its first divergence has no counterpart on a fixed history.

Every clause is judged over whole outputs, over their first tokens at each of the contract's `lengths`, and over the
prompts of each slice. Slices that the contract names decide, others are descriptive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kvassay.core.clauses.free_running import (
    DivergedBound,
    EditDistanceBound,
    EmptyBound,
    FreeRunningBound,
    RepetitionBound,
    length_slice,
)
from kvassay.core.contract import Contract
from kvassay.core.free_running_rule import TokenIds, edit_distance, first_divergence, is_empty, repeated_share
from kvassay.core.slices import ALL
from kvassay.judge.cluster_clauses import ClusterClause, ClusterRows, Details, judge_clusters
from kvassay.judge.generation_engagement import LEVEL
from kvassay.judge.generation_rows import GenerationRow, GenerationTable
from kvassay.judge.judged import JudgedClause
from kvassay.judge.rate_clauses import Pairs, UnitClause, invalid, judge_pairs, judge_rate, not_measured
from kvassay.judge.wording import figure
from kvassay.stats.exceedance import EVENT_DOCUMENTS
from kvassay.stats.rates import binomial_rate, bounded_mean
from kvassay.stats.survival import median_divergence

Rows = Sequence[GenerationRow]


class _View(NamedTuple):
    """Rows of one slice, and how many tokens of their outputs count."""

    label: str
    rows: Rows | None
    """None where the arm has none."""
    length: int | None
    """None for whole outputs."""
    planned: int | None


def free_running_clauses(
    contract: Contract, table: GenerationTable, rows: Rows | None, faults: tuple[str, ...]
) -> Iterator[JudgedClause]:
    """Verdicts of every clause. `rows` are one arm's, None if it has none; `faults` are reasons not to use them."""
    for name, bound in contract.free_running.bounds.items():
        for view in _views(contract, name, bound, table, rows):
            decisive = view.label == ALL or view.label in bound.slices
            clause = _clause(contract, name, bound, view, decisive)
            if not view.rows:
                if decisive:
                    yield not_measured(clause)
            elif faults:
                yield invalid(clause, faults, len(view.rows))
            else:
                yield _judge(contract, clause, bound, view.rows, view.length)


def _views(
    contract: Contract, name: str, bound: FreeRunningBound, table: GenerationTable, rows: Rows | None
) -> Iterator[_View]:
    section = contract.free_running
    yield _View(ALL, rows, None, section.prompts)
    for length in section.judged_lengths(name):
        yield _View(length_slice(length), rows, length, section.prompts)
    labels = sorted({label for some in table.values() for row in some for label in row.labels} - {ALL})
    lengths = set(map(length_slice, section.judged_lengths(name)))
    named = [label for label in bound.slices if label not in lengths and label != ALL]
    for label in (*named, *(label for label in labels if label not in named and len(labels) > 1)):
        part = None if rows is None else [row for row in rows if label in row.labels]
        yield _View(label, part, None, None)


def _clause(contract: Contract, name: str, bound: FreeRunningBound, view: _View, decisive: bool) -> UnitClause:
    length = view.length or contract.free_running.generated_tokens
    match bound:
        case DivergedBound():
            within = view.length or contract.free_running.within_tokens
            unit, words = "share", f"share of prompts that diverge within {within} tokens"
        case EditDistanceBound():
            unit, words = "share", f"mean edit distance over {length} tokens"
        case RepetitionBound():
            least = figure(bound.repeated_share)
            unit, words = "share of prompts", f"share of outputs with at most {least} repeated 4-grams"
        case EmptyBound():
            unit, words = "share of prompts", "share of outputs that are not empty"
    return UnitClause(
        LEVEL, name, bound.limit, unit, words, view.planned, bound.min_prompts, "prompts", view.label, decisive
    )


def _judge(
    contract: Contract, clause: UnitClause, bound: FreeRunningBound, rows: Rows, length: int | None
) -> JudgedClause:
    reference = [_cut(row.reference, length) for row in rows]
    candidate = [_cut(row.candidate, length) for row in rows]
    match bound:
        case DivergedBound():
            return _diverged(contract, clause, reference, candidate, length)
        case EditDistanceBound():
            values = [edit_distance(one, other) for one, other in zip(reference, candidate, strict=True)]
            return _edit_distance(contract, clause, values)
        case RepetitionBound():
            before, after = (
                [repeated_share(ids) <= bound.repeated_share for ids in ids_of] for ids_of in (reference, candidate)
            )
            return judge_pairs(contract, clause, Pairs(before, after), {})
        case EmptyBound():
            before, after = (
                [not is_empty(ids, row.end_ids) for ids, row in zip(ids_of, rows, strict=True)]
                for ids_of in (reference, candidate)
            )
            return judge_pairs(contract, clause, Pairs(before, after), {})


def _diverged(
    contract: Contract,
    clause: UnitClause,
    reference: Sequence[TokenIds],
    candidate: Sequence[TokenIds],
    length: int | None,
) -> JudgedClause:
    within = length or contract.free_running.within_tokens
    found = [first_divergence(one, other) for one, other in zip(reference, candidate, strict=True)]
    events = sum(divergence is not None and divergence < within for divergence in found)
    bound = binomial_rate(events, len(found), clause.limit, contract.inference.alpha)
    details: Details = {"diverged_prompts": events, "median_tokens_to_divergence": median_divergence(found, within)}
    return judge_rate(contract, clause, bound, "exact binomial", details)


def _edit_distance(contract: Contract, clause: UnitClause, values: list[float]) -> JudgedClause:
    """By the bootstrap where enough outputs differ, and differently; else by a bound that needs no spread."""
    changed = sum(value > 0 for value in values)
    details: Details = {"changed_prompts": changed, "largest": max(values)}
    if changed < EVENT_DOCUMENTS or len(set(values)) == 1:
        bound = bounded_mean(values, clause.limit, contract.inference.alpha)
        return judge_rate(contract, clause, bound, "Hoeffding's bound", details)
    cluster = ClusterClause(
        level=clause.level,
        name=clause.name,
        limit=clause.limit,
        unit=clause.unit,
        words=clause.words,
        planned=clause.planned,
        minimum=clause.minimum,
        cluster_unit=clause.n_unit,
        row_unit=clause.n_unit,
        slice=clause.slice,
        decisive=clause.decisive,
    )
    rows = ClusterRows(np.array(values, dtype=np.float64), np.arange(len(values), dtype=np.int64))
    return judge_clusters(contract, cluster, rows, (), details)


def _cut(ids: TokenIds, length: int | None) -> TokenIds:
    return ids if length is None else ids[:length]
