"""Midpoint grid: 2^b equal cells between −s and s, each decoded to its centre; alone, and as in exllamav3's cache.

`midpoint-b`: s = max|x| of the group; q = clip(⌊2^(b−1)·(x/s + 1)⌋, 0, 2^b − 1); x̂ = s·((2q + 1)/2^b − 1).
`exl3-b`: groups of 32 channels, y = H₃₂·x/√32 first (Sylvester's matrix, no signs), the same grid on y, then the
rotation back: x̂ = H₃₂·ŷ/√32. Stored bits: b + 0.5.

Scales: one a group (or a row), `[batch, kv_heads, tokens, groups]`. All 2^b levels are used and the error is at most
half a cell, |y − ŷ| <= s/2^b. There is no level at zero: a lone spike, or a constant group of `exl3` (which the
rotation turns into one), costs its 31 neighbours s/2^b each. A zero group stores scale zero and decodes to zero.

Compander, `compand=a`: cells are equal in t where y/s = f(t) = a·t + (1 − a)·t³, so they narrow towards zero;
q = ⌊2^(b−1)·(f⁻¹(y/s) + 1)⌋ and ŷ = s·f((2q + 1)/2^b − 1). exllamav3 has it as `LMCubic` with a = 0.65; its cache layer
takes it as `compand_a`, whose default is 0: off.

`midpoint` rounds the scale (outward) before the codes are computed. `exl3` follows the engine: codes are computed with
the float32 scale max|y| + 1e-10 and decoded with its float16 rounding, which adds |ŷ|·2^-11 to the bound.
Source: exllamav3, `exllamav3_ext/cache/q_cache_kernels.cuh` (`quant_block_x4`, `dequant_block_x4`, `had_4_inreg`,
`had_8_subgroup`) and `lmq.cuh`. The rotation adds in the kernel's order. Deviations: the engine packs the codes of a
group in bit planes (4, 2, 1), here a row is one dense stream; it decodes to float16; with the compander it inverts f
by Cardano's formula, here a value is compared with f of the cell edges, which is the same but for rounding on an edge.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvassay.core.spec import Granularity, QuantSpec
from kvassay.errors import FormatError
from kvassay.formats.base import (
    Calibration,
    Encoded,
    Quantizer,
    Streams,
    computing_dtype,
    require_finite,
    stored,
    stored_outward,
)
from kvassay.formats.codebook import levels_of, nearest_codes
from kvassay.formats.grouping import (
    block_codes,
    group_values,
    load_parameters,
    store_parameters,
    unblock_codes,
    ungroup_values,
)
from kvassay.formats.packing import pack_codes, unpack_codes
from kvassay.formats.rotation import hadamard
from kvassay.formats.tile_reading import TileReading, table_code, unsigned_code

EXL3_GROUP = 32


class MidpointQuantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        if not 1 <= spec.num_bits <= 8:
            raise FormatError(f"{spec.method} takes 1 to 8 bits, found {spec.num_bits}")
        assert spec.scale_dtype is not None, "the grammar gives every granularity a scale dtype"
        self._scale_dtype: str = spec.scale_dtype

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        grouped, axes = group_values(self._forward(values.to(computing_dtype(values))), self.spec)
        scale, divisor = self._scale(grouped.abs().amax(axes, keepdim=True))
        codes = self._codes(grouped * torch.where(divisor == 0, torch.zeros_like(divisor), 1 / divisor))
        packed = pack_codes(ungroup_values(codes, self.spec), self.spec.num_bits)
        return Encoded(
            {"codes": block_codes(packed, self.spec), "scales": store_parameters(scale, self.spec)},
            0,  # every value is within half a cell of a level
        )

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        codes = unpack_codes(unblock_codes(streams["codes"]), self.spec.num_bits)
        grouped, _ = group_values(self._levels(codes, dtype), self.spec)
        scale = load_parameters(streams["scales"], self.spec).to(dtype)
        return self._backward(ungroup_values(grouped * scale, self.spec))

    def tile_reading(self, dim: int) -> TileReading | None:
        code = unsigned_code(self.spec.num_bits)
        if code is None:
            return None
        cells = 1 << self.spec.num_bits
        return TileReading(code, offset=(cells - 1) / 2, factor=2 / cells)

    def _scale(self, largest: Tensor) -> tuple[Tensor, Tensor]:
        """The stored scale, and the one that codes are computed with."""
        scale = stored_outward(largest, self._scale_dtype, "scale", up=True)
        return scale, scale.to(largest.dtype)

    def _codes(self, shares: Tensor) -> Tensor:
        """Codes of values divided by their scale."""
        half = 1 << self.spec.num_bits - 1
        return torch.floor(shares * half + half).clamp(0, 2 * half - 1).to(torch.uint8)

    def _levels(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """Cell centres as shares of the scale."""
        return (codes.to(dtype) * 2 + 1) * 2.0**-self.spec.num_bits - 1

    def _forward(self, values: Tensor) -> Tensor:
        return values

    def _backward(self, values: Tensor) -> Tensor:
        return values


class Exl3Quantizer(MidpointQuantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        if spec.granularity is not Granularity.GROUP or spec.group_size != EXL3_GROUP:
            raise FormatError(f"exl3 has groups of {EXL3_GROUP} channels, found {spec.group_size}")
        self._linear_share = float(spec.option("compand"))

    def tile_reading(self, dim: int) -> TileReading | None:
        if not self._linear_share:
            reading = super().tile_reading(dim)
            return None if reading is None else reading._replace(basis=self._forward)
        code = table_code(self.spec.num_bits)
        if code is None:
            return None
        levels = self._levels(torch.arange(1 << self.spec.num_bits), torch.float64)
        return TileReading(code, table=tuple(levels.tolist()), basis=self._forward)

    def _scale(self, largest: Tensor) -> tuple[Tensor, Tensor]:
        divisor = largest + 1e-10
        return stored(divisor, self._scale_dtype, "scale"), divisor

    def _codes(self, shares: Tensor) -> Tensor:
        if not self._linear_share:
            return super()._codes(shares)
        cells = 1 << self.spec.num_bits
        return nearest_codes(shares, tuple(self._compressed(2 * edge / cells - 1) for edge in range(1, cells)))

    def _levels(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        if not self._linear_share:
            return super()._levels(codes, dtype)
        cells = 1 << self.spec.num_bits
        levels = tuple(self._compressed((2 * code + 1) / cells - 1) for code in range(cells))
        return levels_of(codes, levels, dtype)

    def _compressed(self, position: float) -> float:
        return self._linear_share * position + (1 - self._linear_share) * position**3

    def _forward(self, values: Tensor) -> Tensor:
        return hadamard(values, EXL3_GROUP)

    def _backward(self, values: Tensor) -> Tensor:
        return hadamard(values, EXL3_GROUP)
