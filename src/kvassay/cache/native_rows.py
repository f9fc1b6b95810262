"""Rows of a stored array into pages in memory and back, by the compiled module. `page_regions` is the readable twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvassay.cache.page_regions import RowShape, row_shape
from kvassay.core.paging import PageLayout, Region
from kvassay.kernels.native import native_module, native_state


class NativeRows:
    """What the compiled module needs of the arrays of one layout."""

    def __init__(self, layout: PageLayout) -> None:
        self._layout = layout
        self._regions: dict[str, tuple[RowShape, Any]] = {}

    def __reduce__(self) -> tuple[type[NativeRows], tuple[PageLayout]]:
        return NativeRows, (self._layout,)

    @staticmethod
    def is_there() -> bool:
        return native_state().missing is None

    def write(self, region: Region, addresses: NDArray[np.int64], first_block: int, blocks: Tensor) -> None:
        """`blocks` `[sequences, heads, n, block_nbytes]` of bytes into pages `[sequences, k]`."""
        shape, native = self._region(region)
        rows_per_block = shape.rows_per_block
        native_module().write_rows(
            native,
            addresses,
            first_block * rows_per_block,
            blocks.shape[2] * rows_per_block,
            blocks.contiguous().numpy(),
        )

    def read(self, region: Region, addresses: NDArray[np.int64]) -> Tensor:
        """All blocks of pages `[sequences, k]`: `[sequences, heads, k * blocks, block_nbytes]` of bytes."""
        shape, native = self._region(region)
        sequences, count = addresses.shape
        blocks = self._layout.blocks * count
        found = torch.empty((sequences, region.stream.heads, blocks, region.block_nbytes), dtype=torch.uint8)
        native_module().read_rows(native, addresses, 0, blocks * shape.rows_per_block, found.numpy())
        return found

    def step_array(self, region: Region, addresses: NDArray[np.int64]) -> Any:
        """Where single rows of one array go: the page of each sequence, `[sequences, 1]`."""
        return native_module().StepArray(region=self._region(region)[1], pages=addresses)

    def _region(self, region: Region) -> tuple[RowShape, Any]:
        known = self._regions.get(region.stream.name)
        if known is None:
            shape, layout = row_shape(self._layout, region), self._layout
            native = native_module().PagedRegion(
                offset=region.offset,
                head_nbytes=0 if region.shared else layout.tile_nbytes,
                heads=region.stream.heads,
                rows_in_page=layout.blocks * shape.rows_per_block,
                together=shape.together,
                unit_nbytes=shape.unit_nbytes,
                row_nbytes=region.block_nbytes // shape.rows_per_block,
            )
            known = self._regions[region.stream.name] = shape, native
        return known
