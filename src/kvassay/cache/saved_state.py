"""Layers of a cache as a saved file keeps them: counts in the header, block tables, and each page once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from kvassay.cache.cache_identity import static_digest, transform_digest
from kvassay.cache.page_bytes import filled_blocks, written_bytes
from kvassay.cache.page_pool import PageIds, PagePool
from kvassay.cache.paged_rows import PagedRows
from kvassay.cache.quantized_layer import QuantizedLayer
from kvassay.cache.side_state import SideState, side_state
from kvassay.core.paging import layout_id
from kvassay.core.saved_header import (
    Part,
    SavedCohort,
    SavedLayer,
    SavedPool,
    SavedPools,
    SavedRun,
    SavedStore,
    pages_name,
    table_name,
)
from kvassay.errors import SavedCacheError
from kvassay.formats.container import StoredArray

_DTYPES = {
    dtype: str(dtype).removeprefix("torch.") for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}


class ArrayToSave(NamedTuple):
    stored: StoredArray
    pieces: Callable[[], Iterator[bytes]]
    """Its bytes, in pieces that are made when they are asked for."""


class LayerToSave(NamedTuple):
    header: SavedLayer
    arrays: list[ArrayToSave]


def layer_to_save(layer: QuantizedLayer, index: int) -> LayerToSave:
    """Header and arrays of one layer; raises SavedCacheError for what a file cannot say."""
    state = layer.state
    if state.dtype not in _DTYPES:
        raise SavedCacheError(
            f"layer {index} got keys of {state.dtype}; a file is kept for {', '.join(_DTYPES.values())}"
        )
    found = _Collector()
    cohorts = [
        SavedCohort(
            rows=list(cohort.rows),
            padding=cohort.padding,
            stores=[
                found.store(side_state(store), place, partial(table_name, index, number, place))
                for place, store in enumerate(cohort.stores)
            ],
        )
        for number, cohort in enumerate(state.cohorts)
    ]
    pages = [pool.array(pages_name(index, number)) for number, pool in enumerate(found.pools)]
    header = SavedLayer(
        columns=state.columns,
        dtype=_DTYPES[state.dtype],  # pyright: ignore[reportArgumentType]  (one of the names that the header takes)
        recording=state.record_past,
        static=static_digests(layer),
        key_transform=transform_digest(layer.key_transform, layer.geometry),
        pools=[pool.header for pool in found.pools],
        cohorts=cohorts,
    )
    # An array without elements is not stored.
    return LayerToSave(header, [each for each in (*found.tables, *pages) if each.stored.nbytes])


def static_digests(layer: QuantizedLayer) -> list[str | None]:
    """Of each store of a cohort: keys and values of each head group."""
    return [static_digest(each) for sides in layer.calibration for each in sides]


class _NumberedPool:
    """Pages of a pool, numbered in the order in which block tables name them."""

    def __init__(self, pool: PagePool, store: int, part: Part) -> None:
        self.pool, self.store = pool, store
        self.part: Part = part
        self._numbers: dict[int, int] = {}
        self._rows: list[PagedRows] = []

    def table(self, rows: PagedRows) -> PageIds:
        """The block table in the numbers of the file."""
        self._rows.append(rows)
        flat = [self._numbers.setdefault(int(page), len(self._numbers)) for page in rows.table.ravel()]
        return np.asarray(flat, np.int32).reshape(rows.table.shape)

    @property
    def header(self) -> SavedPool:
        layout = layout_id(self.pool.layout)
        return SavedPool(store=self.store, part=self.part, pages=len(self._numbers), layout=layout)

    def array(self, name: str) -> ArrayToSave:
        pages = np.fromiter(self._numbers, np.int32, len(self._numbers))
        stored = StoredArray(name, "uint8", (len(pages), self.pool.layout.nbytes))
        filled = filled_blocks(self.pool, pages, self._rows)
        return ArrayToSave(stored, lambda: map(_raw, written_bytes(self.pool, pages, filled)))


class _Collector:
    """Pools and block tables of one layer, in the order in which its stores name them."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self.pools: list[_NumberedPool] = []
        self.tables: list[ArrayToSave] = []

    def store(self, state: SideState, place: int, name: Callable[[str], str]) -> SavedStore:
        """Header of a store, the `place`th of its cohort; `name` gives the names of its block tables."""
        runs: list[SavedRun] = []
        tail_first = pools = None
        if state.parts is not None:
            coded, tail, sinks = state.parts
            pools = SavedPools(
                coded=self._pool(coded.pool, place, "coded"),
                tail=self._pool(tail.pool, place, "tail"),
                sinks=self._pool(sinks.pool, place, "sinks"),
            )
            for index, run in enumerate(coded.held):
                runs.append(SavedRun(start=run.start, first=run.first, end=run.end))
                self._table(pools.coded, run, name(f"run{index}"))
            self._table(pools.tail, tail, name("tail"))
            self._table(pools.sinks, sinks, name("sinks"))
            tail_first = tail.first if tail.tokens else None
        return SavedStore(
            coded=state.coded,
            dropped=state.dropped,
            recording=state.recording,
            clipped_values=state.clipped_values,
            encoded_values=state.encoded_values,
            runs=runs,
            tail_first=tail_first,
            pools=pools,
        )

    def _pool(self, pool: PagePool, place: int, part: Part) -> int:
        """Number of a pool; cohorts that came from one fork share it."""
        number = self._numbers.setdefault(id(pool), len(self.pools))
        if number == len(self.pools):
            self.pools.append(_NumberedPool(pool, place, part))
        return number

    def _table(self, pool: int, rows: PagedRows, name: str) -> None:
        table = self.pools[pool].table(rows)
        self.tables.append(ArrayToSave(StoredArray(name, "int32", table.shape), lambda: iter([table.tobytes()])))


def _raw(pages: Tensor) -> bytes:
    return cast(bytes, pages.cpu().numpy().tobytes())
