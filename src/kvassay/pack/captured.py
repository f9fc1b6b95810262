"""Do the rows of captured tensors hold every layer and head of the model, of the documents that the subject lists?

The judge sees rows alone, so it finds a cell that one document lacks and not a layer that all of them lack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError

from kvassay.core.geometry import CacheGeometry
from kvassay.judge.rows import TensorRows, TensorTable, read_tensors
from kvassay.pack import layout
from kvassay.pack.checks import Check
from kvassay.pack.manifest import first_fault
from kvassay.pack.reader import PackContent


class _Captured(BaseModel):
    """A captured document as the subject lists it; further fields are free."""

    id: str
    tokens: int


_CAPTURED = TypeAdapter(tuple[_Captured, ...])


def captured_checks(pack: PackContent) -> Iterator[Check]:
    if not pack.tables.tensors.num_rows:
        return
    numeric: Any = pack.subject.get("numeric")
    listed: Any = cast("dict[str, Any]", numeric).get("documents") if isinstance(numeric, dict) else None
    try:
        captured = _CAPTURED.validate_python(listed, strict=False)
        geometry = CacheGeometry.model_validate(pack.subject.get("geometry"))
    except ValidationError as error:
        yield Check("captured", False, f"{layout.SUBJECT}: numeric.documents or geometry: {first_fault(error)}")
        return
    fault = _document_fault(pack, captured)
    if fault is None:
        table = read_tensors(pack.tables.tensors, [arm.name for arm in pack.arms])
        names = {document.id for document in captured}
        fault = next(filter(None, (_arm_fault(table, arm, names, geometry) for arm in table.arms)), None)
    well = f"the rows hold every layer and head of the {len(captured)} captured documents that {layout.SUBJECT} lists"
    yield Check("captured", fault is None, fault or well)


def _document_fault(pack: PackContent, captured: tuple[_Captured, ...]) -> str | None:
    planned, text = pack.contract.numeric.documents, pack.contract.text
    if len({document.id for document in captured}) != planned:
        return f"{layout.SUBJECT} lists {len(captured)} captured documents, the contract plans {planned}"
    length = text.prompt_tokens + text.scored_tokens
    odd = next((document for document in captured if document.tokens != length), None)
    return None if odd is None else f"captured document {odd.id!r} has {odd.tokens} tokens, the contract plans {length}"


def _arm_fault(table: TensorTable, arm: str, names: set[str], geometry: CacheGeometry) -> str | None:
    rows: TensorRows = table.arms[arm]
    found = {table.documents[int(code)] for code in np.unique(rows.document)}
    if found != names:
        odd = sorted(found ^ names)[0]
        return f"document {odd!r} stands in one of {layout.SUBJECT} and the rows of {arm} only"
    heads = np.array([layer.kv_heads for layer in geometry.layers], dtype=np.int64)
    expected = 3 * int(heads.sum()) * len(names)
    inside = rows.layer < len(heads)
    outside = int(np.count_nonzero(~inside)) + int(np.count_nonzero(rows.head[inside] >= heads[rows.layer[inside]]))
    if outside:
        return f"{outside} rows of {arm} are of layers or heads that the model does not have"
    cells = np.stack((rows.document, rows.substituted, rows.layer, rows.head), axis=1)
    if rows.size != expected or len(np.unique(cells, axis=0)) != expected:
        return (
            f"{arm} has {rows.size} rows of captured tensors; {len(names)} documents of {len(heads)} layers have "
            f"{expected} cells"
        )
    return None
