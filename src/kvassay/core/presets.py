"""Named formats: what each is, where it comes from, and what engines call it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Conformance(StrEnum):
    """How it is known that an engine's codes equal ours."""

    PROVEN = "proven: a test compares codes and decoded values with the engine's own code"
    READ = "read: formula and layout follow the engine's source, no test runs it"
    NOT_EQUAL = "not equal: the engine's format of that name differs, as noted"


class EngineName(NamedTuple):
    """An engine's name for a preset."""

    engine: str
    name: str
    conformance: Conformance
    note: str = ""


class Preset(NamedTuple):
    """A named format and where it comes from."""

    name: str
    text: str
    source: str
    engines: tuple[EngineName, ...] = ()


_LLAMA_CPP = "llama.cpp"
_APPROXIMATE = "same formula and packing; the kernel's approximate reciprocals move rare codes (`cvt_warp_fp16_to_fp4`)"

PRESETS: tuple[Preset, ...] = (
    Preset("f32", "kv=f32,exact=f32", "plain float32 cache: the numerical reference on a CPU"),
    Preset("f16", "kv=f16", "plain float16 cache: the usual denominator of savings"),
    Preset("bf16", "kv=bf16,exact=bf16", "plain bfloat16 cache"),
    Preset("int8-tensor", "kv=int8:tensor", "one static scale a side; the 004 experiment's tensor quantizer"),
    Preset("int8-token", "kv=int8:token", "one float32 scale a token over all KV heads"),
    Preset(
        "int8-token-head",
        "kv=int8:token-head",
        "one float32 scale a token and head",
        (EngineName("vLLM", "int8_per_token_head", Conformance.READ),),
    ),
    Preset(
        "fp8-e4m3",
        "kv=fp8-e4m3",
        "float8 e4m3fn cast with scale 1",
        (EngineName("vLLM", "fp8_e4m3", Conformance.READ, "without checkpoint scales"),),
    ),
    Preset(
        "fp8-e4m3-token-head",
        "kv=fp8-e4m3:token-head",
        "float8 e4m3fn, one float32 absmax scale a token and head",
        (EngineName("vLLM", "fp8_per_token_head", Conformance.READ),),
    ),
    Preset(
        "fp8-e4m3-tensor",
        "kv=fp8-e4m3:tensor",
        "float8 e4m3fn, one static scale a side: calibrated, or from a checkpoint (llm-compressor strategy tensor)",
        (
            EngineName("vLLM", "fp8_e4m3", Conformance.READ, "with checkpoint scales (`scaled_vec_conversion`)"),
            EngineName(
                "SGLang", "fp8_e4m3", Conformance.NOT_EQUAL, "divides by the scale in the model's dtype before the cast"
            ),
            EngineName("TensorRT-LLM", "FP8", Conformance.NOT_EQUAL, "multiplies by the scale's reciprocal"),
        ),
    ),
    Preset(
        "fp8-e4m3-head",
        "kv=fp8-e4m3:head",
        "float8 e4m3fn, one static scale a KV head (llm-compressor strategy attn_head)",
        (EngineName("vLLM", "fp8_e4m3", Conformance.READ, "with checkpoint scales of strategy attn_head"),),
    ),
    Preset(
        "fp8-e5m2",
        "kv=fp8-e5m2",
        "float8 e5m2 cast with scale 1",
        (
            EngineName("vLLM", "fp8_e5m2", Conformance.READ),
            EngineName(
                "SGLang", "fp8_e5m2", Conformance.NOT_EQUAL, "beyond 57344 its cast gives infinity, this saturates"
            ),
        ),
    ),
    Preset("fp8-e4m3fnuz", "kv=fp8-e4m3fnuz", "float8 e4m3fnuz cast with scale 1, largest 240"),
    Preset("fp8-e5m2fnuz", "kv=fp8-e5m2fnuz", "float8 e5m2fnuz cast with scale 1"),
    Preset(
        "mxfp8-e4m3",
        "kv=fp8-e4m3:group32/scale=e8m0",
        "OCP MX v1.0: float8 e4m3fn in blocks of 32, shared power-of-two scale",
    ),
    Preset(
        "nvfp4",
        "kv=nvfp4",
        "4-bit floats in blocks of 16, e4m3 scale, no global scale",
        (EngineName("vLLM", "nvfp4", Conformance.NOT_EQUAL, f"without checkpoint scales; {_APPROXIMATE}"),),
    ),
    Preset(
        "nvfp4-static",
        "kv=nvfp4/global=static",
        "4-bit floats in blocks of 16, e4m3 scale, one calibrated float32 a side",
        (
            EngineName("TensorRT-LLM", "NVFP4", Conformance.NOT_EQUAL, f"ModelOpt's scales; {_APPROXIMATE}"),
            EngineName("vLLM", "nvfp4", Conformance.NOT_EQUAL, f"with checkpoint scales; {_APPROXIMATE}"),
        ),
    ),
    Preset(
        "nvfp4-four-over-six",
        "kv=nvfp4/four_over_six=1/global=static",
        "Four Over Six (Cook et al. 2025, arXiv:2512.02010): each block scaled to 4 or 6, whichever errs less",
    ),
    Preset("mxfp4", "kv=mxfp4", "OCP MX v1.0: 4-bit floats in blocks of 32, shared power-of-two scale"),
    Preset(
        "fp4-e2m1-g16",
        "kv=fp4-e2m1:group16/scale=e8m0/exponent=ceil",
        "4-bit floats in blocks of 16, power-of-two scale that saturates nothing",
        (
            EngineName(
                "SGLang",
                "fp4_e2m1",
                Conformance.NOT_EQUAL,
                "same scales; values halfway between two codes go to the smaller one, here to the even one",
            ),
        ),
    ),
    Preset("int4-g32", "kv=int4:group32", "asymmetric 4 bit, groups of 32 channels, float16 scale and minimum"),
    Preset("int4-g64", "kv=int4:group64", "asymmetric 4 bit, groups of 64 channels, float16 scale and minimum"),
    Preset("int2-g32", "kv=int2:group32", "asymmetric 2 bit, groups of 32 channels, float16 scale and minimum"),
    Preset(
        "q8_0",
        "kv=q8_0",
        "ggml block: 32 signed 8-bit codes, float16 scale",
        (EngineName(_LLAMA_CPP, "q8_0", Conformance.PROVEN),),
    ),
    Preset(
        "q4_0",
        "kv=q4_0",
        "ggml block: 32 4-bit codes, float16 scale",
        (EngineName(_LLAMA_CPP, "q4_0", Conformance.PROVEN),),
    ),
    Preset(
        "kivi-4",
        "k=int4:channel32,v=int4:group32,recent=128",
        "KIVI (Liu et al. 2024, arXiv:2402.02750): K per channel, V per token, residual 128",
    ),
    Preset(
        "kivi-2",
        "k=int2:channel32,v=int2:group32,recent=128",
        "KIVI (Liu et al. 2024, arXiv:2402.02750): K per channel, V per token, residual 128",
    ),
)

PRESET_TEXT = {preset.name: preset.text for preset in PRESETS}
