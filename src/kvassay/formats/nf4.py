"""NF4 codebook with absmax or range, and optionally the largest values of a row kept as floats (dense and sparse).

Symmetric: s = max|x| of the group; code = nearest level c of NF4 to x/s; x̂ = s·c.
Asymmetric (`/asym`): z = min x; s = (max x − z)/2; code = nearest level to (x − z)/s − 1; x̂ = s·(c + 1) + z: the range
of the group is mapped onto the codebook's −1 to 1.
`outliers=K`: of each token's row of channels (one head) the K values that deviate most are stored as floats with their
channel, and put back on decode. Deviation is |x| (symmetric) or |x − median of the group| (asymmetric); of equal ones
the lower channel goes first. In the range and the codes of the dense part an outlier's place is taken by zero or by
the median. The count is fixed, so that bytes are exact and a token's bytes do not depend on its neighbours' values.

Streams: codes `[..., blocks, tokens, D/2]`; scales, and minimums z for `/asym`, one a group; with outliers also
outlier_channels (uint8, or uint16 where D > 256) in rising order and outliers (the scale's dtype), both
`[..., blocks, tokens, K]`. Stored bits at D = 128, float16: 4.25 (g64), 4.5 (g64 asym); each outlier adds 24/D.

Scale and minimum are rounded outward before the codes are computed. A zero group uses scale one. Error bound of a
dense value: half the widest gap of the codebook, 0.152·s. Outliers err by the rounding of their dtype.

Sources: NF4, the 16 levels: QLoRA (Dettmers et al. 2023, arXiv:2305.14314, appendix E). Dense and sparse on a cache:
KVQuant (Hooper et al. 2024, arXiv:2401.18079, section 3): keys per channel, values per token, 1% outliers a vector.
Deviations from KVQuant: the fixed NF4 levels, which it has as a baseline, in place of levels fitted to calibration
data; ranges from the values themselves in place of calibrated ones; a fixed count a row in place of thresholds; keys
after RoPE.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kvassay.core.spec import QuantSpec
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
from kvassay.formats.codebook import levels_of, midpoints, nearest_codes
from kvassay.formats.grouping import (
    block_codes,
    group_values,
    load_parameters,
    store_parameters,
    unblock_codes,
    ungroup_values,
)
from kvassay.formats.packing import pack_codes, unpack_codes
from kvassay.formats.tile_reading import TileReading

NF4_LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


class _Split(NamedTuple):
    """Rows without their outliers, and the outliers."""

    dense: Tensor
    channels: Tensor
    outliers: Tensor


class Nf4Quantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        if spec.num_bits != 4:
            raise FormatError(f"NF4 has 4 bits, found {spec.num_bits}")
        assert spec.scale_dtype is not None, "the grammar gives every granularity a scale dtype"
        self._scale_dtype: str = spec.scale_dtype
        self._outliers = int(spec.option("outliers"))

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        split = self._split(values.to(computing_dtype(values)))
        grouped, axes = group_values(split.dense, self.spec)
        minimum = None if self.spec.symmetric else self._minimum(grouped, axes)
        if minimum is None:
            scale = self._scale(grouped.abs().amax(axes, keepdim=True))
            shares = grouped / scale.to(grouped.dtype)
        else:
            offset = minimum.to(grouped.dtype)
            scale = self._scale((grouped.amax(axes, keepdim=True) - offset) / 2)
            shares = (grouped - offset) / scale.to(grouped.dtype) - 1
        codes = ungroup_values(nearest_codes(shares, midpoints(NF4_LEVELS)), self.spec)
        streams = {
            "codes": block_codes(pack_codes(codes, 4), self.spec),
            "scales": store_parameters(scale, self.spec),
        }
        if minimum is not None:
            streams["minimums"] = store_parameters(minimum, self.spec)
        if self._outliers:
            dtype = torch.uint8 if values.shape[-1] <= 256 else torch.uint16
            streams["outlier_channels"] = block_codes(split.channels.to(dtype), self.spec)
            streams["outliers"] = block_codes(stored(split.outliers, self._scale_dtype, "outlier"), self.spec)
        return Encoded(streams, 0)  # scale and minimum are rounded outward

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        codes = unpack_codes(unblock_codes(streams["codes"]), 4)
        shares, _ = group_values(levels_of(codes, NF4_LEVELS, dtype), self.spec)
        scale = load_parameters(streams["scales"], self.spec).to(dtype)
        if self.spec.symmetric:
            dense = ungroup_values(shares * scale, self.spec)
        else:
            minimum = load_parameters(streams["minimums"], self.spec).to(dtype)
            dense = ungroup_values((shares + 1) * scale + minimum, self.spec)
        if not self._outliers:
            return dense
        channels = unblock_codes(streams["outlier_channels"]).to(torch.int64)
        return dense.scatter(-1, channels, unblock_codes(streams["outliers"]).to(dtype))

    def tile_reading(self, dim: int) -> TileReading | None:
        if self._outliers:
            return None
        # (level + 1) · scale + minimum on the asymmetric grid.
        return TileReading("table4", offset=0.0 if self.spec.symmetric else -1.0, table=NF4_LEVELS)

    def _split(self, values: Tensor) -> _Split:
        if not self._outliers:
            return _Split(values, values[..., :0], values[..., :0])
        if self.spec.symmetric:
            centre = torch.zeros_like(values)
        else:
            grouped, axes = group_values(values, self.spec)
            centre = ungroup_values(grouped.median(axes[0], keepdim=True).values.expand_as(grouped), self.spec)
        # A stable sort settles ties by channel; topk leaves them open.
        order = (values - centre).abs().sort(dim=-1, descending=True, stable=True).indices
        channels = order[..., : self._outliers].sort(dim=-1).values
        dense = values.scatter(-1, channels, centre.gather(-1, channels))
        return _Split(dense, channels, values.gather(-1, channels))

    def _minimum(self, grouped: Tensor, axes: tuple[int, ...]) -> Tensor:
        return stored_outward(grouped.amin(axes, keepdim=True), self._scale_dtype, "minimum", up=False)

    def _scale(self, largest: Tensor) -> Tensor:
        scale = stored_outward(largest.clamp_min(0), self._scale_dtype, "scale", up=True)
        return torch.where(scale == 0, torch.ones_like(scale), scale)
