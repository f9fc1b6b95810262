"""Can the slices that a contract names be decided by the documents that it plans?

Documents are shared equally among the kinds of text (`slice` cells), so every slice of documents has a planned number.
Slices of tokens are in every document, and have as many as the whole.
"""

from __future__ import annotations

from collections.abc import Collection

from kvassay.core.clauses.fidelity import Fidelity, TextWorkload
from kvassay.core.derived_slices import DERIVED, RARE, RARE_ONE_IN
from kvassay.core.slices import ASSISTANT, ROLE, document_shares, slice_labels

PILOT_DOCUMENTS = 2
"""Of each slice that decides: one document has no spread to plan from."""


def is_token_slice(label: str) -> bool:
    """True for slices that cut documents themselves, and not the choice of them."""
    return label in DERIVED or label.startswith(ROLE)


def planned_documents(documents: int, cells: Collection[str], label: str) -> int:
    """How many of `documents`, shared equally among the cells, carry the label."""
    return sum(share for cell, share in document_shares(documents, cells).items() if label in slice_labels(cell))


def slice_fault(text: TextWorkload, fidelity: Fidelity, pilot_documents: int, cells: Collection[str] | None) -> str:
    """Why a slice cannot be decided and what to change; empty if all can, as far as the `cells` are known."""
    for clause, bound in fidelity.bounds.items():
        for label in bound.slices:
            where = f"fidelity.{clause}.slices names {label!r}"
            if label == RARE and (scored := text.documents * (text.scored_tokens - 1)) < RARE_ONE_IN:
                return f"{where}: a token is rare among {RARE_ONE_IN:,} scored ones, the text plans {scored:,}"
            if label.startswith(ROLE) and text.scored == "assistant" and label != ASSISTANT:
                return f"{where}, but text.scored = 'assistant' leaves no other turn"
            if is_token_slice(label) or cells is None:
                continue
            kinds = sum(label in slice_labels(cell) for cell in cells)
            if not kinds:
                known = sorted({name for cell in cells for name in slice_labels(cell)})
                return f"{where}, which no text of {text.corpus!r} has; its slices: {', '.join([*known, *DERIVED])}"
            if (planned := planned_documents(text.documents, cells, label)) < bound.min_docs:
                needed = -(-bound.min_docs // kinds) * len(cells)
                return (
                    f"{where}, which gets {planned} of the {text.documents} documents ({len(cells)} kinds of text "
                    f"share them) and needs {bound.min_docs}; write text.documents = {needed}"
                )
            if planned_documents(pilot_documents, cells, label) < PILOT_DOCUMENTS:
                needed = -(-PILOT_DOCUMENTS // kinds) * len(cells)
                return (
                    f"{where}, of which the pilot needs {PILOT_DOCUMENTS} documents to plan; "
                    f"write inference.pilot_documents = {needed}"
                )
    return ""
