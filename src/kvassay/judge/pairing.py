"""Faults that make an arm's rows unusable: unplanned, unpaired, doubled, copied, or of another reference.

Every comparison is paired, so every arm must hold the same positions and contexts, each once. An arm that lacks some
of what another has could have lost its worst rows; an arm whose reference differs was not compared with the same
thing. And every arm must hold what the contract plans and nothing else: which positions are scored, and which items are
asked, follows from the contract, so that none can be chosen by its result. Each fault is one sentence, by arm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvassay.core.clauses.fidelity import TextWorkload
from kvassay.core.contract import Contract
from kvassay.core.slices import ALL, slice_labels
from kvassay.core.tasks.kinds import TaskDraw, length_fits, task_draw
from kvassay.judge.rows import Floats, Integers, ItemRows, ItemTable, TokenRows, TokenTable
from kvassay.judge.wording import listed

REFERENCE_TOLERANCE_NATS = 1e-4
"""NLL of one reference at one position may differ by this between arms before it counts as another reference."""

Faults = dict[str, tuple[str, ...]]
"""Sentences by arm; arms without a fault are left out."""


def token_faults(table: TokenTable, text: TextWorkload) -> Faults:
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
        ("reference_top1_nats", REFERENCE_TOLERANCE_NATS, "log probabilities of the reference's most likely token"),
    ):
        values = {arm: np.asarray(getattr(table.arms[arm], column), dtype=np.float64) for arm in names}
        for arm, differing in _differing(keys, values, tolerance).items():
            sentence = f"{what} differ between arms at {len(differing)} positions, first {place(differing[0])}"
            faults[arm].append(sentence)
    for arm, rows in table.arms.items():
        faults[arm] += _unplanned_positions(table, rows, text)
        faults[arm] += _impossible_confidence(table, rows)
    return {arm: tuple(found) for arm, found in faults.items() if found}


def item_faults(table: ItemTable, task: str, contract: Contract) -> Faults:
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
    planned = planned_items(contract, task, table.contexts)
    for arm, rows in arms.items():
        faults[arm] += _item_contradictions(table, rows, planned)
    return {arm: tuple(found) for arm, found in faults.items() if found}


def joined(first: Faults, second: Faults) -> Faults:
    """Faults of both kinds by arm."""
    return {arm: (*first.get(arm, ()), *second.get(arm, ())) for arm in dict.fromkeys((*first, *second))}


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


def _unplanned_positions(table: TokenTable, rows: TokenRows, text: TextWorkload) -> list[str]:
    """Documents that hold other positions than the contract scores.

    Of `scored_tokens` queries the last has no true next token and so no row.
    """
    first, count = text.prompt_tokens, text.scored_tokens - 1
    starts = np.flatnonzero(np.diff(rows.document, prepend=-1))
    lengths = np.diff(starts, append=rows.size)
    expected = first + np.arange(rows.size) - np.repeat(starts, lengths)
    odd = (lengths != count) | np.logical_or.reduceat(rows.position != expected, starts)
    if not odd.any():
        return []
    index = int(np.argmax(odd))
    found = rows.position[starts[index] : starts[index] + lengths[index]]
    return [
        f"{int(odd.sum())} of {len(starts)} documents hold other positions than the contract scores, first document "
        f"{table.documents[int(rows.document[starts[index]])]!r}: {len(found)} positions from {found[0]} to "
        f"{found[-1]}, expected each from {first} to {first + count - 1} once"
    ]


def _impossible_confidence(table: TokenTable, rows: TokenRows) -> list[str]:
    """Positions whose most likely token is said to be less likely than the true one, or more than certain."""
    top1, true = rows.reference_top1_nats, rows.nll_reference_nats
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero((top1 > true + REFERENCE_TOLERANCE_NATS) | (top1 < -REFERENCE_TOLERANCE_NATS))
    if not len(wrong):
        return []
    first = int(wrong[0])
    return [
        f"reference_top1_nats is below 0 or above the reference's NLL of the true token at {len(wrong)} positions, "
        f"first document {table.documents[int(rows.document[first])]!r} position {int(rows.position[first])}: "
        f"{top1[first]:.6g} and {true[first]:.6g} nats"
    ]


def _copied_documents(table: TokenTable, rows: TokenRows) -> list[str]:
    """Documents with equal tokens under two names: copies, not independent evidence, whatever their figures say."""
    first: dict[bytes, int] = {}
    copies: list[str] = []
    starts = np.flatnonzero(np.diff(rows.document, prepend=-1))
    for begin, end in zip(starts, [*starts[1:], rows.size], strict=True):
        code = int(rows.document[begin])
        original = first.setdefault(rows.token_id[int(begin) : int(end)].tobytes(), code)
        if original != code:
            copies.append(f"{table.documents[code]!r} of {table.documents[original]!r}")
    if not copies:
        return []
    more = f" (and {len(copies) - 1} more)" if len(copies) > 1 else ""
    return [f"documents are copies, which are not independent: {copies[0]}{more}"]


def planned_items(contract: Contract, task: str, contexts: Sequence[str]) -> dict[str, TaskDraw]:
    """Those contexts that are items of the contract; the pilot's come before them and are not asked again."""
    found: dict[str, TaskDraw] = {}
    bound = contract.task[task]
    begin = contract.inference.pilot_items
    for context in contexts:
        number = context.rpartition("/")[2]
        index = int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else -1
        # The name in full, since another way to write it would be another context.
        if begin <= index < begin + bound.items and context == f"{task}/{contract.inference.seed}/{index}":
            found[context] = task_draw(task, bound.settings, contract.inference.seed, index)
    return found


def _item_contradictions(table: ItemTable, rows: ItemRows, planned: dict[str, TaskDraw]) -> Iterator[str]:
    """Items that are none of the contract's, ask something else, or say another result than their answer shows."""
    contexts = [table.contexts[code] for code in _codes(rows.context)]
    if unplanned := [context for context in contexts if context not in planned]:
        yield f"items that the contract does not plan: {listed(unplanned)}"
    asked = [(row, planned[context]) for row, context in enumerate(contexts) if context in planned]
    questions = [table.questions[code] for code in _codes(rows.question)]
    # A token may straddle the question's end, so the answer's text can begin with some of the question.
    expected = [table.expected[code] or "" for code in _codes(rows.expected)]
    slices = [slice_labels(table.slices[code]) for code in _codes(rows.slice)]
    for what, other in (
        ("expected answer", [draw.id for row, draw in asked if not expected[row].endswith(draw.expected)]),
        ("question", [draw.id for row, draw in asked if questions[row] != draw.question]),
        ("slice", [draw.id for row, draw in asked if slices[row] != (draw.labels or (ALL,))]),
        ("length", [draw.id for row, draw in asked if not _has_its_length(float(rows.context_tokens[row]), draw)]),
    ):
        if other:
            yield f"the {what} is not that of the item in the contexts {listed(other)}"
    for what, stated, shown in (
        ("reference_correct", rows.reference_correct, rows.reference_right),
        ("candidate_correct", rows.candidate_correct, rows.candidate_right),
    ):
        wrong = ~np.isnan(stated) & ~(stated == shown)
        if wrong.any():
            names = [contexts[index] for index in _codes(np.flatnonzero(wrong))]
            yield f"{what} does not follow from the answer in {len(names)} contexts: {listed(names)}"


def _has_its_length(context_tokens: float, draw: TaskDraw) -> bool:
    """A row of a text that was never as long as its slice says would be evidence of another length."""
    return draw.context_tokens is None or length_fits(context_tokens, draw.context_tokens)


def _codes(codes: Integers) -> list[int]:
    return [int(code) for code in codes.tolist()]
