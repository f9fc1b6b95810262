"""The cache geometry of a GGUF file, from its header alone: no tensors, no torch, no `gguf` package.

Layout (ggml's GGUF specification, versions 2 and 3, little-endian): magic `GGUF`, version u32, tensor count u64,
metadata count u64, then that many (key string, type u32, value). A string is a u64 length and UTF-8 bytes; an array is
an element type u32, a u64 count and its elements. Every count is checked against the bytes that are left before it is
believed.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from kvassay.core.geometry import CacheGeometry, geometry_from_config
from kvassay.core.regular_file import open_regular
from kvassay.errors import GeometryError

Value = bool | int | float | str | list[Any] | None
"""A metadata value; None for one that was skipped (vocabularies, long strings)."""

_VERSIONS = (2, 3)
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9

_MAX_KEYS = 1 << 14
_MAX_KEY_NBYTES = (1 << 16) - 1
_MAX_KEPT_NBYTES = 1 << 12
"""Longer strings (chat templates) are skipped."""
_MAX_KEPT_ELEMENTS = 1 << 12
_MAX_STRINGS = 1 << 22
"""Strings in arrays over the whole file; the largest vocabularies and merge lists together stay below a million."""


class GgufHeader(NamedTuple):
    version: int
    tensor_count: int
    metadata: dict[str, Value]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the key-value section; raises GeometryError for anything that is not a sound GGUF v2 or v3 header."""
    try:
        with open_regular(path) as file:
            return _HeaderReader(file, path).read()
    except OSError as error:
        raise GeometryError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error


def geometry_from_gguf(path: Path) -> CacheGeometry:
    """Cache geometry of the model in a GGUF file. `model_type` is named as in transformers where the two differ."""
    return geometry_from_config(config_from_gguf(read_gguf_header(path), path.name))


def config_from_gguf(header: GgufHeader, name: str) -> dict[str, Any]:
    """The fields of a transformers config that shape the cache, from GGUF metadata."""
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture.isprintable() or len(architecture) > 80:
        raise GeometryError(f"{name}: the GGUF header has no sound general.architecture; is it a model file?")
    fields = {
        key.removeprefix(f"{architecture}."): value
        for key, value in header.metadata.items()
        if key.startswith(f"{architecture}.")
    }
    _refuse_other_models(architecture, fields, name)
    for key in ("block_count", "embedding_length", "attention.head_count"):
        if key not in fields:
            raise GeometryError(f"{name}: the GGUF header has no {architecture}.{key}; is it a model file?")
    num_layers = _decoder_layers(fields)
    config: dict[str, Any] = {
        "model_type": _MODEL_TYPES.get(architecture, architecture),
        "num_hidden_layers": num_layers,
        "hidden_size": fields.get("embedding_length"),
        "max_position_embeddings": fields.get("context_length"),
        "num_attention_heads": _same_for_all(fields, "attention.head_count", name),
        "head_dim": fields.get("attention.key_length"),
        "v_head_dim": fields.get("attention.value_length"),
        "sliding_window": fields.get("attention.sliding_window"),
        "kv_lora_rank": fields.get("attention.kv_lora_rank"),
        "num_kv_shared_layers": fields.get("attention.shared_kv_layers"),
        "attention_chunk_size": fields.get("attention.chunk_size"),
    }
    kv_heads = fields.get("attention.head_count_kv")
    if isinstance(kv_heads, list):
        if len(kv_heads) != fields["block_count"]:
            raise GeometryError(
                f"{name}: head_count_kv names {len(kv_heads)} layers, block_count is {fields['block_count']}"
            )
        if 0 in kv_heads:
            raise GeometryError(f"{name}: layer {kv_heads.index(0)} has no KV heads, so it is not an attention layer")
        config["per_layer_config"] = {index: {"num_key_value_heads": heads} for index, heads in enumerate(kv_heads)}
    else:
        config["num_key_value_heads"] = kv_heads
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, list) and isinstance(num_layers, int):
        kinds = ["sliding_attention" if slides else "full_attention" for slides in pattern]
        config["layer_types"] = kinds[:num_layers]
    else:
        config["sliding_window_pattern"] = pattern
    return config


def _decoder_layers(fields: dict[str, Value]) -> Value:
    """`block_count` without the blocks for multi-token prediction, which the decoder does not run."""
    count, predictors = fields["block_count"], fields.get("nextn_predict_layers")
    return count - predictors if isinstance(count, int) and isinstance(predictors, int) else count


_MODEL_TYPES = {
    "bigcode": "gpt_bigcode",
    "command-r": "cohere",
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
}
"""GGUF architecture -> transformers model type."""

_STATE_SECTIONS = ("ssm.", "wkv.", "shortconv.", "kda.", "time_mix_extra_dim", "token_shift_count")


def _refuse_other_models(architecture: str, fields: dict[str, Value], name: str) -> None:
    if fields.get("attention.causal") is False or "decoder_block_count" in fields or architecture.startswith("t5"):
        raise GeometryError(f"{name}: {architecture} is not a causal decoder-only model, so it has no plain KV cache")
    for key in fields:
        if key.startswith(_STATE_SECTIONS):
            raise GeometryError(
                f"{name}: {architecture} has layers with a recurrent state ({key[:80]!r}); "
                "this version supports attention layers only"
            )
    for key in ("attention.key_length_swa", "attention.value_length_swa"):
        if key in fields:
            raise GeometryError(f"{name}: {key} gives sliding layers a shape of their own, which is not supported")


def _same_for_all(fields: dict[str, Value], key: str, name: str) -> Value:
    value = fields.get(key)
    if not isinstance(value, list):
        return value
    if not value or any(item != value[0] for item in value):
        raise GeometryError(f"{name}: {key} differs by layer, which this version does not support")
    return value[0]


class _HeaderReader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._name = path.name
        self._left = os.fstat(file.fileno()).st_size
        self._strings_left = _MAX_STRINGS

    def read(self) -> GgufHeader:
        if self._left < 24 or self._take(4) != b"GGUF":
            raise GeometryError(f"{self._name} is not a GGUF file: its first bytes are not 'GGUF'")
        version = self._number("<I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            hint = " (a big-endian file)" if swapped in _VERSIONS else ""
            raise GeometryError(f"{self._name}: GGUF version {version}{hint}; expected 2 or 3, little-endian")
        tensor_count = self._number("<Q")
        key_count = self._number("<Q")
        if key_count > _MAX_KEYS:
            raise GeometryError(
                f"{self._name}: the header claims {key_count} metadata keys; expected at most {_MAX_KEYS}"
            )
        metadata: dict[str, Value] = {}
        for _ in range(key_count):
            key = self._text(self._length(_MAX_KEY_NBYTES))
            if key in metadata:
                raise GeometryError(f"{self._name}: metadata key {key[:80]!r} stands twice")
            metadata[key] = self._value(self._number("<I"))
        return GgufHeader(version, tensor_count, metadata)

    def _value(self, kind: int) -> Value:
        if kind in _SCALARS:
            number = self._number(_SCALARS[kind])
            return bool(number) if kind == _BOOL else number
        if kind == _STRING:
            length = self._length(self._left)
            if length > _MAX_KEPT_NBYTES:
                self._skip(length)
                return None
            return self._text(length)
        if kind == _ARRAY:
            return self._array(self._number("<I"), self._number("<Q"))
        raise GeometryError(f"{self._name}: unknown metadata type {kind}; the file is damaged or newer than version 3")

    def _array(self, kind: int, count: int) -> list[Any] | None:
        if kind == _STRING:
            self._skip_strings(count)
            return None
        if kind not in _SCALARS:
            raise GeometryError(f"{self._name}: a metadata array of type {kind}; expected numbers or strings")
        form = _SCALARS[kind]
        nbytes = count * struct.calcsize(form)
        self._check_left(nbytes)
        if count > _MAX_KEPT_ELEMENTS:
            self._skip(nbytes)
            return None
        numbers = list(struct.unpack(f"<{count}{form[1:]}", self._take(nbytes)))
        return [bool(number) for number in numbers] if kind == _BOOL else numbers

    def _skip_strings(self, count: int) -> None:
        self._check_left(count * 8)
        if count > self._strings_left:
            raise GeometryError(f"{self._name}: {count} strings in one metadata array; expected at most {_MAX_STRINGS}")
        self._strings_left -= count
        # A vocabulary has some 50,000 to 300,000 entries, so the loop is kept tight.
        read, unpack, left = self._file.read, struct.Struct("<Q").unpack, self._left
        for _ in range(count):
            head = read(8)
            left -= 8
            length = unpack(head)[0] if len(head) == 8 else left + 1
            if length > left:
                raise GeometryError(
                    f"{self._name}: the header ends inside a metadata string; the file is cut or damaged"
                )
            if length > _MAX_KEPT_NBYTES:
                self._file.seek(length, os.SEEK_CUR)
            else:
                read(length)
            left -= length
        self._left = left

    def _length(self, maximum: int) -> int:
        length = self._number("<Q")
        if length > maximum:
            raise GeometryError(f"{self._name}: a string of {length} bytes where at most {maximum} are possible")
        return length

    def _text(self, nbytes: int) -> str:
        try:
            return self._take(nbytes).decode("utf-8")
        except UnicodeDecodeError as error:
            raise GeometryError(f"{self._name}: a metadata string is not UTF-8") from error

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, nbytes: int) -> bytes:
        self._check_left(nbytes)
        data = self._file.read(nbytes)
        self._left -= nbytes
        if len(data) != nbytes:
            raise GeometryError(f"{self._name}: the file became shorter while it was read")
        return data

    def _skip(self, nbytes: int) -> None:
        self._check_left(nbytes)
        self._file.seek(nbytes, os.SEEK_CUR)
        self._left -= nbytes

    def _check_left(self, nbytes: int) -> None:
        if nbytes > self._left:
            raise GeometryError(
                f"{self._name}: the header asks for {nbytes} bytes where {self._left} are left; "
                "the file is cut or damaged"
            )
