"""Which rows of an arm lie in which slice: the labels that rows carry, and those that follow from their figures.

`core.derived_slices` says how the derived ones are cut. They need a row's position, its true next token, how sure the
reference is, and how often tokens occur in the run: nothing of a candidate, nothing of the order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.core.clauses.fidelity import TextWorkload
from kvassay.core.clauses.slice_plan import is_token_slice, planned_documents
from kvassay.core.derived_slices import COMMON, CONFIDENT, CONFIDENT_NATS, POSITIONS, RARE, RARE_ONE_IN, UNSURE
from kvassay.core.slices import ASSISTANT, document_cell
from kvassay.judge.rows import Integers, TokenRows, TokenTable, labels_of, rows_in_slice

Mask = NDArray[np.bool_]


class TokenCounts(NamedTuple):
    """How often each token is the true next one in a run; `ids` rise."""

    ids: Integers
    counts: Integers

    @property
    def total(self) -> int:
        return int(self.counts.sum())


class TokenSlice(NamedTuple):
    label: str
    mask: Mask
    """Over the arm's scored rows."""
    planned: int
    """Documents that the fixed design gives it."""
    fault: str = ""
    """Why its tokens cannot be told; empty if they can."""


class TokenSlices(NamedTuple):
    """An arm's scored rows and the slices that cut them."""

    rows: TokenRows
    slices: tuple[TokenSlice, ...]


def count_tokens(token_ids: Sequence[int] | Integers) -> TokenCounts:
    ids, counts = np.unique(np.asarray(token_ids, dtype=np.int64), return_counts=True)
    return TokenCounts(ids, counts.astype(np.int64))


def run_counts(table: TokenTable, text: TextWorkload) -> TokenCounts:
    """Of the tokens that the run scores. Arms are paired, so any will do; the fullest, lest a faulty one be asked."""
    scored = [scored_rows(table, rows, text) for _, rows in sorted(table.arms.items())]
    return count_tokens(max(scored, key=lambda rows: rows.size).token_id if scored else [])


def scored_rows(table: TokenTable, rows: TokenRows, text: TextWorkload) -> TokenRows:
    """Those rows that the contract's clauses look at."""
    if text.scored == "all":
        return rows
    return rows.take(rows_in_slice(table.slices, rows.slice, ASSISTANT))


def token_slices(table: TokenTable, rows: TokenRows, text: TextWorkload, counts: TokenCounts) -> TokenSlices:
    """All slices that hold a row of the arm: labels of a table that has several cells, then the derived ones."""
    rows = scored_rows(table, rows, text)
    documents = _documents(rows)
    cells = {document_cell(cell) for cell in table.slices}
    found = [
        TokenSlice(label, rows_in_slice(table.slices, rows.slice, label), 0)
        for label in (labels_of(table.slices) if len(table.slices) > 1 else [])
    ]
    found += _derived(rows, text, counts)
    kept = [part for part in found if part.mask.any()]
    return TokenSlices(
        rows,
        tuple(
            part._replace(
                planned=_documents(rows.take(part.mask)) + text.documents - documents
                if is_token_slice(part.label)
                else planned_documents(text.documents, cells, part.label)
            )
            for part in kept
        ),
    )


def _derived(rows: TokenRows, text: TextWorkload, counts: TokenCounts) -> list[TokenSlice]:
    # Of `scored_tokens` queries the last has no true next token and so no row.
    third = np.clip(3 * (rows.position - text.prompt_tokens) // max(1, text.scored_tokens - 1), 0, 2)
    rare = _occurrences(rows.token_id, counts) * RARE_ONE_IN <= counts.total
    known = np.isfinite(rows.reference_top1_nats)
    confident = known & (np.nan_to_num(rows.reference_top1_nats) <= CONFIDENT_NATS)
    unknown = int(np.count_nonzero(~known))
    fault = f"reference_top1_nats is missing at {unknown} of {rows.size} positions" if unknown else ""
    return [
        *(TokenSlice(label, third == place, 0) for place, label in enumerate(POSITIONS)),
        TokenSlice(RARE, rare, 0),
        TokenSlice(COMMON, ~rare, 0),
        TokenSlice(CONFIDENT, confident, 0, fault),
        TokenSlice(UNSURE, known & ~confident, 0, fault),
    ]


def _occurrences(token_ids: Integers, counts: TokenCounts) -> Integers:
    """How often each id is counted; 0 for one that is not."""
    if not len(counts.ids):
        return np.zeros(len(token_ids), dtype=np.int64)
    place = np.minimum(np.searchsorted(counts.ids, token_ids), len(counts.ids) - 1)
    return np.where(counts.ids[place] == token_ids, counts.counts[place], 0)


def _documents(rows: TokenRows) -> int:
    return int(np.count_nonzero(np.diff(rows.document, prepend=-1)))
