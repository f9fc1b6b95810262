"""How many values of a cache are worked on at once: tiles of attention, and pieces of encoding. No torch.

The cache follows these numbers and `core.transient_peak` counts with them, so what is predicted is what is run.
"""

from __future__ import annotations

TILE_ELEMENTS = 1 << 18
"""Keys of one tile of attention, over the rows and heads that are worked on together."""

SCORE_ELEMENTS = 1 << 20
"""Scores of one tile: a call of many queries takes shorter tiles."""

ENCODED_ELEMENTS = 1 << 18
"""Values that are encoded at once: working arrays stay small however long a text is, and near the processor."""

DECODED_ELEMENTS = 1 << 20
"""Values that are decoded at once: more than a tile has, so that each side of a tile is one piece."""

KERNEL_RANGE_TOKENS = 4096
"""Columns that one thread of a kernel sums by themselves (`kRangeTokens` in native/src/dispatch.cpp)."""


def tile_tokens(keys_a_token: int, scores_a_token: int, page: int) -> int:
    """Tokens of a tile: whole pages of `page` tokens, at least one."""
    return _tokens(min(TILE_ELEMENTS // keys_a_token, SCORE_ELEMENTS // scores_a_token), page)


def encoded_tokens(elements_a_token: int, block: int) -> int:
    """Tokens that are encoded at once: whole blocks of `block` tokens, at least one."""
    return _tokens(ENCODED_ELEMENTS // elements_a_token, block)


def decoded_tokens(elements_a_token: int, page: int) -> int:
    """Tokens that are decoded at once: whole pages, at least one."""
    return _tokens(DECODED_ELEMENTS // elements_a_token, page)


def _tokens(most: int, unit: int) -> int:
    return max(1, most // unit) * unit
