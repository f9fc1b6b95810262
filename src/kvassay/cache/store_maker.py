"""Stores of a layer, empty and as its format asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from kvassay.cache.cohorts import Cohort, LayerCalibration, StoredHeads
from kvassay.cache.key_transform import KeyTransform
from kvassay.cache.offload import Offload
from kvassay.cache.side_codec import OnClip
from kvassay.cache.side_store import SideStore
from kvassay.core.geometry import LayerGeometry
from kvassay.core.kv_format import HeadGroup
from kvassay.core.spec import FloatDtype
from kvassay.formats import Calibration


class StoreMaker(NamedTuple):
    """All that a layer's stores have in common."""

    groups: tuple[HeadGroup, ...]
    calibration: LayerCalibration
    geometry: LayerGeometry
    exact_dtype: FloatDtype
    index: int
    on_clip: OnClip
    key_transform: KeyTransform | None
    offload: Offload | None

    def cohorts(self, padding: Sequence[int], *, recording: bool) -> tuple[Cohort, ...]:
        """Of a batch without tokens, by the leading padding of each row."""
        rows_of: dict[int, list[int]] = {}
        for row, count in enumerate(padding):
            rows_of.setdefault(count, []).append(row)
        return tuple(self.cohort(rows, count, recording=recording) for count, rows in rows_of.items())

    def cohort(self, rows: Sequence[int], padding: int, *, recording: bool) -> Cohort:
        """Rows without tokens."""
        return Cohort(
            tuple(rows),
            padding,
            tuple(
                StoredHeads(
                    group.heads,
                    self._store(group, "keys", keys, recording),
                    self._store(group, "values", values, recording),
                )
                for group, (keys, values) in zip(self.groups, self.calibration, strict=True)
            ),
        )

    def _store(self, group: HeadGroup, side: str, calibration: Calibration | None, recording: bool) -> SideStore:
        transform = self.key_transform if side == "keys" else None
        some = "" if len(self.groups) == 1 else f", heads {', '.join(map(str, group.heads))}"
        store = SideStore(
            group.keys if side == "keys" else group.values,
            len(group.heads),
            self.geometry.head_dim if side == "keys" else self.geometry.value_dim,
            self.exact_dtype,
            calibration=calibration,
            key_transform=None if transform is None else transform.for_heads(group.heads),
            on_clip=self.on_clip,
            name=f"{side} of layer {self.index}{some}",
            slabs_for=None if self.offload is None else partial(self.offload.slabs, self.index),
        )
        store.recording = recording
        return store
