"""KVarN: a tile of tokens x channels is balanced along both axes, then rounded row by row.

A tile is a matrix M whose rows are rounded (`axis=channel`: channels x tokens, for keys; `axis=token`: tokens x
channels, for values). Balancing finds a factor c for each column and r for each row: start at one, then each round
c ← clamp(c · std of M/(c·r) over each column), r ← clamp(r · std of M/(c·r) over each row), with standard deviations
held within 1e-3 to 1e3 and factors within e^−0.3 to e^10. Of all states, the start included, the last one with the
least imbalance (largest/smallest column std + largest/smallest row std) is kept. Each row of M/(c·r) is then rounded
asymmetrically. Scale and minimum of a row absorb r, so that what is stored is, by tile, codes, scale s and minimum z of
each row, and c of each column: x̂ = (q·s + z)·c. At 128 x 128 that is b + 0.375 bits a value in float16.

Error bound: |x − x̂| <= c·(s/2 + levels · ulp(s)/2 + ulp(z)/2), as in `formats.integer`.

Source: KVarN (Muller et al. 2026, arXiv:2606.03458), whose rotation is the modifier `had`. Constants, clamps and the
choice of the state follow the reference of its published kernels (huawei-csl/KVarN, `kvarn_store_tile_k/api_test.py`,
which runs 16 rounds; the engine's names are `kvarn_k4v2_g128` and `kvarn_k4v2_g64`).
Deviations: c, s and z are rounded to their stored dtype before the codes are computed (there after); r cancels in the
rounding, so it is never applied; the logarithms of the reference are kept as products, which is the same update
without functions whose last bit differs between vector and scalar code; the standard deviation is summed in a fixed
order. A row whose scale underflows uses scale one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kvassay.core.spec import QuantSpec
from kvassay.formats.base import (
    Calibration,
    Encoded,
    Quantizer,
    Streams,
    computing_dtype,
    require_finite,
    stored,
)
from kvassay.formats.packing import pack_codes, unpack_codes

STD_RANGE = (1e-3, 1e3)
FACTOR_RANGE = (math.exp(-0.3), math.exp(10.0))
SMALLEST_STD = 1e-8
"""Floor of the divisor in the imbalance."""


class KvarnQuantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        assert spec.scale_dtype is not None, "the grammar gives a tile a scale dtype"
        self._scale_dtype: str = spec.scale_dtype
        self._largest_code = (1 << spec.num_bits) - 1
        self._by_channel = spec.option("axis") == "channel"
        self._rounds = int(spec.option("rounds"))

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        tiles = self._tiles(values.to(computing_dtype(values)))
        columns = stored(column_factors(tiles, self._rounds), self._scale_dtype, "column scale")
        balanced = tiles / columns.to(tiles.dtype)
        minimum = stored(balanced.amin(-1, keepdim=True), self._scale_dtype, "minimum")
        centred = balanced - minimum.to(tiles.dtype)
        scale = stored(centred.amax(-1, keepdim=True).clamp_min(0) / self._largest_code, self._scale_dtype, "scale")
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        # A code beyond the ends comes from the rounding of the minimum or scale, not from saturation.
        codes = torch.round(centred / scale.to(tiles.dtype)).clamp(0, self._largest_code).to(torch.uint8)
        return Encoded(
            {
                "codes": pack_codes(codes, self.spec.num_bits),
                "scales": scale.squeeze(-1),
                "minimums": minimum.squeeze(-1),
                "column_scales": columns.squeeze(-2),
            },
            0,
        )

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        codes = unpack_codes(streams["codes"], self.spec.num_bits).to(dtype)
        balanced = codes * streams["scales"].to(dtype).unsqueeze(-1)
        balanced += streams["minimums"].to(dtype).unsqueeze(-1)
        tiles = balanced * streams["column_scales"].to(dtype).unsqueeze(-2)
        return (tiles.transpose(-1, -2) if self._by_channel else tiles).flatten(2, 3)

    def _tiles(self, values: Tensor) -> Float[Tensor, "batch kv_heads blocks rows columns"]:
        tiles = values.unflatten(2, (-1, self.spec.tokens_per_block))
        return (tiles.transpose(-1, -2) if self._by_channel else tiles).contiguous()


class _Spread(NamedTuple):
    """Standard deviations of a tile, `[..., 1, columns]` and `[..., rows, 1]`."""

    columns: Tensor
    rows: Tensor

    @property
    def imbalance(self) -> Tensor:
        """Largest over smallest std, columns plus rows: `[..., 1, 1]`."""
        return _ratio(self.columns, -1) + _ratio(self.rows, -2)


def column_factors(tiles: Float[Tensor, "*tiles rows columns"], rounds: int) -> Float[Tensor, "*tiles 1 columns"]:
    """The column factor of the best balanced state of each tile."""
    columns = torch.ones_like(tiles[..., :1, :])
    rows = torch.ones_like(tiles[..., :, :1])
    spread = _spread(tiles)
    best_columns, least = columns, spread.imbalance
    for _ in range(rounds):
        columns = (columns * spread.columns.clamp(*STD_RANGE)).clamp(*FACTOR_RANGE)
        rows = (rows * _std(tiles / columns / rows, -1).clamp(*STD_RANGE)).clamp(*FACTOR_RANGE)
        spread = _spread(tiles / columns / rows)
        better = spread.imbalance <= least
        best_columns = torch.where(better, columns, best_columns)
        least = torch.where(better, spread.imbalance, least)
    return best_columns


def _spread(tiles: Tensor) -> _Spread:
    return _Spread(_std(tiles, -2), _std(tiles, -1))


def _ratio(std: Tensor, axis: int) -> Tensor:
    return std.amax(axis, keepdim=True) / std.amin(axis, keepdim=True).clamp_min(SMALLEST_STD)


def _std(tiles: Tensor, axis: int) -> Tensor:
    """Unbiased standard deviation, kept as an axis of length one."""
    count = tiles.shape[axis]
    centred = tiles - _sum(tiles, axis) / count
    return (_sum(centred * centred, axis) / (count - 1)).sqrt()


def _sum(values: Tensor, axis: int) -> Tensor:
    """Sum by halves: a fixed order, whatever the shape and strides of the call (torch's own order depends on them)."""
    while (count := values.shape[axis]) > 1:
        half = count // 2
        total = values.narrow(axis, 0, half) + values.narrow(axis, half, half)
        rest = values.narrow(axis, 2 * half, count - 2 * half)
        values = torch.cat((total, rest), dim=axis) if count % 2 else total
    return values
