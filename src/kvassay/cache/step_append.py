"""Appends of one token to every row, as decoding makes them, by one call of the compiled module.

Between two bounds of its pages an append changes a few bytes and counts, and nothing can fail but the new values
themselves. A `LayerStep` is made once for such a stretch: it knows where the next tokens go and how many have room.
Everything else (new pages, whole blocks of channel-wise keys, pages that a fork shares, values that are refused) takes
the way of `SideStore.prepare` and `commit`, which this one equals byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvassay.cache.cohorts import Cohort
from kvassay.cache.page_pool import PagePool
from kvassay.cache.paged_rows import PagedRows
from kvassay.cache.side_parts import SideParts
from kvassay.cache.side_store import SideStore
from kvassay.core.paging import coded_capacity, tail_capacity
from kvassay.kernels.encode import FLOAT_TYPES, code_grid
from kvassay.kernels.native import instruction_set, native_module, native_state


class _Stretch(NamedTuple):
    """What single tokens do to one side until something else happens."""

    enters_tail: bool
    is_coded: bool
    steps: int


class _Side:
    """The counts of one store that a step changes."""

    def __init__(self, store: SideStore, stretch: _Stretch) -> None:
        parts = _parts(store)
        self._store = store
        self._tail = parts.tail if stretch.enters_tail else None
        self._run = parts.coded.held[-1] if stretch.is_coded else None
        self._leaves_tail = stretch.enters_tail and stretch.is_coded
        self._encoded_values = parts.tail.rows * store.kv_heads * store.dim
        self._slides = store.plan.sliding_window is not None
        self._expected = store.tokens

    @property
    def is_as_it_was(self) -> bool:
        """False once anybody else changed the store."""
        return self._store.tokens == self._expected

    def advance(self) -> None:
        store = self._store
        store.tokens += 1
        self._expected += 1
        if self._tail is not None:
            self._tail.end += 1
        if self._run is not None:
            self._run.end += 1
            store.coded += 1
            store.encoded_values += self._encoded_values
            if self._leaves_tail and self._tail is not None:
                self._tail.first += 1
        if self._slides:
            store.dropped = store.dropped_after(store.tokens, store.coded)
            for run in store.coded_pages:
                run.first = max(run.first, store.dropped)


class LayerStep:
    """Single tokens for all rows of a layer, until `left` is 0, or `given` or `append` refuses."""

    def __init__(
        self, sides: tuple[_Side, _Side], native: Any, steps: int, shapes: tuple[Any, Any], pools: Any
    ) -> None:
        self.left = steps
        self._sides = sides
        self._native = native
        self._key_shape, self._value_shape = shapes
        self._pools: tuple[tuple[PagePool, int], ...] = pools

    @classmethod
    def of(cls, cohorts: tuple[Cohort, ...]) -> LayerStep | None:
        """For rows that are stored as these are now; None where the next append is none of that kind."""
        if len(cohorts) != 1 or len(cohorts[0].stored_heads) != 1 or native_state().missing is not None:
            return None
        cohort, group = cohorts[0], cohorts[0].stored_heads[0]
        if cohort.rows != tuple(range(len(cohort.rows))):
            return None
        stores = (group.keys, group.values)
        stretches = [_stretch(store) for store in stores]
        if None in stretches:
            return None
        keys, values = (stretch for stretch in stretches if stretch is not None)
        steps = min(keys.steps, values.steps)
        native_sides = [_native_side(store, one, steps) for store, one in zip(stores, (keys, values), strict=True)]
        if None in native_sides:
            return None
        sides = _Side(group.keys, keys), _Side(group.values, values)
        rows = len(cohort.rows)
        shapes = tuple(torch.Size((rows, store.kv_heads, 1, store.dim)) for store in stores)
        pools = tuple((pool, pool.changes) for store in stores for pool in store.pools[:2])
        native = native_module().Step(sides=native_sides, steps=steps)
        return cls(sides, native, steps, (shapes[0], shapes[1]), pools)

    def given(self, keys: Tensor, values: Tensor) -> tuple[int, ...] | None:
        """What `append` takes of one token of every row; None where the long way must be taken."""
        if keys.shape != self._key_shape or values.shape != self._value_shape or keys.dtype != values.dtype:
            return None
        kind = FLOAT_TYPES.get(keys.dtype)
        if kind is None or not (keys.is_cpu and values.is_cpu):
            return None
        key_row, key_head, _, key_channel = keys.stride()
        value_row, value_head, _, value_channel = values.stride()
        if key_channel != 1 or value_channel != 1:
            return None
        # Loops, since `any` and `all` take as long as the compiled call here.
        for pool, seen in self._pools:
            if pool.changes != seen:
                return None
        for side in self._sides:
            if not side.is_as_it_was:
                return None
        return keys.data_ptr(), values.data_ptr(), kind, key_row, key_head, value_row, value_head

    def append(self, given: tuple[int, ...]) -> bool:
        """Add the token; False, with nothing changed, where its values are refused."""
        written = self._native.append(*given)
        if written:
            for side in self._sides:
                side.advance()
            self.left -= 1
        return written


def _stretch(store: SideStore) -> _Stretch | None:
    """The next appends of single tokens; None where the next one is of another kind."""
    plan, parts = store.plan, store.parts
    if parts is None or store.recording or store.tokens < plan.sinks or len(parts.coded.all) > 1:
        return None
    coded, tail = parts.coded.held, parts.tail
    end = store.tokens - plan.sinks
    waiting, block = end - store.coded, plan.spec.tokens_per_block
    if tail.tokens != waiting or (tail.tokens and tail.first != store.coded):
        return None
    free = plan.recent + block - 1 - waiting
    """Tokens that enter the tail before a block of codes is made."""
    if free > 0:
        found = _Stretch(enters_tail=True, is_coded=False, steps=min(free, _room(tail)))
    elif block > 1 or not coded or not store.codes_single_tokens:
        return None
    elif plan.recent:
        oldest = tail.start + tail.pool.layout.tokens - 1 - tail.first
        """Tokens that leave the tail before a page of it comes free."""
        found = _Stretch(enters_tail=True, is_coded=True, steps=min(_room(tail), _room(coded[-1]), oldest))
    else:
        found = _Stretch(enters_tail=False, is_coded=True, steps=_room(coded[-1]))

    def keeps_room(steps: int) -> bool:
        """Whether so many steps change no storage: neither the tables' room nor the pages of a sliding layer."""
        made = store.coded + steps * found.is_coded
        if coded_capacity(plan, made) != coded_capacity(plan, store.coded):
            return False
        if tail_capacity(plan, end + steps) != tail_capacity(plan, end):
            return False
        dropped = store.dropped_after(store.tokens + steps, made)
        return not any(run.loses_page_before(dropped) for run in coded)

    steps = _last(keeps_room, found.steps)
    return found._replace(steps=steps) if steps > 0 else None


def _parts(store: SideStore) -> SideParts:
    assert store.parts is not None, "a stretch has pages"
    return store.parts


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` for which `holds`, which holds up to some number and not beyond."""
    low, high = 0, max(0, most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _room(rows: PagedRows) -> int:
    """Tokens that the last page of each row has room for; 0 where a page is shared, or there is none."""
    if not rows.tokens or not rows.ends_on_block or (rows.pool.references(rows.table[:, -1]) != 1).any():
        return 0
    return rows.start + rows.table.shape[1] * rows.pool.layout.tokens - rows.end


def _native_side(store: SideStore, stretch: _Stretch, steps: int) -> Any:
    parts = _parts(store)
    tail, coded_pages, tail_pages = parts.tail, [], []
    coded_place = tail_place = oldest_place = 0
    if stretch.is_coded:
        run = parts.coded.held[-1]
        coded_pages, coded_place = run.step_arrays(-1), run.place_of(run.end)
    if stretch.enters_tail:
        tail_pages, tail_place = tail.step_arrays(-1), tail.place_of(tail.end)
        if stretch.is_coded:
            tail_pages = tail_pages and [*tail_pages, *(tail.step_arrays(0) or ())]
            oldest_place = tail.place_of(tail.first)
    if coded_pages is None or tail_pages is None:
        return None
    return native_module().StepSide(
        sequences=tail.rows,
        heads=store.kv_heads,
        dim=store.dim,
        kept=FLOAT_TYPES[getattr(torch, store.entry_dtype)],
        grid=code_grid(store.plan.spec, store.dim) if stretch.is_coded and not store.plan.spec.is_exact else None,
        coded=coded_pages,
        coded_place=coded_place,
        tail=tail_pages,
        tail_place=tail_place,
        oldest_place=oldest_place,
        steps=steps,
        instruction_set=instruction_set(),
    )
