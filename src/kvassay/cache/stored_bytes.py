"""Bytes of real storages by owner, each page once however many rows and runs hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kvassay.cache.page_pool import PagePool
from kvassay.cache.paged_rows import PagedRows
from kvassay.core.geometry import Owner
from kvassay.core.kv_format import KVFormat

if TYPE_CHECKING:
    from kvassay.cache.cohorts import Cohort
    from kvassay.cache.side_store import SideStore


def layers_nbytes(layers: Sequence[Sequence[Cohort]], kv_format: KVFormat) -> tuple[Counter[Owner], Counter[Owner]]:
    """Bytes of the keys and of the values of all layers, each given by its cohorts."""
    keys: Counter[Owner] = Counter()
    values: Counter[Owner] = Counter()
    for index, cohorts in enumerate(layers):
        skipped = kv_format.skips(index)
        # Of a head group: its stores in all cohorts, whose rows may share pages.
        for groups in zip(*(cohort.stored_heads for cohort in cohorts), strict=True):
            for counts, stores in (
                (keys, [group.keys for group in groups]),
                (values, [group.values for group in groups]),
            ):
                counts.update(stored_nbytes(stores, stores[0].static_nbytes, skipped))
    return keys, values


def stored_nbytes(
    stores: Iterable[SideStore], static_nbytes: Mapping[Owner, int], skipped_layer: bool
) -> Counter[Owner]:
    """Bytes of one side of one head group, whose rows may lie in several stores.

    Static arrays belong to the side and stand once. Pages that only caches outside of `stores` hold are theirs; free
    ones are padding.
    """
    parts: dict[int, tuple[PagePool, Owner | None, list[PagedRows]]] = {}
    for store in stores:
        for pool, owner, rows in store.paged_parts(skipped_layer):
            parts.setdefault(id(pool), (pool, owner, []))[2].extend(rows)
    nbytes: Counter[Owner] = Counter(static_nbytes)
    for pool, owner, rows in parts.values():
        nbytes.update(_pool_nbytes(pool, owner, rows))
    return Counter({owner: count for owner, count in nbytes.items() if count})


def _pool_nbytes(pool: PagePool, owner: Owner | None, parts: Iterable[PagedRows]) -> Counter[Owner]:
    """Pages that `parts` hold, the free ones, and what is kept beside; by each array's owner if none is given."""
    nbytes: Counter[Owner] = Counter()
    held: dict[int, int] = {}
    for part in parts:
        for page, blocks in part.held_blocks().items():
            held[page] = max(blocks, held.get(page, 0))
        nbytes[Owner.BLOCK_TABLE] += part.table_nbytes
    blocks = sum(held.values())
    filled = 0
    for region in pool.layout.regions:
        nbytes[owner or region.stream.owner] += blocks * region.stream.block_nbytes
        filled += blocks * region.stream.block_nbytes
    nbytes[Owner.PADDING] += (len(held) + pool.num_free) * pool.layout.nbytes - filled
    nbytes[Owner.BLOCK_TABLE] += pool.record_nbytes
    return nbytes
