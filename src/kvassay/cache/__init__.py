"""QuantizedCache: a compressed KV cache for transformers."""

from kvassay.cache.attention import register
from kvassay.cache.offload import Offload, OffloadCounts
from kvassay.cache.quantized_cache import QuantizedCache

register()

__all__ = ["Offload", "OffloadCounts", "QuantizedCache"]
