"""Faults that make an arm's written answers unusable: unplanned, unpaired, doubled, copied, or at odds with their ids.

The draw is repeated, as for teacher-forced items (`judge.pairing`). The judge has no tokenizer, so whether a text is
that of its ids it cannot see; but equal ids must have equal texts, wherever in the table they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvassay.core.contract import Contract
from kvassay.core.free_running_rule import TokenIds
from kvassay.core.slices import ALL
from kvassay.core.tasks.answers import MAX_ANSWER_CHARACTERS
from kvassay.core.tasks.kinds import KINDS, TaskDraw, length_fits
from kvassay.judge.answer_rows import AnswerRow, AnswerTable
from kvassay.judge.generation_faults import end_fault, impossible_figures, unpaired_outputs
from kvassay.judge.pairing import Faults, planned_items
from kvassay.judge.wording import listed

Texts = Mapping[TokenIds, frozenset[str]]
"""The texts that rows give for an output's ids."""


def answer_faults(table: AnswerTable, task: str, contract: Contract) -> Faults:
    arms = table.get(task, {})
    faults = unpaired_outputs({arm: [row.output for row in rows] for arm, rows in arms.items()})
    texts = _texts(table)
    planned = planned_items(contract, task, sorted({row.context for rows in arms.values() for row in rows}))
    for arm, rows in arms.items():
        faults[arm] += impossible_figures([row.output for row in rows])
        faults[arm] += _unplanned(rows, planned)
        faults[arm] += _odd_texts(rows, texts)
        faults[arm] += _odd_ends(contract, task, rows, planned)
    return {arm: tuple(found) for arm, found in faults.items() if found}


def _texts(table: AnswerTable) -> Texts:
    """By the ids that are said: the token that ends an output is not in its text."""
    found: dict[TokenIds, set[str]] = {}
    for arms in table.values():
        for rows in arms.values():
            for row in rows:
                for ids, text in _outputs(row):
                    found.setdefault(_said(ids, row.output.end_ids), set()).add(text)
    return {ids: frozenset(texts) for ids, texts in found.items()}


def _outputs(row: AnswerRow) -> tuple[tuple[TokenIds, str], tuple[TokenIds, str]]:
    return (row.output.reference, row.reference_text), (row.output.candidate, row.candidate_text)


def _said(ids: TokenIds, end_ids: TokenIds) -> TokenIds:
    return ids[:-1] if ids and ids[-1] in end_ids else ids


def _unplanned(rows: Sequence[AnswerRow], planned: Mapping[str, TaskDraw]) -> Iterator[str]:
    """Items that are none of the contract's, in another slice, or of another length."""
    if odd := [row.context for row in rows if row.context not in planned]:
        yield f"items that the contract does not plan: {listed(odd)}"
    asked = [(row, planned[row.context]) for row in rows if row.context in planned]
    if odd := [draw.id for row, draw in asked if row.labels != (draw.labels or (ALL,))]:
        yield f"the slice is not that of the item in the contexts {listed(odd)}"
    if odd := [draw.id for row, draw in asked if not _has_its_length(row, draw)]:
        yield f"the length is not that of the item in the contexts {listed(odd)}"


def _has_its_length(row: AnswerRow, draw: TaskDraw) -> bool:
    tokens = row.context_tokens
    if tokens is None or not 0 < tokens < len(row.output.prompt_ids):
        return False
    return draw.context_tokens is None or (
        length_fits(tokens, draw.context_tokens) and len(row.output.prompt_ids) <= draw.context_tokens
    )


def _odd_texts(rows: Sequence[AnswerRow], texts: Texts) -> Iterator[str]:
    outputs = [(row, ids, text) for row in rows for ids, text in _outputs(row)]
    if odd := [row.context for row, ids, _ in outputs if len(texts[_said(ids, row.output.end_ids)]) > 1]:
        yield f"equal token ids have several texts in the contexts {listed(list(dict.fromkeys(odd)))}"
    if odd := [row.context for row, _, text in outputs if len(text) > MAX_ANSWER_CHARACTERS]:
        yield f"texts of more than {MAX_ANSWER_CHARACTERS} characters in the contexts {listed(odd)}"


def _odd_ends(
    contract: Contract, task: str, rows: Sequence[AnswerRow], planned: Mapping[str, TaskDraw]
) -> Iterator[str]:
    """Outputs that stop before anything ended them, or go on behind their end."""
    bound = contract.task[task]
    form = KINDS[bound.kind].form
    odd: list[str] = []
    for row in rows:
        draw = planned.get(row.context)
        if draw is None:
            continue
        for what, (ids, text) in zip(("reference", "candidate"), _outputs(row), strict=True):
            most, over = bound.most_tokens(draw.expected), form.ended(draw.expected, text)
            if fault := end_fault(ids, row.output.end_ids, most, over):
                odd.append(f"the {what} answer in the context {row.context!r} {fault}")
    if odd:
        yield odd[0] + (f" ({len(odd)} such answers)" if len(odd) > 1 else "")
