"""A first QuantizedCache: append, read and count bytes; exact in one chunk or many.

What a query sees. A call with one token appends it and reads the store as it then is, so a token that left the recent
window is read from its codes. A call with several tokens (prefill, or a chunk) reads older tokens as they stand in the
store before the call and the chunk's own tokens exactly, which is what engines do that run a prompt in one piece.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from kvassay.cache.side_store import OnClip, SideStore
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry, Owner, geometry_from_config
from kvassay.core.kv_format import KVFormat, side_plans
from kvassay.core.layout import streams
from kvassay.core.ledger import Basis, ByteLedger, predict_ledger
from kvassay.errors import CalibrationError, FormatError, GeometryError
from kvassay.formats import Calibration

SideCalibration = tuple[Calibration | None, Calibration | None]
"""Static scales of keys and of values of one layer."""


class QuantizedLayer(CacheLayerMixin):
    """Keys and values of one layer behind transformers' cache layer interface."""

    is_croppable = False
    supports_early_init = False

    def __init__(
        self,
        kv_format: KVFormat,
        index: int,
        geometry: LayerGeometry,
        calibration: SideCalibration,
        on_clip: OnClip,
    ) -> None:
        super().__init__()
        self.geometry = geometry
        self.is_sliding = geometry.sliding_window is not None
        self._format = kv_format
        self._index = index
        self._calibration = calibration
        self._on_clip: OnClip = on_clip
        self.reset()

    def reset(self) -> None:
        key_plan, value_plan = side_plans(self._format, self._index, self.geometry)
        heads, exact = self.geometry.kv_heads, self._format.exact_dtype
        key_scale, value_scale = self._calibration
        self.key_store = SideStore(
            key_plan, heads, self.geometry.head_dim, exact,
            calibration=key_scale, on_clip=self._on_clip, name=f"keys of layer {self._index}",
        )  # fmt: skip
        self.value_store = SideStore(
            value_plan, heads, self.geometry.value_dim, exact,
            calibration=value_scale, on_clip=self._on_clip, name=f"values of layer {self._index}",
        )  # fmt: skip
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        for what, states, dim in (
            ("keys", key_states, self.geometry.head_dim),
            ("values", value_states, self.geometry.value_dim),
        ):
            expected = (self.geometry.kv_heads, dim)
            found = (states.shape[1], states.shape[3])
            if found != expected:
                raise GeometryError(
                    f"{what} of layer {self._index} have (kv_heads, head_dim) = {found}, the config says {expected}; "
                    "pass keys before they are repeated to query heads"
                )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Append `[batch, kv_heads, tokens, dim]` and return what this call's queries read."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        states = ((self.key_store, key_states), (self.value_store, value_states))
        num_new = key_states.shape[2]
        _, offset = self.get_mask_sizes(num_new)
        if num_new == 1:
            for store, new in states:
                store.append(new)
            keys, values = (store.read(new.dtype)[:, :, offset - store.first_token :] for store, new in states)
            return keys, values
        seen = []
        for store, new in states:
            old = [store.read(new.dtype)[:, :, offset - store.first_token :]] if store.tokens else []
            seen.append(torch.cat((*old, new), dim=2))
        for store, new in states:
            store.append(new)
        return seen[0], seen[1]

    def get_seq_length(self) -> int:
        return self.key_store.tokens

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
    """

    def __init__(
        self,
        config,
        kv_format: KVFormat | str,
        *,
        calibration: Mapping[int, SideCalibration] | None = None,
        on_clip: OnClip = "raise",
    ) -> None:
        self.kv_format = parse_format(kv_format) if isinstance(kv_format, str) else kv_format
        self.geometry = geometry_from_config(config.to_dict())
        check_serves(self.kv_format, self.geometry)
        layers = []
        for index, geometry in enumerate(self.geometry.layers):
            scales = (calibration or {}).get(index, (None, None))
            self._require_calibration(index, scales)
            layers.append(QuantizedLayer(self.kv_format, index, geometry, scales, on_clip))
        super().__init__(layers=list(layers))
        self._quantized_layers = layers

    @property
    def clipped_values(self) -> int:
        """Finite values that saturated when they were encoded, over all layers."""
        return sum(
            layer.key_store.clipped_values + layer.value_store.clipped_values for layer in self._quantized_layers
        )

    def ledger(self) -> ByteLedger:
        """Bytes of the real storages, by side and owner."""
        store = self._quantized_layers[0].key_store
        if not store.tokens:
            raise GeometryError("the cache is empty; its ledger exists once tokens were appended")
        keys: Counter[Owner] = Counter()
        values: Counter[Owner] = Counter()
        for index, layer in enumerate(self._quantized_layers):
            skipped = self.kv_format.skips(index)
            keys.update(layer.key_store.owner_nbytes(skipped))
            values.update(layer.value_store.owner_nbytes(skipped))
        computed = predict_ledger(self.geometry, self.kv_format, store.tokens, store.batch)
        return computed.model_copy(
            update={"basis": Basis.ALLOCATED, "keys_nbytes": dict(keys), "values_nbytes": dict(values)}
        )

    def _require_calibration(self, index: int, scales: SideCalibration) -> None:
        plans = side_plans(self.kv_format, index, self.geometry.layers[index])
        for name, plan, scale in zip(("keys", "values"), plans, scales, strict=True):
            if plan.spec.is_static and scale is None:
                raise CalibrationError(
                    f"{self.kv_format.name} has one static scale for the {name} of layer {index} and got none; "
                    "pass calibration={layer: (keys, values)}, or use a token-head format"
                )


def check_serves(kv_format: KVFormat, geometry: CacheGeometry) -> None:
    """Raise before the first token where a format cannot serve a model: head size, layer numbers."""
    if kv_format.skip_layers and kv_format.skip_layers[-1] >= geometry.num_layers:
        raise FormatError(
            f"{kv_format.name} skips layer {kv_format.skip_layers[-1]}, the model has layers 0 to "
            f"{geometry.num_layers - 1}"
        )
    for index, layer in enumerate(geometry.layers):
        for plan, dim in zip(side_plans(kv_format, index, layer), (layer.head_dim, layer.value_dim), strict=True):
            streams(plan.spec, layer.kv_heads, dim)
