"""Did the quantized store really take part? Controls `engaged` and `drift` of one arm.

transformers' own quantized cache returns the unquantized keys and values on its first update, so a one-shot perplexity
through it measures nothing and looks perfect. An arm is engaged if, in every level that it has rows of,

- its ledger has code bytes and some value was encoded at all;
- at least half of the scored queries read a token from the store;
- these reads are at least a tenth of what the format says is stored at those positions. The first two would be
  satisfied by a cache that stored one token and let every query read it. A tenth, not all, since layers with a
  sliding window read less than the whole history.

Drift: the KL of the token rows must not be zero everywhere, for then the store was not used, whatever was counted.
Formats that store plain floats have no codes to read; for them neither control applies.

The same holds of each slice: one whose queries read no stored token shows nothing of the store, however the rest did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.core.geometry import Owner
from kvassay.core.kv_format import KVFormat, SidePlan
from kvassay.core.ledger import ByteLedger
from kvassay.core.records import Arm, ControlResult
from kvassay.judge.rows import Floats, ItemRows, TokenRows
from kvassay.judge.token_slices import Mask, TokenSlices
from kvassay.judge.wording import figure

LEAST_READING_SHARE = 0.5
"""Share of scored queries that must read at least one stored token."""
LEAST_READ_SHARE = 0.1
"""Share of the tokens stored by the format's own account that must be read."""


class Engagement(NamedTuple):
    controls: tuple[ControlResult, ...]
    faults: dict[str, str]
    """By level (`fidelity`, `task.NAME`, `bytes`): why its evidence may not be used."""
    slice_faults: Mapping[tuple[str, str], str]
    """By level and slice, of slices with rows: why a slice may not be used where its level may."""


class ItemSlices(NamedTuple):
    """One task's items of an arm, and which of them lie in which slice."""

    rows: ItemRows
    masks: Mapping[str, Mask]


def engagement(
    arm: Arm,
    kv_format: KVFormat,
    ledger: ByteLedger | None,
    tokens: TokenRows | None,
    token_parts: TokenSlices | None = None,
    items: Mapping[str, ItemSlices] | None = None,
) -> Engagement:
    """`tokens` and `items` (by task) are the arm's rows, where it has any."""
    if kv_format.is_exact:
        reason = f"does not apply: {kv_format.name} stores plain floats and has no codes to read"
        results = tuple(ControlResult(name=name, passed=None, reason=reason) for name in ("engaged", "drift"))
        return Engagement(results, {}, {})
    faults: dict[str, str] = {}
    seen: list[str] = []
    if ledger is not None and ledger.owner_nbytes(Owner.CODES) == 0:
        faults["bytes"] = f"the ledger of {ledger.tokens} tokens has no bytes of codes: nothing was compressed"
    if tokens is not None:
        _note("fidelity", _reads_fault(arm, kv_format, tokens.stored_reads, tokens.position), tokens, faults, seen)
    for task, (rows, _) in (items or {}).items():
        _note(f"task.{task}", _item_fault(arm, kv_format, rows), rows, faults, seen)
    controls = [_engaged_control(faults, seen), _drift_control(tokens, faults.get("fidelity"))]
    if controls[1].passed is False:
        faults.setdefault("fidelity", controls[1].reason)
    return Engagement(tuple(controls), faults, _slice_faults(arm, kv_format, token_parts, items or {}, faults))


def _slice_faults(
    arm: Arm,
    kv_format: KVFormat,
    tokens: TokenSlices | None,
    items: Mapping[str, ItemSlices],
    faults: Mapping[str, str],
) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str | None] = {}
    if tokens is not None:
        for part in tokens.slices:
            rows = tokens.rows.take(part.mask)
            fault = _reads_fault(arm, kv_format, rows.stored_reads, rows.position)
            if fault is None and not np.any(rows.kl_nats != 0):
                fault = f"KL is exactly zero at all {rows.size} positions: the quantized store was not used"
            found["fidelity", part.label] = fault
    for task, (rows, masks) in items.items():
        for label, mask in masks.items():
            found[f"task.{task}", label] = _item_fault(arm, kv_format, rows.take(mask))
    return {key: fault for key, fault in found.items() if fault is not None and key[0] not in faults}


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


def _drift_control(tokens: TokenRows | None, not_engaged: str | None) -> ControlResult:
    if tokens is None:
        return ControlResult(name="drift", passed=None, reason="not run: the arm has no token rows")
    if not_engaged is not None:
        # What moves the KL of such an arm is its 16-bit window, not its codes.
        return ControlResult(name="drift", passed=None, reason=f"does not apply: {not_engaged}")
    moved = int(np.count_nonzero(tokens.kl_nats != 0))
    if moved == 0:
        reason = f"KL is exactly zero at all {tokens.size} positions: the quantized store was not used"
        return ControlResult(name="drift", passed=False, reason=reason)
    reason = f"KL is not zero at {moved} of {tokens.size} positions"
    return ControlResult(name="drift", passed=True, reason=reason)
