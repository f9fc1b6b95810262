"""PrefixMemory: blocks and snapshots in memory, counted by reference, the longest unused ones dropped first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from kvassay.cache.page_pool import PagePool
from kvassay.cache.prefix_pages import BlockPages, HeldPages, release
from kvassay.cache.quantized_cache import QuantizedCache

EntryKey = tuple[str, str]
"""A block's key and its part (`full`, `window`), or a snapshot's key and `snapshot`."""


class Entry(NamedTuple):
    """Something that is kept. Its pages carry a reference for each time they stand here."""

    identity: str
    pages: BlockPages
    snapshot: QuantizedCache | None = None

    @property
    def held(self) -> Iterator[HeldPages]:
        if self.snapshot is None:
            yield from self.pages.values()
        else:
            yield from snapshot_pages(self.snapshot)


class PrefixMemory:
    """Entries from the longest unused to the last used."""

    def __init__(self) -> None:
        self._entries: OrderedDict[EntryKey, Entry] = OrderedDict()
        self._own: dict[int, tuple[PagePool, dict[int, int]]] = {}
        """By pool, how many references to each page are entries'."""
        self.nbytes = 0
        """Bytes of the pages that entries hold; a page counts once however many entries and caches share it."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: EntryKey) -> Entry | None:
        return self._entries.get(key)

    def items(self) -> list[tuple[EntryKey, Entry]]:
        """All entries, the longest unused first."""
        return list(self._entries.items())

    @property
    def pools(self) -> Iterator[PagePool]:
        """Pools in which entries hold pages."""
        yield from (pool for pool, _ in self._own.values())

    def touch(self, key: EntryKey) -> None:
        self._entries.move_to_end(key)

    def add(self, key: EntryKey, entry: Entry) -> None:
        """Keep an entry; the references of its pages become the memory's."""
        assert key not in self._entries, "a key is kept once"
        self._entries[key] = entry
        for pool, ids in entry.held:
            _, own = self._own.setdefault(id(pool), (pool, {}))
            before = len(own)
            for page in ids.tolist():
                own[page] = own.get(page, 0) + 1
            self.nbytes += (len(own) - before) * pool.layout.nbytes

    def remove(self, key: EntryKey) -> Entry:
        """Forget an entry; its pages live on where a cache still uses them."""
        entry = self._entries.pop(key)
        for pool, ids in entry.held:
            _, own = self._own[id(pool)]
            before = len(own)
            for page in ids.tolist():
                own[page] -= 1
                if not own[page]:
                    del own[page]
            self.nbytes -= (before - len(own)) * pool.layout.nbytes
            if not own:
                del self._own[id(pool)]
        if entry.snapshot is None:
            release(entry.pages)
        return entry

    def is_needed(self, entry: Entry) -> bool:
        """True where a live cache holds a page of it, so that dropping it would free less than all."""
        for pool, ids in entry.held:
            own = self._own[id(pool)][1]
            mine = np.fromiter((own[page] for page in ids.tolist()), np.int64, len(ids))
            if (pool.references(ids) > mine).any():
                return True
        return False

    def trim(self) -> None:
        """Give back slabs without pages of pools that no live cache uses."""
        for pool, own in self._own.values():
            if pool.num_references == sum(own.values()):
                pool.trim()

    def make_room(self, limit_nbytes: int, kept: Collection[EntryKey] = ()) -> list[tuple[EntryKey, Entry]]:
        """Drop the longest unused entries that no live cache needs until at most `limit_nbytes` are held."""
        dropped: list[tuple[EntryKey, Entry]] = []
        for key, entry in self.items():
            if self.nbytes <= limit_nbytes:
                break
            if key not in kept and not self.is_needed(entry):
                dropped.append((key, self.remove(key)))
        return dropped


def snapshot_pages(cache: QuantizedCache) -> Iterator[HeldPages]:
    """Every page that a cache's block tables name, as often as they do."""
    for layer in cache.quantized_layers:
        for store in layer.stores:
            parts = store.parts
            rows = () if parts is None else (*parts.coded.held, parts.tail, parts.sinks)
            for part in rows:
                if part.table.size:
                    yield HeldPages(part.pool, part.table.ravel())
