"""Faults that make an arm's rows unusable: unpaired, doubled, copied, or measured against another reference.

Every comparison is paired, so every arm must hold the same positions and contexts, each once. An arm that lacks some
of what another has could have lost its worst rows; an arm whose reference differs was not compared with the same
thing. Each fault is one sentence, by arm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvassay.judge.rows import Floats, Integers, ItemTable, TokenRows, TokenTable
from kvassay.judge.wording import listed

REFERENCE_TOLERANCE_NATS = 1e-4
"""NLL of one reference at one position may differ by this between arms before it counts as another reference."""

Faults = dict[str, tuple[str, ...]]
"""Sentences by arm; arms without a fault are left out."""


def token_faults(table: TokenTable) -> Faults:
    faults: dict[str, list[str]] = defaultdict(list)
    if not table.arms:
        return {}
    names = list(table.arms)
    keys = {arm: _position_keys(table, rows) for arm, rows in table.arms.items()}

    def place(key: int) -> str:
        document, position = divmod(key, _stride(table))
        return f"document {table.documents[document]!r} position {position}"

    for arm, rows in table.arms.items():
        if doubled := _doubled(keys[arm]):
            faults[arm].append(f"{place(doubled[0])} stands twice ({len(doubled)} such positions)")
        faults[arm] += _copied_documents(table, rows)
    for arm, lacking in _lacking(keys).items():
        faults[arm].append(f"not paired: lacks {len(lacking)} of the other arms' positions, first {place(lacking[0])}")
    for column, tolerance, what in (
        ("token_id", 0.0, "true next tokens"),
        ("slice", 0.0, "slices"),
        ("nll_reference_nats", REFERENCE_TOLERANCE_NATS, "reference NLLs"),
    ):
        values = {arm: np.asarray(getattr(table.arms[arm], column), dtype=np.float64) for arm in names}
        for arm, differing in _differing(keys, values, tolerance).items():
            sentence = f"{what} differ between arms at {len(differing)} positions, first {place(differing[0])}"
            faults[arm].append(sentence)
    return {arm: tuple(found) for arm, found in faults.items() if found}


def item_faults(table: ItemTable, task: str) -> Faults:
    faults: dict[str, list[str]] = defaultdict(list)
    arms = {arm: rows for (name, arm), rows in table.arms.items() if name == task}

    def names(keys: Sequence[int]) -> str:
        return listed([table.contexts[key] for key in keys])

    keys = {arm: rows.context for arm, rows in arms.items()}
    for arm in arms:
        if doubled := _doubled(keys[arm]):
            faults[arm].append(f"several items share a context, which is the unit of independence: {names(doubled)}")
    for arm, lacking in _lacking(keys).items():
        faults[arm].append(f"not paired: lacks the other arms' contexts {names(lacking)}")
    for column, what in (
        ("asked", "question, expected or reference answer"),
        ("slice", "slice"),
        ("reference_correct", "correctness of the reference"),
    ):
        values = {arm: np.asarray(getattr(rows, column), dtype=np.float64) for arm, rows in arms.items()}
        for arm, differing in _differing(keys, values, 0.0).items():
            faults[arm].append(f"{what} differs between arms in the contexts {names(differing)}")
    return {arm: tuple(found) for arm, found in faults.items() if found}


def _stride(table: TokenTable) -> int:
    return 1 + max(int(rows.position.max(initial=0)) for rows in table.arms.values())


def _position_keys(table: TokenTable, rows: TokenRows) -> Integers:
    return rows.document * _stride(table) + rows.position


def _distinct(keys: Integers) -> Integers:
    """Sorted distinct keys. By sorting: numpy's hash-based `unique` is many times slower on keys in sequence."""
    ordered = np.sort(keys)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


def _doubled(keys: Integers) -> list[int]:
    ordered = np.sort(keys)
    return [int(key) for key in _distinct(ordered[1:][np.diff(ordered) == 0])]


def _lacking(keys: dict[str, Integers]) -> dict[str, list[int]]:
    """Keys that some other arm has, by arm."""
    if len(keys) < 2:
        return {}
    union = _distinct(np.concatenate(list(keys.values())))
    lacking = {arm: union[~np.isin(union, found)] for arm, found in keys.items()}
    return {arm: [int(key) for key in missing] for arm, missing in lacking.items() if len(missing)}


def _differing(keys: dict[str, Integers], values: dict[str, Floats], tolerance: float) -> dict[str, list[int]]:
    """Keys under which arms disagree, for every arm that has one: which of them is right cannot be known."""
    if len(keys) < 2:
        return {}
    every_key = np.concatenate(list(keys.values()))
    every_value = np.concatenate([values[arm] for arm in keys])
    known = ~np.isnan(every_value)
    every_key, every_value = every_key[known], every_value[known]
    if not len(every_key):
        return {}
    order = np.argsort(every_key, kind="stable")
    every_key, every_value = every_key[order], every_value[order]
    starts = np.flatnonzero(np.diff(every_key, prepend=every_key[0] - 1))
    low, high = np.minimum.reduceat(every_value, starts), np.maximum.reduceat(every_value, starts)
    with np.errstate(invalid="ignore"):
        differ: NDArray[np.bool_] = (high != low) & ~(high - low <= tolerance)
    bad = every_key[starts][differ]
    found = {arm: bad[np.isin(bad, own)] for arm, own in keys.items()}
    return {arm: [int(key) for key in some] for arm, some in found.items() if len(some)}


def _copied_documents(table: TokenTable, rows: TokenRows) -> list[str]:
    """Documents with equal tokens and equal reference NLLs under two names: copies, not independent evidence."""
    first: dict[bytes, int] = {}
    copies: list[str] = []
    starts = np.flatnonzero(np.diff(rows.document, prepend=-1))
    for begin, end in zip(starts, [*starts[1:], rows.size], strict=True):
        part = slice(int(begin), int(end))
        content = b"".join(column[part].tobytes() for column in (rows.position, rows.token_id, rows.nll_reference_nats))
        code = int(rows.document[begin])
        original = first.setdefault(content, code)
        if original != code:
            copies.append(f"{table.documents[code]!r} of {table.documents[original]!r}")
    if not copies:
        return []
    more = f" (and {len(copies) - 1} more)" if len(copies) > 1 else ""
    return [f"documents are copies, which are not independent: {copies[0]}{more}"]
