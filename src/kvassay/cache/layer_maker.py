"""The layers of a cache, empty and as its format and its model ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvassay.cache.attention_path import AttentionChoice
from kvassay.cache.cohorts import LayerCalibration
from kvassay.cache.key_transform import KeyTransform
from kvassay.cache.layer_calibration import layer_calibration, require_layer_calibration, required_key_transform
from kvassay.cache.offload import Offload
from kvassay.cache.quantized_layer import QuantizedLayer
from kvassay.cache.side_codec import OnClip
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat
from kvassay.errors import CacheStateError


class LayerMaker(NamedTuple):
    """All that the layers of a cache have in common."""

    kv_format: KVFormat
    geometry: CacheGeometry
    calibration: Mapping[int, LayerCalibration] | None
    on_clip: OnClip
    key_transforms: Mapping[int, KeyTransform] | None
    left_padding: Sequence[int] | None
    offload: Offload | None
    attention: AttentionChoice

    def layers(self) -> list[QuantizedLayer]:
        """Raises CalibrationError and ModelError where scales or key transforms of a layer are missing."""
        if self.offload is not None:
            self.offload.require_room(self.geometry, self.kv_format)
        layers = [self._layer(index) for index in range(self.geometry.num_layers)]
        if self.offload is not None:
            # After the last layer the next step reads the first.
            for layer, following in zip(layers, layers[1:] + layers[:1], strict=True):
                layer.read_ahead_of(following)
        return layers

    def require_joinable(self, other: LayerMaker) -> None:
        """Raise CacheStateError unless codes of the other's layers mean here what they mean there, under one limit."""
        if (self.kv_format, self.geometry) != (other.kv_format, other.geometry):
            raise CacheStateError(
                f"rows of {other.kv_format.name} ({other.geometry.model_type}) cannot join a cache of "
                f"{self.kv_format.name} ({self.geometry.model_type}); make both with one format for one model"
            )
        if self.calibration is not other.calibration or self.key_transforms is not other.key_transforms:
            raise CacheStateError(
                "the two caches were given different calibration or key_transforms objects, so equal codes could mean "
                "different values; make both with the same objects"
            )
        if self.offload is not other.offload:
            raise CacheStateError(
                "the two caches have different offload, so their rows would lie under two limits; make both with the "
                "same Offload object"
            )

    def _layer(self, index: int) -> QuantizedLayer:
        geometry = self.geometry.layers[index]
        scales = layer_calibration(self.calibration, self.kv_format, index, geometry)
        require_layer_calibration(self.kv_format, index, geometry, scales)
        return QuantizedLayer(
            self.kv_format,
            index,
            geometry,
            scales,
            self.on_clip,
            required_key_transform(self.kv_format, index, self.key_transforms),
            self.left_padding,
            self.offload,
            self.attention,
            self.geometry.query_heads,
        )
