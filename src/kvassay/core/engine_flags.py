"""Which engine runs a format: its flags, what its checkpoint must bring, and how it is known that the codes are ours.

A table and two look-ups, pure. Names, and how equality is known, stand with the presets (`core.presets`); this adds the
command line and the bytes that the engine stores, which a test holds against our own layout. Nothing here was timed or
scored in the engine, and `measured_here` says so of every row: a format that is equal code for code still runs
through other kernels there.

Sources: llama.cpp's `--help` and `llama_kv_cache` (rotation of quantized caches since pull request 21038: keys by the
largest power of two that divides the head size, values by 64, both where the head size is a multiple of 64); vLLM,
SGLang, LMDeploy and TensorRT-LLM: their pages on quantized KV caches; LMDeploy's `_quant_int8` and `_quant_int4`.
"""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat
from kvassay.core.presets import PRESETS, Conformance
from kvassay.core.side_names import parse_side, side_name
from kvassay.core.spec import QuantSpec

ENGINES = ("vLLM", "SGLang", "llama.cpp", "LMDeploy", "TensorRT-LLM", "exllamav3")
"""Those that `engine_runs` answers for."""


class EngineBytes(NamedTuple):
    """What an engine stores of one token of one KV head: `nbytes` for each `values` channels, and `row_nbytes`."""

    values: int
    nbytes: int
    row_nbytes: int = 0

    def of_row(self, dim: int) -> float:
        return dim / self.values * self.nbytes + self.row_nbytes


class EngineFormat(NamedTuple):
    """One engine's cache format beside the format of ours that stands for it."""

    engine: str
    name: str
    """The engine's own word; with `format`, the key into the presets' table of names."""
    format: str
    flags: tuple[str, ...]
    keys: EngineBytes
    values: EngineBytes
    scales: str = ""
    """What the checkpoint must bring; empty where nothing."""
    conformance: Conformance | None = None
    """Given for formats that are no preset; those of presets stand there."""
    note: str = ""


class EngineRun(NamedTuple):
    """How one engine runs a format."""

    engine: str
    name: str
    flags: tuple[str, ...]
    environment: tuple[str, ...]
    scales: str
    conformance: Conformance
    note: str
    measured_here: bool = False
    """Whether this library ran that engine on the format. It has run none."""


_BYTE, _BYTE_AND_SCALE = EngineBytes(1, 1), EngineBytes(1, 1, 4)
_FP4 = EngineBytes(16, 9)
_LLM_COMPRESSOR = (
    "k_scale and v_scale a layer: kvassay scales write MODEL --format {} --layout llm-compressor --out DIR "
    "(copied into the checkpoint's folder)"
)
_MODELOPT = (
    "k_proj.k_scale and v_proj.v_scale a layer: kvassay scales write MODEL --format {} --layout modelopt --out DIR "
    "(copied into the checkpoint's folder)"
)
_LMDEPLOY = (
    "the same grid a token and head; it stores a zero point where ours stores the minimum, both in the model's dtype, "
    "and rounds value / scale + zero half up, so rare codes differ"
)


def _vllm(dtype: str) -> tuple[str, ...]:
    return ("--kv-cache-dtype", dtype)


TABLE: tuple[EngineFormat, ...] = (
    EngineFormat("vLLM", "fp8_e4m3", "fp8-e4m3", _vllm("fp8_e4m3"), _BYTE, _BYTE),
    EngineFormat("vLLM", "fp8_e4m3", "fp8-e4m3-tensor", _vllm("fp8_e4m3"), _BYTE, _BYTE,
                 _LLM_COMPRESSOR.format("fp8-e4m3-tensor")),
    EngineFormat("vLLM", "fp8_e4m3", "fp8-e4m3-head", _vllm("fp8_e4m3"), _BYTE, _BYTE,
                 _LLM_COMPRESSOR.format("fp8-e4m3-head")),
    EngineFormat("vLLM", "fp8_e5m2", "fp8-e5m2", _vllm("fp8_e5m2"), _BYTE, _BYTE),
    EngineFormat("vLLM", "fp8_per_token_head", "fp8-e4m3-token-head", _vllm("fp8_per_token_head"),
                 _BYTE_AND_SCALE, _BYTE_AND_SCALE),
    EngineFormat("vLLM", "int8_per_token_head", "int8-token-head", _vllm("int8_per_token_head"),
                 _BYTE_AND_SCALE, _BYTE_AND_SCALE),
    EngineFormat("vLLM", "nvfp4", "nvfp4", _vllm("nvfp4"), _FP4, _FP4),
    EngineFormat("vLLM", "nvfp4", "nvfp4-static", _vllm("nvfp4"), _FP4, _FP4, _MODELOPT.format("nvfp4-static")),
    EngineFormat("vLLM", "turboquant_k8v4", "turboquant-k8v4", _vllm("turboquant_k8v4"), _BYTE, EngineBytes(2, 1, 4)),
    EngineFormat("vLLM", "turboquant_4bit_nc", "turboquant-4bit-nc", _vllm("turboquant_4bit_nc"),
                 EngineBytes(2, 1, 2), EngineBytes(2, 1, 4)),
    EngineFormat("vLLM", "turboquant_k3v4_nc", "turboquant-k3v4-nc", _vllm("turboquant_k3v4_nc"),
                 EngineBytes(8, 3, 2), EngineBytes(2, 1, 4)),
    EngineFormat("vLLM", "turboquant_3bit_nc", "turboquant-3bit-nc", _vllm("turboquant_3bit_nc"),
                 EngineBytes(8, 3, 2), EngineBytes(8, 3, 4)),
    EngineFormat("SGLang", "fp8_e4m3", "fp8-e4m3-tensor", ("--kv-cache-dtype", "fp8_e4m3"), _BYTE, _BYTE,
                 _LLM_COMPRESSOR.format("fp8-e4m3-tensor") + ", or a JSON file by --quantization-param-path"),
    EngineFormat("SGLang", "fp8_e5m2", "fp8-e5m2", ("--kv-cache-dtype", "fp8_e5m2"), _BYTE, _BYTE),
    EngineFormat("SGLang", "fp4_e2m1", "fp4-e2m1-g16", ("--kv-cache-dtype", "fp4_e2m1"), _FP4, _FP4),
    EngineFormat("LMDeploy", "quant_policy=8", "kv=int8:token-head/asym/scale=f16", ("--quant-policy", "8"),
                 _BYTE_AND_SCALE, _BYTE_AND_SCALE, conformance=Conformance.NOT_EQUAL, note=_LMDEPLOY),
    EngineFormat("LMDeploy", "quant_policy=4", "kv=int4:token-head/scale=f16", ("--quant-policy", "4"),
                 EngineBytes(2, 1, 4), EngineBytes(2, 1, 4), conformance=Conformance.NOT_EQUAL, note=_LMDEPLOY),
    EngineFormat("LMDeploy", "quant_policy=42", "lmdeploy-42", ("--quant-policy", "42"),
                 EngineBytes(2, 1, 4), EngineBytes(4, 1, 2)),
    EngineFormat("TensorRT-LLM", "FP8", "fp8-e4m3-tensor", ("--kv_cache_dtype", "fp8"), _BYTE, _BYTE,
                 _MODELOPT.format("fp8-e4m3-tensor")),
    EngineFormat("TensorRT-LLM", "NVFP4", "nvfp4-static", ("--kv_cache_dtype", "nvfp4"), _FP4, _FP4,
                 _MODELOPT.format("nvfp4-static")),
    *(
        EngineFormat("exllamav3", f"-cq {bits}", f"exl3-{bits}", ("-cq", str(bits)),
                     EngineBytes(32, 4 * bits + 2), EngineBytes(32, 4 * bits + 2))
        for bits in (8, 6, 5, 4, 3, 2)
    ),
)  # fmt: skip
"""Formats that an engine names as a whole. llama.cpp names each side, so `LLAMA_CPP_BLOCKS` serves it."""

LLAMA_CPP_BLOCKS: dict[str, EngineBytes] = {
    "q8_0": EngineBytes(32, 34),
    "q5_1": EngineBytes(32, 24),
    "q5_0": EngineBytes(32, 22),
    "q4_1": EngineBytes(32, 20),
    "q4_0": EngineBytes(32, 18),
    "iq4_nl": EngineBytes(32, 18),
    "f16": EngineBytes(1, 2),
    "bf16": EngineBytes(1, 2),
    "f32": EngineBytes(1, 4),
}
"""Types of `--cache-type-k` and `--cache-type-v` that are codecs of ours, by their common name."""

_ROTATION_STEP = 64


def engine_runs(kv_format: KVFormat, geometry: CacheGeometry) -> tuple[EngineRun, ...]:
    """Engines that have this format for this model, how to start them, and how equality is known; empty if none has.

    An engine has no sinks, windows, key transforms or bits by layer, so a format with any of them is nobody's; vLLM
    alone keeps whole layers at 16 bit.
    """
    if kv_format.sinks or kv_format.recent or kv_format.overrides or kv_format.transforms_keys:
        return ()
    runs = [] if kv_format.skip_layers else list(_llama_cpp(kv_format, geometry))
    for row in TABLE:
        ours = _parsed(row.format)
        if (ours.keys, ours.values) != (kv_format.keys, kv_format.values):
            continue
        flags = row.flags
        if kv_format.skip_layers:
            if row.engine != "vLLM":
                continue
            flags += ("--kv-cache-dtype-skip-layers", *map(str, kv_format.skip_layers))
        conformance, note = _conformance(row)
        runs.append(EngineRun(row.engine, row.name, flags, (), row.scales, conformance, note))
    return tuple(runs)


class _LlamaCppSide(NamedTuple):
    name: str
    rotates: bool
    """Whether llama.cpp would rotate it, were the environment silent."""
    rotated: bool
    """Whether our format is."""


def _llama_cpp(kv_format: KVFormat, geometry: CacheGeometry) -> list[EngineRun]:
    """By side. It rotates a quantized cache unless the environment says no, so rotated and plain are told apart."""
    dims = [(layer.head_dim, layer.value_dim) for layer in geometry.layers]
    if any(layer != dims[0] for layer in dims):
        return []  # it decides on rotation by the size that all heads share
    found: list[_LlamaCppSide] = []
    for spec, dim, block in zip(
        (kv_format.keys, kv_format.values), dims[0], (dims[0][0] & -dims[0][0], _ROTATION_STEP), strict=True
    ):
        plain = spec if spec.rotation is None else spec.model_copy(update={"rotation": None})
        name = side_name(plain)
        if name not in LLAMA_CPP_BLOCKS or plain != parse_side(name):
            return []
        rotates = not plain.is_exact and dim % _ROTATION_STEP == 0
        rotated = spec.rotation is not None
        if rotated and not (rotates and _is_hadamard(spec, dim, block)):
            return []
        found.append(_LlamaCppSide(name, rotates, rotated))
    keys, values = found
    states = {side.rotated for side in found if side.rotates}
    if len(states) > 1:
        return []  # the variable turns off both
    off = states == {False}
    notes = ["a quantized V cache needs flash attention"] if values.name not in ("f16", "bf16", "f32") else []
    if keys.name != values.name:
        notes.append("CUDA builds need GGML_CUDA_FA_ALL_QUANTS for two different types")
    if off:
        notes.append("without the variable it rotates quantized keys and values first, which is another format")
    proven = states != {True} and not all(spec.is_exact for spec in (kv_format.keys, kv_format.values))
    return [
        EngineRun(
            "llama.cpp",
            keys.name if keys.name == values.name else f"{keys.name} and {values.name}",
            ("--cache-type-k", keys.name, "--cache-type-v", values.name, "--flash-attn", "on"),
            ("LLAMA_ATTN_ROT_DISABLE=1",) if off else (),
            "",
            Conformance.PROVEN if proven else Conformance.READ,
            "; ".join(notes),
        )
    ]


def _is_hadamard(spec: QuantSpec, dim: int, block: int) -> bool:
    """True where the rotation is the plain Hadamard matrix in blocks of `block`."""
    rotation = spec.rotation
    return rotation is not None and rotation.seed == 0 and (rotation.block or dim & -dim) == block


def _conformance(row: EngineFormat) -> tuple[Conformance, str]:
    if row.conformance is not None:
        return row.conformance, row.note
    preset = next(preset for preset in PRESETS if preset.name == row.format)
    named = next(each for each in preset.engines if (each.engine, each.name) == (row.engine, row.name))
    return named.conformance, named.note


def _parsed(text: str) -> KVFormat:
    from kvassay.core.format_names import parse_format  # the grammar imports the presets' module too

    return parse_format(text)
