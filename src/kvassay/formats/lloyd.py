"""TurboQuant-MSE without its sketch: one norm a row, then the Lloyd-Max codebook of a standard Gaussian.

n = ‖x‖ over the D channels that share a scale; y = √D·x/n; code = nearest level c of the codebook;
x̂ = (n/√D)·c. The codebook is optimal where y looks Gaussian, which a rotation brings about: TurboQuant's own form is
`lloyd-b:token-head/had/seed=1`, with the rotation applied around this codec. (Its paper draws a Haar-random rotation;
engines use a Hadamard one.) Unrotated it shows what the rotation is worth.

What is stored in place of the scale, by `norm`:
- `plain`: n, rounded before the codes are computed. TurboQuant's and HIGGS's form.
- `corrected`: γ = ⟨x, c⟩/‖c‖², and x̂ = γ·c: the least squared error for the codes found. Costs no bit; γ follows the
  codes, so only its own rounding comes after them.
- `preserved`: n, and x̂ = n·c/‖c‖ with ‖c‖ computed on decode: decoded rows keep their norm. This is what vLLM's
  presets call norm correction (`_nc`). The codes come from n as it was before rounding, as there. Half of the
  shrinkage by 1 − MSE goes, and the squared error is slightly above that of `plain`.

Scales: `[batch, kv_heads, tokens, 1]`, or one a group. Stored bits: b + 16/D with float16 scales, 4.125 at b = 4 and
D = 128. Squared error over x² on Gaussian data, b = 1 to 4: 0.3634, 0.1175, 0.0345, 0.0095. There is no bound in steps,
since the outer cells are open: a row that is one spike keeps c_max/√D of it. No value counts as clipped.

Sources: TurboQuant (Zandieh et al. 2025, arXiv:2504.19874, section 3.1, algorithm 1); HIGGS (Malinovskii et al. 2024,
arXiv:2411.17525, section 4, scalar grid); levels: Max 1960, computed again to 12 digits by Lloyd's iteration in the
tests. Deviation: both papers count the norm as negligible, here its bits are stored and counted.
"""

from __future__ import annotations

import math

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
)
from kvassay.formats.codebook import levels_of, midpoints, nearest_codes
from kvassay.formats.grouping import (
    block_codes,
    group_values,
    load_parameters,
    store_parameters,
    unblock_codes,
    ungroup_values,
)
from kvassay.formats.ordered_sum import ordered_sum, row_norm
from kvassay.formats.packing import pack_codes, unpack_codes
from kvassay.formats.tile_reading import TileReading, table_code

POSITIVE_LEVELS: dict[int, tuple[float, ...]] = {
    1: (0.797884560803,),
    2: (0.452780034636, 1.510417608499),
    3: (0.245094178944, 0.756005281206, 1.343909278505, 2.151945704537),
    4: (
        0.128395029851,
        0.388048299490,
        0.656759118532,
        0.942340456487,
        1.256231197347,
        1.618046386022,
        2.069017226531,
        2.732589570995,
    ),
}
"""Upper half of the Lloyd-Max levels of a standard Gaussian, by bits; the lower half mirrors it."""


def lloyd_levels(num_bits: int) -> tuple[float, ...]:
    """All 2^b levels in rising order."""
    half = POSITIVE_LEVELS[num_bits]
    return (*(-level for level in reversed(half)), *half)


def gaussian_codes(rows: Tensor, norm: Tensor, num_bits: int) -> Tensor:
    """Codes of rows of known norm: nearest level of √D·x/n. A row of norm zero takes the smallest positive level."""
    root = math.sqrt(rows.shape[-1])
    shares = torch.where(norm == 0, torch.zeros_like(norm), root / norm)
    return nearest_codes(rows * shares, midpoints(lloyd_levels(num_bits)))


class LloydQuantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        if spec.num_bits not in POSITIVE_LEVELS:
            raise FormatError(f"lloyd has codebooks of 1 to 4 bits, found {spec.num_bits}")
        assert spec.scale_dtype is not None, "the grammar gives every granularity a scale dtype"
        self._scale_dtype: str = spec.scale_dtype
        self._norm = spec.option("norm")

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        rows, _ = group_values(values.to(computing_dtype(values)), self.spec)
        norm = row_norm(rows)
        if self._norm == "corrected":
            codes = gaussian_codes(rows, norm, self.spec.num_bits)
            levels = levels_of(codes, lloyd_levels(self.spec.num_bits), rows.dtype)
            scale = stored(
                ordered_sum(rows * levels) / ordered_sum(levels.square()), self._scale_dtype, "corrected norm"
            )
        else:
            scale = stored(norm, self._scale_dtype, "norm")
            decoded_norm = norm if self._norm == "preserved" else scale.to(rows.dtype)
            codes = gaussian_codes(rows, decoded_norm, self.spec.num_bits)
        packed = pack_codes(ungroup_values(codes, self.spec), self.spec.num_bits)
        return Encoded({"codes": block_codes(packed, self.spec), "scales": store_parameters(scale, self.spec)}, 0)

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        codes = unpack_codes(unblock_codes(streams["codes"]), self.spec.num_bits)
        levels, _ = group_values(levels_of(codes, lloyd_levels(self.spec.num_bits), dtype), self.spec)
        factor = load_parameters(streams["scales"], self.spec).to(dtype)
        if self._norm == "plain":
            factor = factor / math.sqrt(levels.shape[-1])
        elif self._norm == "preserved":
            factor = factor / torch.sqrt(ordered_sum(levels.square()))
        return ungroup_values(levels * factor, self.spec)

    def tile_reading(self, dim: int) -> TileReading | None:
        code = table_code(self.spec.num_bits)
        # Decoded rows that keep their norm are scaled by a sum over all their codes.
        if code is None or self._norm == "preserved":
            return None
        group = self.spec.group_size if self.spec.granularity is Granularity.GROUP else dim
        factor = 1.0 if self._norm == "corrected" else 1 / math.sqrt(group or dim)
        return TileReading(code, factor=factor, table=lloyd_levels(self.spec.num_bits))
