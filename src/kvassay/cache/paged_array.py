"""An array of blocks that grows by whole pages."""

from __future__ import annotations

import torch
from torch import Tensor


class PagedArray:
    """Blocks `[batch, heads, blocks, *block_shape]` in a buffer that is a whole number of pages long.

    The buffer is always the smallest whole number of pages that holds the blocks, so its size depends on the number
    of blocks alone and never on how they came.
    """

    def __init__(self, page_blocks: int) -> None:
        self._page_blocks = page_blocks
        self._buffer: Tensor | None = None
        self.num_blocks = 0

    @property
    def blocks(self) -> Tensor | None:
        """The filled part; None before the first append."""
        return None if self._buffer is None else self._buffer[:, :, : self.num_blocks]

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block over all batch rows and heads."""
        if self._buffer is None:
            return 0
        return self._buffer[:, :, :1].numel() * self._buffer.element_size()

    @property
    def nbytes(self) -> int:
        """Bytes of the real storage."""
        return 0 if self._buffer is None else self._buffer.untyped_storage().nbytes()

    def append(self, blocks: Tensor) -> None:
        self._resize(self.num_blocks + blocks.shape[2], like=blocks)
        assert self._buffer is not None, "_resize allocates"
        self._buffer[:, :, self.num_blocks : self.num_blocks + blocks.shape[2]] = blocks
        self.num_blocks += blocks.shape[2]

    def drop_first(self, count: int) -> None:
        """Forget the first blocks and give their pages back."""
        if not count:
            return
        assert self._buffer is not None, "blocks were counted, so they were appended"
        kept = self._buffer[:, :, count : self.num_blocks]
        self._buffer = kept.new_empty((*kept.shape[:2], self._capacity(kept.shape[2]), *kept.shape[3:]))
        self._buffer[:, :, : kept.shape[2]] = kept
        self.num_blocks = kept.shape[2]

    def _capacity(self, num_blocks: int) -> int:
        return -(-num_blocks // self._page_blocks) * self._page_blocks

    def _resize(self, num_blocks: int, like: Tensor) -> None:
        capacity = self._capacity(num_blocks)
        if self._buffer is not None and self._buffer.shape[2] == capacity:
            return
        buffer = torch.empty((*like.shape[:2], capacity, *like.shape[3:]), dtype=like.dtype, device=like.device)
        if self._buffer is not None:
            buffer[:, :, : self.num_blocks] = self._buffer[:, :, : self.num_blocks]
        self._buffer = buffer
