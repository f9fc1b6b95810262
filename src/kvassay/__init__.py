"""kvassay: choose the smallest KV cache that your model can afford, proved on your workload, every byte counted.

Importing this package imports no torch: names that need it are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvassay.cache import Offload, PrefixIdentity, PrefixStore, QuantizedCache
    from kvassay.core.contract import Contract, load_contract
    from kvassay.core.format_names import parse_format
    from kvassay.core.kv_format import KVFormat
    from kvassay.core.ledger import ByteLedger, predict_ledger
    from kvassay.engines.transformers.calibration import calibrate
    from kvassay.formats.packed_kv import PackedFormat, PackedKV, format, load_packed

__version__ = "0.1.0"

_HOMES = {
    "ByteLedger": "kvassay.core.ledger",
    "Contract": "kvassay.core.contract",
    "KVFormat": "kvassay.core.kv_format",
    "Offload": "kvassay.cache",
    "PackedFormat": "kvassay.formats.packed_kv",
    "PackedKV": "kvassay.formats.packed_kv",
    "PrefixIdentity": "kvassay.cache",
    "PrefixStore": "kvassay.cache",
    "QuantizedCache": "kvassay.cache",
    "calibrate": "kvassay.engines.transformers.calibration",
    "format": "kvassay.formats.packed_kv",
    "load_contract": "kvassay.core.contract",
    "load_packed": "kvassay.formats.packed_kv",
    "parse_format": "kvassay.core.format_names",
    "predict_ledger": "kvassay.core.ledger",
}

__all__ = [
    "ByteLedger",
    "Contract",
    "KVFormat",
    "Offload",
    "PackedFormat",
    "PackedKV",
    "PrefixIdentity",
    "PrefixStore",
    "QuantizedCache",
    "calibrate",
    "format",
    "load_contract",
    "load_packed",
    "parse_format",
    "predict_ledger",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvassay' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
