"""PrefixStore: prefixes of texts that several caches share, in memory and in a folder.

Blocks are the coded pages of some tokens on every side of every layer (`core.prefix_blocks`); a lookup gives the
longest run of them that a prompt begins with, as a cache whose pages stay shared until somebody writes. Snapshots are
whole caches, window and waiting tokens included, for texts that go on exactly where one ended. Why it is so:
docs/design/prefix-store.md.

A store serves one thread; several processes may use one folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from kvassay.cache.prefix_blocks import Part, TextBlocks
from kvassay.cache.prefix_folder import PrefixFolder
from kvassay.cache.prefix_identity import PrefixIdentity
from kvassay.cache.prefix_memory import Entry, EntryKey, PrefixMemory
from kvassay.cache.prefix_pages import RowPages, Shelf, fill
from kvassay.cache.prefix_results import Lookup, PrefixBound, PrefixSource, PrefixStatistics, Put
from kvassay.cache.quantized_cache import QuantizedCache
from kvassay.core.prefix_blocks import BlockGrid, TokenIds, block_grid, block_keys, snapshot_key, token_array
from kvassay.errors import CacheStateError

_SNAPSHOT = "snapshot"


class PrefixStore:
    """Shared prefixes, by identity and tokens.

    `limit_nbytes` bounds the pages that are kept in memory (without one, what was put stays until `clear`): what was
    not used for longest goes first, unless a live cache needs its pages, since then nothing would be freed.
    `folder` keeps blocks on disk too, up to `folder_limit_nbytes`; it is made if it is missing. Caches that a lookup
    fills live on `device`.
    """

    def __init__(
        self,
        *,
        limit_nbytes: int | None = None,
        folder: Path | str | None = None,
        folder_limit_nbytes: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.limit_nbytes = limit_nbytes
        self.device = torch.device(device)
        self._folder = None if folder is None else PrefixFolder(Path(folder), folder_limit_nbytes)
        self._memory = PrefixMemory()
        self._shelves: dict[str, Shelf] = {}
        self._counts = PrefixStatistics(0, 0, 0, 0, 0, 0, 0)

    @property
    def statistics(self) -> PrefixStatistics:
        return self._counts

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that the store keeps, each once however many blocks, snapshots and caches share it."""
        return self._memory.nbytes

    def storages(self) -> Iterator[Tensor]:
        """The slabs in which kept pages lie, each once; caches that share them have pages of their own there too."""
        seen: set[int] = set()
        for shelf in self._shelves.values():
            for pool in shelf.pools:
                seen.add(id(pool))
                yield from pool.slabs
        for pool in self._memory.pools:
            if id(pool) not in seen:
                yield from pool.slabs

    def clear(self) -> None:
        """Forget all that is in memory; files stay. Caches that share pages keep them."""
        for key, _ in self._memory.items():
            self._forget(key, self._memory.remove(key))
        self._tidy()

    def put(
        self,
        cache: QuantizedCache,
        token_ids: Sequence[int] | Tensor,
        identity: PrefixIdentity,
        *,
        row: int = 0,
        snapshot: bool = False,
    ) -> Put:
        """Store what one row of `cache` holds: `token_ids` are exactly its tokens, padding left out.

        Whole blocks of coded tokens are stored, and with `snapshot=True` the state after the last token, in memory. All
        of it is stored or, on an error, nothing. Raises ForeignFormatError where the identity is not the cache's,
        CacheStateError where the tokens are not, PrefixStoreError where the folder cannot be written.
        """
        identity.require_fits(cache)
        tokens = token_array(token_ids)
        shelf = self._shelf(identity, cache)
        pages = RowPages(cache, row, shelf.grid)
        if pages.tokens != len(tokens):
            raise CacheStateError(
                f"row {row} holds {pages.tokens} tokens and {len(tokens)} were named; name exactly those that are in "
                "the cache (the last token that `generate` returns is not in it yet)"
            )
        keys = list(block_keys(identity.digest, tokens, shelf.grid))
        blocks = TextBlocks(identity, keys, shelf, self._memory, self._folder)
        parts = _parts_of(pages, blocks, len(keys), shelf.grid)
        new, left_out = self._add(pages, blocks, parts)
        kept = False
        if snapshot:
            key = snapshot_key(identity.digest, keys, tokens, shelf.grid)
            kept = self._keep_snapshot(cache, row, key, len(tokens), identity, shelf)
            if not kept:
                left_out = f"limit_nbytes is {self.limit_nbytes}, too little for the snapshot beside what is in use"
        self._make_room()
        self._tidy()
        counts = self._counts
        self._counts = counts._replace(puts=counts.puts + 1, stored_blocks=counts.stored_blocks + new)
        return Put(new, shelf.grid.end(blocks.leading()), kept, left_out)

    def lookup(self, token_ids: Sequence[int] | Tensor, identity: PrefixIdentity, cache: QuantizedCache) -> Lookup:
        """Give `cache`, an empty one, the longest usable prefix of a prompt.

        A prefix is usable where the cache, once the rest of the prompt was appended, is exactly as if all of it had
        been appended there: tokens that would still be exact then are left to run, and so is at least one token.
        Raises ForeignFormatError where the identity is not the cache's.
        """
        identity.require_fits(cache)
        cache.require_fillable()
        tokens = token_array(token_ids)
        shelf = self._shelf(identity, cache)
        grid = shelf.grid
        keys = list(block_keys(identity.digest, tokens, grid))
        blocks = TextBlocks(identity, keys, shelf, self._memory, self._folder)
        allowed = min(grid.committed_blocks(len(tokens)), grid.whole_blocks(len(tokens) - 1))
        while True:
            matched = blocks.leading()
            count = blocks.usable(min(matched, allowed))
            snapshot = self._longest_snapshot(identity.digest, keys, tokens, shelf)
            if snapshot is not None and snapshot[0] >= grid.end(count):
                break
            snapshot, needed = None, blocks.needed(count)
            if self.limit_nbytes is not None:
                self._make_room(self.limit_nbytes - blocks.load_nbytes(needed), blocks.entry_keys)
            if blocks.load(needed):
                break
        if snapshot is not None:
            used, source = snapshot[0], PrefixSource.SNAPSHOT
            entry = self._memory.get((snapshot[1], _SNAPSHOT))
            assert entry is not None, "it was found above, and nothing was dropped since"
            assert entry.snapshot is not None, "a snapshot's entry has one"
            entry.snapshot.share_into(cache)
            self._memory.touch((snapshot[1], _SNAPSHOT))
            bound = PrefixBound.LAST_TOKEN if used == len(tokens) - 1 else PrefixBound.NOT_STORED
        else:
            used, source = grid.end(count), PrefixSource.BLOCKS if count else PrefixSource.NOTHING
            bound = _bound(grid, len(tokens), count, matched, allowed)
            if count:
                fill(cache, grid, blocks.pages(count), _dtype(identity.compute_dtype))
        blocks.touch(Part(block, part) for block in range(matched) for part in grid.parts)
        self._make_room()
        self._tidy()
        counts = self._counts
        self._counts = counts._replace(
            lookups=counts.lookups + 1,
            hits=counts.hits + bool(used),
            asked_tokens=counts.asked_tokens + len(tokens),
            reused_tokens=counts.reused_tokens + used,
            damaged_files=counts.damaged_files + len(blocks.damaged),
        )
        return Lookup(cache, used, len(tokens), grid.end(matched), source, bound, tuple(blocks.damaged))

    def _add(self, pages: RowPages, blocks: TextBlocks, parts: Sequence[Part]) -> tuple[int, str | None]:
        """Store parts of a text, the first ones where not all fit; how many blocks got something, and why not more."""
        blocks.touch(parts)
        to_memory = [part for part in parts if not blocks.in_memory(part)]
        to_folder = [part for part in parts if self._folder is not None and not blocks.in_folder(part)]
        left_out = None
        if self.limit_nbytes is not None and to_memory:
            nbytes = [sum(array.nbytes for array in blocks.file(part).arrays) for part in to_memory]
            self._make_room(self.limit_nbytes - sum(nbytes), blocks.entry_keys)
            fitting = _fitting(nbytes, self.limit_nbytes - self._memory.nbytes)
            if fitting < len(to_memory):
                left_out = f"limit_nbytes is {self.limit_nbytes}, too little for all blocks beside what is in use"
            to_memory = to_memory[:fitting]
        if self._folder is not None and to_folder:
            nbytes = [blocks.file(part).nbytes for part in to_folder]
            limit = self._folder.limit_nbytes
            fitting = len(to_folder) if limit is None else _fitting(nbytes, limit)
            if fitting < len(to_folder):
                left_out = f"folder_limit_nbytes is {limit}, too little for all blocks"
            to_folder = to_folder[:fitting]
            self._folder.make_room(sum(nbytes[:fitting]))
        blocks.add(pages, to_memory, to_folder)
        blocks.touch(parts)
        return len({part.block for part in (*to_memory, *to_folder)}), left_out

    def _keep_snapshot(
        self, cache: QuantizedCache, row: int, key: str, tokens: int, identity: PrefixIdentity, shelf: Shelf
    ) -> bool:
        """Keep a fork of one row; False where it does not fit."""
        entry_key = (key, _SNAPSHOT)
        if self._memory.get(entry_key) is not None:
            self._memory.touch(entry_key)
            return True
        alone = cache.fork()
        if alone.batch_size > 1:
            alone.batch_select_indices(torch.tensor([row]))
        alone.trim_padding()
        self._memory.add(entry_key, Entry(identity.digest, {}, alone))
        shelf.snapshots[key] = tokens
        self._make_room(kept={entry_key})
        if self.limit_nbytes is not None and self._memory.nbytes > self.limit_nbytes:
            self._forget(entry_key, self._memory.remove(entry_key))
            return False
        return True

    def _longest_snapshot(
        self, root: str, keys: Sequence[str], tokens: TokenIds, shelf: Shelf
    ) -> tuple[int, str] | None:
        """Length and key of the longest snapshot that a prompt begins with and goes beyond."""
        for length in sorted(set(shelf.snapshots.values()), reverse=True):
            if length < len(tokens):
                key = snapshot_key(root, keys, tokens[:length], shelf.grid)
                if key in shelf.snapshots:
                    return length, key
        return None

    def _shelf(self, identity: PrefixIdentity, cache: QuantizedCache) -> Shelf:
        shelf = self._shelves.get(identity.digest)
        if shelf is None:
            shelf = Shelf(block_grid(cache.kv_format, cache.geometry), self.device)
            self._shelves[identity.digest] = shelf
        return shelf

    def _make_room(self, limit_nbytes: int | None = None, kept: Collection[EntryKey] = ()) -> None:
        """Drop what was not used for longest until `limit_nbytes` (the store's own if not given) are kept."""
        limit = self.limit_nbytes if limit_nbytes is None else limit_nbytes
        if limit is None or self._memory.nbytes <= limit:
            return
        for key, entry in self._memory.make_room(limit, kept):
            self._forget(key, entry)

    def _forget(self, key: EntryKey, entry: Entry) -> None:
        if key[1] == _SNAPSHOT:
            del self._shelves[entry.identity].snapshots[key[0]]

    def _tidy(self) -> None:
        """Give back slabs without pages, and shelves without slabs."""
        self._memory.trim()
        for digest, shelf in list(self._shelves.items()):
            for pool in shelf.pools:
                pool.trim()
            if not shelf.snapshots and not any(pool.num_pages for pool in shelf.pools):
                del self._shelves[digest]


def _parts_of(pages: RowPages, blocks: TextBlocks, count: int, grid: BlockGrid) -> list[Part]:
    """Parts that a row holds, of blocks before which none is missing."""
    found: list[Part] = []
    for block in range(count):
        mine = [part for part in grid.parts if pages.has(part, block)]
        if "full" in grid.parts and "full" not in mine and not blocks.has(block, "full"):
            break
        found += [Part(block, part) for part in mine]
    return found


def _fitting(nbytes: Sequence[int], room: int) -> int:
    """How many of these, from the first on, fit together."""
    total = 0
    for count, one in enumerate(nbytes):
        total += one
        if total > room:
            return count
    return len(nbytes)


def _bound(grid: BlockGrid, tokens: int, count: int, matched: int, allowed: int) -> PrefixBound:
    if grid.obstacle:
        return PrefixBound.NO_BLOCKS
    if count < min(matched, allowed):
        return PrefixBound.WINDOW
    if count < allowed:
        return PrefixBound.NOT_STORED
    if allowed < grid.committed_blocks(tokens):
        return PrefixBound.LAST_TOKEN
    return PrefixBound.STILL_EXACT if allowed < grid.whole_blocks(tokens) else PrefixBound.LAST_BLOCK


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else torch.float32
