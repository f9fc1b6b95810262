"""OpenVINO's paged attention over a u8, u4 or f16 cache (package openvino, Apache-2.0), as its GenAI serves models.

    pip install --no-deps openvino==2026.4.1

A graph of that one operator, which says of itself that it may change with any version; another number of inputs is an
error of the arm. Keys have a scale a token, as values have: scales by channel, the default at 8 bits, are slower. The
cache is filled by the operator itself, block by block. A step writes its last token once more, which is 1 of
`context`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.kernels.arm import Arm
from benchmarks.kernels.inputs import Inputs, Shape
from benchmarks.kernels.large_pages import on_large_pages

_INTEGERS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")


def paged_attention(inputs: Inputs, threads: int, precision: str) -> Arm:
    """Raises ModuleNotFoundError without the package, RuntimeError where this version does not build the operator."""
    try:
        import openvino  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("OpenVINO is not installed: pip install --no-deps openvino==2026.4.1") from error
    shape = inputs.shape
    settings = {
        "KV_CACHE_PRECISION": precision,
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    if precision in ("u8", "u4"):
        settings["KEY_CACHE_QUANT_MODE"] = "BY_TOKEN"
    try:
        compiled = openvino.Core().compile_model(_model(shape), "CPU", settings)
    except (ImportError, TypeError) as error:
        found = f"openvino {openvino.__version__}"
        raise RuntimeError(f"{found} has another paged attention than 2026.4.1: {error}") from error
    block = compiled.input("value_cache.0").partial_shape[2].get_length()
    blocks = -(-shape.context // block)
    request = compiled.create_infer_request()
    stored = []
    for name in ("key_cache.0", "value_cache.0"):
        port = compiled.input(name)
        _, *tile = port.partial_shape
        dims = openvino.Shape([blocks, *(each.get_length() for each in tile)])
        nbytes = math.prod(dims) * port.element_type.bitwidth // 8
        stored.append(on_large_pages(torch.zeros(nbytes, dtype=torch.uint8)))
        request.set_tensor(name, openvino.Tensor(stored[-1].numpy(), dims, port.element_type))
    keys, values = (each[0].transpose(0, 1).reshape(shape.context, -1).numpy() for each in (inputs.keys, inputs.values))
    query = inputs.query.reshape(1, -1).numpy()

    def ask(first: int, last: int, past: int, tables: range) -> None:
        given = {"q": np.repeat(query, last - first, 0), "k": keys[first:last], "v": values[first:last]}
        integers = ([past], [0, last - first], list(tables), [0, len(tables)])
        given |= {name: np.array(each, np.int32) for name, each in zip(_INTEGERS, integers, strict=True)}
        given["max_context_len"] = np.array(past + last - first, np.int32)
        for name, numbers in given.items():
            request.set_tensor(name, openvino.Tensor(numbers))

    # Each block is filled as a sequence of its own, so that filling takes no attention over the whole context.
    for index in range(blocks):
        ask(index * block, min((index + 1) * block, shape.context), 0, range(index, index + 1))
        request.infer()
    ask(shape.context - 1, shape.context, shape.context - 1, range(blocks))

    def step(kept: Any = stored) -> Tensor:  # The request holds addresses alone.
        request.infer()
        return torch.from_numpy(request.get_output_tensor(0).data)

    return Arm(step, sum(each.nbytes for each in stored), f"openvino {openvino.__version__.split('-')[0]}")


def _model(shape: Shape) -> Any:
    import openvino  # pyright: ignore[reportMissingImports]
    from openvino import opset13  # pyright: ignore[reportMissingImports]
    from openvino.op import _PagedAttentionExtension as PagedAttention  # pyright: ignore

    def parameter(name: str, dims: Any, dtype: Any) -> Any:
        made = opset13.parameter(dims, dtype, name=name)
        made.output(0).get_tensor().set_names({name})
        return made

    def none(dtype: Any) -> Any:
        return opset13.constant(np.zeros(0, dtype))

    def number(value: Any) -> Any:
        return opset13.constant(value)

    zero = np.int32(0)
    widths = {"q": shape.query_heads, "k": shape.kv_heads, "v": shape.kv_heads}
    states = [parameter(name, [-1, heads * shape.head_dim], np.float32) for name, heads in widths.items()]
    any_tile, any_type = openvino.PartialShape.dynamic(4), openvino.Type.dynamic
    caches = [parameter(name, any_tile, any_type) for name in ("key_cache.0", "value_cache.0")]
    tables = [parameter(name, [-1], np.int32) for name in _INTEGERS]
    longest = parameter("max_context_len", [], np.int32)
    scale = number(np.float32(shape.head_dim**-0.5))
    # No sliding window, slopes, scores, rotation of the cache, sparse attention, sinks, eviction, token types or bias.
    window_and_slopes = [number(zero), none(np.float32)]
    scores_and_rotation = [number(zero), none(np.int32), none(np.int32), none(np.float32)]
    sparse_and_sinks = [none(np.float32), number(zero), number(zero), none(np.float32)]
    eviction = [number(zero), none(np.int32), none(np.int32), none(np.int32)]
    types_and_bias = [none(np.int32), none(np.uint8), none(np.int32)]
    given = [*states, *caches, *tables, scale, *window_and_slopes, longest]
    given += [*scores_and_rotation, *sparse_and_sinks, *eviction, *types_and_bias]
    node = PagedAttention([each.output(0) for each in given])
    for side in ("k", "v"):
        node.get_rt_info()[f"num_{side}_heads"] = shape.kv_heads
        node.get_rt_info()[f"{side}_head_size"] = shape.head_dim
    results, parameters = [opset13.result(node.output(0))], [*states, *caches, *tables, longest]
    model: Any = openvino.Model
    return model(results, parameters, "attention")
