"""The experiment's inputs: standard normal queries, keys and values from one generator a seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.experiments.attention_error_plan import (
    LENGTHS,
    NORMAL,
    OUTLIER,
    OUTLIER_FACTOR,
    QUERY_ROWS,
    WIDTH,
    Cell,
)


class DrawnInputs(NamedTuple):
    """float64 `[8, 32]`, `[N, 32]`, `[N, 32]`."""

    queries: NDArray[np.float64]
    keys: NDArray[np.float64]
    values: NDArray[np.float64]


def draw_inputs(seed: int) -> dict[Cell, DrawnInputs]:
    """All inputs of one seed, in the order of the draws: for each N, first Q, then K, then V.

    The 40x input is a copy, so the switch (R79) does not disturb the generator's stream.
    """
    generator = np.random.default_rng(seed)
    drawn: dict[Cell, DrawnInputs] = {}
    for n_tokens in LENGTHS:
        normal = DrawnInputs(
            generator.standard_normal((QUERY_ROWS, WIDTH)),
            generator.standard_normal((n_tokens, WIDTH)),
            generator.standard_normal((n_tokens, WIDTH)),
        )
        drawn[Cell(seed, n_tokens, NORMAL)] = normal
        keys, values = normal.keys.copy(), normal.values.copy()
        keys[0, 0] *= OUTLIER_FACTOR
        values[0, 0] *= OUTLIER_FACTOR
        drawn[Cell(seed, n_tokens, OUTLIER)] = DrawnInputs(normal.queries, keys, values)
    return drawn
