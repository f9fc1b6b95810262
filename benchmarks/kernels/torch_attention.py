"""torch's attention over plain tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels.arm import Arm
from benchmarks.kernels.inputs import Inputs
from benchmarks.kernels.large_pages import on_large_pages


def plain(inputs: Inputs, dtype: torch.dtype, how: str, large_pages: bool = False) -> Arm:
    """`view` has the queries of a KV head side by side, which is what torch is fastest with."""
    keys, values = inputs.keys.to(dtype), inputs.values.to(dtype)
    if large_pages:
        keys, values = on_large_pages(keys), on_large_pages(values)
    query, grouped = inputs.query.to(dtype), inputs.grouped_query.to(dtype)
    ratio = inputs.shape.query_heads // inputs.shape.kv_heads

    def view() -> Tensor:
        return scaled_dot_product_attention(grouped, keys, values)

    def enable_gqa() -> Tensor:
        return scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    def repeat_kv() -> Tensor:
        all_keys, all_values = keys.repeat_interleave(ratio, dim=1), values.repeat_interleave(ratio, dim=1)
        return scaled_dot_product_attention(query, all_keys, all_values)

    nbytes = 2 * keys.numel() * keys.element_size()
    step = {"view": view, "enable_gqa": enable_gqa, "repeat_kv": repeat_kv}[how]
    return Arm(step, nbytes, f"torch {torch.__version__}")
