"""Negative control: Lloyd-Max with one bit less, and QJL's signs of the sketched residual.

k' = (n/√D)·c is `lloyd` with b − 1 bits and the plain norm n; r = k − k', ρ = ‖r‖; stored beside codes and n: ρ and the
m = D signs of S·r, where S is m x D with standard Gaussian entries. The estimate of a score,
⟨q, k⟩ ≈ ⟨q, k'⟩ + ρ·√(π/2)/m·⟨S·q, sign(S·r)⟩, is ⟨q, k̂⟩ for k̂ = k' + ρ·√(π/2)/m·Sᵀ·sign(S·r), so decode returns k̂.
It is unbiased over S, where `lloyd` shrinks every score by 1 − MSE; it costs π/2 times the residual's squared error,
and a bit. At equal b the score error is 2.2 to 2.4 times that of `lloyd-b`: the reason to leave the sketch out. QJL is
made for keys; values are allowed, so that both sides can be measured.

S is drawn once for each D from a fixed seed and stored nowhere: entry i (row-major) is the Gaussian quantile of
(u + ½)/2^53, u the top 53 bits of the i-th word of splitmix64 (Steele, Lea and Flood 2014) started at `SKETCH_SEED`.
Products with S are summed channel by channel in rising order, so that signs do not depend on how tokens are chunked.

`sketch=identity` takes S = I: k̂ = k' + ρ/√D·sign(r), the signs of the residual itself. This is no Johnson-Lindenstrauss
sketch and no longer unbiased, and it errs far less. LMDeploy's quant policy 42 stores its keys so.

Streams: codes of b − 1 bits, signs (one bit a channel, set where S·r >= 0), scales (n) and residual_norms (ρ), both
`[batch, kv_heads, tokens, 1]`. Stored bits: b + 32/D with float16 norms. n is rounded before the codes are computed,
and r is what the decoded k' leaves.

Sources: QJL (Zandieh et al. 2024, arXiv:2406.03482, section 3, definition 3.1 and lemma 3.2); its use on a residual:
TurboQuant-prod (Zandieh et al. 2025, arXiv:2504.19874, section 3.2, algorithm 2). Deviation: QJL's own code may
orthogonalize S and keeps outlier channels apart; here S is the paper's Gaussian matrix and there are none.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import torch
from jaxtyping import Float
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
from kvassay.formats.codebook import levels_of
from kvassay.formats.grouping import block_codes, unblock_codes
from kvassay.formats.lloyd import POSITIVE_LEVELS, gaussian_codes, lloyd_levels
from kvassay.formats.ordered_sum import row_norm
from kvassay.formats.packing import pack_codes, unpack_codes

SKETCH_SEED = 1
_MASK = (1 << 64) - 1


class LloydQjlQuantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        self._code_bits = spec.num_bits - 1
        if self._code_bits not in POSITIVE_LEVELS:
            raise FormatError(f"lloyd-qjl takes 2 to 5 bits, one of them the sign, found {spec.num_bits}")
        if spec.granularity is not Granularity.TOKEN_HEAD:
            raise FormatError(f"lloyd-qjl sketches a token's row of one head, found {spec.granularity.value}")
        assert spec.scale_dtype is not None, "the grammar gives every granularity a scale dtype"
        self._scale_dtype: str = spec.scale_dtype
        self._sketches = spec.option("sketch") == "gaussian"

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        rows = values.to(computing_dtype(values))
        norm = stored(row_norm(rows), self._scale_dtype, "norm")
        codes = gaussian_codes(rows, norm.to(rows.dtype), self._code_bits)
        residual = rows - self._coarse(codes, norm, rows.dtype)
        residual_norm = stored(row_norm(residual), self._scale_dtype, "residual norm")
        sketched = _times(residual, gaussian_sketch(rows.shape[-1]).T) if self._sketches else residual
        signs = (sketched >= 0).to(torch.uint8)
        return Encoded(
            {
                "codes": block_codes(pack_codes(codes, self._code_bits), self.spec),
                "signs": block_codes(pack_codes(signs, 1), self.spec),
                "scales": norm,
                "residual_norms": residual_norm,
            },
            0,
        )

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        codes = unpack_codes(unblock_codes(streams["codes"]), self._code_bits)
        signs = unpack_codes(unblock_codes(streams["signs"]), 1).to(dtype) * 2 - 1
        dim = signs.shape[-1]
        if self._sketches:
            correction = _times(signs, gaussian_sketch(dim)) * (math.sqrt(math.pi / 2) / dim)
        else:
            correction = signs * dim**-0.5
        return self._coarse(codes, streams["scales"], dtype) + streams["residual_norms"].to(dtype) * correction

    def _coarse(self, codes: Tensor, norm: Tensor, dtype: torch.dtype) -> Tensor:
        levels = levels_of(codes, lloyd_levels(self._code_bits), dtype)
        return levels * (norm.to(dtype) / math.sqrt(levels.shape[-1]))


def _times(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows @ matrix, summed over rising channels one by one: a matrix product's order depends on its shape."""
    matrix = matrix.to(rows)
    total = rows[..., :1] * matrix[0]
    for channel in range(1, rows.shape[-1]):
        total = total + rows[..., channel : channel + 1] * matrix[channel]
    return total


@lru_cache(maxsize=8)
def gaussian_sketch(dim: int) -> Float[Tensor, "dim dim"]:
    """S, float64. The quantile function uses no random state, so S is the same in every process."""
    quantile = NormalDist().inv_cdf
    entries: list[float] = []
    state = SKETCH_SEED
    for _ in range(dim * dim):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        word = state
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
        word ^= word >> 31
        entries.append(quantile(((word >> 11) + 0.5) * 2.0**-53))
    return torch.tensor(entries, dtype=torch.float64).unflatten(0, (dim, dim))
