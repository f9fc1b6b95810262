"""QuantizedCache: a KV cache for transformers that stores packed codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from kvassay.cache.arguments import config_fields, padding_counts, parsed_format, require_choice, whole_number
from kvassay.cache.attention import chosen_path
from kvassay.cache.attention_path import AttentionChoice, AttentionPath, KernelChoice, LayerPath, attention_choice
from kvassay.cache.cache_identity import require_same_format
from kvassay.cache.cohorts import LayerCalibration, row_numbers
from kvassay.cache.graph_capture import BREAK_REASON, require_no_export
from kvassay.cache.graph_update import append_in_graph, fits_in_graph
from kvassay.cache.key_transform import KeyTransform
from kvassay.cache.layer_maker import LayerMaker
from kvassay.cache.model_keys import key_transforms as key_transforms_of
from kvassay.cache.offload import Offload, OffloadCounts
from kvassay.cache.quantized_layer import QuantizedLayer
from kvassay.cache.saved_cache import opened, require_loadable, restore, save_cache
from kvassay.cache.side_codec import OnClip
from kvassay.cache.stored_bytes import layers_nbytes
from kvassay.cache.traced import number_of
from kvassay.core.geometry import geometry_from_config
from kvassay.core.kv_format import KVFormat
from kvassay.core.ledger import Basis, ByteLedger, predict_ledger
from kvassay.core.serving import check_serves
from kvassay.errors import CacheStateError, GeometryError
from kvassay.kernels.native import warn_if_missing


class QuantizedCache(Cache):
    """A KV cache that stores packed codes.

    Use it as `model.generate(..., cache=QuantizedCache(model.config, "kivi-4"))`.

    `config` is the model's config; `kv_format` a KVFormat or its name. `calibration` gives static scales by layer for
    formats that need them. `on_clip="raise"` refuses values that saturate, `"count"` keeps and counts them.
    `key_transforms` gives what a format with keybias=removed or rope=removed takes from the model's weights;
    `QuantizedCache.for_model(model, kv_format)` finds it. `left_padding` says how many leading columns of each row are
    padding (`(mask == 0).sum(1)` of an attention mask): they are then not stored, and each row is stored as if it ran
    alone, its own first tokens being its sinks. Without it padding is stored like any token. `offload` keeps coded
    pages that do not fit in a limit on disk, or in host memory; what is read stays the same, bit for bit.

    `attention` says how models read it: `fused` from the codes, `tiled` page by page, `decoded` a layer at a time,
    `auto` the first that can (see `explain`). `kernel` says it by what multiplies: `exact` is fused, `reference` tiled.

    Rows and tokens can be taken away, repeated and shared at any time: `crop`, `batch_select_indices`,
    `reorder_cache`, `batch_repeat_interleave`, `fork`, `take_rows`, `trim_padding`, `reset`.
    """

    def __init__(
        self,
        config,
        kv_format: KVFormat | str,
        *,
        calibration: Mapping[int, LayerCalibration] | None = None,
        on_clip: OnClip = "raise",
        key_transforms: Mapping[int, KeyTransform] | None = None,
        left_padding: Sequence[int] | torch.Tensor | None = None,
        attention: AttentionChoice = "auto",
        kernel: KernelChoice = "auto",
        offload: Offload | None = None,
    ) -> None:
        warn_if_missing()
        self.kv_format = parsed_format(kv_format)
        self.geometry = geometry_from_config(config_fields(config))
        require_choice(on_clip, OnClip, "on_clip")
        attention = attention_choice(attention, kernel)
        check_serves(self.kv_format, self.geometry)
        self.on_clip: OnClip = on_clip
        self.config = config
        self._made = LayerMaker(
            self.kv_format,
            self.geometry,
            calibration,
            on_clip,
            key_transforms,
            padding_counts(left_padding),
            offload,
            attention,
        )
        layers = self._made.layers()
        super().__init__(layers=list(layers))
        self.quantized_layers = layers
        self._number = number_of(self)

    @classmethod
    def for_model(
        cls,
        model: PreTrainedModel,
        kv_format: KVFormat | str,
        *,
        calibration: Mapping[int, LayerCalibration] | None = None,
        on_clip: OnClip = "raise",
        left_padding: Sequence[int] | torch.Tensor | None = None,
        attention: AttentionChoice = "auto",
        kernel: KernelChoice = "auto",
        offload: Offload | None = None,
    ) -> QuantizedCache:
        """A cache for a loaded model, with the key transforms that its format needs.

        Formats that need some run a few tokens to check them, each time; a server keeps what `key_transforms` of
        `kvassay.cache.model_keys` returns, and passes it on. Raises ModelError where the model has none.
        """
        parsed = parsed_format(kv_format)
        transforms = key_transforms_of(model, parsed)
        return cls(
            model.config,
            parsed,
            calibration=calibration,
            on_clip=on_clip,
            key_transforms=transforms,
            left_padding=left_padding,
            attention=attention,
            kernel=kernel,
            offload=offload,
        )

    @property
    def clipped_values(self) -> int:
        """Finite values that saturated when they were encoded, over all layers."""
        return sum(store.clipped_values for layer in self.quantized_layers for store in layer.stores)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values `[batch, kv_heads, tokens, dim]`; returns what this call's queries read.

        That is decoded when something asks for it, and by attention that knows packed pages never as a whole.
        In a graph of `torch.compile` it is one operator once the cache holds tokens (`traced`); the first tokens run
        between two graphs, and are refused with fullgraph=True. torch.export is refused.
        """
        if torch.compiler.is_compiling() and fits_in_graph(layer := self.quantized_layers[layer_idx], self.config):
            return append_in_graph(layer, key_states, value_states, self._number, layer_idx)
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
            return self._update_between_graphs(key_states, value_states, layer_idx, *args, **kwargs)
        return self._update(key_states, value_states, layer_idx, *args, **kwargs)

    @torch.compiler.disable(reason=BREAK_REASON)
    def _update_between_graphs(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Apart from `update`, since what `disable` adds to a call is a good part of one outside of torch.compile."""
        require_no_export()
        return self._update(*args, **kwargs)

    def _update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= layer_idx < len(self.quantized_layers):
            raise GeometryError(
                f"keys of layer {layer_idx} came, and the cache was made for layers 0 to "
                f"{len(self.quantized_layers) - 1}; make it with the config of this model"
            )
        layer = self.quantized_layers[layer_idx]
        self.quantized_layers[layer_idx - 1].require_whole()
        self.require_even(layer)
        first = self.quantized_layers[0]
        if layer is first or layer.attention != "auto" or layer.columns + key_states.shape[2] != first.columns:
            layer.hands_out_views = chosen_path(self.config, layer).path is not AttentionPath.DECODED
        else:
            # Within a forward the model's attention stays what it was when the first layer asked; asking takes long.
            layer.hands_out_views = first.hands_out_views
        return layer.update(key_states, value_states, *args, **kwargs)

    def require_even(self, layer: QuantizedLayer | None = None) -> None:
        """Raise CacheStateError where a later layer holds fewer tokens than `layer`, the first one if not given.

        Layers take a forward's tokens in order, so a later layer is behind only after a forward that an error ended.
        Layers that never took a token do not count.
        """
        layer = layer or self.quantized_layers[0]
        last = next((each for each in reversed(self.quantized_layers) if each.columns), layer)
        if last.columns < layer.columns:
            held = [each.columns for each in self.quantized_layers]
            raise CacheStateError(
                f"layer {held.index(layer.columns)} holds {layer.columns} tokens and layer {held.index(last.columns)} "
                f"{last.columns}: an error ended the last forward between them; crop({last.columns - held[0]}) takes "
                "back what it appended, reset() everything"
            )

    def explain(self) -> tuple[LayerPath, ...]:
        """How attention reads each layer, and why so."""
        found: list[LayerPath] = []
        for index, layer in enumerate(self.quantized_layers):
            chosen = chosen_path(self.config, layer)
            found.append(LayerPath(index, layer.path, chosen.path, chosen.reason))
        return tuple(found)

    def ledger(self) -> ByteLedger:
        """Bytes of the real storages, by side and owner. Pages that only other caches of a fork hold are theirs.

        Offloaded pages count as those in memory do; `offload_counts` tells them apart.
        """
        if not self.get_seq_length():
            raise GeometryError("the cache is empty; its ledger exists once tokens were appended")
        keys, values = layers_nbytes([layer.cohorts for layer in self.quantized_layers], self.kv_format)
        computed = predict_ledger(self.geometry, self.kv_format, self.get_seq_length(), self.batch_size)
        return computed.model_copy(
            update={"basis": Basis.ALLOCATED, "keys_nbytes": dict(keys), "values_nbytes": dict(values)}
        )

    def crop(self, tokens_to_remove: int) -> int:
        """Remove the last `-tokens_to_remove` tokens of every row; returns how many were removed.

        As in transformers the number is negative, and removing more than there are removes all. Tokens that stay are
        read as before. Where the removed ones had pushed others out of the recent window, those stay coded and the
        window fills up again, unless `activate_past_recording` was called: then the crop leaves no trace. Layers
        of different length, as an error in the middle of a forward leaves them, are all cut to what the first then has.
        Raises CacheStateError where a sliding layer cannot go back, before anything changes.
        """
        tokens_to_remove = whole_number(tokens_to_remove, "crop")
        if tokens_to_remove > 0:
            raise ValueError(
                f"crop({tokens_to_remove}): a positive number was the length to keep in older transformers and is "
                "refused now; crop(-n) removes the last n tokens"
            )
        columns = self.get_seq_length()
        removed = min(-tokens_to_remove, columns)
        # To one length: after a forward that an error ended, later layers hold fewer tokens than the first.
        left = columns - removed
        for layer in self.quantized_layers:
            layer.require_croppable(min(left, layer.columns))
        for layer in self.quantized_layers:
            layer.crop(min(0, left - layer.columns))
        return removed

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in this order; a row may come twice, and its copies share pages until they differ.

        A cache that keeps no row is empty, as after `reset`.
        """
        rows = row_numbers(indices, max(0, self.batch_size))
        for layer in self.quantized_layers:
            layer.batch_select_indices(torch.tensor(rows, dtype=torch.long))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """What beam search does between steps: row i becomes the old row `beam_idx[i]`."""
        self.batch_select_indices(beam_idx)

    def fork(self) -> QuantizedCache:
        """A second cache with the same tokens. The two share every page until one of them writes to it."""
        other = self._empty()
        for mine, theirs in zip(self.quantized_layers, other.quantized_layers, strict=True):
            mine.share_with(theirs)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedCache:
        # A copy is independent of the original whether or not unwritten pages are shared.
        return self.fork()

    def share_into(self, other: QuantizedCache) -> None:
        """Give `other`, an empty cache of the same format, geometry and scales, these tokens, as `fork` does."""
        other.require_fillable()
        for mine, theirs in zip(self.quantized_layers, other.quantized_layers, strict=True):
            records = theirs.record_past
            mine.share_with(theirs)
            theirs.state = theirs.state._replace(left_padding=None)
            if records:
                theirs.activate_past_recording()

    def require_fillable(self) -> None:
        """Raise CacheStateError unless this cache holds no token and pads no row."""
        padded = any(any(layer.state.left_padding or ()) for layer in self.quantized_layers)
        if self.get_seq_length() or padded:
            raise CacheStateError(
                f"the cache holds {self.get_seq_length()} tokens or pads its rows; shared tokens go into an empty "
                "cache of one row, made without left_padding"
            )

    def take_rows(self, other: QuantizedCache) -> None:
        """Add the rows of `other`, which shares its pages; the shorter cache is padded on the left.

        Raises CacheStateError unless both have the same format, geometry, static scales and `Offload`.
        """
        self._made.require_joinable(other._made)
        self.require_even()
        other.require_even()
        for mine, theirs in zip(self.quantized_layers, other.quantized_layers, strict=True):
            mine.take_rows(theirs)

    def trim_padding(self) -> int:
        """Forget leading columns that are padding in every row, as after the longest row was dropped.

        Returns how many; the caller cuts them off its attention mask too.
        """
        paddings = [cohort.padding for layer in self.quantized_layers for cohort in layer.cohorts]
        columns = min(self.get_seq_length(), *paddings) if paddings else 0
        for layer in self.quantized_layers:
            layer.trim_padding(columns)
        return columns

    @property
    def left_padding(self) -> tuple[int, ...]:
        """Leading columns of each row that are not stored."""
        cohorts = self.quantized_layers[0].cohorts
        by_row = {row: cohort.padding for cohort in cohorts for row in cohort.rows}
        return tuple(by_row[row] for row in range(len(by_row)))

    def save(self, path: str | Path, *, revision: str | None = None) -> None:
        """Write the whole cache to one file (docs/spec/saved-cache.md), which replaces an existing one in one step.

        `revision` names the weights that made the cache (a commit, a digest), for `load` to compare. Raises
        SavedCacheError where the file cannot be written, CacheStateError where an error left the layers uneven.
        """
        self.require_even()
        save_cache(self, Path(path), revision)

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: Any,
        *,
        kv_format: KVFormat | str | None = None,
        calibration: Mapping[int, LayerCalibration] | None = None,
        key_transforms: Mapping[int, KeyTransform] | None = None,
        on_clip: OnClip | None = None,
        revision: str | None = None,
        device: torch.device | str | None = None,
        attention: AttentionChoice = "auto",
        kernel: KernelChoice = "auto",
    ) -> QuantizedCache:
        """The cache that `save` wrote, bit for bit; nothing is computed from tokens.

        `model` is the loaded model or its config; a model is needed by formats with key transforms, unless
        `key_transforms` are given. `kv_format`, if given, is the format that is expected. `calibration` must be equal
        to that of the saved cache. `on_clip` and `device` are the saved cache's and the model's if not given;
        `attention` and `kernel` are not part of the file. Raises SavedCacheError, which names the file, for one that is
        damaged or that belongs to another model or format.
        """
        given = model if isinstance(model, PreTrainedModel) else None
        config: Any = model if given is None else given.config
        with opened(Path(path)) as saved:
            require_loadable(saved, config, geometry_from_config(config_fields(config)), revision)
            if kv_format is not None:
                require_same_format(saved.kv_format, parsed_format(kv_format))
            if key_transforms is None and given is not None:
                key_transforms = key_transforms_of(given, saved.kv_format)
            cache = cls(
                config,
                saved.kv_format,
                calibration=calibration,
                on_clip=on_clip or saved.header.on_clip,
                key_transforms=key_transforms,
                attention=attention,
                kernel=kernel,
            )
            restore(cache, saved, torch.device(device or ("cpu" if given is None else given.device)))
        return cache

    def load_into(self, path: str | Path, *, revision: str | None = None, device: torch.device | str = "cpu") -> None:
        """Replace what this cache holds by what a file of the same format, model and static scales holds.

        On an error, as for `load`, the cache is as it was.
        """
        with opened(Path(path)) as saved:
            require_loadable(saved, self.config, self.geometry, revision)
            restore(self, saved, torch.device(device))

    def offload_counts(self) -> OffloadCounts:
        """What of the coded pages lies where, and what moving them took, all caches of the same `Offload` together.

        Raises CacheStateError for a cache without offload.
        """
        if self._made.offload is None:
            raise CacheStateError(
                "this cache keeps all pages in memory and counts no offload; make it with offload=Offload(...)"
            )
        return self._made.offload.counts()

    def storages(self) -> Iterator[torch.Tensor]:
        """The slabs in memory of all pages, which forks share."""
        for layer in self.quantized_layers:
            for store in layer.stores:
                for pool in store.pools:
                    yield from pool.slabs

    def _empty(self) -> QuantizedCache:
        """A cache of the same kind without tokens."""
        return QuantizedCache(
            self.config,
            self.kv_format,
            calibration=self._made.calibration,
            on_clip=self.on_clip,
            key_transforms=self._made.key_transforms,
            attention=self._made.attention,
            offload=self._made.offload,
        )
