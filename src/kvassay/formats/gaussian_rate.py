"""Signal-to-noise ratio of a codec on iid Gaussian values: what its bits buy where no structure helps."""

from __future__ import annotations

import math

import torch

from kvassay.core.spec import QuantSpec
from kvassay.formats.registry import quantizer

LEAST_TOKENS = 256
KV_HEADS = 4


def gaussian_sqnr_db(spec: QuantSpec, dim: int, seed: int = 0) -> float | None:
    """10·log10(Σx² / Σ(x − x̂)²) in dB over 4 heads of at least 256 tokens; None where nothing is lost.

    Static scales and means are calibrated on the same values.
    """
    block = spec.tokens_per_block
    tokens = -(-LEAST_TOKENS // block) * block
    x = torch.randn(1, KV_HEADS, tokens, dim, generator=torch.Generator().manual_seed(seed))
    codec = quantizer(spec)
    calibration = codec.calibrate(x) if spec.needs_calibration else None
    decoded = codec.decode(codec.encode(x, calibration).streams, torch.float64, calibration)
    noise = float((decoded - x.double()).square().sum())
    return 10 * math.log10(float(x.double().square().sum()) / noise) if noise else None
