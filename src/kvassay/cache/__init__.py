"""QuantizedCache: a compressed KV cache for transformers."""

from kvassay.cache.quantized_cache import QuantizedCache

__all__ = ["QuantizedCache"]
