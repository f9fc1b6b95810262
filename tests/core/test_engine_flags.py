"""The table of engines: bytes and digests of the formats it names, and what the look-up answers."""

from __future__ import annotations

import gguf
import pytest

from kvassay.core.engine_flags import LLAMA_CPP_BLOCKS, TABLE, engine_runs
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.layout import stored_bits_per_value
from kvassay.core.presets import PRESETS, Conformance
from kvassay.core.side_names import parse_side


def model(head_dim: int, value_dim: int | None = None, layers: int = 4) -> CacheGeometry:
    layer = LayerGeometry(kv_heads=2, head_dim=head_dim, value_dim=value_dim or head_dim)
    return CacheGeometry(model_type="llama", query_heads=4, layers=(layer,) * layers)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.engine} {row.name} {row.format}")
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_an_engines_bytes_are_those_of_our_format(row, dim) -> None:
    kv_format = parse_format(row.format)
    for spec, theirs in ((kv_format.keys, row.keys), (kv_format.values, row.values)):
        assert stored_bits_per_value(spec, 1, dim) * dim / 8 == theirs.of_row(dim)


@pytest.mark.parametrize("name", LLAMA_CPP_BLOCKS)
def test_llama_cpps_blocks_are_those_of_gguf(name) -> None:
    values, nbytes = gguf.GGML_QUANT_SIZES[getattr(gguf.GGMLQuantizationType, name.upper())]
    assert LLAMA_CPP_BLOCKS[name][:2] == (values, nbytes)
    assert stored_bits_per_value(parse_side(name), 1, 128) * 128 / 8 == LLAMA_CPP_BLOCKS[name].of_row(128)


DIGESTS = {
    "exl3-2": "ce01b194474ec937",
    "exl3-3": "b195a91fa40c0986",
    "exl3-4": "b7cbfac01fc05cbf",
    "exl3-5": "99661dd9320e53af",
    "exl3-6": "1d73939db8b9edc0",
    "exl3-8": "6cbf73c24b0e6c33",
    "fp4-e2m1-g16": "6e8aeed75f7d993a",
    "fp8-e4m3": "ac503bd49e3936fe",
    "fp8-e4m3-head": "d41b25ba48a249bc",
    "fp8-e4m3-tensor": "0b4a8ba82d3f5a7f",
    "fp8-e4m3-token-head": "38530b5319dd1e44",
    "fp8-e5m2": "da1f51ccb655c09c",
    "int8-token-head": "8600cbd88d4fdde0",
    "iq4_nl": "a78883fac42068e2",
    "kv=int4:token-head/scale=f16": "b69ffa7b0cdb28eb",
    "kv=int8:token-head/asym/scale=f16": "eabde90e0e08d502",
    "lmdeploy-42": "b3a1fff2aebf585f",
    "nvfp4": "65cd86cce9e6ed2d",
    "nvfp4-static": "1ae01365b5d9dfbe",
    "q4_0": "bbf73851ce2320ee",
    "q4_1": "964251ce81c2bb6c",
    "q5_0": "0a6a073ae6610415",
    "q5_1": "230d5c0ba64d2f9e",
    "q8_0": "6d1d6766396d59b4",
    "turboquant-3bit-nc": "c4dc90b9dfc57130",
    "turboquant-4bit-nc": "faa5676773d4287f",
    "turboquant-k3v4-nc": "c75699346e4cbd59",
    "turboquant-k8v4": "9797f80ff73e6786",
}
"""Of the formats that the table names: a format that comes to mean other codes has to be looked at again here."""


def test_the_formats_still_mean_what_they_meant_when_the_claims_were_made() -> None:
    named = {row.format for row in TABLE} | set(LLAMA_CPP_BLOCKS) - {"f16", "bf16", "f32"}
    assert {name: parse_format(name).digest[:16] for name in sorted(named)} == DIGESTS


def test_every_engines_name_of_a_preset_has_its_flags_here() -> None:
    known = {(row.engine, row.name, row.format) for row in TABLE}
    known |= {("llama.cpp", name, name) for name in LLAMA_CPP_BLOCKS}
    named = {(each.engine, each.name, preset.name) for preset in PRESETS for each in preset.engines}
    assert {each for each in named - known if each[0] != "vLLM fork of KVarN"} == set()


def test_every_row_is_found_with_the_presets_word_on_equality() -> None:
    conformance = {
        (each.engine, each.name, preset.name): each.conformance for preset in PRESETS for each in preset.engines
    }
    for row in TABLE:
        (run,) = [
            each
            for each in engine_runs(parse_format(row.format), model(128))
            if (each.engine, each.name) == (row.engine, row.name)
        ]
        assert run.flags == row.flags
        assert run.conformance is (row.conformance or conformance[row.engine, row.name, row.format])
        assert not run.measured_here


def the_run(text: str, geometry: CacheGeometry):
    (run,) = engine_runs(parse_format(text), geometry)
    return run


def test_q8_0_is_llama_cpps_cache_type_with_its_rotation_turned_off() -> None:
    run = the_run("q8_0", model(64))
    assert run.engine == "llama.cpp"
    assert run.flags[:4] == ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    assert run.environment == ("LLAMA_ATTN_ROT_DISABLE=1",)
    assert run.conformance is Conformance.PROVEN


def test_llama_cpp_rotates_by_default_where_the_head_size_is_a_multiple_of_64() -> None:
    rotated = the_run("kv=q4_0/had", model(64))
    assert (rotated.environment, rotated.conformance) == ((), Conformance.READ)
    # 96 is none, so it rotates nothing and plain blocks need no variable.
    assert the_run("q4_0", model(96)).environment == ()
    assert engine_runs(parse_format("kv=q4_0/had=32"), model(96)) == ()
    # Keys by the largest power of two, values by 64.
    assert engine_runs(parse_format("kv=q4_0/had"), model(128)) == ()
    assert the_run("k=q4_0/had,v=q4_0/had=64", model(128)).environment == ()
    # Nothing can turn off one side alone.
    assert engine_runs(parse_format("k=q8_0/had,v=q4_0"), model(64)) == ()
    assert the_run("k=f16,v=q4_0/had", model(64)).flags[1] == "f16"
    assert engine_runs(parse_format("kv=q4_0/had/seed=3"), model(64)) == ()


def test_two_types_of_llama_cpp_are_one_format() -> None:
    run = the_run("k=q8_0,v=q4_0", model(64))
    assert run.flags[:4] == ("--cache-type-k", "q8_0", "--cache-type-v", "q4_0")
    assert "GGML_CUDA_FA_ALL_QUANTS" in run.note


@pytest.mark.parametrize(
    "text",
    ["kivi-4", "q8_0,recent=32", "q8_0,sinks=4", "exl3-4,@0=exl3-8", "q8_0,skip=0", "int8-token-head,keybias=removed"],
)
def test_no_engine_has_windows_sinks_or_bits_by_layer(text) -> None:
    assert engine_runs(parse_format(text), model(64)) == ()


def test_vllm_keeps_named_layers_at_16_bit() -> None:
    run = the_run("fp8-e5m2,skip=0+3", model(64))
    assert run.flags == ("--kv-cache-dtype", "fp8_e5m2", "--kv-cache-dtype-skip-layers", "0", "3")


def test_static_formats_name_the_scales_that_a_checkpoint_needs() -> None:
    for row in TABLE:
        static = any(spec.needs_calibration for spec in parse_format(row.format).specs)
        assert bool(row.scales) == static
        if static:
            assert f"--format {row.format}" in row.scales
