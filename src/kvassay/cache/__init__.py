"""QuantizedCache: a compressed KV cache for transformers; PrefixStore: prefixes that caches share."""

from kvassay.cache.attention import register
from kvassay.cache.offload import Offload, OffloadCounts
from kvassay.cache.prefix_identity import PrefixIdentity, tokenizer_digest, weights_digest
from kvassay.cache.prefix_store import PrefixStore
from kvassay.cache.quantized_cache import QuantizedCache

register()

__all__ = [
    "Offload",
    "OffloadCounts",
    "PrefixIdentity",
    "PrefixStore",
    "QuantizedCache",
    "tokenizer_digest",
    "weights_digest",
]
