"""transformers' quantized caches: the whole layer is decoded at each step, then torch's attention reads it.

In bfloat16, which is faster than float32 with both packages. A real step also puts the decoded keys, the tokens of the
window and the new one together by a copy, which is left out here.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.cache.storages import storage_nbytes
from benchmarks.kernels.arm import Arm
from benchmarks.kernels.inputs import Inputs

_DTYPE = torch.bfloat16


def quanto(inputs: Inputs, bits: int) -> Arm:
    """transformers' defaults: groups of 64 along axis 0, the faster of its two axes."""
    from transformers.cache_utils import QuantoQuantizedLayer

    return _decoded(inputs, QuantoQuantizedLayer(nbits=bits), "optimum-quanto")


def hqq(inputs: Inputs, bits: int) -> Arm:
    """Groups of 64 along axis 1, the faster of its two axes."""
    from transformers.cache_utils import HQQQuantizedLayer

    layer: Any = HQQQuantizedLayer(nbits=bits, axis_key=1, axis_value=1)
    whole = layer.quantizer
    # The optimizer takes a minute for 32,768 tokens, and changes codes and not how they are read.
    layer.quantizer = SimpleNamespace(
        quantize=partial(whole.quantize, optimize=False), dequantize=whole.dequantize, cuda=whole.cuda
    )
    return _decoded(inputs, layer, "hqq")


def _decoded(inputs: Inputs, layer: Any, package: str) -> Arm:
    layer.update(inputs.keys.to(_DTYPE), inputs.values.to(_DTYPE))
    query = inputs.grouped_query.to(_DTYPE)
    keys, values = layer._quantized_keys, layer._quantized_values

    def step() -> Tensor:
        return scaled_dot_product_attention(query, layer._dequantize(keys), layer._dequantize(values))

    library = f"transformers {version('transformers')}, {package} {version(package)}"
    return Arm(step, storage_nbytes([keys, values]), library)
