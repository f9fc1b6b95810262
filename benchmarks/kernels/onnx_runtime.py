"""ONNX Runtime's GroupQueryAttention over an int8 or int4 cache (packages onnxruntime, MIT, and onnx, Apache-2.0).

    pip install onnxruntime==1.32.0 onnx==1.23.2

A graph of that one node. Past and present are bound to the same memory, as its own documentation advises, so that no
step copies the cache; the step writes its last token once more, which is 1 of `context`. Scales are static: one number
a tensor, or one a channel of a head.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.arm import Arm
from benchmarks.kernels.inputs import Inputs, Shape
from benchmarks.kernels.large_pages import on_large_pages

_ELEMENTS = {32: (torch.float32, 1), 8: (torch.int8, 1), 4: (torch.uint8, 2)}
"""Storage by bits, and numbers a stored element."""


def group_query_attention(inputs: Inputs, threads: int, bits: int, scales: str) -> Arm:
    """`scales` is NONE (32 bits), PER_TENSOR or PER_CHANNEL; raises ModuleNotFoundError without the packages,
    RuntimeError for a version that does not build the operator."""
    try:
        import onnx  # noqa: F401  # pyright: ignore[reportMissingImports]
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        install = "pip install onnxruntime==1.32.0 onnx==1.23.2"
        raise ModuleNotFoundError(f"ONNX Runtime is not installed: {install}") from error
    shape = inputs.shape
    session = _session(shape._replace(context=0), threads, bits, scales)
    codes, factors = zip(*(_quantized(tensor, bits, scales) for tensor in (inputs.keys, inputs.values)), strict=True)
    last = [tensor[:, :, -1].reshape(1, 1, -1).contiguous() for tensor in (inputs.keys, inputs.values)]
    output = torch.zeros(1, 1, shape.query_heads * shape.head_dim)
    given: dict[str, Tensor] = {
        "query": inputs.query.reshape(output.shape).contiguous(),
        "key": last[0],
        "value": last[1],
        "seqlens_k": torch.tensor([shape.context - 1], dtype=torch.int32),
        "total_sequence_length": torch.tensor(shape.context, dtype=torch.int32),
        "past_key": codes[0],
        "past_value": codes[1],
    }
    if bits < 32:
        given |= {"k_scale": factors[0], "v_scale": factors[1]}
    binding = session.io_binding()
    for name, tensor in given.items():
        _bind(binding.bind_input, name, tensor)
    for name, tensor in (("output", output), ("present_key", codes[0]), ("present_value", codes[1])):
        _bind(binding.bind_output, name, tensor)

    def step(kept: Any = given) -> Tensor:  # The binding holds addresses alone, so the tensors have to stay.
        session.run_with_iobinding(binding)
        return output

    stored = sum(tensor.nbytes for tensor in (*codes, *factors))
    return Arm(step, stored, f"onnxruntime {onnxruntime.__version__}")


def _bind(bind: Any, name: str, tensor: Tensor) -> None:
    assert tensor.is_contiguous()
    bind(name, "cpu", 0, tensor.numpy().dtype, list(tensor.shape), tensor.data_ptr())


@cache
def _session(shape: Shape, threads: int, bits: int, scales: str) -> Any:
    """One for caches of every length: a session has its own pool of threads, which spins for a while after each step
    and would take the cores of another one."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    try:
        return onnxruntime.InferenceSession(_model(shape, bits, scales), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # Its errors have no common class.
        found = f"onnxruntime {onnxruntime.__version__}"
        raise RuntimeError(f"{found} does not take this attention, onnxruntime 1.32.0 does: {error}") from error


def _model(shape: Shape, bits: int, scales: str) -> bytes:
    from onnx import TensorProto, helper  # pyright: ignore[reportMissingImports]

    dtype, per_element = _ELEMENTS[bits]
    stored = {torch.float32: TensorProto.FLOAT, torch.int8: TensorProto.INT8, torch.uint8: TensorProto.UINT8}[dtype]
    past = [1, shape.kv_heads, "context", shape.head_dim // per_element]
    query, token = [1, 1, shape.query_heads * shape.head_dim], [1, 1, shape.kv_heads * shape.head_dim]
    info = helper.make_tensor_value_info
    given = [info("query", TensorProto.FLOAT, query)]
    given += [info(name, TensorProto.FLOAT, token) for name in ("key", "value")]
    given += [info(name, stored, past) for name in ("past_key", "past_value")]
    given += [info("seqlens_k", TensorProto.INT32, [1]), info("total_sequence_length", TensorProto.INT32, [])]
    names = [each.name for each in given]
    attributes: dict[str, Any] = {"num_heads": shape.query_heads, "kv_num_heads": shape.kv_heads}
    if bits < 32:
        factors = _scale_shape(shape, scales)
        given += [info(name, TensorProto.FLOAT, factors) for name in ("k_scale", "v_scale")]
        names += ["", "", "", "", "", "k_scale", "v_scale"]  # No rotary tables, positions, bias or sink.
        attributes |= {"kv_cache_bit_width": bits, "k_quant_type": scales, "v_quant_type": scales}
    results = [info("output", TensorProto.FLOAT, query)]
    results += [info(name, stored, past) for name in ("present_key", "present_value")]
    node = helper.make_node(
        "GroupQueryAttention", names, [each.name for each in results], domain="com.microsoft", **attributes
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "attention", given, results)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def _scale_shape(shape: Shape, scales: str) -> list[int]:
    return [1] if scales == "PER_TENSOR" else [1, shape.kv_heads, 1, shape.head_dim]


def _quantized(tensor: Tensor, bits: int, scales: str) -> tuple[Tensor, Tensor]:
    """Symmetric codes as the operator stores them, and scales; at 4 bits code + 8, the even channel in the low half."""
    if bits == 32:
        return on_large_pages(tensor.clone()), torch.empty(0)
    largest = 2 ** (bits - 1) - 1
    peak = tensor.abs().amax() if scales == "PER_TENSOR" else tensor.abs().amax(2, keepdim=True)
    scale = peak / largest
    codes = (tensor / scale).round_().clamp_(-largest - 1, largest).to(torch.int8)
    if bits == 4:
        halves = (codes + 8).to(torch.uint8)
        codes = halves[..., 0::2] | (halves[..., 1::2] << 4)
    return on_large_pages(codes.contiguous()), scale.reshape(1) if scales == "PER_TENSOR" else scale
