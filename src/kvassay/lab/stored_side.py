"""One stored side for the eye: its first codes, its scales, and how its values spread over the codes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvassay.core.geometry import Owner
from kvassay.formats.packed_kv import PackedKV
from kvassay.formats.packing import unpack_codes

SHOWN_TOKENS, SHOWN_CHANNELS = 12, 16
MAX_SCALES = 64
MAX_BARS = 64


class StoredView(NamedTuple):
    """Codes are signed where the grid is symmetric; None where a method's codes are no integers of a grid."""

    method: str
    num_bits: int
    sink_tokens: int
    coded_tokens: int
    codes: Tensor | None
    """`[coded_tokens, width]`."""
    lowest: int
    highest: int
    scales: Tensor
    """All of them, flat, as float64; empty where the method stores none under that owner."""
    scale_dtype: str
    clipped: int
    raw: bytes
    """The first stored bytes, for methods without integer codes."""

    def to_json(self, before: StoredView | None, exact: Tensor) -> dict[str, Any]:
        """`before` is the same side without the enlarged element: what changed is counted against it."""
        begin = self.sink_tokens
        found: dict[str, Any] = {
            "method": self.method,
            "num_bits": self.num_bits,
            "first_coded_token": begin,
            "coded_tokens": self.coded_tokens,
            "codes": None,
            "values": exact[begin : begin + SHOWN_TOKENS, :SHOWN_CHANNELS].tolist(),
            "raw": self.raw.hex(" ") if self.codes is None else None,
            "scales": self._scales(before),
            "histogram": None,
        }
        if self.codes is None:
            return found
        used = torch.unique(self.codes)
        return found | {
            "codes": self.codes[:SHOWN_TOKENS, :SHOWN_CHANNELS].tolist(),
            "lowest": self.lowest,
            "highest": self.highest,
            "levels": self.highest - self.lowest + 1,
            "levels_used": used.numel(),
            "rows_with_changed_codes": self._changed_rows(before),
            "histogram": self._histogram(),
        }

    def _scales(self, before: StoredView | None) -> dict[str, Any] | None:
        if not self.scales.numel():
            return None
        step = -(-self.scales.numel() // MAX_SCALES)
        changed = None
        if before is not None and before.scales.shape == self.scales.shape:
            changed = int((before.scales != self.scales).sum())
        return {
            "count": self.scales.numel(),
            "dtype": self.scale_dtype,
            "smallest": float(self.scales.min()),
            "largest": float(self.scales.max()),
            "changed": changed,
            "shown_every": step,
            "shown": self.scales[::step].tolist(),
        }

    def _changed_rows(self, before: StoredView | None) -> int | None:
        if before is None or before.codes is None or self.codes is None or before.codes.shape != self.codes.shape:
            return None
        return int((before.codes != self.codes).any(dim=1).sum())

    def _histogram(self) -> list[dict[str, int]]:
        """How many values each code has, or each run of neighbouring codes where there are more codes than bars."""
        assert self.codes is not None
        levels = self.highest - self.lowest + 1
        run = -(-levels // MAX_BARS)
        counts = torch.bincount((self.codes.flatten().long() - self.lowest) // run, minlength=-(-levels // run))
        return [
            {
                "first": self.lowest + run * index,
                "last": min(self.lowest + run * index + run - 1, self.highest),
                "count": count,
            }
            for index, count in enumerate(counts.tolist())
        ]


def stored_view(packed: PackedKV, name: str) -> StoredView:
    """Of `keys` or `values`; of several head groups the first."""
    side = next(side for side in packed.sides if side.is_keys == (name == "keys"))
    spec = side.plan.spec
    declared = {each.name: each for each in side.arrays}
    scales = [packed.arrays[each.name] for each in declared.values() if each.owner is Owner.SCALES]
    largest = (1 << spec.num_bits - 1) - 1 if spec.symmetric else (1 << spec.num_bits) - 1
    stored = packed.arrays.get(f"{side.block_prefix}codes")
    codes = None
    if spec.method == "int" and stored is not None and side.coded_tokens:
        rows = stored.flatten(0, 3)
        codes = rows.int() if spec.code_dtype == "int8" else unpack_codes(rows, spec.num_bits).int()
        if spec.symmetric and spec.code_dtype == "uint8":
            codes = codes - (1 << spec.num_bits - 1)
    raw = b"" if stored is None else stored.flatten().view(torch.uint8)[:64].numpy().tobytes()
    return StoredView(
        method=spec.method,
        num_bits=spec.num_bits,
        sink_tokens=side.sink_tokens,
        coded_tokens=side.coded_tokens,
        codes=codes,
        lowest=-largest if spec.symmetric else 0,
        highest=largest,
        scales=torch.cat([each.flatten().to(torch.float64) for each in scales]) if scales else torch.empty(0),
        scale_dtype=str(scales[0].dtype).removeprefix("torch.") if scales else "",
        clipped=packed.clipped_values[side.name],
        raw=raw,
    )
