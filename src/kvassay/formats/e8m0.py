"""e8m0 scales: powers of two from 2^−127 to 2^127, stored as the biased exponent (OCP MX v1.0, section 5.4.1).

Floor rule (OCP MX v1.0, section 6.3): exponent = ⌊log2 max|x|⌋ − emax, with emax the exponent of the element's largest
value. Values of the block then reach below 2 · 2^emax, and those beyond the element's largest saturate.
Ceil rule: the smallest exponent with max|x| ≤ largest · 2^exponent, so nothing saturates.

A zero block gets scale one; exponents below −127 become −127, as the specification clamps. Beyond 127: RangeError.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvassay.errors import RangeError

BIAS = 127


def shared_exponent_scale(magnitude: Tensor, largest: float, rule: str = "floor") -> Tensor:
    """float8_e8m0fnu scale of blocks whose largest magnitude is `magnitude`, for elements up to `largest`."""
    largest_mantissa, largest_exponent = math.frexp(largest)
    # frexp is exact; log2 rounds up just below a power of two.
    mantissa, exponent = torch.frexp(magnitude)
    exponent = exponent - largest_exponent
    if rule == "ceil":
        exponent = exponent + (mantissa > largest_mantissa)
    exponent = torch.where(magnitude == 0, 0, exponent)
    if bool((exponent > BIAS).any()):
        raise RangeError(
            f"values up to {float(magnitude.max()):.4g} need a scale above 2^{BIAS}, which e8m0 has not; use scale=f32"
        )
    return (exponent.clamp_min(-BIAS) + BIAS).to(torch.uint8).view(torch.float8_e8m0fnu)
