"""llama.cpp's flash attention, by the C interface of ggml in the package xllamacpp (MIT).

    pip install --no-deps xllamacpp==2026.10.11549

A graph of the one operator `ggml_flash_attn_ext`, without a mask, computed by threads that stay. Keys and values lie
head by head (`head-contiguous`), or token by token with all heads of a token side by side, as llama.cpp's cache has
them (`own layout`). GGML_LIBRARY names another build of the library to take, for example one compiled for this
processor.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.arm import Arm
from benchmarks.kernels.inputs import Inputs
from benchmarks.kernels.large_pages import on_large_pages
from benchmarks.llama_cpp_library import INSTALL, library_path

_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
_FEATURES = ("avx2", "avx512", "avx512_vnni", "neon")
_GRAPH_NBYTES = 1 << 18
"""A graph of four tensors takes 84 kB; their numbers lie in tensors of torch."""


class _Tensor(ctypes.Structure):
    """`ggml_tensor` as far as it is read and written here, and its size."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name_extra_padding", ctypes.c_char * 80),
    ]


class _Init(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class _Plan(ctypes.Structure):
    _fields_ = [
        ("work_size", ctypes.c_size_t),
        ("work_data", ctypes.c_void_p),
        ("n_threads", ctypes.c_int),
        ("threadpool", ctypes.c_void_p),
        ("abort", ctypes.c_void_p * 2),
        ("use_ref", ctypes.c_bool),
    ]


class _PoolParams(ctypes.Structure):
    _fields_ = [
        ("cpumask", ctypes.c_bool * 512),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    ]


def flash_attention(inputs: Inputs, threads: int, kind: str, own_layout: bool) -> Arm:
    """Raises ModuleNotFoundError without the package, RuntimeError for a library whose structures are others."""
    lib, says = _library()
    shape = inputs.shape
    context = lib.ggml_init(_Init(_GRAPH_NBYTES, None, True))
    query = lib.ggml_new_tensor_4d(context, 0, shape.head_dim, 1, shape.query_heads, 1)
    query.contents.data = inputs.query.data_ptr()
    row_nbytes = lib.ggml_row_size(_TYPES[kind], shape.head_dim)
    stored = []
    sides = []
    for numbers in (inputs.keys, inputs.values):
        rows = (numbers.transpose(1, 2) if own_layout else numbers).contiguous()
        stored.append(_quantized(lib, rows, kind, row_nbytes))
        side = lib.ggml_new_tensor_4d(context, _TYPES[kind], shape.head_dim, shape.context, shape.kv_heads, 1)
        side.contents.data = stored[-1].data_ptr()
        if own_layout:
            side.contents.nb[1], side.contents.nb[2] = row_nbytes * shape.kv_heads, row_nbytes
        sides.append(side)
    attention = lib.ggml_flash_attn_ext(context, query, *sides, None, shape.head_dim**-0.5, 0.0, 0.0)
    output = torch.zeros(shape.query_heads, shape.head_dim)
    attention.contents.data = output.data_ptr()
    graph = lib.ggml_new_graph(context)
    lib.ggml_build_forward_expand(graph, attention)
    pool = lib.ggml_threadpool_new(ctypes.byref(lib.ggml_threadpool_params_default(threads)))
    plan = lib.ggml_graph_plan(graph, threads, pool)
    work = torch.zeros(plan.work_size + 1, dtype=torch.uint8)
    plan.work_data = work.data_ptr()

    def step(kept: Any = (inputs, stored, work)) -> Tensor:  # The graph holds addresses alone.
        if code := lib.ggml_graph_compute(graph, ctypes.byref(plan)):
            raise RuntimeError(f"ggml_graph_compute ended with {code}")
        return output

    return Arm(step, sum(each.nbytes for each in stored), says)


def _quantized(lib: Any, rows: Tensor, kind: str, row_nbytes: int) -> Tensor:
    """Rows of `head_dim` numbers in the library's own blocks, by the library."""
    count = rows.numel() // rows.shape[-1]
    blocks = torch.zeros(count * row_nbytes, dtype=torch.uint8)
    written = lib.ggml_quantize_chunk(_TYPES[kind], rows.data_ptr(), blocks.data_ptr(), 0, count, rows.shape[-1], None)
    assert written == blocks.numel(), (written, blocks.numel())
    return on_large_pages(blocks)


@cache
def _library() -> tuple[Any, str]:
    """The library, and which build it is."""
    given = os.environ.get("GGML_LIBRARY")
    path = Path(given) if given else library_path()
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeError(f"GGML_LIBRARY={path} does not load: {error}") from error
    size, pointer, tensor = ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(_Tensor)
    number, large = ctypes.c_int, ctypes.c_int64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ggml_init": (pointer, [_Init]),
        "ggml_tensor_overhead": (size, []),
        "ggml_row_size": (size, [number, large]),
        "ggml_new_tensor_4d": (tensor, [pointer, number, *[large] * 4]),
        "ggml_quantize_chunk": (size, [number, pointer, pointer, large, large, large, pointer]),
        "ggml_flash_attn_ext": (tensor, [pointer, *[tensor] * 4, *[ctypes.c_float] * 3]),
        "ggml_new_graph": (pointer, [pointer]),
        "ggml_build_forward_expand": (None, [pointer, tensor]),
        "ggml_threadpool_params_default": (_PoolParams, [number]),
        "ggml_threadpool_new": (pointer, [ctypes.POINTER(_PoolParams)]),
        "ggml_graph_plan": (_Plan, [pointer, number, pointer]),
        "ggml_graph_compute": (number, [pointer, ctypes.POINTER(_Plan)]),
        "ggml_cpu_init": (None, []),
        "ggml_version": (ctypes.c_char_p, []),
    }
    for name, (result, arguments) in signatures.items():
        if (function := getattr(lib, name, None)) is None:
            raise RuntimeError(f"{path} has no {name}; take {INSTALL}")
        function.restype, function.argtypes = result, arguments
    # The overhead is a tensor and the object of four words before it.
    if lib.ggml_tensor_overhead() != ctypes.sizeof(_Tensor) + 32:
        raise RuntimeError(f"{path} has other structures than ggml 0.21 to 0.26; take {INSTALL}")
    lib.ggml_cpu_init()
    features = [name for name in _FEATURES if getattr(lib, f"ggml_cpu_has_{name}")()]
    source = path.name if given else f"xllamacpp {version('xllamacpp')}"
    return lib, f"ggml {lib.ggml_version().decode()} of {source} ({', '.join(features) or 'no vectors'})"
