"""Generation rows as token ids by arm and prompt, in an order that does not depend on how the rows came."""

# pyarrow ships no types, so what it returns is unknown to the checker in this file.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvassay.core.free_running_rule import TokenIds, parse_ids
from kvassay.core.records import GENERATION_COLUMNS
from kvassay.core.slices import slice_labels
from kvassay.errors import PackError
from kvassay.judge.rows import ArrowTable


class GenerationRow(NamedTuple):
    """One prompt under one arm. Figures are None where they were not measured."""

    prompt: str
    slice: str
    prompt_ids: TokenIds
    end_ids: TokenIds
    reference: TokenIds
    candidate: TokenIds
    reading_queries: int | None
    stored_reads: float | None
    logit_drift: float | None

    @property
    def queries(self) -> int:
        """The candidate's queries after the prompt: the prompt itself predicts the first token."""
        return max(0, len(self.candidate) - 1)

    @property
    def labels(self) -> tuple[str, ...]:
        return slice_labels(self.slice)


GenerationTable = dict[str, tuple[GenerationRow, ...]]
"""Rows by arm, for arms that have any."""


def read_generations(table: ArrowTable | None, arms: Sequence[str]) -> GenerationTable:
    """Rows of every arm; raises PackError for a missing column, a wrong type, ids in another spelling, or rows of an
    unknown arm. None is a table without rows."""
    if table is None:
        return {}
    if missing := [name for name in GENERATION_COLUMNS if name not in table.column_names]:
        raise PackError(f"generation rows lack the columns {missing}; expected {list(GENERATION_COLUMNS)}")
    found: dict[str, list[GenerationRow]] = {}
    parsed: dict[str, TokenIds] = {}
    columns = {name: table.column(name).to_pylist() for name in GENERATION_COLUMNS}
    for values in zip(*columns.values(), strict=True):
        fields: dict[str, Any] = dict(zip(columns, values, strict=True))
        found.setdefault(_text(fields, "arm"), []).append(_row(fields, parsed))
    if unknown := sorted(name for name in found if name not in arms):
        raise PackError(f"generation rows name the arms {unknown}, which were not declared; declared: {list(arms)}")
    return {arm: tuple(sorted(found[arm], key=_order)) for arm in sorted(found)}


def _order(row: GenerationRow) -> tuple[Any, ...]:
    """By prompt; doubled rows, which are a fault, by what they say."""
    figures = (row.reading_queries, row.stored_reads, row.logit_drift)
    return (row.prompt, row.candidate, row.reference, row.prompt_ids, row.slice, repr(figures))


def _row(fields: dict[str, Any], parsed: dict[str, TokenIds]) -> GenerationRow:
    return GenerationRow(
        prompt=_text(fields, "prompt"),
        slice=_text(fields, "slice"),
        prompt_ids=_ids(fields, "prompt_ids", parsed),
        end_ids=_ids(fields, "end_ids", parsed),
        reference=_ids(fields, "reference_ids", parsed),
        candidate=_ids(fields, "candidate_ids", parsed),
        reading_queries=_number(fields, "reading_queries", int),
        stored_reads=_number(fields, "stored_reads", float),
        logit_drift=_number(fields, "logit_drift", float),
    )


def _text(fields: dict[str, Any], column: str) -> str:
    value = fields[column]
    if not isinstance(value, str):
        raise PackError(f"generation rows: {column} is {value!r}; every row must have it as text")
    return value


def _ids(fields: dict[str, Any], column: str, parsed: dict[str, TokenIds]) -> TokenIds:
    """Every arm repeats prompt and reference, so texts are parsed once."""
    text = _text(fields, column)
    if text not in parsed:
        try:
            parsed[text] = parse_ids(text)
        except ValueError as error:
            raise PackError(f"generation rows: {column} of prompt {fields['prompt']!r}: {error}") from error
    return parsed[text]


def _number(fields: dict[str, Any], column: str, kind: Any) -> Any:
    value = fields[column]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise PackError(f"generation rows: {column} is {value!r}; expected {kind.__name__}")
    return kind(value)
