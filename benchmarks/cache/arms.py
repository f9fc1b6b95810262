"""What is compared: plain caches, this library's formats, and transformers' own quantized caches."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import DynamicCache
from transformers import QuantizedCache as TransformersQuantizedCache

from kvassay.cache import QuantizedCache
from kvassay.core.format_names import parse_format

DEFAULT_ARMS = (
    "dynamic-f32",
    "dynamic-bf16",
    "kvassay:int8-token-head",
    "kvassay:int4-g64",
    "kvassay:kivi-4",
    "kvassay:kivi-2",
    "transformers:quanto-4",
    "transformers:quanto-2",
    "transformers:hqq-4",
    "transformers:hqq-2",
)
"""`dynamic-f16` runs too, and `kvassay:FORMAT` with any format; `transformers:` takes quanto or hqq and bits."""

_DYNAMIC = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Arm(NamedTuple):
    name: str
    model_dtype: torch.dtype
    """A plain cache stores what the model computes in, so 16 bits there mean a 16-bit model."""
    format_name: str | None
    """Of this library's arms."""
    backend: tuple[str, int] | None
    """Package and bits of transformers' arms; groups of 64 and 128 residual tokens, its defaults."""

    def new_cache(self, model: Any) -> Any:
        if self.format_name is not None:
            return QuantizedCache.for_model(model, self.format_name)
        if self.backend is not None:
            backend, bits = self.backend
            return TransformersQuantizedCache(backend=backend, config=model.config, nbits=bits)
        return DynamicCache(config=model.config)


def parse_arm(name: str) -> Arm:
    """Read an arm's name; raises ValueError or FormatError."""
    kind, _, rest = name.partition(":")
    if kind == "kvassay":
        return Arm(name, torch.float32, parse_format(rest).name, None)
    backend, _, bits = rest.partition("-")
    if kind == "transformers" and backend in ("quanto", "hqq") and bits.isdecimal():
        return Arm(name, torch.float32, None, (backend, int(bits)))
    if name.removeprefix("dynamic-") in _DYNAMIC and name.startswith("dynamic-"):
        return Arm(name, _DYNAMIC[name.removeprefix("dynamic-")], None, None)
    raise ValueError(f"arm {name!r} is unknown; use for example {', '.join(DEFAULT_ARMS)}")
