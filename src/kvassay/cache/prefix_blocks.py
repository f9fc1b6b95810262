"""Blocks of one text, from memory or from the folder, and the search for the longest usable run of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvassay.cache.prefix_file import BlockFile
from kvassay.cache.prefix_folder import PrefixFolder
from kvassay.cache.prefix_identity import PrefixIdentity
from kvassay.cache.prefix_memory import Entry, EntryKey, PrefixMemory
from kvassay.cache.prefix_pages import BlockPages, RowPages, Shelf, release
from kvassay.errors import ForeignFormatError, PrefixStoreError


class Part(NamedTuple):
    """One part of one block of a text."""

    block: int
    part: str


class TextBlocks:
    """The blocks of one text under one identity; `keys` are those of its whole blocks."""

    def __init__(
        self,
        identity: PrefixIdentity,
        keys: Sequence[str],
        shelf: Shelf,
        memory: PrefixMemory,
        folder: PrefixFolder | None,
    ) -> None:
        self._identity, self._keys, self._shelf = identity, keys, shelf
        self._memory, self._folder = memory, folder
        self._absent: set[Part] = set()
        """Parts whose file turned out to be missing or damaged."""
        self.damaged: list[str] = []

    def key(self, part: Part) -> EntryKey:
        return self._keys[part.block], part.part

    @property
    def entry_keys(self) -> set[EntryKey]:
        return {(key, part) for key in self._keys for part in self._shelf.grid.parts}

    def file(self, part: Part) -> BlockFile:
        arrays = self._shelf.grid.arrays(part.part, part.block)
        return BlockFile(self._identity, self._keys[part.block], part.part, part.block, arrays)

    def in_memory(self, part: Part) -> bool:
        return self._memory.get(self.key(part)) is not None

    def in_folder(self, part: Part) -> bool:
        return self._folder is not None and part not in self._absent and self._folder.holds(self.file(part).name)

    def has(self, block: int, part: str) -> bool:
        """True where a part is stored, or where this model needs none of it."""
        one = Part(block, part)
        return part not in self._shelf.grid.parts or self.in_memory(one) or self.in_folder(one)

    def leading(self) -> int:
        """Blocks from the first one on that are stored; of a model with sliding layers alone, up to the last one."""
        blocks = range(len(self._keys))
        if "full" in self._shelf.grid.parts:
            return next((block for block in blocks if not self.has(block, "full")), len(self._keys))
        return max((block + 1 for block in blocks if self.has(block, "window")), default=0)

    def usable(self, most: int) -> int:
        """The largest number of blocks, up to `most`, whose end the sliding layers can go on from."""
        grid = self._shelf.grid
        for count in range(most, 0, -1):
            if all(self.has(block, "window") for block in range(grid.first_block("window", count), count)):
                return count
        return 0

    def needed(self, count: int) -> list[Part]:
        """Parts that a cache of the first `count` blocks holds."""
        grid = self._shelf.grid
        return [Part(block, part) for part in grid.parts for block in range(grid.first_block(part, count), count)]

    def load_nbytes(self, parts: Sequence[Part]) -> int:
        """Bytes of those parts that are not in memory yet."""
        return sum(array.nbytes for part in parts if not self.in_memory(part) for array in self.file(part).arrays)

    def load(self, parts: Sequence[Part]) -> bool:
        """Bring parts into memory; False where one of them proved missing or damaged, which is noted."""
        files = {part: self.file(part) for part in parts if not self.in_memory(part)}
        self._shelf.reserve(array for file in files.values() for array in file.arrays)
        for part, file in files.items():
            pages = self._read(file)
            if pages is None:
                self._absent.add(part)
                return False
            self._memory.add(self.key(part), Entry(self._identity.digest, pages))
        return True

    def touch(self, parts: Iterable[Part]) -> None:
        """Note a use. A block is noted after those behind it, so it is never dropped before them."""
        parts = sorted(parts, reverse=True)
        for part in parts:
            if self.in_memory(part):
                self._memory.touch(self.key(part))
        if self._folder is not None:
            self._folder.touch(self.file(part).name for part in reversed(parts))

    def pages(self, count: int) -> list[BlockPages]:
        """Pages of the first `count` blocks, as far as they are needed; `load` comes before."""
        found: list[BlockPages] = [{} for _ in range(count)]
        for part in self.needed(count):
            entry = self._memory.get(self.key(part))
            assert entry is not None, "load brings them"
            found[part.block].update(entry.pages)
        return found

    def add(self, row: RowPages, to_memory: Sequence[Part], to_folder: Sequence[Part]) -> None:
        """Store parts that a row of a cache holds: all of them or, on an error, none."""
        shared = {part: row.shared(part.part, part.block, self._shelf) for part in to_memory}
        made: dict[Part, BlockPages] = {part: pages for part, pages in shared.items() if pages is not None}
        written: list[str] = []
        try:
            copied = [part for part in to_memory if part not in made]
            self._shelf.reserve(array for part in copied for array in self.file(part).arrays)
            for part in dict.fromkeys((*to_memory, *to_folder)):
                if part in made and part not in to_folder:
                    continue
                raw = row.raw(part.part, part.block)
                if part in to_folder and self._folder is not None:
                    file = self.file(part)
                    written.append(file.name)
                    self._folder.write(file.name, file.encoded(raw))
                if part in copied:
                    made[part] = self._shelf.keep(raw)
            if written and self._folder is not None:
                self._folder.sync()
        except BaseException:
            for pages in made.values():
                release(pages)
            for name in written:
                assert self._folder is not None, "something was written"
                self._folder.remove(name)
            raise
        for part, pages in made.items():
            self._memory.add(self.key(part), Entry(self._identity.digest, pages))

    def _read(self, file: BlockFile) -> BlockPages | None:
        if self._folder is None:
            return None
        try:
            content = self._folder.read(file.name, file.nbytes)
            return None if content is None else self._shelf.keep(file.decoded(content))
        except (PrefixStoreError, ForeignFormatError) as error:
            self._folder.remove(file.name)
            self.damaged.append(str(error))
            return None
