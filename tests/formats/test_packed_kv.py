"""Packed keys and values of one layer: equal to the cache's store, every byte counted, and safe to read from a file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import kvassay
from kvassay.cache.side_store import SideStore
from kvassay.core.digest import canonical_json, sha256_bytes
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry, Owner
from kvassay.core.ledger import predict_ledger
from kvassay.core.methods import methods
from kvassay.core.packed_layout import PackedGeometry, header_digest, packed_sides
from kvassay.errors import (
    CalibrationError,
    ForeignFormatError,
    FormatError,
    GeometryError,
    NonFiniteError,
    PackedKVError,
    RangeError,
)
from kvassay.formats.packed_kv import PackedKV
from tests.formats import packed_kv_reader
from tests.golden.make_packed_kv import COMMAND, SCHEMA, examples, golden_row, read_golden, schema_text
from tests.golden.packed_kv_input import fixed_input

ROOT = Path(__file__).parents[2]
SIDES = examples()
DOCUMENTED = ("int", "float", "float8", "q8_0", "q4_0", "nvfp4", "e2m1")
"""Methods that docs/spec/packed-kv.md specifies to the bit."""
WORDED = {word.text: method.name for method in methods().values() for word in method.words}
DOCUMENTED_SIDES = [side for side in SIDES if WORDED[re.split("[:/]", side)[0]] in DOCUMENTED]
MIXED = "k=int4:channel16/had/seed=9,v=int3:group16/sym,sinks=2,recent=5,skip=7,@1h1=int8:tensor/mean,@2.k=f16"


def tensors(tokens: int, batch=2, heads=3, head_dim=64, value_dim=64, seed=0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randn(batch, heads, tokens, head_dim, generator=rng),
        torch.randn(batch, heads, tokens, value_dim, generator=rng),
    )


def packed(text: str, tokens=70, layer: int | None = None, **shape) -> PackedKV:
    fmt = kvassay.format(text)
    k, v = tensors(tokens, **shape)
    return fmt.encode(k, v, layer=layer, calibration=fmt.calibrate(k, v, layer=layer), on_clip="count")


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.numpy().tobytes() == right.numpy().tobytes()


def side_store(part: PackedKV, name: str, x: torch.Tensor, calibration) -> SideStore:
    side = next(side for side in part.sides if side.name == name)
    store = SideStore(
        side.plan, len(side.heads), side.dim, part.kv_format.exact_dtype, calibration=calibration, on_clip="count"
    )
    store.append(x[:, list(side.heads)])
    return store


@pytest.mark.parametrize("text", [f"kv={side},sinks=4,recent=9" for side in SIDES])
def test_decode_equals_what_a_cache_reads_after_one_append(text) -> None:
    """R8: one arithmetic of sinks, blocks and tail; values, bytes by owner and clipped values agree with SideStore."""
    fmt = kvassay.format(text)
    block = fmt.kv_format.keys.tokens_per_block
    k, v = tensors(4 + 2 * block + block // 2 + 20)
    calibration = fmt.calibrate(k, v)
    part = fmt.encode(k, v, calibration=calibration, on_clip="count")
    decoded = fmt.decode(part)
    for index, (name, x, found) in enumerate((("keys", k, decoded.keys), ("values", v, decoded.values))):
        store = side_store(part, f"group0.{name}", x, calibration[0][index])
        assert same_bits(found, store.read())
        assert part.clipped_values[f"group0.{name}"] == store.clipped_values
        ledger = part.ledger()
        owned = ledger.keys_nbytes if name == "keys" else ledger.values_nbytes
        paging = (Owner.PADDING, Owner.BLOCK_TABLE)
        assert owned == {owner: n for owner, n in store.owner_nbytes(False).items() if owner not in paging}


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 90),
    sinks=st.integers(0, 40),
    recent=st.integers(0, 40),
    sides=st.tuples(
        st.sampled_from(["int4:channel16", "int2:group32", "q8_0", "f16"]),
        st.sampled_from(["int4:block8x16", "int8:token", "f32"]),
    ),
)
def test_b61_every_byte_is_a_real_storage_and_predicted(tokens, sinks, recent, sides) -> None:
    """R13, R15, R19: nbytes, the ledger and the prediction without padding are one number."""
    part = packed(f"k={sides[0]},v={sides[1]},sinks={sinks},recent={recent}", tokens, value_dim=96)
    assert part.nbytes == part.ledger().persistent_nbytes
    assert part.nbytes == sum(array.numel() * array.element_size() for array in part.arrays.values())
    layer = LayerGeometry(kv_heads=3, head_dim=64, value_dim=96)
    geometry = CacheGeometry(model_type="test", query_heads=3, layers=(layer,))
    predicted = predict_ledger(geometry, part.kv_format, tokens, 2)
    paging = predicted.owner_nbytes(Owner.PADDING) + predicted.owner_nbytes(Owner.BLOCK_TABLE)
    assert part.nbytes == predicted.persistent_nbytes - paging
    assert part.ledger().float16_nbytes == predicted.float16_nbytes
    assert part.ledger().peak_transient_nbytes == predicted.float32_nbytes, "decoding it gives all of it as float32"


@pytest.mark.parametrize("layer", [0, 1, 2, 7])
def test_layers_and_heads_of_a_format_are_packed_each_in_its_own_way(layer) -> None:
    """B22, R27: overrides by layer, side and head, and skipped layers; heads come back in their order."""
    fmt = kvassay.format(MIXED)
    k, v = tensors(60)
    calibration = fmt.calibrate(k, v, layer=layer)
    part = fmt.encode(k, v, layer=layer, calibration=calibration)
    decoded = fmt.decode(part)
    for side in part.sides:
        x, found = (k, decoded.keys) if side.is_keys else (v, decoded.values)
        own = calibration[int(side.name[5])][0 if side.is_keys else 1]
        assert same_bits(found[:, list(side.heads)].contiguous(), side_store(part, side.name, x, own).read())
    assert len(part.sides) == (4 if layer == 1 else 2)
    assert (part.ledger().owner_nbytes(Owner.SKIPPED_LAYERS) > 0) == (layer == 7)
    assert part.ledger().persistent_nbytes == part.nbytes


def test_a_format_that_names_layers_needs_to_know_which_one() -> None:
    with pytest.raises(FormatError, match="pass layer="):
        kvassay.format(MIXED).encode(*tensors(8))
    with pytest.raises(FormatError, match="names KV head 5 of layer 1, which has heads 0 to 2"):
        kvassay.format("kv=int4:group32,@1h5=f16").encode(*tensors(8), layer=1)


def test_r8_a_foreign_decoder_is_refused() -> None:
    part = packed("q4_0")
    with pytest.raises(ForeignFormatError, match=r"these bytes are q4_0 .* the decoder is kv=int4:group32/sym"):
        kvassay.format("kv=int4:group32/sym").decode(part)


@pytest.mark.parametrize(
    ("k", "v", "error", "message"),
    [
        (torch.zeros(1, 2, 3), torch.zeros(1, 2, 3, 64), GeometryError, r"keys are torch.float32 of shape \[1, 2, 3\]"),
        (torch.zeros(1, 2, 0, 64), torch.zeros(1, 2, 0, 64), GeometryError, "at least one token"),
        (torch.zeros(1, 4, 3, 64), torch.zeros(1, 2, 3, 64), GeometryError, "before they are repeated to query heads"),
        (torch.zeros(1, 2, 3, 64).int(), torch.zeros(1, 2, 3, 64), GeometryError, "expected floats"),
        (torch.zeros(1, 2, 3, 40), torch.zeros(1, 2, 3, 64), GeometryError, "not a multiple of group 32"),
        (torch.full((1, 2, 3, 64), torch.nan), torch.zeros(1, 2, 3, 64), NonFiniteError, "keys of layer 0: entries"),
        (torch.zeros(1, 2, 3, 64), torch.full((1, 2, 3, 64), 1e6), RangeError, "values of layer 0: .*float16"),
    ],
)
def test_b36_inputs_that_are_no_keys_and_values_are_refused(k, v, error, message) -> None:
    with pytest.raises(error, match=message):
        kvassay.format("kv=int4:group32").encode(k, v)


def test_b08_static_scales_must_be_given_and_must_fit() -> None:
    fmt = kvassay.format("k=int8:head,v=int8:token-head")
    k, v = tensors(8)
    with pytest.raises(CalibrationError, match=r"keys of layer 0: .*pass calibration"):
        fmt.encode(k, v)
    other = fmt.calibrate(k[:, :2], v[:, :2])
    with pytest.raises(
        CalibrationError,
        match=r"scale of the given calibration is torch.float32 \[2, 1, 1\]; expected",
    ):
        fmt.encode(k, v, calibration=other)
    part = fmt.encode(k, v, calibration=fmt.calibrate(k, v))
    assert part.scale_sources == {"group0.keys": "calibrated(min-max, n=16 tokens)", "group0.values": "dynamic"}


def test_r2_saturation_is_refused_or_counted() -> None:
    k, v = tensors(8)
    k[0, 0, 0, :3] = 600
    fmt = kvassay.format("fp8-e4m3")
    with pytest.raises(RangeError, match="3 values saturate in float8"):
        fmt.encode(k, v)
    assert fmt.encode(k, v, on_clip="count").clipped_values == {"group0.keys": 3, "group0.values": 0}


def test_naming_a_format_loads_no_torch_until_it_packs() -> None:
    code = "import sys, kvassay\nassert 'torch' not in sys.modules\nassert 'format' in kvassay.__all__"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", SIDES)
def test_b56_a_saved_file_decodes_to_the_same_bits(side, tmp_path) -> None:
    part = packed(f"kv={side},sinks=3,recent=6", parse_format(f"kv={side}").keys.tokens_per_block + 40)
    path = tmp_path / "layer.safetensors"
    part.save(path)
    again = kvassay.load_packed(path)
    assert (again.kv_format, again.layer, again.geometry) == (part.kv_format, part.layer, part.geometry)
    assert (again.clipped_values, again.scale_sources) == (part.clipped_values, part.scale_sources)
    assert (again.nbytes, again.ledger()) == (part.nbytes, part.ledger())
    fmt = kvassay.format(part.kv_format)
    for ours, theirs in zip(fmt.decode(again), fmt.decode(part), strict=True):
        assert same_bits(ours, theirs)


@pytest.mark.parametrize(
    ("text", "layer"),
    [*((f"kv={side},sinks=3,recent=6", 0) for side in DOCUMENTED_SIDES), *((MIXED, layer) for layer in (0, 1, 2, 7))],
)
def test_a_reader_with_the_document_and_numpy_alone_decodes_the_file(text, layer, tmp_path) -> None:
    """docs/spec/packed-kv.md is enough: bit for bit, for every documented method, granularity and transform."""
    part = packed(text, 70, layer, batch=1, heads=2, value_dim=96 if "block" not in text and "64" not in text else 64)
    part.save(tmp_path / "layer.safetensors")
    keys, values = packed_kv_reader.read(tmp_path / "layer.safetensors")
    decoded = kvassay.format(text).decode(part)
    assert np.array_equal(keys.view(np.uint32), decoded.keys.numpy().view(np.uint32))
    assert np.array_equal(values.view(np.uint32), decoded.values.numpy().view(np.uint32))


def test_the_reader_of_the_document_uses_nothing_of_ours() -> None:
    source = Path(packed_kv_reader.__file__).read_text()
    assert "import torch" not in source
    assert "from kvassay" not in source
    assert "import kvassay" not in source


def test_the_container_is_safetensors_and_equal_inputs_give_equal_files(tmp_path) -> None:
    part = packed("kivi-4,recent=8,sinks=2")
    for name in ("a", "b"):
        part.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with safe_open(tmp_path / "a", framework="pt") as file:
        assert set(file.keys()) == set(part.arrays)
        for name, array in part.arrays.items():
            assert same_bits(file.get_tensor(name), array)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_b51_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "layer.safetensors"
    path.write_bytes(b"old")

    def full_disk(descriptor) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("kvassay.formats.container.os.fsync", full_disk)
    with pytest.raises(PackedKVError, match="cannot be written: No space left on device"):
        packed("q8_0").save(path)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["layer.safetensors"]


def split(raw: bytes) -> tuple[dict, dict, bytes]:
    """Container table, header and data of a file."""
    size = int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8 : 8 + size])
    header = json.loads(table.pop("__metadata__")["kvassay.packed_kv"])
    return table, header, raw[8 + size :]


def joined(table: dict, header: dict, data: bytes, sign: bool = True) -> bytes:
    """A file of these parts; with `sign`, its digests are made to fit, as a careful forger would."""
    if sign:
        header["format_digest"] = sha256_bytes(canonical_json(header["format"]))
        header["digest"] = header_digest(header)
    text = json.dumps({"__metadata__": {"kvassay.packed_kv": canonical_json(header).decode()}, **table}).encode()
    return len(text).to_bytes(8, "little") + text + data


def rehash(table: dict, header: dict, data: bytes) -> None:
    for name, entry in table.items():
        begin, end = entry["data_offsets"]
        header["arrays"][name]["sha256"] = sha256_bytes(data[begin:end])


SCALES = "group0.values.block.scales"


def edit_schema(table, header, data):
    header["schema"] = "kvassay.packed-kv/2"
    return joined(table, header, data)


def edit_layout_version(table, header, data):
    header["layout_version"] = header["format"]["layout_version"] = 2
    return joined(table, header, data)


def edit_format_layout_version(table, header, data):
    header["format"]["layout_version"] = 2
    return joined(table, header, data)


def edit_format_digest(table, header, data):
    header["format_digest"] = "0" * 64
    header["digest"] = header_digest(header)
    return joined(table, header, data, sign=False)


def edit_digest(table, header, data):
    header["layer"] = 3
    return joined(table, header, data, sign=False)


def edit_method(table, header, data):
    header["format"]["values"]["method"] = "int9"
    return joined(table, header, data)


def edit_format_bits(table, header, data):
    header["format"]["values"]["num_bits"] = 3
    return joined(table, header, data)


def edit_granularity(table, header, data):
    header["format"]["values"]["group_size"] = 16
    return joined(table, header, data)


def edit_format_default(table, header, data):
    header["format"]["skip_layers"] = []
    return joined(table, header, data)


def edit_field(table, header, data):
    header["geometry"]["tokens"] = -1
    return joined(table, header, data)


def edit_extra_field(table, header, data):
    header["comment"] = "hello"
    return joined(table, header, data)


def edit_huge_tokens(table, header, data):
    header["geometry"]["tokens"] = 1 << 39
    return joined(table, header, data)


def edit_huge_sizes(table, header, data):
    header["geometry"]["tokens"] += 1 << 39
    for side in header["sides"].values():
        block = side["tokens_per_block"]
        count = (header["geometry"]["tokens"] - 10) // block * block
        side["coded_tokens"], side["tail_tokens"] = count, header["geometry"]["tokens"] - 2 - count
    return joined(table, header, data)


def edit_huge_and_consistent(table, header, data):
    """Two terabytes that agree with themselves in header and container; only the data is not there."""
    header["geometry"]["tokens"] += 1 << 32
    kv_format = parse_format("k=int4:channel32,v=int4:group32,sinks=2,recent=8")
    place = 0
    for side in packed_sides(kv_format, 0, PackedGeometry(**header["geometry"])):
        about = header["sides"][side.name]
        about["coded_tokens"], about["tail_tokens"] = side.coded_tokens, side.tail_tokens
        for array in side.arrays:
            header["arrays"][array.name]["shape"] = table[array.name]["shape"] = list(array.shape)
            table[array.name]["data_offsets"] = [place, place + array.nbytes]
            place += array.nbytes
    assert place > 2 * 10**12
    return joined(table, header, data)


def edit_shape(table, header, data):
    header["arrays"][SCALES]["shape"][2] -= 1
    return joined(table, header, data)


def edit_container_shape(table, header, data):
    table[SCALES]["shape"] = [*reversed(table[SCALES]["shape"])]
    return joined(table, header, data)


def edit_dtype(table, header, data):
    header["arrays"][SCALES]["dtype"] = "bfloat16"
    table[SCALES]["dtype"] = "BF16"
    return joined(table, header, data)


def edit_owner(table, header, data):
    header["arrays"][SCALES]["owner"] = "padding"
    return joined(table, header, data)


def edit_missing(table, header, data):
    del header["arrays"][SCALES]
    return joined(table, header, data)


def edit_container_missing(table, header, data):
    del table[SCALES]
    return joined(table, header, data)


def edit_extra(table, header, data):
    table["surprise"] = {"dtype": "U8", "shape": [1], "data_offsets": [len(data), len(data) + 1]}
    return joined(table, header, data + b"x")


def edit_overlap(table, header, data):
    table[SCALES]["data_offsets"] = [0, table[SCALES]["data_offsets"][1] - table[SCALES]["data_offsets"][0]]
    return joined(table, header, data)


def edit_gap(table, header, data):
    last = max(table.values(), key=lambda entry: entry["data_offsets"][0])
    begin = last["data_offsets"][0]
    last["data_offsets"] = [place + 8 for place in last["data_offsets"]]
    return joined(table, header, data[:begin] + bytes(8) + data[begin:])


def edit_boundary(table, header, data):
    """Two neighbours share their bytes otherwise, without gap or overlap."""
    first, second = sorted(table.values(), key=lambda entry: entry["data_offsets"][0])[:2]
    first["data_offsets"][1] += 2
    second["data_offsets"][0] += 2
    return joined(table, header, data)


def edit_large_header(table, header, data):
    raw = joined(table, header, data)
    size = int.from_bytes(raw[:8], "little")
    text = raw[8 : 8 + size] + b" " * (1 << 20)
    return len(text).to_bytes(8, "little") + text + data


def edit_offsets_type(table, header, data):
    table[SCALES]["data_offsets"] = [-1, 1.5]
    return joined(table, header, data)


def edit_one_bit(table, header, data):
    begin = table[SCALES]["data_offsets"][0]
    return joined(table, header, data[:begin] + bytes([data[begin] ^ 1]) + data[begin + 1 :])


def edit_not_finite(table, header, data):
    begin = table[SCALES]["data_offsets"][0]
    data = data[:begin] + np.array([np.inf], "<f2").tobytes() + data[begin + 2 :]
    rehash(table, header, data)
    return joined(table, header, data)


def edit_trailing(table, header, data):
    return joined(table, header, data + b"more")


def edit_truncated(table, header, data):
    return joined(table, header, data[:-1])


def edit_truncated_header(table, header, data):
    return joined(table, header, data)[:300]


def edit_empty(table, header, data):
    return b""


def edit_header_size(table, header, data):
    return (1 << 62).to_bytes(8, "little") + joined(table, header, data)[8:]


def edit_not_canonical(table, header, data):
    text = json.dumps({"__metadata__": {"kvassay.packed_kv": json.dumps(header)}, **table}).encode()
    return len(text).to_bytes(8, "little") + text + data


def edit_key_twice(table, header, data):
    raw = joined(table, header, data)
    size = int.from_bytes(raw[:8], "little")
    text = raw[8 : 8 + size - 1] + b', "' + SCALES.encode() + b'": ' + json.dumps(table[SCALES]).encode() + b"}"
    return len(text).to_bytes(8, "little") + text + data


def edit_no_metadata(table, header, data):
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


def edit_deep(table, header, data):
    text = b"[" * 200_000
    return len(text).to_bytes(8, "little") + text + data


def edit_side(table, header, data):
    header["sides"]["group0.values"]["coded_tokens"] -= 1
    header["sides"]["group0.values"]["tail_tokens"] += 1
    return joined(table, header, data)


FAULTS: dict[Callable, str] = {
    edit_schema: "schema is 'kvassay.packed-kv/2', expected 'kvassay.packed-kv/1'",
    edit_layout_version: "layout_version is 2, expected 1",
    edit_format_layout_version: "format is not in canonical form",
    edit_format_digest: "format_digest is 000000000000…",
    edit_digest: "the header's own digest is",
    edit_method: "method 'int9' is unknown|cannot be read",
    edit_format_bits: "sides group0.values of the header do not follow",
    edit_granularity: "sides group0.values of the header do not follow",
    edit_format_default: "format is not in canonical form",
    edit_field: "header field geometry.tokens: Input should be greater than or equal to 1",
    edit_extra_field: "header field comment: Extra inputs are not permitted",
    edit_huge_tokens: "sides group0.keys, group0.values of the header do not follow",
    edit_huge_sizes: "of shape .* in the header; the format stores",
    edit_huge_and_consistent: "truncated: .* bytes of arrays, 2[0-9]{12} are declared",
    edit_shape: f"array {SCALES} is float16 of shape .* in the header; the format stores float16 of shape",
    edit_container_shape: f"array {SCALES} is F16 of shape .* in the container; the format stores F16",
    edit_dtype: f"array {SCALES} is bfloat16 of shape .* the format stores float16",
    edit_owner: f"array {SCALES} is owned by padding, expected scales",
    edit_missing: f"the header lacks {SCALES}",
    edit_container_missing: f"the container lacks {SCALES}",
    edit_extra: "the container has surprise, which the format does not store",
    edit_overlap: "gap or overlap",
    edit_gap: "gap or overlap",
    edit_boundary: "array .* takes [0-9]+ bytes, its shape",
    edit_large_header: "a header of 10[0-9]{5} bytes; at most 1048576 are read",
    edit_offsets_type: "dtype, shape and data_offsets of whole numbers are expected",
    edit_one_bit: f"array {SCALES}: its bytes do not have the SHA-256",
    edit_not_finite: f"array {SCALES} holds NaN or infinity",
    edit_trailing: "bytes after the last array",
    edit_truncated: "truncated: ",
    edit_truncated_header: "truncated: 300 bytes do not hold a header",
    edit_empty: "truncated: 0 bytes",
    edit_header_size: "truncated: ",
    edit_not_canonical: "not the canonical JSON",
    edit_key_twice: "a key stands twice",
    edit_no_metadata: "no metadata entry 'kvassay.packed_kv'; this is no packed-KV file",
    edit_deep: "not valid JSON",
    edit_side: "sides group0.values of the header do not follow",
}


@pytest.mark.parametrize("edit", FAULTS, ids=lambda edit: edit.__name__)
def test_b16_b25_b52_a_file_that_cannot_be_trusted_is_refused_by_name(edit, tmp_path) -> None:
    """R8, R20: also where every digest was made to fit; and nothing is allocated for what a header merely declares."""
    part = packed("k=int4:channel32,v=int4:group32,sinks=2,recent=8")
    path = tmp_path / "layer.safetensors"
    part.save(path)
    path.write_bytes(edit(*split(path.read_bytes())))
    with pytest.raises(PackedKVError) as caught:
        kvassay.load_packed(path)
    assert re.search(FAULTS[edit], str(caught.value)), str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_untouched_file_passes_the_same_road(tmp_path) -> None:
    """The faults above are found for what they are: taking a file apart and joining it again harms nothing."""
    path = tmp_path / "layer.safetensors"
    packed("k=int4:channel32,v=int4:group32,sinks=2,recent=8").save(path)
    path.write_bytes(joined(*split(path.read_bytes())))
    kvassay.load_packed(path)


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(place, bit, tmp_path_factory) -> None:
    """Of header or data; only white space after the container's JSON may differ, and then nothing does."""
    part = packed("k=int2:channel16,v=q4_0,recent=2", 20, batch=1, heads=1)
    path = tmp_path_factory.mktemp("flip") / "layer.safetensors"
    part.save(path)
    raw = bytearray(path.read_bytes())
    raw[place % len(raw)] ^= 1 << bit
    path.write_bytes(raw)
    with pytest.raises(PackedKVError):
        kvassay.load_packed(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path) -> None:
    with pytest.raises(PackedKVError, match=r"nothing\.safetensors: cannot be read"):
        kvassay.load_packed(tmp_path / "nothing.safetensors")


# --- golden vectors and the document ----------------------------------------------------------------------------------


def test_the_fixed_input_is_what_its_description_says() -> None:
    x = fixed_input()
    assert x.shape == (2, 2, 128, 64)
    assert x.dtype == np.float32
    assert sha256_bytes(x.tobytes()) == "d7dd9cff24307f1aa6ae4580049b50c0203aa86e180752bd7ff2f2f929328b3e"


@pytest.mark.parametrize("side", SIDES)
def test_b66_stored_bytes_never_move(side) -> None:
    golden = read_golden()
    assert side in golden, f"{side} has no golden row; add it with: {COMMAND}"
    assert golden_row(side) == golden[side], (
        f"the stored bytes of {side} moved: files and caches of it no longer decode to the same numbers. If that is "
        f"meant, raise LAYOUT_VERSION and run: {COMMAND} --replace {side}"
    )


def test_golden_rows_belong_to_examples() -> None:
    left_over = sorted(read_golden().keys() - set(SIDES))
    assert left_over == [], f"rows without an example; drop them with: {COMMAND}"


def test_a_file_of_the_first_version_is_still_read() -> None:
    """Layer 1 of the fixed input at 40 tokens and head size 32, written once by the first writer and never again."""
    path = ROOT / "tests" / "golden" / "packed_kv_v1.safetensors"
    part = kvassay.load_packed(path)
    assert part.kv_format == parse_format(MIXED)
    decoded = kvassay.format(MIXED).decode(part)
    keys, values = packed_kv_reader.read(path)
    assert np.array_equal(keys, decoded.keys.numpy())
    assert np.array_equal(values, decoded.values.numpy())


def test_the_schema_is_that_of_the_header() -> None:
    assert SCHEMA.read_text() == schema_text(), f"write it again with: {COMMAND}"


def test_the_document_names_every_field_of_the_header() -> None:
    text = (ROOT / "docs" / "spec" / "packed-kv.md").read_text()
    schema = json.loads(SCHEMA.read_text())
    own = [schema, *(schema["$defs"][name] for name in ("PackedGeometry", "SideHeader", "ArrayHeader"))]
    missing = sorted({field for part in own for field in part["properties"] if f"`{field}`" not in text})
    assert missing == []


def test_the_document_s_code_runs(tmp_path) -> None:
    text = (ROOT / "docs" / "spec" / "packed-kv.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 0


def test_a_packed_file_keeps_no_graph_and_its_input_may_be_overwritten() -> None:
    """B53, B54: the arrays are copies, whatever view of a larger buffer was packed."""
    fmt = kvassay.format("k=int4:channel16,v=f16,sinks=2,recent=4,exact=f32")
    buffer = torch.randn(2, 60, 3, 2, 64, requires_grad=True)
    k, v = (buffer[:, 5:55].permute(3, 0, 2, 1, 4)[side] for side in (0, 1))
    part = fmt.encode(k, v)
    assert not any(array.requires_grad for array in part.arrays.values())
    before = fmt.decode(part)
    other = fmt.encode(k.detach().clone().contiguous(), v.detach().clone().contiguous())
    assert all(torch.equal(part.arrays[name], array) for name, array in other.arrays.items())
    with torch.no_grad():
        buffer.fill_(7)
    assert all(torch.equal(left, right) for left, right in zip(before, fmt.decode(part), strict=True))


@pytest.mark.parametrize("preset", [preset.name for preset in PRESETS])
def test_every_preset_packs(preset) -> None:
    part = packed(preset, 200)
    assert part.nbytes == part.ledger().persistent_nbytes
