"""Row tables as numpy columns by arm, in an order that does not depend on how the rows came."""

# pyarrow ships no types, so what it returns is unknown to the checker in this file.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvassay.core.geometry import MAX_LAYERS
from kvassay.core.records import ITEM_COLUMNS, TENSOR_COLUMNS, TOKEN_COLUMNS
from kvassay.core.slices import ALL, slice_labels
from kvassay.core.tasks.kinds import is_right
from kvassay.errors import PackError

ArrowTable: TypeAlias = Any
"""A `pyarrow.Table`."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class TokenRows(NamedTuple):
    """Token rows of one arm by document and position, each `[rows]`. Figures are NaN where they were not measured."""

    document: Integers
    """Code of the document: its place in `TokenTable.documents`."""
    position: Integers
    token_id: Integers
    slice: Integers
    kl_nats: Floats
    reverse_kl_nats: Floats
    nll_reference_nats: Floats
    nll_candidate_nats: Floats
    reference_top1_nats: Floats
    top1_agrees: Floats
    top10_overlap: Floats
    stored_reads: Floats

    @property
    def size(self) -> int:
        return len(self.document)

    def take(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> TokenRows:
        """The rows under a mask, or in the order of the indices."""
        return TokenRows(*(column[which] for column in cast("tuple[Any, ...]", self)))


class TokenTable(NamedTuple):
    documents: tuple[str, ...]
    slices: tuple[str, ...]
    arms: dict[str, TokenRows]
    """Arms that have rows."""


class ItemRows(NamedTuple):
    """Items of one task and arm, by context, each `[rows]`. Figures are NaN where they were not measured."""

    context: Integers
    slice: Integers
    asked: Integers
    """Code of question, expected and reference answer together: what must be equal under every arm."""
    question: Integers
    """Code of the question: its place in `ItemTable.questions`."""
    expected: Integers
    """Code of the expected answer: its place in `ItemTable.expected`."""
    reference_right: Floats
    """What `reference_correct` must be by the task's rule and the answer; NaN where an answer is missing."""
    candidate_right: Floats
    context_tokens: Floats
    reference_correct: Floats
    candidate_correct: Floats
    stored_reads: Floats

    @property
    def size(self) -> int:
        return len(self.context)

    def take(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> ItemRows:
        """The rows under a mask, or in the order of the indices."""
        return ItemRows(
            context=self.context[which],
            slice=self.slice[which],
            asked=self.asked[which],
            question=self.question[which],
            expected=self.expected[which],
            reference_right=self.reference_right[which],
            candidate_right=self.candidate_right[which],
            context_tokens=self.context_tokens[which],
            reference_correct=self.reference_correct[which],
            candidate_correct=self.candidate_correct[which],
            stored_reads=self.stored_reads[which],
        )


class ItemTable(NamedTuple):
    contexts: tuple[str, ...]
    slices: tuple[str, ...]
    questions: tuple[str, ...]
    expected: tuple[str | None, ...]
    arms: dict[tuple[str, str], ItemRows]
    """By task and arm; those that have rows."""


class TensorRows(NamedTuple):
    """Cells of one arm by document, side, layer and head, each `[rows]`. Figures are NaN where not measured."""

    document: Integers
    """Code of the document: its place in `TensorTable.documents`."""
    substituted: Integers
    """Code of the replaced side: its place in `TensorTable.sides`."""
    layer: Integers
    head: Integers
    stored_reads: Floats
    figures: Mapping[str, Floats]
    """By column of the table."""

    @property
    def size(self) -> int:
        return len(self.document)

    def take(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> TensorRows:
        """The rows under a mask, or in the order of the indices."""
        return TensorRows(
            document=self.document[which],
            substituted=self.substituted[which],
            layer=self.layer[which],
            head=self.head[which],
            stored_reads=self.stored_reads[which],
            figures={name: values[which] for name, values in self.figures.items()},
        )


class TensorTable(NamedTuple):
    documents: tuple[str, ...]
    sides: tuple[str, ...]
    arms: dict[str, TensorRows]
    """Arms that have rows."""


NO_TENSORS = TensorTable((), (), {})


def rows_in_slice(cells: Sequence[str], codes: Integers, label: str) -> NDArray[np.bool_]:
    """Which rows carry a label; `cells` are a table's slice cells and `codes` each row's place among them."""
    holding = np.array([label in slice_labels(cell) for cell in cells], dtype=np.bool_)
    return holding[codes]


def labels_of(cells: Sequence[str]) -> list[str]:
    """Labels of a table's slice cells in sorted order, but for the one that every row has."""
    return sorted({label for cell in cells for label in slice_labels(cell)} - {ALL})


def read_tokens(table: ArrowTable, arms: Sequence[str]) -> TokenTable:
    """Rows of every arm; raises PackError for a missing column, a wrong type, or rows of an unknown arm."""
    _check_columns(table, TOKEN_COLUMNS, "token")
    arm_names, arm = _names(table, "arm", "token")
    _check_arms(arm_names, arms, "token")
    documents, document = _names(table, "document", "token")
    slices, slice_code = _names(table, "slice", "token")
    rows = TokenRows(
        document=document,
        position=_whole_numbers(table, "position", "token"),
        token_id=_whole_numbers(table, "token_id", "token"),
        slice=slice_code,
        kl_nats=_figures(table, "kl_nats", "token"),
        reverse_kl_nats=_figures(table, "reverse_kl_nats", "token"),
        nll_reference_nats=_figures(table, "nll_reference_nats", "token"),
        nll_candidate_nats=_figures(table, "nll_candidate_nats", "token"),
        reference_top1_nats=_figures(table, "reference_top1_nats", "token"),
        top1_agrees=_figures(table, "top1_agrees", "token"),
        top10_overlap=_figures(table, "top10_overlap", "token"),
        stored_reads=_figures(table, "stored_reads", "token"),
    )
    if rows.position.min(initial=0) < 0:
        raise PackError(f"token rows: position is {rows.position.min()}, expected 0 or more")
    order = np.lexsort((rows.kl_nats, rows.token_id, rows.position, document, arm))
    ordered, arm = rows.take(order), arm[order]
    return TokenTable(
        documents, slices, {name: ordered.take(arm == code) for code, name in enumerate(arm_names) if code in arm}
    )


def read_items(table: ArrowTable, arms: Sequence[str]) -> ItemTable:
    """Items of every task and arm; raises PackError like `read_tokens`."""
    _check_columns(table, ITEM_COLUMNS, "item")
    arm_names, arm = _names(table, "arm", "item")
    _check_arms(arm_names, arms, "item")
    tasks, task = _names(table, "task", "item")
    contexts, context = _names(table, "context", "item")
    slices, slice_code = _names(table, "slice", "item")
    questions, question_code = _names(table, "question", "item")
    expected, expected_code = _texts(table, "expected", "item")
    rows = ItemRows(
        context=context,
        slice=slice_code,
        asked=_joint_codes(table, ("question", "expected", "reference_answer"), "item"),
        question=question_code,
        expected=expected_code,
        reference_right=_right(table, "reference_answer"),
        candidate_right=_right(table, "candidate_answer"),
        context_tokens=_figures(table, "context_tokens", "item"),
        reference_correct=_figures(table, "reference_correct", "item"),
        candidate_correct=_figures(table, "candidate_correct", "item"),
        stored_reads=_figures(table, "stored_reads", "item"),
    )
    order = np.lexsort((rows.candidate_correct, rows.asked, context, arm, task))
    ordered = rows.take(order)
    task, arm = task[order], arm[order]
    by_arm = {
        (task_name, arm_name): ordered.take(keep)
        for task_code, task_name in enumerate(tasks)
        for arm_code, arm_name in enumerate(arm_names)
        if (keep := (task == task_code) & (arm == arm_code)).any()
    }
    return ItemTable(contexts, slices, questions, expected, by_arm)


def read_tensors(table: ArrowTable, arms: Sequence[str]) -> TensorTable:
    """Cells of every arm; raises PackError like `read_tokens`."""
    _check_columns(table, TENSOR_COLUMNS, "tensor")
    arm_names, arm = _names(table, "arm", "tensor")
    _check_arms(arm_names, arms, "tensor")
    documents, document = _names(table, "document", "tensor")
    sides, side = _names(table, "substituted", "tensor")
    rows = TensorRows(
        document=document,
        substituted=side,
        layer=_whole_numbers(table, "layer", "tensor"),
        head=_whole_numbers(table, "head", "tensor"),
        stored_reads=_figures(table, "stored_reads", "tensor"),
        figures={name: _figures(table, name, "tensor") for name, kind in TENSOR_COLUMNS.items() if kind == "float64"},
    )
    if min(rows.layer.min(initial=0), rows.head.min(initial=0)) < 0 or rows.layer.max(initial=0) >= MAX_LAYERS:
        raise PackError(f"tensor rows: layers must lie between 0 and {MAX_LAYERS - 1}, heads at 0 or above")
    order = np.lexsort((rows.figures["output_relative"], rows.head, rows.layer, side, document, arm))
    ordered, arm = rows.take(order), arm[order]
    return TensorTable(
        documents, sides, {name: ordered.take(arm == code) for code, name in enumerate(arm_names) if code in arm}
    )


def _right(table: ArrowTable, answer: str) -> Floats:
    """1 where the answer is right, 0 where it is wrong, NaN where it or the expected one is missing."""
    answers = _cast(table, answer, pa.string(), "item").to_pylist()
    expected = _cast(table, "expected", pa.string(), "item").to_pylist()
    return np.array(
        [
            np.nan if found is None or true is None else float(is_right(found, true))
            for found, true in zip(answers, expected, strict=True)
        ],
        dtype=np.float64,
    )


def _texts(table: ArrowTable, column: str, kind: str) -> tuple[tuple[str | None, ...], Integers]:
    """Distinct texts, None for null, and each row's place among them."""
    encoded = _cast(table, column, pa.string(), kind).combine_chunks().dictionary_encode("encode")
    return tuple(encoded.dictionary.to_pylist()), np.asarray(encoded.indices.to_numpy(), dtype=np.int64)


def _check_columns(table: ArrowTable, expected: Mapping[str, str], kind: str) -> None:
    if missing := [name for name in expected if name not in table.column_names]:
        raise PackError(f"{kind} rows lack the columns {missing}; expected {list(expected)}")


def _check_arms(found: Sequence[str], declared: Sequence[str], kind: str) -> None:
    if unknown := [name for name in found if name not in declared]:
        raise PackError(f"{kind} rows name the arms {unknown}, which were not declared; declared: {list(declared)}")


def _names(table: ArrowTable, column: str, kind: str) -> tuple[tuple[str, ...], Integers]:
    """Distinct names in sorted order, and each row's place among them."""
    values = _cast(table, column, pa.string(), kind)
    if values.null_count:
        raise PackError(f"{kind} rows: {column} is null in {values.null_count} rows; every row must name it")
    names: list[str] = sorted(pc.unique(values).to_pylist())
    codes = pc.index_in(values, value_set=pa.array(names, pa.string()))
    return tuple(names), np.asarray(codes.to_numpy(), dtype=np.int64)


def _joint_codes(table: ArrowTable, columns: Sequence[str], kind: str) -> Integers:
    """One code for each distinct tuple of the columns; null counts as a value of its own."""
    codes = np.zeros(table.num_rows, dtype=np.int64)
    for column in columns:
        values = pc.fill_null(_cast(table, column, pa.string(), kind), "\0")
        _, part = _names(pa.table({column: values}), column, kind)
        _, codes = np.unique(codes * (int(part.max(initial=0)) + 1) + part, return_inverse=True)
    return codes.astype(np.int64)


def _whole_numbers(table: ArrowTable, column: str, kind: str) -> Integers:
    values = _cast(table, column, pa.int64(), kind)
    if values.null_count:
        raise PackError(f"{kind} rows: {column} is null in {values.null_count} rows; every row must have it")
    return np.asarray(values.to_numpy(), dtype=np.int64)


def _figures(table: ArrowTable, column: str, kind: str) -> Floats:
    """As float64; null, which means not measured, becomes NaN."""
    values = pc.fill_null(_cast(table, column, pa.float64(), kind), float("nan"))
    return np.asarray(values.to_numpy(), dtype=np.float64)


def _cast(table: ArrowTable, column: str, to: Any, kind: str) -> Any:
    try:
        return table.column(column).cast(to)
    except pa.ArrowException as error:
        raise PackError(
            f"{kind} rows: {column} is of type {table.schema.field(column).type}, expected {to}: {error}"
        ) from error
