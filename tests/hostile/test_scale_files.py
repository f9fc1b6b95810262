"""Checkpoints whose configs, indexes and scales lie: read without weights, and refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.fuzz.bounded import Outcome
from safetensors.torch import save

from kvassay.core.model_source import read_config
from kvassay.formats.checkpoint_inventory import scale_inventory
from tests.hostile.odd_files import DATA, PLACES
from tests.thorough import pairs

Bounded = Callable[[Callable[[], Any]], Outcome]

CONFIG = {"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}}}
NAMES = [f"model.layers.0.self_attn.{side}_scale" for side in "kv"]


def tensors(**changes: Any) -> bytes:
    return save({name: torch.tensor(changes.get(name[-7:], 0.5)) for name in NAMES})


def checkpoint(folder: Path, config: Any = CONFIG, data: bytes | None = None, index: Any = None) -> Path:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    (folder / "model.safetensors").write_bytes(tensors() if data is None else data)
    if index is not None:
        text = index if isinstance(index, str) else json.dumps({"weight_map": index})
        (folder / "model.safetensors.index.json").write_text(text)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a reader imports when it is first used is imported here once, and not in every child."""
    scale_inventory(checkpoint(tmp_path_factory.mktemp("valid")))


def container(header: str, data: bytes = b"") -> bytes:
    raw = header.encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(name: str, dtype: str = "F32", shape: Any = (), begin: int = 0, end: int = 4) -> str:
    return json.dumps({name: {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}})


def _scheme(**fields: Any) -> dict[str, Any]:
    scheme = {**CONFIG["quantization_config"]["kv_cache_scheme"], **fields}
    return {"config": {"quantization_config": {"kv_cache_scheme": scheme}}}


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "an index that climbs": ({"index": {NAMES[0]: "../../outside/secret.safetensors"}}, "of its own folder"),
    "an index that is absolute": ({"index": {NAMES[0]: "/etc/x.safetensors"}}, "of its own folder"),
    "an index with a null byte": (
        {"index": {NAMES[0]: "a\x00.safetensors", NAMES[1]: "model.safetensors"}},
        "no possible file name",
    ),
    "an index to another kind": ({"index": {NAMES[0]: "pytorch_model.bin"}}, "of its own folder"),
    "an index to a number": ({"index": {NAMES[0]: 7}}, "of its own folder"),
    "an index to nothing": (
        {"index": {NAMES[0]: "absent.safetensors", NAMES[1]: "model.safetensors"}},
        "cannot be read",
    ),
    "an index that is a list": ({"index": "[]"}, "holds a JSON list"),
    "a map that is a list": ({"index": '{"weight_map": []}'}, "weight_map"),
    "an index of another tensor": (
        {"index": {NAMES[0].replace("k_", "v_"): "model.safetensors", NAMES[0]: "b.safetensors"}},
        "b.safetensors",
    ),
    "a scale of zero": ({"data": tensors(k_scale=0.0)}, NAMES[0]),
    "a scale below zero": ({"data": tensors(k_scale=-1.0)}, NAMES[0]),
    "a scale that is NaN": ({"data": tensors(v_scale=float("nan"))}, NAMES[1]),
    "a scale without end": ({"data": tensors(v_scale=float("inf"))}, NAMES[1]),
    "a scale of integers": ({"data": tensors(k_scale=3)}, "expected a floating-point scale"),
    "a scale of millions": (
        {"data": save({NAMES[0]: torch.ones(2_000_000), NAMES[1]: torch.ones(1)})},
        "expected a scale",
    ),
    "a header of exabytes": ({"data": (1 << 62).to_bytes(8, "little") + b"{}"}, "cannot be read as safetensors"),
    "a shape that wraps": ({"data": container(entry(NAMES[0], shape=(1 << 40, 1 << 40)), b"0000")}, "cannot be read"),
    "a shape below zero": ({"data": container(entry(NAMES[0], shape=(-1,)), b"0000")}, "cannot be read"),
    "offsets beyond the file": ({"data": container(entry(NAMES[0], end=1 << 40), b"0000")}, "cannot be read"),
    "a dtype of the future": ({"data": container(entry(NAMES[0], "F1"), b"0000")}, "cannot be read"),
    "a header nested without end": ({"data": container("[" * 100_000)}, "cannot be read"),
    "a config of NaN bits": (_scheme(num_bits=float("nan")), "num_bits"),
    "a config of many bits": (_scheme(num_bits=10**30), "num_bits"),
    "a config of another type": (_scheme(type=["float"]), "type"),
    "a config of markup": (_scheme(strategy="<script>"), "strategy"),
    "a config that says nothing": ({"config": {}}, "names no KV-cache scales"),
    "a config whose scheme is a number": (
        {"config": {"quantization_config": {"kv_cache_scheme": 8}}},
        "expected an object",
    ),
    "a config whose section is a list": ({"config": {"quantization_config": [1]}}, "quantization_config"),
    "an algorithm that is a list": (
        {"config": {"quantization_config": {"kv_cache_quant_algo": ["FP8"]}}},
        "kv_cache_quant",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_b25_hostile_scales_are_refused_by_name(case: str, inside: Path, bounded: Bounded) -> None:
    made, message = CASES[case]
    folder = checkpoint(inside, **made)
    outcome = bounded(lambda: len(scale_inventory(folder).tensors))
    assert (outcome.status, outcome.error) == ("refused", "CalibrationError"), outcome
    assert message in outcome.message


def test_the_checkpoint_that_they_were_made_of_is_read(inside: Path, bounded: Bounded) -> None:
    assert bounded(lambda: len(scale_inventory(checkpoint(inside)).tensors)).value == 2


@pytest.mark.parametrize(("name", "data"), pairs(["config.json", "model.safetensors"], list(DATA), each=7))
def test_other_bytes_are_refused(name: str, data: str, inside: Path, bounded: Bounded) -> None:
    folder = checkpoint(inside)
    (folder / name).write_bytes(DATA[data]())
    assert bounded(lambda: len(scale_inventory(folder).tensors)).error == "CalibrationError"


@pytest.mark.parametrize(("name", "place"), pairs(["config.json", "model.safetensors"], list(PLACES), each=3))
def test_what_is_no_file_is_refused(name: str, place: str, inside: Path, outside: Path, bounded: Bounded) -> None:
    if (name, place) == ("model.safetensors", "a sparse terabyte"):
        pytest.skip("shards of weights have any size, and safetensors maps them without reading them")
    folder = checkpoint(inside)
    (folder / name).unlink()
    PLACES[place](folder / name, outside)
    assert bounded(lambda: len(scale_inventory(folder).tensors)).error == "CalibrationError"


@pytest.mark.parametrize("place", PLACES)
def test_a_models_config_that_is_no_file_is_refused(place: str, inside: Path, outside: Path, bounded: Bounded) -> None:
    PLACES[place](inside / "config.json", outside)
    assert bounded(lambda: read_config(inside)).error == "GeometryError"
