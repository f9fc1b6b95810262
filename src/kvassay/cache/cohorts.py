"""Which rows of a batch are stored together, and how rows are picked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kvassay.cache.side_store import SideStore
from kvassay.core.geometry import LayerGeometry
from kvassay.errors import CacheStateError
from kvassay.formats import Calibration

SideCalibration = tuple[Calibration | None, Calibration | None]
"""Static arrays of keys and of values of one head group."""
LayerCalibration = tuple[SideCalibration, ...]
"""One entry a head group of the layer, in the order of `head_groups`."""


MAX_ROWS = 1 << 20
"""Rows of a batch."""


class StoredHeads(NamedTuple):
    """KV heads that are stored alike: usually all of a layer."""

    heads: tuple[int, ...]
    keys: SideStore
    values: SideStore

    def select(self, rows: Sequence[int]) -> StoredHeads:
        return StoredHeads(self.heads, self.keys.select(rows), self.values.select(rows))


class Cohort(NamedTuple):
    """Rows of the batch that are stored together."""

    rows: tuple[int, ...]
    """Their places in the batch."""
    padding: int
    """Leading columns of the batch that are not theirs."""
    stored_heads: tuple[StoredHeads, ...]

    @property
    def stores(self) -> Iterator[SideStore]:
        for group in self.stored_heads:
            yield from (group.keys, group.values)

    def tokens(self, columns: int) -> int:
        """Length of these rows' own sequences once the batch is `columns` wide."""
        return max(0, columns - self.padding)


def require_row_count(rows: int) -> None:
    """Raise CacheStateError for a batch whose block tables alone would take the memory of a machine."""
    if rows > MAX_ROWS:
        raise CacheStateError(f"a batch of {rows:,} rows was asked for; a cache has at most {MAX_ROWS:,}")


def row_numbers(indices: Tensor | Sequence[int] | Sequence[bool], batch: int) -> list[int]:
    """Row numbers of an index as tensors take it: numbers (negative ones from the end), or one boolean a row."""
    try:
        chosen = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CacheStateError(f"rows were named by {indices!r}; expected a sequence of whole numbers") from error
    if chosen.dtype == torch.bool:
        if chosen.shape != (batch,):
            raise CacheStateError(f"a mask of {tuple(chosen.shape)} rows selects from {batch}; give one value a row")
        chosen = chosen.nonzero().flatten()
    if chosen.is_floating_point() and chosen.numel():
        raise CacheStateError(
            f"rows were named by {chosen.dtype} numbers; expected whole numbers, or one boolean a row"
        )
    rows = [int(row) for row in chosen.flatten().tolist()]
    if wrong := [row for row in rows if not -batch <= row < batch]:
        held = f"rows 0 to {batch - 1}" if batch else "no row yet"
        raise CacheStateError(f"row {wrong[0]} was asked for; the cache has {held}")
    return [row % batch for row in rows]


def select_rows(cohorts: Sequence[Cohort], rows: Sequence[int]) -> tuple[Cohort, ...]:
    """Cohorts of the batch whose row i is the old row `rows[i]`."""
    found: list[Cohort] = []
    for cohort in cohorts:
        place = {row: index for index, row in enumerate(cohort.rows)}
        new_rows = tuple(index for index, row in enumerate(rows) if row in place)
        if new_rows:
            members = [place[rows[index]] for index in new_rows]
            found.append(
                cohort._replace(
                    rows=new_rows, stored_heads=tuple(group.select(members) for group in cohort.stored_heads)
                )
            )
    return tuple(found)


def stored_as_one(cohorts: Sequence[Cohort]) -> StoredHeads | None:
    """The stores of a layer that has one a side: all rows in their order, unpadded, all heads, codes in one run."""
    if len(cohorts) != 1 or cohorts[0].padding or len(cohorts[0].stored_heads) != 1:
        return None
    cohort, group = cohorts[0], cohorts[0].stored_heads[0]
    if cohort.rows != tuple(range(len(cohort.rows))) or group.heads != tuple(range(len(group.heads))):
        return None
    return group if all(len(store.coded_pages) <= 1 for store in cohort.stores) else None


def read_cohorts(
    cohorts: Sequence[Cohort], side: str, geometry: LayerGeometry, dtype: torch.dtype, begin: int, end: int
) -> Tensor:
    """Columns `begin` to `end - 1` of one side of all rows, decoded; padding is zero. Of one row at least."""
    if len(cohorts) == 1 and len(cohorts[0].stored_heads) == 1 and cohorts[0].padding <= begin < end:
        padding = cohorts[0].padding
        store: SideStore = getattr(cohorts[0].stored_heads[0], side)
        if cohorts[0].rows == tuple(range(len(cohorts[0].rows))):
            return store.read(dtype, begin - padding, end - padding)
    dim = geometry.head_dim if side == "keys" else geometry.value_dim
    rows = sum(len(cohort.rows) for cohort in cohorts)
    device = next(iter(cohorts[0].stores)).device
    seen = torch.zeros((rows, geometry.kv_heads, end - begin, dim), dtype=dtype, device=device)
    for cohort in cohorts:
        low, high = max(begin, cohort.padding), end
        if low >= high:
            continue
        for group in cohort.stored_heads:
            part = getattr(group, side).read(dtype, low - cohort.padding, high - cohort.padding)
            members = torch.tensor(cohort.rows, device=device)[:, None]
            heads = torch.tensor(group.heads, device=device)[None]
            seen[:, :, low - begin :][members, heads] = part
    return seen
