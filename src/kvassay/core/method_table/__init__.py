"""The method table: one row a method that kvassay ships, one module a family. `core.methods` says what a row says."""

from __future__ import annotations

from kvassay.core.method_table import codebooks, floats, ggml, integers, kivi, tiles
from kvassay.core.methods import Method

TABLE: tuple[Method, ...] = (
    *floats.ROWS,
    *integers.ROWS,
    *ggml.ROWS,
    *kivi.ROWS,
    *tiles.ROWS,
    *codebooks.ROWS,
)
