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
_TURBO_KEYS = (
    "keys: plain Hadamard, 16-bit norm, levels and dense codes as in triton_turboquant_store (levels there solved with "
    "200-point sums: up to 0.002 lower, of the unit Gaussian)"
)
_TURBO_VALUES = (
    "values: the same grid and bytes, but codes there come from the unrounded scale and minimum, rounded half up"
)
_TURBO_LAYERS = "by default the first two and last two layers of a dense model stay 16 bit: write skip="


def _vllm_turboquant(name: str, keys: str) -> EngineName:
    return EngineName("vLLM", name, Conformance.NOT_EQUAL, f"{keys}; {_TURBO_VALUES}; {_TURBO_LAYERS}")


_EXL3 = tuple(
    Preset(
        f"exl3-{bits}",
        f"kv=exl3-{bits}",
        f"exllamav3 cache: groups of 32, Hadamard 32, {bits}-bit midpoint grid, float16 scale",
        (
            EngineName(
                "exllamav3",
                f"-cq {bits}",
                Conformance.READ,
                "codes and scales of quant_block_x4, compand_a 0; the engine packs bit planes, decodes to float16",
            ),
        ),
    )
    for bits in (8, 6, 5, 4, 3, 2)
)

PRESETS: tuple[Preset, ...] = (
    Preset("f32", "kv=f32,exact=f32", "plain float32 cache: the numerical reference on a CPU"),
    Preset("f16", "kv=f16", "plain float16 cache: the usual denominator of savings"),
    Preset("bf16", "kv=bf16,exact=bf16", "plain bfloat16 cache"),
    Preset("int8-tensor", "kv=int8:tensor", "one static scale a side; as in the attention-error experiment"),
    Preset("int8-token", "kv=int8:token", "one float32 scale a token over all KV heads"),
    Preset(
        "int8-token-head",
        "kv=int8:token-head",
        "one float32 scale a token and head",
        (
            EngineName(
                "vLLM",
                "int8_per_token_head",
                Conformance.NOT_EQUAL,
                "same scale; its Triton store truncates towards zero (uses_trunc of its test), this rounds to nearest",
            ),
        ),
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
        "q5_1",
        "kv=q5_1",
        "ggml block: 32 5-bit codes, float16 scale and minimum",
        (EngineName(_LLAMA_CPP, "q5_1", Conformance.PROVEN),),
    ),
    Preset(
        "q5_0",
        "kv=q5_0",
        "ggml block: 32 5-bit codes, float16 scale",
        (EngineName(_LLAMA_CPP, "q5_0", Conformance.PROVEN),),
    ),
    Preset(
        "q4_1",
        "kv=q4_1",
        "ggml block: 32 4-bit codes, float16 scale and minimum",
        (EngineName(_LLAMA_CPP, "q4_1", Conformance.PROVEN),),
    ),
    Preset(
        "q4_0",
        "kv=q4_0",
        "ggml block: 32 4-bit codes, float16 scale",
        (EngineName(_LLAMA_CPP, "q4_0", Conformance.PROVEN),),
    ),
    Preset(
        "iq4_nl",
        "kv=iq4_nl",
        "ggml block: 32 4-bit codes into a table of 16 levels, float16 scale",
        (
            EngineName(
                _LLAMA_CPP, "iq4_nl", Conformance.PROVEN, "codes of an all-zero block excepted, which nothing reads"
            ),
        ),
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
    Preset(
        "kivi-2-promoted",
        "k=kivi-mix:channel32,v=int2:group32,recent=128",
        "KIVI with 16 key channels a block at 4 bit, as in Kitty (Xia et al. 2025, arXiv:2511.18643)",
    ),
    Preset(
        "kvarn",
        "k=kvarn-4:tile128/had,v=kvarn-2:tile128/had/axis=token,sinks=128",
        "KVarN (Muller et al. 2026, arXiv:2606.03458): K 4 bit per channel, V 2 bit per token, tiles of 128",
        (
            EngineName(
                "vLLM fork of KVarN", "kvarn_k4v2_g128", Conformance.READ, "one sink block; 8 rounds of balancing"
            ),
        ),
    ),
    *_EXL3,
    Preset(
        "turboquant-mse-4",
        "kv=lloyd-4:token-head/had/seed=1",
        "TurboQuant-MSE (arXiv:2504.19874): randomized Hadamard, float16 norm, 4-bit Lloyd-Max",
    ),
    Preset(
        "turboquant-mse-3",
        "kv=lloyd-3:token-head/had/seed=1",
        "TurboQuant-MSE (arXiv:2504.19874): randomized Hadamard, float16 norm, 3-bit Lloyd-Max",
    ),
    Preset(
        "turboquant-k8v4",
        "k=fp8-e4m3,v=int4:token-head/scale=f16",
        "vLLM: float8 keys by cast, 4-bit asymmetric values with float16 scale and minimum a token and head",
        (_vllm_turboquant("turboquant_k8v4", "keys: e4m3 cast (e4b15 before compute capability 8.9)"),),
    ),
    Preset(
        "turboquant-4bit-nc",
        "k=lloyd-4:token-head/had/norm=preserved,v=int4:token-head/scale=f16",
        "vLLM: rotated 4-bit Lloyd-Max keys that keep their norm, 4-bit asymmetric values",
        (_vllm_turboquant("turboquant_4bit_nc", _TURBO_KEYS),),
    ),
    Preset(
        "turboquant-k3v4-nc",
        "k=lloyd-3:token-head/had/norm=preserved,v=int4:token-head/scale=f16",
        "vLLM: rotated 3-bit Lloyd-Max keys that keep their norm, 4-bit asymmetric values",
        (_vllm_turboquant("turboquant_k3v4_nc", _TURBO_KEYS),),
    ),
    Preset(
        "turboquant-3bit-nc",
        "k=lloyd-3:token-head/had/norm=preserved,v=int3:token-head/scale=f16",
        "vLLM: rotated 3-bit Lloyd-Max keys that keep their norm, 3-bit asymmetric values",
        (_vllm_turboquant("turboquant_3bit_nc", _TURBO_KEYS),),
    ),
    Preset(
        "lmdeploy-42",
        "k=lloyd-qjl-4:token-head/had/sketch=identity,v=lloyd-2:token-head/had",
        "LMDeploy: rotated 3-bit Lloyd-Max keys with the signs of the residual, rotated 2-bit Lloyd-Max values",
        (
            EngineName(
                "LMDeploy",
                "quant_policy=42",
                Conformance.NOT_EQUAL,
                "levels, rotation, signs and bytes a token are those of _fill_page_quant_turbo_qjl4 and _turbo_int2; "
                "there codes come from the unrounded norm, norms have the model's dtype, the residual's is a share of "
                "the row's, and code bits of channels D/2 apart (values: D/4) share a byte, a sign above its code",
            ),
        ),
    ),
    Preset("nf4-g64", "kv=nf4:group64", "NF4 (QLoRA, arXiv:2305.14314), groups of 64 channels, float16 absmax"),
    Preset(
        "kvquant-nf4",
        "k=nf4:channel128/asym/outliers=1,v=nf4:token-head/asym/outliers=1",
        "after KVQuant (arXiv:2401.18079): asymmetric NF4, K per channel, V per token, one outlier a row",
    ),
)

PRESET_TEXT = {preset.name: preset.text for preset in PRESETS}
