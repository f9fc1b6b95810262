"""Did the quantized store really take part? Controls `engaged` and `drift` of one arm.

transformers' own quantized cache returns the unquantized keys and values on its first update, so a one-shot perplexity
through it measures nothing and looks perfect. An arm is engaged if, in every level that it has rows of,

- its ledger has code bytes and some value was encoded at all;
- at least half of the scored queries read a token from the store;
- these reads are at least a tenth of what the format says is stored at those positions. The first two would be
  satisfied by a cache that stored one token and let every query read it. A tenth, not all, since layers with a
  sliding window read less than the whole history.

Drift: the KL of the token rows must not be zero everywhere, for then the store was not used, whatever was counted; nor
must every output error of captured tensors be zero.
Formats that store plain floats have no codes to read; for them neither control applies.

The same holds of each slice: one whose queries read no stored token shows nothing of the store, however the rest did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.core.contract import Contract
from kvassay.core.geometry import Owner
from kvassay.core.kv_format import KVFormat, SidePlan
from kvassay.core.ledger import ByteLedger
from kvassay.core.records import Arm, ControlResult
from kvassay.judge.numeric import TensorSlices
from kvassay.judge.rows import Floats, ItemRows, TensorRows, TokenRows
from kvassay.judge.token_slices import Mask, TokenSlices
from kvassay.judge.wording import figure

LEAST_READING_SHARE = 0.5
"""Share of scored queries that must read at least one stored token."""
LEAST_READ_SHARE = 0.1
"""Share of the tokens stored by the format's own account that must be read."""


class Engagement(NamedTuple):
    controls: tuple[ControlResult, ...]
    faults: dict[str, str]
    """By level (`fidelity`, `numeric`, `task.NAME`, `bytes`): why its evidence may not be used."""
    slice_faults: Mapping[tuple[str, str], str]
    """By level and slice, of slices with rows: why a slice may not be used where its level may."""
    exact_slices: frozenset[tuple[str, str]] = frozenset()
    """Level and slice where the format stores plain floats, so that there are no codes to read."""


class ItemSlices(NamedTuple):
    """One task's items of an arm, and which of them lie in which slice."""

    rows: ItemRows
    masks: Mapping[str, Mask]


class ArmRows(NamedTuple):
    """An arm's rows whose queries follow a fixed history, with their slices; None where it has none."""

    tokens: TokenRows | None
    token_parts: TokenSlices | None
    items: Mapping[str, ItemSlices]
    """By task."""
    tensors: TensorSlices | None


def engagement(
    contract: Contract, arm: Arm, kv_format: KVFormat, ledger: ByteLedger | None, rows: ArmRows
) -> Engagement:
    """What an arm's rows and ledger show; free-running generation is `generation_engagement`'s."""
    if kv_format.is_exact:
        reason = f"does not apply: {kv_format.name} stores plain floats and has no codes to read"
        results = tuple(ControlResult(name=name, passed=None, reason=reason) for name in ("engaged", "drift"))
        return Engagement(results, {}, {})
    faults: dict[str, str] = {}
    seen: list[str] = []
    if ledger is not None and ledger.owner_nbytes(Owner.CODES) == 0:
        faults["bytes"] = f"the ledger of {ledger.tokens} tokens has no bytes of codes: nothing was compressed"
    tokens = rows.tokens
    if tokens is not None:
        _note("fidelity", _reads_fault(arm, kv_format, tokens.stored_reads, tokens.position), tokens, faults, seen)
    if rows.tensors is not None:
        fault, words = _tensor_reads(contract, arm, kv_format, rows.tensors.rows)
        if fault is not None:
            faults["numeric"] = fault
        seen.append(words)
    for task, (items, _) in rows.items.items():
        _note(f"task.{task}", _item_fault(arm, kv_format, items), items, faults, seen)
    engaged = _engaged_control(faults, seen)
    drift, unmoved = _drift_control(list(_drifts(tokens, rows.tensors)), faults)
    faults = {**unmoved, **faults}
    slices = {**_slice_faults(arm, kv_format, rows), **_tensor_slice_faults(kv_format, rows.tensors)}
    return Engagement(
        (engaged, drift),
        faults,
        {key: fault for key, fault in slices.items() if fault and key[0] not in faults},
        frozenset(key for key, fault in slices.items() if fault is None),
    )


def _slice_faults(arm: Arm, kv_format: KVFormat, rows: ArmRows) -> dict[tuple[str, str], str]:
    """Of every slice of tokens and items; empty where its queries read the store."""
    found: dict[tuple[str, str], str] = {}
    if (parts := rows.token_parts) is not None:
        for label, mask, *_ in parts.slices:
            tokens = parts.rows.take(mask)
            fault = _reads_fault(arm, kv_format, tokens.stored_reads, tokens.position)
            if fault is None and not np.any(tokens.kl_nats != 0):
                fault = f"KL is exactly zero at all {tokens.size} positions: the quantized store was not used"
            found["fidelity", label] = fault or ""
    for task, (items, masks) in rows.items.items():
        for label, mask in masks.items():
            found[f"task.{task}", label] = _item_fault(arm, kv_format, items.take(mask)) or ""
    return found


def _tensor_slice_faults(kv_format: KVFormat, tensors: TensorSlices | None) -> dict[tuple[str, str], str | None]:
    """Of every slice of cells; empty where its queries read the store, None where the format stores no codes there.

    Layers with a sliding window read less than the format stores at the document's length, and a slice may have no
    others, so here any read will do.
    """
    found: dict[tuple[str, str], str | None] = {}
    if tensors is None:
        return found
    coded = tensors.coded(kv_format)
    for label, mask in tensors.masks.items():
        cells = tensors.rows.take(mask & coded)
        fault = ""
        if not np.nansum(cells.stored_reads):
            fault = "no query read a token from the quantized store"
        elif not np.any(cells.figures["output_max_abs"] != 0):
            fault = f"output error is exactly zero at all {cells.size} cells: the quantized store was not used"
        if mask.any():
            found["numeric", label] = fault if cells.size else None
    return found


def _item_fault(arm: Arm, kv_format: KVFormat, rows: ItemRows) -> str | None:
    # The query stands behind the whole context, so at least these tokens are older than it.
    older = np.nan_to_num(rows.context_tokens).astype(np.int64)
    return _reads_fault(arm, kv_format, rows.stored_reads, older)


def expected_reads(kv_format: KVFormat, older: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens that the format stores in codes once `older` tokens are held, in a layer that sees all of them."""
    plans = [
        SidePlan("keys", spec, kv_format.sinks, kv_format.recent, None) for spec in kv_format.specs if not spec.is_exact
    ]
    lengths, place = np.unique(older, return_inverse=True)
    counts = [[plan.committed_tokens(int(length)) for length in lengths] for plan in plans]
    return np.max(np.array(counts, dtype=np.int64), axis=0)[place]


def _reads_fault(arm: Arm, kv_format: KVFormat, reads: Floats, older: NDArray[np.int64]) -> str | None:
    if arm.encoded_values == 0:
        return "no value was encoded: nothing was compressed"
    unknown = int(np.count_nonzero(np.isnan(reads)))
    if unknown:
        return f"stored_reads is missing in {unknown} of {len(reads)} rows"
    total = int(reads.sum())
    if total == 0:
        return "no query read a token from the quantized store"
    reading = float(np.mean(reads >= 1))
    if reading < LEAST_READING_SHARE:
        return f"only {reading:.1%} of {len(reads)} queries read a stored token; at least half must"
    expected = int(expected_reads(kv_format, older).sum())
    if total < LEAST_READ_SHARE * expected:
        return f"queries read {total} stored tokens where the format stores {expected}; at least a tenth must be read"
    return None


def _note(level: str, fault: str | None, rows: TokenRows | ItemRows, faults: dict[str, str], seen: list[str]) -> None:
    if fault is not None:
        faults[level] = fault
    seen.append(
        f"{level}: a query read {figure(float(np.nan_to_num(rows.stored_reads).mean()))} stored tokens on average"
    )


def _engaged_control(faults: dict[str, str], seen: list[str]) -> ControlResult:
    if faults:
        reason = "; ".join(f"{level}: {fault}" for level, fault in sorted(faults.items()))
        return ControlResult(name="engaged", passed=False, reason=reason)
    if not seen:
        return ControlResult(name="engaged", passed=None, reason="not run: the arm has no rows")
    return ControlResult(name="engaged", passed=True, reason="; ".join(seen))


def _tensor_reads(contract: Contract, arm: Arm, kv_format: KVFormat, tensors: TensorRows) -> tuple[str | None, str]:
    """Why captured queries did not read what the format stores, and what was seen.

    Rows sum a document's queries, so the cell that read most stands for the document.
    """
    starts = np.flatnonzero(np.diff(tensors.document, prepend=-1))
    reads = np.maximum.reduceat(np.nan_to_num(tensors.stored_reads), starts)
    length, queries = contract.text.prompt_tokens + contract.text.scored_tokens, contract.captured_queries
    expected = int(expected_reads(kv_format, np.arange(length - queries, length)).sum()) * len(starts)
    total = int(reads.sum())
    words = f"numeric: a query read {figure(total / (queries * len(starts)))} stored tokens on average"
    if arm.encoded_values == 0:
        return "no value was encoded: nothing was compressed", words
    if unknown := int(np.count_nonzero(np.isnan(tensors.stored_reads))):
        return f"stored_reads is missing in {unknown} of {tensors.size} rows", words
    if total == 0:
        return "no query read a token from the quantized store", words
    if total < LEAST_READ_SHARE * expected:
        fault = f"queries read {total} stored tokens where the format stores {expected}; at least a tenth must be read"
        return fault, words
    return None, words


class _Drift(NamedTuple):
    """How many figures of a level are not zero, and of how many."""

    level: str
    moved: int
    size: int
    what: str
    where: str

    @property
    def unmoved(self) -> str:
        return f"{self.what} is exactly zero at all {self.size} {self.where}: the quantized store was not used"


def _drifts(tokens: TokenRows | None, tensors: TensorSlices | None) -> Iterator[_Drift]:
    if tokens is not None:
        yield _Drift("fidelity", int(np.count_nonzero(tokens.kl_nats != 0)), tokens.size, "KL", "positions")
    if tensors is not None:
        moved = int(np.count_nonzero(tensors.rows.figures["output_max_abs"] != 0))
        yield _Drift("numeric", moved, tensors.rows.size, "output error", "cells")


def _drift_control(drifts: list[_Drift], faults: dict[str, str]) -> tuple[ControlResult, dict[str, str]]:
    """The control, and the levels whose figures are all zero.

    What moves the figures of an arm that was not engaged is its 16-bit window, not its codes: that shows nothing.
    """
    if not drifts:
        return ControlResult(name="drift", passed=None, reason="not run: the arm has no token rows"), {}
    judged = [drift for drift in drifts if drift.level not in faults]
    if not judged:
        reason = f"does not apply: {faults[drifts[0].level]}"
        return ControlResult(name="drift", passed=None, reason=reason), {}
    unmoved = {drift.level: drift.unmoved for drift in judged if drift.moved == 0}
    if unmoved:
        return ControlResult(name="drift", passed=False, reason="; ".join(unmoved.values())), unmoved
    reason = "; ".join(f"{drift.what} is not zero at {drift.moved} of {drift.size} {drift.where}" for drift in judged)
    return ControlResult(name="drift", passed=True, reason=reason), {}
