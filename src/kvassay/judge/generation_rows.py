"""Generation rows as token ids by arm and prompt, in an order that does not depend on how the rows came."""

# pyarrow ships no types, so what it returns is unknown to the checker in this file.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    found: dict[str, list[GenerationRow]] = {}
    for row in OutputRows("generation", "prompt", GENERATION_COLUMNS).read(table, arms):
        found.setdefault(row.text("arm"), []).append(row.output())
    return {arm: tuple(sorted(found[arm], key=output_order)) for arm in sorted(found)}


def output_order(row: GenerationRow) -> tuple[Any, ...]:
    """By prompt; doubled rows, which are a fault, by what they say."""
    figures = (row.reading_queries, row.stored_reads, row.logit_drift)
    return (row.prompt, row.candidate, row.reference, row.prompt_ids, row.slice, repr(figures))


class OutputRows(NamedTuple):
    """Reads tables of generated text."""

    kind: str
    """What errors call a row."""
    key: str
    """The column that names the prompt."""
    columns: Mapping[str, str]

    def read(self, table: ArrowTable | None, arms: Sequence[str]) -> Iterator[RowFields]:
        """Rows in the table's order; raises PackError for missing columns and undeclared arms."""
        if table is None:
            return
        if missing := [name for name in self.columns if name not in table.column_names]:
            raise PackError(f"{self.kind} rows lack the columns {missing}; expected {list(self.columns)}")
        parsed: dict[str, TokenIds] = {}
        columns = {name: table.column(name).to_pylist() for name in self.columns}
        if unknown := sorted({name for name in columns["arm"] if isinstance(name, str)} - set(arms)):
            raise PackError(
                f"{self.kind} rows name the arms {unknown}, which were not declared; declared: {list(arms)}"
            )
        for values in zip(*columns.values(), strict=True):
            yield RowFields(self, dict(zip(columns, values, strict=True)), parsed)


class RowFields(NamedTuple):
    """One row, column by column; a value that is none of its column raises PackError."""

    table: OutputRows
    fields: dict[str, Any]
    parsed: dict[str, TokenIds]
    """Every arm repeats prompt and reference, so texts are parsed once."""

    def output(self) -> GenerationRow:
        return GenerationRow(
            prompt=self.text(self.table.key),
            slice=self.text("slice"),
            prompt_ids=self._ids("prompt_ids"),
            end_ids=self._ids("end_ids"),
            reference=self._ids("reference_ids"),
            candidate=self._ids("candidate_ids"),
            reading_queries=self.number("reading_queries", int),
            stored_reads=self.number("stored_reads", float),
            logit_drift=self.number("logit_drift", float),
        )

    def text(self, column: str) -> str:
        value = self.fields[column]
        if not isinstance(value, str):
            raise PackError(f"{self.table.kind} rows: {column} is {value!r}; every row must have it as text")
        return value

    def number(self, column: str, kind: Any) -> Any:
        """None where it was not measured."""
        value = self.fields[column]
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, kind)):
            raise PackError(f"{self.table.kind} rows: {column} is {value!r}; expected {kind.__name__}")
        return kind(value)

    def _ids(self, column: str) -> TokenIds:
        text = self.text(column)
        if text not in self.parsed:
            try:
                self.parsed[text] = parse_ids(text)
            except ValueError as error:
                where = f"{self.table.key} {self.fields[self.table.key]!r}"
                raise PackError(f"{self.table.kind} rows: {column} of {where}: {error}") from error
        return self.parsed[text]
