"""The sequential design of paired tasks: in which order pairs count, where the run stops, and whether it did there.

The order is that of the items' numbers, which follows from contract and seed, so nobody can choose it. The run looks
after every `inference.look_every` items and stops at the first look at which nothing can change a verdict of the task,
or with the last planned item. A clause of an arm is settled when its e-process has decided and its wealth is large
enough for every correction that the contract may apply: BREACHED at k/alpha for Holm over k sampled clauses, MET at
F/alpha where Holm corrects over F formats. An arm is settled when all its decisive clauses of the task are, or one
is settled as BREACHED. Arms that matter are the candidates and a required canary.

The judge computes this again from the rows: items after the stop, or a stop where the rule goes on, make the evidence
invalid. Otherwise a run could be cut where it looks good, or go on where it does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.core.contract import Contract
from kvassay.core.format_names import parse_format
from kvassay.core.records import Arm, Role
from kvassay.core.slices import ALL
from kvassay.judge.pairing import Faults
from kvassay.judge.rows import Integers, ItemRows, ItemTable, rows_in_slice
from kvassay.stats.eprocess import Differences, wealths


class Paired(NamedTuple):
    """One arm's items of a task in the order of the run: differences −1, 0 or 1, and each item's slices."""

    differences: Differences
    members: Mapping[str, NDArray[np.bool_]]
    """By slice that decides, `all` among them: which items lie in it."""


def differences_of(rows: ItemRows) -> Differences:
    """Candidate right minus reference right; call it only where neither is missing."""
    return (rows.candidate_correct == 1).astype(np.int64) - (rows.reference_correct == 1).astype(np.int64)


def item_numbers(contexts: Sequence[str], codes: Integers) -> Integers:
    """The number that ends each item's id, −1 where there is none."""
    numbers = [context.rpartition("/")[2] for context in contexts]
    found = [int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1 for text in numbers]
    return np.array([found[code] for code in codes.tolist()], dtype=np.int64)


def in_run_order(contexts: Sequence[str], rows: ItemRows) -> ItemRows:
    """`contexts` are the table's, which the rows' codes stand for."""
    return rows.take(np.argsort(item_numbers(contexts, rows.context), kind="stable"))


def arms_that_matter(contract: Contract, arms: Sequence[tuple[str, Role, str]]) -> list[tuple[str, Role]]:
    """Of (name, role, format digest): candidates of the contract, and its canary if it is required."""
    candidates = {parse_format(text).digest for text in contract.candidates.order}
    canary = contract.controls.canary if contract.controls.require_canary_fail else None
    return [
        (name, role)
        for name, role, digest in arms
        if (role is Role.CANDIDATE and digest in candidates)
        or (role is Role.CANARY and canary is not None and digest == parse_format(canary).digest)
    ]


def deciding_slices(contract: Contract, task: str) -> tuple[str, ...]:
    """Slices of a task that decide; none where it is waived."""
    if any(waiver.clause == f"task.{task}" for waiver in contract.waivers):
        return ()
    bounds = {str(name): bound for name, bound in contract.task.items()}
    return tuple(dict.fromkeys((ALL, *bounds[task].slices)))


def stopping_look(contract: Contract, task: str, arms: Mapping[str, tuple[Role, Paired]], scored: int) -> int | None:
    """The first look, of those up to `scored` items, at which the task is settled; None where there is none yet."""
    bounds = {str(name): bound for name, bound in contract.task.items()}
    looks = np.arange(contract.inference.look_every, scored + 1, contract.inference.look_every)
    settled = np.ones(len(looks), dtype=np.bool_)
    for role, paired in arms.values():
        settled &= _settled(contract, task, bounds[task].margin, role, paired, looks)
    found = np.flatnonzero(settled)
    return int(looks[found[0]]) if len(found) else None


def stop_faults(contract: Contract, task: str, arms: Sequence[Arm], table: ItemTable) -> Faults:
    """Why the items of a task are not those of the stopping rule, for all arms; empty for a fixed design."""
    rows = {arm: found for (of, arm), found in table.arms.items() if of == task}
    if contract.inference.design != "sequential" or not rows:
        return {}
    reason = next(_stop_reasons(contract, task, arms, table, rows), None)
    return dict.fromkeys(rows, (reason,)) if reason else {}


def _stop_reasons(
    contract: Contract, task: str, arms: Sequence[Arm], table: ItemTable, rows: Mapping[str, ItemRows]
) -> Iterator[str]:
    begin = contract.inference.pilot_items
    planned = {str(name): bound.items for name, bound in contract.task.items()}[task]
    ordered = {arm: in_run_order(table.contexts, found) for arm, found in rows.items()}
    scored = max(found.size for found in rows.values())
    for arm, found in ordered.items():
        numbers = item_numbers(table.contexts, found.context)
        if not np.array_equal(numbers, np.arange(begin, begin + scored)):
            order = "in the contract's order, each once"
            yield f"sequential design: {arm!r} does not hold the first {scored} items {order}"
            return
    matter = {
        name: (role, _paired(contract, task, table, ordered[name]))
        for name, role in arms_that_matter(contract, [(arm.name, arm.role, arm.format_digest) for arm in arms])
        if name in ordered
    }
    stop = stopping_look(contract, task, matter, scored)
    if stop is not None and stop < scored:
        yield f"sequential design: the contract's rule stops after {stop} items and {scored} were scored"
    elif stop is None and scored != planned:
        yield (
            f"sequential design: the run stopped after {scored} items, where the contract's rule goes on to the next "
            f"look, every {contract.inference.look_every} items up to {planned}"
        )


def _paired(contract: Contract, task: str, table: ItemTable, rows: ItemRows) -> Paired:
    members = {
        name: np.ones(rows.size, dtype=np.bool_) if name == ALL else rows_in_slice(table.slices, rows.slice, name)
        for name in deciding_slices(contract, task)
    }
    return Paired(differences_of(rows), members)


def _settled(
    contract: Contract, task: str, margin: float, role: Role, paired: Paired, looks: Integers
) -> NDArray[np.bool_]:
    """At each look, whether more items could still change what is known of the arm."""
    alpha, slices = contract.inference.alpha, deciding_slices(contract, task)
    clauses = sum(len(deciding_slices(contract, str(name))) for name in contract.task)
    formats = len(contract.candidates.order) if contract.candidates.multiplicity == "holm" else 1
    every, breached = np.ones(len(looks), dtype=np.bool_), np.zeros(len(looks), dtype=np.bool_)
    for name in slices:
        inside = paired.members[name]
        for_met, for_breached = (np.maximum.accumulate(path) for path in wealths(paired.differences[inside], margin))
        met_at, breached_at = _first(for_met, 1 / alpha), _first(for_breached, 1 / alpha)
        met = (for_met >= formats / alpha) & (met_at < breached_at)
        lost = (for_breached >= clauses / alpha) & (breached_at < met_at)
        seen = np.cumsum(inside, dtype=np.int64)[looks - 1]  # items of the slice at each look
        every &= _at(met | lost, seen)
        breached |= _at(lost, seen)
    return every | breached


def _first(path: NDArray[np.float64], threshold: float) -> int:
    """Index at which a rising path reaches the threshold; its length where it does not."""
    return int(np.searchsorted(path, threshold))


def _at(known: NDArray[np.bool_], seen: Integers) -> NDArray[np.bool_]:
    """`known` after so many items; False before the first."""
    return np.concatenate([np.zeros(1, dtype=np.bool_), known])[seen]
