"""llama.cpp with a quantized KV cache, through the C interface of the library in the package xllamacpp (MIT).

    pip install --no-deps xllamacpp==2026.10.11549

The package's own classes run a server; a decode step alone needs eight of the library's functions. What they take
changes between versions, so the defaults that the library fills in are compared with those of this version.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.decode.shape import Shape
from benchmarks.llama_cpp_library import library_path

_PROMPT_TOKENS = 512
_KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}


class _Opaque(ctypes.Structure):
    """Parameters that are passed on as the library made them."""

    _fields_ = [("raw", ctypes.c_uint64 * 32)]


class _ContextParams(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, ctypes.c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, ctypes.c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type")),
        *((name, ctypes.c_int32) for name in ("pooling_type", "attention_type", "flash_attn_type")),
        ("rope_and_yarn", ctypes.c_float * 8),
        ("cb_eval", ctypes.c_void_p * 2),
        ("type_k", ctypes.c_int32),
        ("type_v", ctypes.c_int32),
        ("abort", ctypes.c_uint64 * 3),
        *((name, ctypes.c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload")),
        ("swa_full", ctypes.c_bool),
        ("kv_unified", ctypes.c_bool),
        ("rest", ctypes.c_uint64 * 8),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_silent = _LOG(lambda *_: None)


@cache
def _library() -> Any:
    """Raises ModuleNotFoundError without the package, RuntimeError for a version with other parameters."""
    path = library_path()
    lib = ctypes.CDLL(str(path))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    lib.llama_model_default_params.restype = _Opaque
    lib.llama_context_default_params.restype = _ContextParams
    lib.llama_model_load_from_file.restype = pointer
    lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _Opaque]
    lib.llama_init_from_model.restype = pointer
    lib.llama_init_from_model.argtypes = [pointer, _ContextParams]
    lib.llama_batch_init.restype = _Batch
    lib.llama_batch_free.argtypes = [_Batch]
    lib.llama_decode.argtypes = [pointer, _Batch]
    lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    lib.llama_get_logits_ith.argtypes = [pointer, ctypes.c_int32]
    lib.llama_get_memory.restype, lib.llama_get_memory.argtypes = pointer, [pointer]
    lib.llama_memory_seq_cp.argtypes = [pointer, *[ctypes.c_int32] * 4]
    lib.llama_state_seq_get_size.restype, lib.llama_state_seq_get_size.argtypes = size, [pointer, ctypes.c_int32]
    lib.llama_print_system_info.restype = ctypes.c_char_p
    lib.llama_log_set.argtypes = [_LOG, pointer]
    lib.llama_log_set(_silent, None)
    lib.llama_backend_init()
    given = lib.llama_context_default_params()
    seen = (given.n_ctx, given.n_batch, given.n_seq_max, given.flash_attn_type, given.type_k, given.type_v)
    if seen != (512, 2048, 1, -1, 1, 1) or not given.offload_kqv or given.kv_unified or given.embeddings:
        raise RuntimeError(f"{path} has other parameters than xllamacpp 2026.10.11549; install that version")
    return lib


def system_info() -> str:
    """Instruction sets that the library was compiled with and uses."""
    return _library().llama_print_system_info().decode()


def float32_gguf(stored: Path, path: Path) -> Path:
    """The same numbers as float32."""
    import gguf

    reader = gguf.GGUFReader(stored)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(
            name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        )
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("float32")
        writer.add_tensor(tensor.name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class LlamaCppDecoder:
    """Rows of the same tokens, each with its own copy in the cache, flash attention on."""

    def __init__(self, model: Path, kv_type: str, shape: Shape, threads: int) -> None:
        if kv_type not in _KV_TYPES:
            raise ValueError(f"llama.cpp cache type {kv_type!r} is unknown here; use one of {', '.join(_KV_TYPES)}")
        self._lib = lib = _library()
        # The model stays for the process: freeing it is no part of what is timed.
        loaded = lib.llama_model_load_from_file(str(model).encode(), lib.llama_model_default_params())
        if not loaded:
            raise RuntimeError(f"llama.cpp does not load {model}")
        asked = lib.llama_context_default_params()
        asked.n_ctx = (shape.context + 1024) // 256 * 256 * shape.batch
        asked.n_batch = asked.n_ubatch = _PROMPT_TOKENS
        asked.n_seq_max = shape.batch
        asked.n_threads = asked.n_threads_batch = threads
        asked.flash_attn_type = 1
        asked.kv_unified = False
        asked.type_k = asked.type_v = _KV_TYPES[kv_type]
        self._context = lib.llama_init_from_model(loaded, asked)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context with a {kv_type} cache for {shape}")
        self._rows, self._position = shape.batch, shape.context
        for first in range(0, shape.context, _PROMPT_TOKENS):
            positions = range(first, min(first + _PROMPT_TOKENS, shape.context))
            self._decode([(7 + position * 7919 % 40000, position, 0) for position in positions])
        self.cache_nbytes = lib.llama_state_seq_get_size(self._context, 0) * shape.batch
        memory = lib.llama_get_memory(self._context)
        for row in range(1, shape.batch):
            # Each row has its part of the cache, so this copies the bytes.
            lib.llama_memory_seq_cp(memory, 0, row, -1, -1)
        self.step()

    def step(self) -> None:
        self._decode([(100, self._position, row) for row in range(self._rows)])
        self._position += 1
        assert self._lib.llama_get_logits_ith(self._context, 0), "each row asks for logits, and reading one waits"

    def attention_share(self) -> None:
        return None

    def _decode(self, tokens: list[tuple[int, int, int]]) -> None:
        batch = self._lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for place, (token, position, row) in enumerate(tokens):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, row
            batch.logits[place] = len(tokens) == self._rows
        code = self._lib.llama_decode(self._context, batch)
        self._lib.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode ended with {code} at position {tokens[0][1]}")
