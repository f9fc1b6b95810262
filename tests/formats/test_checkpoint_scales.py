"""KV scales in checkpoints: both layouts read and written, and every unusable one refused by tensor name."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from kvassay.cache import QuantizedCache
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.errors import CalibrationError, FormatError
from kvassay.formats import Calibration, quantizer
from kvassay.formats.calibration import UnitScaleWarning
from kvassay.formats.checkpoint_scales import (
    ScaleLayout,
    checkpoint_scheme,
    read_checkpoint_scales,
    read_query_scales,
    write_checkpoint_scales,
)

HEADS, DIM, LAYERS = 2, 32, 3
GEOMETRY = CacheGeometry(
    model_type="llama",
    query_heads=4,
    layers=(LayerGeometry(kv_heads=HEADS, head_dim=DIM, value_dim=DIM),) * LAYERS,
)
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
ROUND_TRIPS = [
    (ScaleLayout.LLM_COMPRESSOR, "fp8-e4m3:tensor"),
    (ScaleLayout.LLM_COMPRESSOR, "fp8-e4m3:head"),
    (ScaleLayout.LLM_COMPRESSOR, "int8:tensor"),
    (ScaleLayout.LLM_COMPRESSOR, "int8:head"),
    (ScaleLayout.MODELOPT, "fp8-e4m3:tensor"),
    (ScaleLayout.MODELOPT, "fp8-e4m3:tensor/mean"),
    (ScaleLayout.MODELOPT, "int8:tensor"),
    (ScaleLayout.MODELOPT, "nvfp4/global=static"),
    (ScaleLayout.MODELOPT, "nvfp4/mean/global=static"),
]


def samples(seed: int) -> torch.Tensor:
    return torch.randn(1, HEADS, 64, DIM, generator=torch.Generator().manual_seed(seed)) * (seed + 1)


def calibrated(text: str) -> dict:
    kv_format = parse_format(f"kv={text}")
    codec = quantizer(kv_format.keys)
    return {
        layer: ((codec.calibrate(samples(2 * layer)), codec.calibrate(samples(2 * layer + 1))),)
        for layer in range(LAYERS)
        if not kv_format.skips(layer)
    }


def llm_compressor_folder(folder: Path, tensors: dict, **scheme) -> Path:
    """A checkpoint as the tool leaves it, made without the writer under test."""
    weights = {"model.embed_tokens.weight": torch.zeros(4, 4)}
    save_file({**weights, **tensors}, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": {**SCHEME, **scheme}}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def scale_tensors(dtype=torch.bfloat16) -> dict:
    return {
        f"model.layers.{layer}.self_attn.{side}_scale": torch.tensor([0.125 * (layer + 1) * factor], dtype=dtype)
        for layer in range(LAYERS)
        for side, factor in (("k", 1), ("v", 2))
    }


@pytest.mark.parametrize(("layout", "codec"), ROUND_TRIPS)
def test_b26_what_is_written_is_read_back_bit_for_bit(tmp_path, layout, codec) -> None:
    """B26: exactly two scale tensors a layer, and names that the loader knows."""
    kv_format = parse_format(f"kv={codec}")
    given = calibrated(codec)
    write_checkpoint_scales(tmp_path, given, kv_format, layout)

    assert checkpoint_scheme(tmp_path).layout is layout
    held = load_file(tmp_path / "kv_scales.safetensors")
    assert sum(name.endswith("_scale") for name in held) == 2 * LAYERS
    found = read_checkpoint_scales(tmp_path, kv_format, GEOMETRY)
    assert found.keys() == given.keys()
    for layer, groups in given.items():
        for side, expected in zip(found[layer][0], groups[0], strict=True):
            assert side is not None
            assert side.parameters.keys() == expected.parameters.keys()
            for name, array in expected.parameters.items():
                assert torch.equal(side.parameters[name], array)
            assert side.source.startswith(f"checkpoint({layout.value}, model.layers.{layer}.self_attn.")


@pytest.mark.parametrize(("layout", "codec"), ROUND_TRIPS)
def test_scales_from_a_checkpoint_serve_the_cache(tmp_path, layout, codec) -> None:
    """What the cache decodes is what the codec gives with the scales that were written."""
    kv_format = parse_format(f"kv={codec}")
    given = calibrated(codec)
    write_checkpoint_scales(tmp_path, given, kv_format, layout)
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=4, num_key_value_heads=HEADS, head_dim=DIM, num_hidden_layers=LAYERS
    )
    scales = read_checkpoint_scales(tmp_path, kv_format, GEOMETRY)
    cache = QuantizedCache(config, kv_format, calibration=scales, on_clip="count")
    keys, values = samples(2)[:, :, :1].half().float(), samples(3)[:, :, :1].half().float()
    read_keys, _ = cache.update(keys, values, 1)
    codec_ = quantizer(kv_format.keys)
    expected = codec_.decode(codec_.encode(keys, given[1][0][0]).streams, torch.float32, given[1][0][0])
    assert torch.equal(read_keys, expected)


def test_b13_bfloat16_scales_of_one_file_are_read_as_they_are(tmp_path) -> None:
    folder = llm_compressor_folder(tmp_path, scale_tensors())
    found = read_checkpoint_scales(folder, parse_format("fp8-e4m3-tensor"), GEOMETRY)
    keys, values = found[1][0]
    assert keys is not None
    assert values is not None
    assert keys.parameters["scale"].tolist() == [[[0.25]]]
    assert values.parameters["scale"].tolist() == [[[0.5]]]
    assert keys.parameters["scale"].dtype == torch.float32
    assert keys.source == "checkpoint(llm-compressor, model.layers.1.self_attn.k_scale)"


def test_shards_with_an_index_are_read_and_only_those_that_hold_scales(tmp_path) -> None:
    tensors = scale_tensors()
    weight_map = {"model.embed_tokens.weight": "model-00003-of-00003.safetensors"}
    (tmp_path / "model-00003-of-00003.safetensors").write_bytes(b"never opened")
    for part in (1, 2):
        file = f"model-0000{part}-of-00003.safetensors"
        held = {name: tensor for name, tensor in tensors.items() if ("v_scale" in name) == (part == 2)}
        save_file(held, tmp_path / file)
        weight_map.update(dict.fromkeys(held, file))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"kv_cache_scheme": SCHEME}}))
    found = read_checkpoint_scales(tmp_path, parse_format("fp8-e4m3-tensor"), GEOMETRY)
    assert [float(found[layer][0][0].parameters["scale"]) for layer in range(LAYERS)] == [0.125, 0.25, 0.375]


def test_writing_enters_the_index_and_keeps_the_rest_of_the_config(tmp_path) -> None:
    save_file({"model.embed_tokens.weight": torch.zeros(2, 2)}, tmp_path / "model-00001-of-00001.safetensors")
    index = {
        "metadata": {"total_size": 16},
        "weight_map": {"model.embed_tokens.weight": "model-00001-of-00001.safetensors"},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": {"format": "x"}}))
    kv_format = parse_format("fp8-e4m3-tensor")
    write_checkpoint_scales(tmp_path, calibrated("fp8-e4m3:tensor"), kv_format, ScaleLayout.LLM_COMPRESSOR)
    written = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert written["metadata"] == {"total_size": 16}
    assert written["weight_map"]["model.layers.2.self_attn.v_scale"] == "kv_scales.safetensors"
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {"model_type": "llama", "quantization_config": {"format": "x", "kv_cache_scheme": SCHEME}}
    assert read_checkpoint_scales(tmp_path, kv_format, GEOMETRY).keys() == {0, 1, 2}
    assert not list(tmp_path.glob("*.part"))
    with pytest.raises(CalibrationError, match=r"has scales already, for example model\.layers"):
        write_checkpoint_scales(tmp_path, calibrated("fp8-e4m3:tensor"), kv_format, ScaleLayout.MODELOPT)


def test_shapes_are_those_of_each_layout(tmp_path) -> None:
    for layout, codec, name, shape in (
        (ScaleLayout.LLM_COMPRESSOR, "fp8-e4m3:tensor", "model.layers.0.self_attn.k_scale", [1]),
        (ScaleLayout.LLM_COMPRESSOR, "fp8-e4m3:head", "model.layers.0.self_attn.k_scale", [HEADS, 1, 1]),
        (ScaleLayout.MODELOPT, "nvfp4/mean/global=static", "model.layers.0.self_attn.k_proj.k_scale", []),
        (
            ScaleLayout.MODELOPT,
            "nvfp4/mean/global=static",
            "model.layers.0.self_attn.v_proj.v_bias",
            [1, HEADS, 1, DIM],
        ),
    ):
        folder = tmp_path / f"{layout.name}-{len(shape)}-{name[-6:]}"
        folder.mkdir()
        write_checkpoint_scales(folder, calibrated(codec), parse_format(f"kv={codec}"), layout)
        with safe_open(folder / "kv_scales.safetensors", framework="np") as file:
            assert list(file.get_tensor(name).shape) == shape


def test_head_scales_go_to_the_heads_of_each_group(tmp_path) -> None:
    """An override of one head leaves two head groups, each with the scale of its own head."""
    tensors = {
        f"model.layers.{layer}.self_attn.{side}_scale": torch.tensor([0.5, 0.25]).reshape(HEADS, 1, 1)
        for layer in range(LAYERS)
        for side in "kv"
    }
    folder = llm_compressor_folder(tmp_path, tensors, strategy="attn_head")
    found = read_checkpoint_scales(folder, parse_format("fp8-e4m3-head,@1h1.k=f16"), GEOMETRY)
    assert found[0][0][0].parameters["scale"].flatten().tolist() == [0.5, 0.25]
    assert found[1][0][0].parameters["scale"].flatten().tolist() == [0.5]
    assert found[1][1][0] is None
    assert found[1][1][1].parameters["scale"].flatten().tolist() == [0.25]


def test_skipped_layers_need_no_scales(tmp_path) -> None:
    tensors = {name: tensor for name, tensor in scale_tensors().items() if ".0." not in name}
    folder = llm_compressor_folder(tmp_path, tensors)
    assert read_checkpoint_scales(folder, parse_format("fp8-e4m3-tensor,skip=0"), GEOMETRY).keys() == {1, 2}
    with pytest.raises(
        CalibrationError, match=r"model\.layers\.0\.self_attn\.k_scale is missing.*for 2 layers.*skip=0"
    ):
        read_checkpoint_scales(folder, parse_format("fp8-e4m3-tensor"), GEOMETRY)


@pytest.mark.parametrize(
    ("bad", "what"), [(0.0, "zero"), (-1.0, "negative"), (float("nan"), "NaN"), (float("inf"), "infinite")]
)
def test_b25_unusable_scales_are_refused_by_tensor_name(tmp_path, bad, what) -> None:
    tensors = {**scale_tensors(), "model.layers.1.self_attn.v_scale": torch.tensor([bad])}
    folder = llm_compressor_folder(tmp_path, tensors)
    with pytest.raises(CalibrationError, match=rf"model\.layers\.1\.self_attn\.v_scale has 1 {what} of 1 scales"):
        read_checkpoint_scales(folder, parse_format("fp8-e4m3-tensor"), GEOMETRY)


def test_b25_unusable_scales_are_not_written(tmp_path) -> None:
    given = calibrated("fp8-e4m3:tensor")
    given[1] = ((Calibration({"scale": torch.zeros(1, 1, 1)}, "test"), given[1][0][1]),)
    with pytest.raises(CalibrationError, match=r"model\.layers\.1\.self_attn\.k_scale has 1 zero"):
        write_checkpoint_scales(tmp_path, given, parse_format("fp8-e4m3-tensor"), ScaleLayout.LLM_COMPRESSOR)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "scheme", "shape"),
    [
        ("fp8-e4m3-tensor", {}, [HEADS]),
        ("fp8-e4m3-head", {"strategy": "attn_head"}, [1]),
        ("fp8-e4m3-head", {"strategy": "attn_head"}, [HEADS + 1, 1, 1]),
        ("fp8-e4m3-head", {"strategy": "attn_head"}, [1, 1, 3]),
    ],
)
def test_misshapen_scales_are_refused_by_tensor_name(tmp_path, text, scheme, shape) -> None:
    tensors = {name: torch.ones(shape) / 2 for name in scale_tensors()}
    folder = llm_compressor_folder(tmp_path, tensors, **scheme)
    with pytest.raises(CalibrationError, match=r"model\.layers\.0\.self_attn\.k_scale has shape .*; expected \["):
        read_checkpoint_scales(folder, parse_format(text), GEOMETRY)


def test_b08_b26_all_scales_one_warn_and_are_recorded_unless_a_cast_is_meant(tmp_path) -> None:
    folder = llm_compressor_folder(tmp_path, {name: torch.ones(1) for name in scale_tensors()})
    kv_format = parse_format("fp8-e4m3-tensor")
    with pytest.warns(UnitScaleWarning, match="every scale is 1.0, a plain cast; pass accept_unit_scales"):
        found = read_checkpoint_scales(folder, kv_format, GEOMETRY)
    assert found[0][0][0].source.endswith("k_scale, all scales 1.0)")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_checkpoint_scales(folder, kv_format, GEOMETRY, accept_unit_scales=True)
        assert found[0][0][0].source.endswith("k_scale, all scales 1.0)")
        one_other = {
            **{name: torch.ones(1) for name in scale_tensors()},
            "model.layers.2.self_attn.v_scale": torch.tensor([2.0]),
        }
        (tmp_path / "b").mkdir()
        found = read_checkpoint_scales(llm_compressor_folder(tmp_path / "b", one_other), kv_format, GEOMETRY)
        assert "1.0" not in found[0][0][0].source


def test_b08_a_checkpoint_without_scales_is_refused(tmp_path) -> None:
    save_file({"model.embed_tokens.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CalibrationError, match=r"names no KV-cache scales .* calibrate on samples"):
        read_checkpoint_scales(tmp_path, parse_format("fp8-e4m3-tensor"), GEOMETRY)


def test_the_scheme_must_be_that_of_the_format(tmp_path) -> None:
    folder = llm_compressor_folder(tmp_path, scale_tensors())
    with pytest.raises(
        CalibrationError, match=r"needs scales for fp8-e4m3:head; the checkpoint has those of fp8-e4m3:t"
    ):
        read_checkpoint_scales(folder, parse_format("fp8-e4m3-head"), GEOMETRY)
    with pytest.raises(CalibrationError, match="int8-token-head has no static scales"):
        read_checkpoint_scales(folder, parse_format("int8-token-head"), GEOMETRY)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_bits", 4), ("type", "bfloat"), ("strategy", "channel"), ("dynamic", True), ("symmetric", False)],
)
def test_other_schemes_are_refused_by_field(tmp_path, field, value) -> None:
    folder = llm_compressor_folder(tmp_path, scale_tensors(), **{field: value})
    with pytest.raises(CalibrationError, match=f"kv_cache_scheme.{field} is {value!r}; expected"):
        checkpoint_scheme(folder)


@pytest.mark.parametrize(
    ("files", "codec"),
    [
        ({"hf_quant_config.json": {"quantization": {"kv_cache_quant_algo": "FP8"}}}, "fp8-e4m3:tensor"),
        ({"hf_quant_config.json": {"quantization": {"kv_cache_quant_algo": "NVFP4"}}}, "nvfp4/global=static"),
        ({"config.json": {"quantization_config": {"kv_cache_quant_algo": "INT8"}}}, "int8:tensor"),
        (
            {
                "config.json": {
                    "quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": {"type": "float"}}
                }
            },
            "fp8-e4m3:tensor",
        ),
        (
            {"config.json": {"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": "NVFP4"}}},
            "nvfp4/global=static",
        ),
    ],
)
def test_modelopt_configs_of_every_age_are_read(tmp_path, files, codec) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert checkpoint_scheme(tmp_path) == (ScaleLayout.MODELOPT, codec)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"quantization": [1]}',
        '{"quantization": {"kv_cache_quant_algo": "FP5"}}',
        '{"quantization": {"kv_cache_quant_algo": ["FP8"]}}',
    ],
)
def test_hostile_configs_give_one_line(tmp_path, content) -> None:
    (tmp_path / "hf_quant_config.json").write_text(content)
    with pytest.raises(CalibrationError) as caught:
        checkpoint_scheme(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "/elsewhere/x.safetensors", "weights.bin", 7])
def test_an_index_that_leaves_its_folder_is_refused(tmp_path, file) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"kv_cache_scheme": SCHEME}}))
    index = {"weight_map": {"model.layers.0.self_attn.k_scale": file}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CalibrationError, match=r"expected a \.safetensors file of its own folder"):
        read_checkpoint_scales(tmp_path, parse_format("fp8-e4m3-tensor"), GEOMETRY)


def test_two_scales_for_one_layer_are_refused(tmp_path) -> None:
    tensors = {**scale_tensors(), "vision.layers.0.self_attn.k_scale": torch.ones(1)}
    folder = llm_compressor_folder(tmp_path, tensors)
    with pytest.raises(CalibrationError, match="two tensors are the k_scale of layer 0"):
        read_checkpoint_scales(folder, parse_format("fp8-e4m3-tensor"), GEOMETRY)


def test_other_prefixes_and_draft_layers_are_no_obstacle(tmp_path) -> None:
    tensors = {name.replace("model.", "language_model.model.", 1): tensor for name, tensor in scale_tensors().items()}
    tensors[f"language_model.model.layers.{LAYERS}.self_attn.k_scale"] = torch.ones(1)
    found = read_checkpoint_scales(llm_compressor_folder(tmp_path, tensors), parse_format("fp8-e4m3-tensor"), GEOMETRY)
    assert found.keys() == {0, 1, 2}


def test_a_damaged_file_is_named(tmp_path) -> None:
    folder = llm_compressor_folder(tmp_path, scale_tensors())
    (folder / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(CalibrationError, match=r"model\.safetensors cannot be read as safetensors"):
        read_checkpoint_scales(folder, parse_format("fp8-e4m3-tensor"), GEOMETRY)


def test_query_scales_are_read_and_written(tmp_path) -> None:
    kv_format = parse_format("fp8-e4m3-tensor")
    queries = {layer: torch.tensor([0.5 + layer]) for layer in range(LAYERS)}
    write_checkpoint_scales(
        tmp_path, calibrated("fp8-e4m3:tensor"), kv_format, ScaleLayout.LLM_COMPRESSOR, query_scales=queries
    )
    found = read_query_scales(tmp_path, GEOMETRY)
    assert {layer: scale.tolist() for layer, scale in found.items()} == {0: [0.5], 1: [1.5], 2: [2.5]}
    with pytest.raises(FormatError, match="no name for query scales"):
        write_checkpoint_scales(
            tmp_path, calibrated("fp8-e4m3:tensor"), kv_format, ScaleLayout.MODELOPT, query_scales=queries
        )


@pytest.mark.parametrize(
    ("text", "layout", "message"),
    [
        ("kv=int4:tensor", ScaleLayout.LLM_COMPRESSOR, "has no name for int4:tensor"),
        ("kv=fp8-e4m3:head", ScaleLayout.MODELOPT, "has no name for fp8-e4m3:head"),
        ("k=fp8-e4m3:tensor,v=f16", ScaleLayout.MODELOPT, "a checkpoint has one KV scheme"),
    ],
)
def test_what_a_layout_cannot_say_is_refused(tmp_path, text, layout, message) -> None:
    with pytest.raises(FormatError, match=message):
        write_checkpoint_scales(tmp_path, {}, parse_format(text), layout)


def test_b25_the_cache_refuses_unusable_and_misshapen_scales() -> None:
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=4, num_key_value_heads=HEADS, head_dim=DIM, num_hidden_layers=LAYERS
    )
    for scale, message in (
        (torch.zeros(1, 1, 1), "scale of the values of layer 2 has 1 zero"),
        (torch.ones(1), "scale of the values of layer 2 is torch.float32"),
    ):
        given = calibrated("fp8-e4m3:tensor")
        given[2] = ((given[2][0][0], Calibration({"scale": scale}, "test")),)
        with pytest.raises(CalibrationError, match=message):
            QuantizedCache(config, "fp8-e4m3-tensor", calibration=given)
