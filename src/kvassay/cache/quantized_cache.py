"""A first QuantizedCache: append, read and count bytes; exact in one chunk or many.

What a query sees. A call with one token appends it and reads the store as it then is, so a token that left the recent
window is read from its codes. A call with several tokens (prefill, or a chunk) reads older tokens as they stand in the
store before the call and the chunk's own tokens exactly, which is what engines do that run a prompt in one piece.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from kvassay.cache.key_transform import KeyTransform
from kvassay.cache.model_keys import key_transforms as key_transforms_of
from kvassay.cache.side_store import OnClip, SideStore
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import LayerGeometry, Owner, geometry_from_config
from kvassay.core.kv_format import HeadGroup, KVFormat, head_groups
from kvassay.core.ledger import Basis, ByteLedger, predict_ledger
from kvassay.core.serving import check_serves
from kvassay.errors import CalibrationError, FormatError, GeometryError
from kvassay.formats import Calibration
from kvassay.formats.calibration import require_calibration

SideCalibration = tuple[Calibration | None, Calibration | None]
"""Static arrays of keys and of values of one head group."""
LayerCalibration = tuple[SideCalibration, ...]
"""One entry a head group of the layer, in the order of `head_groups`."""


class _StoredHeads(NamedTuple):
    """KV heads that are stored alike: usually all of a layer."""

    heads: tuple[int, ...]
    keys: SideStore
    values: SideStore


class QuantizedLayer(CacheLayerMixin):
    """Keys and values of one layer behind transformers' cache layer interface."""

    is_croppable = False
    supports_early_init = False

    def __init__(
        self,
        kv_format: KVFormat,
        index: int,
        geometry: LayerGeometry,
        calibration: LayerCalibration,
        on_clip: OnClip,
        key_transform: KeyTransform | None = None,
    ) -> None:
        super().__init__()
        self.geometry = geometry
        self.is_sliding = geometry.sliding_window is not None
        self._format = kv_format
        self._index = index
        self._groups = head_groups(kv_format, index, geometry)
        self._calibration = calibration
        self._key_transform = key_transform
        self._on_clip: OnClip = on_clip
        self.reset()

    def reset(self) -> None:
        self.stored_heads = [
            _StoredHeads(group.heads, self._store(group, "keys", scales[0]), self._store(group, "values", scales[1]))
            for group, scales in zip(self._groups, self._calibration, strict=True)
        ]
        self.is_initialized = False

    def _store(self, group: HeadGroup, side: str, calibration: Calibration | None) -> SideStore:
        transform = self._key_transform if side == "keys" else None
        some = "" if len(self._groups) == 1 else f", heads {', '.join(map(str, group.heads))}"
        return SideStore(
            group.keys if side == "keys" else group.values,
            len(group.heads),
            self.geometry.head_dim if side == "keys" else self.geometry.value_dim,
            self._format.exact_dtype,
            calibration=calibration,
            key_transform=None if transform is None else transform.for_heads(group.heads),
            on_clip=self._on_clip,
            name=f"{side} of layer {self._index}{some}",
        )

    @property
    def stores(self) -> Iterator[SideStore]:
        for group in self.stored_heads:
            yield from (group.keys, group.values)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._check_states(key_states, value_states)
        self.is_initialized = True

    def _check_states(self, key_states: Tensor, value_states: Tensor) -> None:
        """Raise GeometryError unless both sides are floats of the config's shape and of the rows that are stored."""
        for what, states, dim in (
            ("keys", key_states, self.geometry.head_dim),
            ("values", value_states, self.geometry.value_dim),
        ):
            if states.ndim != 4 or not states.is_floating_point():
                raise GeometryError(
                    f"{what} of layer {self._index} are {states.dtype} of shape {tuple(states.shape)}; expected floats "
                    "[batch, kv_heads, tokens, head_dim]"
                )
            expected = (self.geometry.kv_heads, dim)
            found = (states.shape[1], states.shape[3])
            if found != expected:
                raise GeometryError(
                    f"{what} of layer {self._index} have (kv_heads, head_dim) = {found}, the config says {expected}; "
                    "pass keys before they are repeated to query heads"
                )
        rows = self.stored_heads[0].keys.batch or key_states.shape[0]
        found_rows = {key_states.shape[0], value_states.shape[0]}
        if found_rows != {rows} or key_states.shape[2] != value_states.shape[2]:
            raise GeometryError(
                f"layer {self._index} got keys of (batch, tokens) {(key_states.shape[0], key_states.shape[2])} and "
                f"values of {(value_states.shape[0], value_states.shape[2])}; expected {rows} rows and equal lengths"
            )

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Append `[batch, kv_heads, tokens, dim]` and return what this call's queries read."""
        self._check_states(key_states, value_states)
        self.is_initialized = True
        # A cache holds numbers, not a graph: a training step that needs gradients through keys keeps its own.
        key_states, value_states = key_states.detach(), value_states.detach()
        new = [
            (store, states[:, list(group.heads)] if len(self.stored_heads) > 1 else states)
            for group in self.stored_heads
            for store, states in ((group.keys, key_states), (group.values, value_states))
        ]
        num_new = key_states.shape[2]
        _, offset = self.get_mask_sizes(num_new)
        # All that can fail comes before the first commit, so that an error leaves the whole layer as it was.
        prepared = [store.prepare(states) for store, states in new]
        read_after = num_new == 1
        seen = [] if read_after else [self._old_and_new(store, states, offset) for store, states in new]
        for (store, _), change in zip(new, prepared, strict=True):
            store.commit(change)
        if read_after:
            seen = [store.read(states.dtype)[:, :, offset - store.first_token :] for store, states in new]
        return self._all_heads(seen[0::2]), self._all_heads(seen[1::2])

    @staticmethod
    def _old_and_new(store: SideStore, states: Tensor, offset: int) -> Tensor:
        if not store.tokens:
            return states
        return torch.cat((store.read(states.dtype)[:, :, offset - store.first_token :], states), dim=2)

    def _all_heads(self, parts: list[Tensor]) -> Tensor:
        """Head groups back in the order of heads."""
        if len(parts) == 1:
            return parts[0]
        order = [head for group in self.stored_heads for head in group.heads]
        return torch.cat(parts, dim=1)[:, sorted(range(len(order)), key=order.__getitem__)]

    def get_seq_length(self) -> int:
        return self.stored_heads[0].keys.tokens

    def get_max_length(self) -> int:
        return -1 if self.geometry.sliding_window is None else self.geometry.sliding_window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length of what the next `update` returns, and the position of its first token."""
        tokens = self.get_seq_length()
        window = self.geometry.sliding_window
        offset = 0 if window is None else max(0, tokens - window + 1)
        return tokens + query_length - offset, offset

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        raise NotImplementedError("QuantizedCache cannot reorder rows yet; decode greedily or by sampling")

    def offload(self) -> None:
        raise NotImplementedError("QuantizedCache cannot be offloaded yet")


class QuantizedCache(Cache):
    """A KV cache that stores packed codes.

    Use it as `model.generate(..., past_key_values=QuantizedCache(model.config, "kivi-4"))`.

    `config` is the model's config; `kv_format` a KVFormat or its name. `calibration` gives static scales by layer for
    formats that need them. `on_clip="raise"` refuses values that saturate, `"count"` keeps and counts them.
    `key_transforms` gives what a format with keybias=removed or rope=removed takes from the model's weights;
    `QuantizedCache.for_model(model, kv_format)` finds it.
    """

    def __init__(
        self,
        config,
        kv_format: KVFormat | str,
        *,
        calibration: Mapping[int, LayerCalibration] | None = None,
        on_clip: OnClip = "raise",
        key_transforms: Mapping[int, KeyTransform] | None = None,
    ) -> None:
        self.kv_format = parse_format(kv_format) if isinstance(kv_format, str) else kv_format
        self.geometry = geometry_from_config(config.to_dict())
        check_serves(self.kv_format, self.geometry)
        layers = []
        for index, geometry in enumerate(self.geometry.layers):
            scales = layer_calibration(calibration, self.kv_format, index, geometry)
            self._require_calibration(index, scales)
            transform = self._key_transform(index, key_transforms)
            layers.append(QuantizedLayer(self.kv_format, index, geometry, scales, on_clip, transform))
        super().__init__(layers=list(layers))
        self._quantized_layers = layers

    @classmethod
    def for_model(
        cls,
        model: PreTrainedModel,
        kv_format: KVFormat | str,
        *,
        calibration: Mapping[int, LayerCalibration] | None = None,
        on_clip: OnClip = "raise",
    ) -> QuantizedCache:
        """A cache for a loaded model, with the key transforms that its format needs.

        Formats that need some run a few tokens to check them, each time; a server keeps what `key_transforms` of
        `kvassay.cache.model_keys` returns, and passes it on. Raises ModelError where the model has none.
        """
        parsed = parse_format(kv_format) if isinstance(kv_format, str) else kv_format
        transforms = key_transforms_of(model, parsed)
        return cls(model.config, parsed, calibration=calibration, on_clip=on_clip, key_transforms=transforms)

    @property
    def clipped_values(self) -> int:
        """Finite values that saturated when they were encoded, over all layers."""
        return sum(store.clipped_values for layer in self._quantized_layers for store in layer.stores)

    def ledger(self) -> ByteLedger:
        """Bytes of the real storages, by side and owner."""
        store = self._quantized_layers[0].stored_heads[0].keys
        if not store.tokens:
            raise GeometryError("the cache is empty; its ledger exists once tokens were appended")
        keys: Counter[Owner] = Counter()
        values: Counter[Owner] = Counter()
        for index, layer in enumerate(self._quantized_layers):
            skipped = self.kv_format.skips(index)
            for group in layer.stored_heads:
                keys.update(group.keys.owner_nbytes(skipped))
                values.update(group.values.owner_nbytes(skipped))
        computed = predict_ledger(self.geometry, self.kv_format, store.tokens, store.batch)
        return computed.model_copy(
            update={"basis": Basis.ALLOCATED, "keys_nbytes": dict(keys), "values_nbytes": dict(values)}
        )

    def _key_transform(self, index: int, given: Mapping[int, KeyTransform] | None) -> KeyTransform | None:
        """The transform of one layer; never one for a format that does not ask for it."""
        if not self.kv_format.transforms_keys:
            return None
        if given is None or index not in given:
            raise FormatError(
                f"{self.kv_format.name} needs the model's key bias and rotary embedding, and got none for layer "
                f"{index}; make the cache with QuantizedCache.for_model(model, format), or pass key_transforms="
            )
        return given[index]

    def _require_calibration(self, index: int, scales: LayerCalibration) -> None:
        geometry = self.geometry.layers[index]
        for group, sides in zip(head_groups(self.kv_format, index, geometry), scales, strict=True):
            for name, plan, calibration in zip(("keys", "values"), (group.keys, group.values), sides, strict=True):
                if not plan.spec.needs_calibration:
                    continue
                if calibration is None:
                    raise CalibrationError(
                        f"{self.kv_format.name} has static scales or means for the {name} of layer {index} and got "
                        "none; pass calibration=, or use a token-head format"
                    )
                dim = geometry.head_dim if name == "keys" else geometry.value_dim
                where = f"the {name} of layer {index}"
                require_calibration(plan.spec, len(group.heads), dim, calibration.parameters, calibration.source, where)


def layer_calibration(
    calibration: Mapping[int, LayerCalibration] | None, kv_format: KVFormat, layer: int, geometry: LayerGeometry
) -> LayerCalibration:
    """What was given for a layer, or nothing for each of its head groups."""
    groups = head_groups(kv_format, layer, geometry)
    given = (calibration or {}).get(layer, ((None, None),) * len(groups))
    if len(given) != len(groups):
        raise CalibrationError(
            f"layer {layer} of {kv_format.name} has {len(groups)} head groups, the calibration has {len(given)}; "
            "calibrate for this format"
        )
    return given
