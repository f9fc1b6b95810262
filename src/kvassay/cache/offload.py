"""Offload: cold pages of a cache on disk, or in host memory beside a device's, under a limit of resident bytes.

Coded pages are offloaded; sinks and the full-precision tail, which every step writes, stay. Results are those of the
cache without it, bit for bit: a page's bytes are moved and never changed. See docs/howto/cache.md and
docs/design/offload.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch

from kvassay.cache.offloaded_slabs import OffloadedSlabs
from kvassay.cache.page_backing import Backing, FileBacking, HostBacking
from kvassay.cache.residency import Residency
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat, head_groups
from kvassay.core.paging import PageLayout, page_layout
from kvassay.errors import CacheStateError


class OffloadCounts(NamedTuple):
    """Bytes where they lie now, and bytes and seconds that moving them took, of all caches of one `Offload`."""

    limit_nbytes: int
    resident_nbytes: int
    """Coded pages in memory, with the buffer of misses and what was read ahead."""
    peak_resident_nbytes: int
    offloaded_nbytes: int
    """Coded pages that are not in memory, and room that is reserved for pages not yet written."""
    nbytes_out: int
    seconds_out: float
    nbytes_in: int
    seconds_in: float
    """In reads, of either thread."""
    seconds_waited: float
    """Of `seconds_in`, what the caller waited for."""
    read_ahead_hits: int
    """Offloaded pages that were there, or on their way, when they were needed."""
    read_ahead_misses: int


class Offload:
    """Where coded pages go that do not fit in `resident_nbytes`.

    `folder` takes one file without a name, which goes when the last cache does; without a folder pages go to host
    memory, which needs a cache on another device. `resident_nbytes` bounds coded pages in memory with all buffers; one
    `Offload` may serve several caches, which then share the limit. `read_ahead=False` fetches pages only when they are
    needed.

    Raises CacheStateError where no file can be made in `folder`.
    """

    def __init__(
        self, resident_nbytes: int, folder: str | os.PathLike[str] | None = None, *, read_ahead: bool = True
    ) -> None:
        self.resident_nbytes = resident_nbytes
        self.folder = None if folder is None else Path(folder)
        self._read_ahead = read_ahead
        self._residency: Residency | None = None
        if self.folder is not None:
            try:
                backing = FileBacking(self.folder)
            except OSError as error:
                raise CacheStateError(
                    f"no file for offloaded pages can be made in {self.folder} ({error.strerror or error}); name a "
                    "folder that exists and can be written"
                ) from error
            self._residency = self._make_residency(backing)

    def counts(self) -> OffloadCounts:
        """What lies where, and what was moved so far."""
        residency = self._residency
        if residency is None:
            return OffloadCounts(self.resident_nbytes, 0, 0, 0, 0, 0.0, 0, 0.0, 0.0, 0, 0)
        traffic = residency.traffic
        return OffloadCounts(
            limit_nbytes=self.resident_nbytes,
            resident_nbytes=residency.resident_nbytes,
            peak_resident_nbytes=residency.peak_nbytes,
            offloaded_nbytes=residency.allocated_nbytes - residency.slab_nbytes,
            nbytes_out=traffic.nbytes_out,
            seconds_out=traffic.seconds_out,
            nbytes_in=traffic.nbytes_in,
            seconds_in=traffic.seconds_in,
            seconds_waited=traffic.seconds_waited,
            read_ahead_hits=traffic.hits,
            read_ahead_misses=traffic.misses,
        )

    def require_room(self, geometry: CacheGeometry, kv_format: KVFormat) -> None:
        """Raise CacheStateError where the limit cannot hold two of the cache's largest pages."""
        smallest = smallest_resident_nbytes(geometry, kv_format)
        if self.resident_nbytes < smallest:
            raise CacheStateError(
                f"resident_nbytes is {self.resident_nbytes:,}; {kv_format.name} of this model needs {smallest:,}, one "
                "page that is read beside one that is written. Give at least that, and for speed a quarter of the cache"
            )

    def slabs(self, layer: int, layout: PageLayout, device: torch.device) -> OffloadedSlabs:
        """The storage of a pool of one layer. Raises CacheStateError for host memory of a cache that lies there."""
        if self._residency is None:
            if device.type == "cpu":
                raise CacheStateError(
                    "this cache lies in host memory, and Offload without a folder would move its pages to host memory; "
                    "pass folder= to move them to disk, or make the cache without offload"
                )
            self._residency = self._make_residency(HostBacking(device))
        return OffloadedSlabs(self._residency, layer, layout.nbytes, device)

    def _make_residency(self, backing: Backing) -> Residency:
        where = "host memory" if self.folder is None else str(self.folder)
        return Residency(self.resident_nbytes, backing, where, self._read_ahead)


def smallest_resident_nbytes(geometry: CacheGeometry, kv_format: KVFormat) -> int:
    """The least limit with which a cache works."""
    return 2 * max(
        page_layout(plan.spec, len(group.heads), dim, plan.side).nbytes
        for index, layer in enumerate(geometry.layers)
        for group in head_groups(kv_format, index, layer)
        for plan, dim in ((group.keys, layer.head_dim), (group.values, layer.value_dim))
    )
