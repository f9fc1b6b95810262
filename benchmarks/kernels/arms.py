"""The arms by name: ours, torch's, and other engines'."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.kernels import ggml, onnx_runtime, open_vino, own, torch_attention, transformers_caches
from benchmarks.kernels.arm import BITS_2, BITS_4, BITS_8, BITS_16, FLOAT32, Arm, ArmKind
from benchmarks.kernels.inputs import Inputs


def _own(name: str, most_error: float, attention: str = "fused") -> ArmKind:
    return ArmKind(lambda inputs, threads: own.packed(inputs, name, attention), most_error)


def _torch(dtype: torch.dtype, how: str, large_pages: bool = False) -> ArmKind:
    most_error = FLOAT32 if dtype == torch.float32 else BITS_16
    return ArmKind(lambda inputs, threads: torch_attention.plain(inputs, dtype, how, large_pages), most_error)


def _transformers(make: Callable[[Inputs, int], Arm], bits: int) -> ArmKind:
    return ArmKind(lambda inputs, threads: make(inputs, bits), BITS_8 if bits == 8 else BITS_4)


def _onnx(bits: int, scales: str, most_error: float) -> ArmKind:
    return ArmKind(
        lambda inputs, threads: onnx_runtime.group_query_attention(inputs, threads, bits, scales), most_error
    )


def _ggml(kind: str, most_error: float, own_layout: bool = False) -> ArmKind:
    return ArmKind(lambda inputs, threads: ggml.flash_attention(inputs, threads, kind, own_layout), most_error)


def _openvino(precision: str, most_error: float) -> ArmKind:
    return ArmKind(lambda inputs, threads: open_vino.paged_attention(inputs, threads, precision), most_error)


ARMS: dict[str, ArmKind] = {
    "kvassay int4-g64": _own("int4-g64", BITS_4),
    "kvassay int4-g32": _own("int4-g32", BITS_4),
    "kvassay int8-token-head": _own("int8-token-head", BITS_8),
    "kvassay fp8-e4m3-token-head": _own("fp8-e4m3-token-head", BITS_8),
    "kvassay kivi-4": _own("kivi-4", BITS_4),
    "kvassay kivi-2": _own("kivi-2", BITS_2),
    "kvassay nf4-g64": _own("nf4-g64", BITS_4),
    "kvassay turboquant-mse-4": _own("turboquant-mse-4", BITS_4),
    "kvassay bf16": _own("bf16", BITS_16),
    "kvassay f32": _own("f32", FLOAT32),
    "torch bf16, q viewed by KV head": _torch(torch.bfloat16, "view"),
    "torch bf16, q viewed, large pages": _torch(torch.bfloat16, "view", large_pages=True),
    "torch f32, q viewed by KV head": _torch(torch.float32, "view"),
    "torch bf16, enable_gqa": _torch(torch.bfloat16, "enable_gqa"),
    "torch bf16, repeat_kv": _torch(torch.bfloat16, "repeat_kv"),
    "int4-g64 decoded, then torch f32": _own("int4-g64", BITS_4, "decoded"),
    "int4-g64 by tiles in torch": _own("int4-g64", BITS_4, "tiled"),
    "transformers quanto-4": _transformers(transformers_caches.quanto, 4),
    "transformers hqq-4": _transformers(transformers_caches.hqq, 4),
    "transformers hqq-8": _transformers(transformers_caches.hqq, 8),
    "ONNX Runtime int8 by tensor": _onnx(8, "PER_TENSOR", BITS_8),
    "ONNX Runtime int8 by channel": _onnx(8, "PER_CHANNEL", BITS_8),
    "ONNX Runtime int4 by channel": _onnx(4, "PER_CHANNEL", BITS_4),
    "ONNX Runtime f32": _onnx(32, "NONE", FLOAT32),
    "llama.cpp q4_0, head-contiguous": _ggml("q4_0", BITS_4),
    "llama.cpp q4_0, own layout": _ggml("q4_0", BITS_4, own_layout=True),
    "llama.cpp q8_0, head-contiguous": _ggml("q8_0", BITS_8),
    "llama.cpp q8_0, own layout": _ggml("q8_0", BITS_8, own_layout=True),
    "llama.cpp f16, head-contiguous": _ggml("f16", BITS_16),
    "llama.cpp f16, own layout": _ggml("f16", BITS_16, own_layout=True),
    "OpenVINO u8": _openvino("u8", BITS_8),
    "OpenVINO u4": _openvino("u4", BITS_4),
    "OpenVINO f16": _openvino("f16", BITS_16),
}
"""Ratios are to the first that runs. Bits of engines with other groups than 64 are in the table as bytes read."""
