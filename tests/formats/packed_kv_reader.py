"""A reader of packed-KV files from docs/spec/packed-kv.md alone: json, hashlib and numpy, nothing of kvassay."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

PLAIN = {"F32": "<f4", "F16": "<f2", "U8": "u1", "I8": "i1", "U16": "<u2"}
M64 = 2**64


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values, float32."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8 : 8 + size])
    header = json.loads(table.pop("__metadata__")["kvassay.packed_kv"])
    assert header["schema"] == "kvassay.packed-kv/1"
    data = raw[8 + size :]
    arrays = {}
    for name, entry in table.items():
        begin, end = entry["data_offsets"]
        assert hashlib.sha256(data[begin:end]).hexdigest() == header["arrays"][name]["sha256"]
        arrays[name] = elements(data[begin:end], entry["dtype"]).reshape(entry["shape"])
    geometry = header["geometry"]
    read_back = []
    for side, dim in (("keys", geometry["head_dim"]), ("values", geometry["value_dim"])):
        out = np.full((geometry["batch"], geometry["kv_heads"], geometry["tokens"], dim), np.nan, np.float32)
        for name, about in header["sides"].items():
            if name.endswith(f".{side}"):
                out[:, about["heads"]] = side_values(name, about, arrays, dim)
        read_back.append(out)
    return read_back[0], read_back[1]


def elements(data: bytes, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    if dtype == "F8_E4M3":
        return e4m3(np.frombuffer(data, "u1"))
    return np.frombuffer(data, PLAIN[dtype])


def e4m3(byte: np.ndarray) -> np.ndarray:
    exponent, mantissa = (byte >> 3 & 15).astype(int), (byte & 7).astype(int)
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.where(byte >> 7, -size, size).astype(np.float32)


def side_values(name: str, about: dict, arrays: dict, dim: int) -> np.ndarray:
    parts = []
    if about["sink_tokens"]:
        parts.append(arrays[f"{name}.exact.sinks"].astype(np.float32))
    if about["coded_tokens"]:
        own = {key[len(name) + 1 :]: array for key, array in arrays.items() if key.startswith(name + ".")}
        parts.append(coded_values(about, own, dim))
    if about["tail_tokens"]:
        parts.append(arrays[f"{name}.exact.tail"].astype(np.float32))
    return np.concatenate(parts, axis=2)


def coded_values(about: dict, own: dict, dim: int) -> np.ndarray:
    spec = about["spec"]
    codes = own["block.codes"]
    batch, heads, blocks, block_tokens, row = codes.shape
    codes = codes.reshape(batch, heads, blocks * block_tokens, row)
    if spec["method"] == "int" and spec["code_dtype"] == "uint8":
        codes = bits(codes, spec["num_bits"], dim)
        if spec["symmetric"]:
            codes = codes - 2 ** (spec["num_bits"] - 1)
    elif spec["method"] == "q4_0":
        codes = ggml_halves(codes, dim) - 8
    values = codes.astype(np.float32)
    if spec["granularity"] != "none":
        values = values * spread(own, "scale", spec, about, values.shape)
        if not spec["symmetric"]:
            values = values + spread(own, "minimum", spec, about, values.shape)
    if spec["rotation"] is not None:
        values = unrotate(values, about["hadamard_block"]) * signs(spec["rotation"]["seed"], dim)
    if spec["mean"]:
        values = values + own["static.mean"][None]
    assert values.dtype == np.float32
    return values


def bits(rows: np.ndarray, num_bits: int, dim: int) -> np.ndarray:
    """Bit by bit, as the document says it: code i takes bits i·b to i·b + b − 1 of the row."""
    codes = np.zeros((*rows.shape[:-1], dim), int)
    for i in range(dim):
        for bit in range(num_bits):
            place = i * num_bits + bit
            codes[..., i] += (rows[..., place // 8].astype(int) >> place % 8 & 1) << bit
    return codes


def ggml_halves(rows: np.ndarray, dim: int) -> np.ndarray:
    codes = np.zeros((*rows.shape[:-1], dim), int)
    for group in range(dim // 32):
        for i in range(16):
            byte = rows[..., group * 16 + i].astype(int)
            codes[..., 32 * group + i] = byte & 15
            codes[..., 32 * group + i + 16] = byte >> 4
    return codes


def spread(own: dict, what: str, spec: dict, about: dict, shape: tuple[int, ...]) -> np.ndarray:
    """The scale or minimum of every value, by the table of granularities."""
    _, heads, tokens, dim = shape
    head, token, channel = np.arange(heads), np.arange(tokens), np.arange(dim)
    size, block = spec["group_size"], about["tokens_per_block"]
    kind = spec["granularity"]
    if kind in ("tensor", "head", "static-channel"):
        stored = own[f"static.{what}"].astype(np.float32)
        h = head if kind != "tensor" else head * 0
        c = channel if kind == "static-channel" else channel * 0
        return stored[h[:, None, None], 0, c[None, None, :]][None]
    stored = own[f"block.{what}s"].astype(np.float32)
    h = head * 0 if kind == "token" else head
    c = {"group": channel // (size or 1), "block": channel // (size or 1), "channel": channel}.get(kind, channel * 0)
    return stored[:, h[:, None, None], (token // block)[None, :, None], c[None, None, :]]


def unrotate(values: np.ndarray, block: int) -> np.ndarray:
    out = values.copy()
    stride = 1
    while stride < block:
        for i in range(out.shape[-1]):
            if not i % block & stride:
                low, high = out[..., i].copy(), out[..., i + stride].copy()
                out[..., i], out[..., i + stride] = low + high, low - high
        stride *= 2
    return out * np.float32(1 / np.sqrt(block))


def signs(seed: int, dim: int) -> np.ndarray:
    out = np.ones(dim, np.float32)
    state = seed
    for channel in range(dim if seed else 0):
        if channel % 64 == 0:
            state = (state + 0x9E3779B97F4A7C15) % M64
            z = state
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % M64
            z = (z ^ z >> 27) * 0x94D049BB133111EB % M64
            z ^= z >> 31
        if z >> channel % 64 & 1:
            out[channel] = -1
    return out
