"""Conformance of the six ggml block formats: bytes and decoded values, against the `gguf` package and ggml's C code."""

from __future__ import annotations

import hashlib

import gguf
import numpy as np
import pytest
import torch

from kvassay.core.format_names import parse_format
from kvassay.core.layout import stored_bits_per_value
from kvassay.core.side_names import parse_side
from kvassay.errors import RangeError
from kvassay.formats import quantizer
from kvassay.formats.ggml_blocks import to_ggml_rows

BLOCK_NBYTES = {"q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18}
ENCODED_BY_GGUF = [name for name in BLOCK_NBYTES if name != "iq4_nl"]


def values(scale: float) -> torch.Tensor:
    x = torch.randn(1, 1, 200, 96, generator=torch.Generator().manual_seed(3)) * scale
    x[0, 0, 7, :32] = 0.0
    x[0, 0, 8, 0] = 40 * scale
    x[0, 0, 9] = 3 * scale
    x[0, 0, 10, 5] = -x[0, 0, 10].abs().max()  # two values of largest magnitude with opposite signs
    return x


@pytest.mark.parametrize("name", ENCODED_BY_GGUF)
@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1.0, 300.0])
def test_bytes_and_values_equal_the_gguf_package_bit_for_bit(name, scale) -> None:
    x = values(scale)
    kind = getattr(gguf.GGMLQuantizationType, name.upper())
    theirs = gguf.quantize(x[0, 0].numpy(), kind)
    codec = quantizer(parse_side(name))
    ours = codec.encode(x).streams
    assert np.array_equal(to_ggml_rows(ours)[0, 0].numpy(), theirs)
    assert np.array_equal(codec.decode(ours)[0, 0].numpy(), gguf.dequantize(theirs, kind))


@pytest.mark.parametrize("name", BLOCK_NBYTES)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_gguf_reads_our_rows_to_our_values(name, scale) -> None:
    codec = quantizer(parse_side(name))
    ours = codec.encode(values(scale)).streams
    rows = to_ggml_rows(ours)[0, 0].numpy()
    assert rows.shape == (200, 3 * BLOCK_NBYTES[name])
    read = gguf.dequantize(rows, getattr(gguf.GGMLQuantizationType, name.upper()))
    assert np.array_equal(codec.decode(ours)[0, 0].numpy(), read)


GGML_C_DIGESTS = {
    "q8_0": "629efa84bf9d45a9be7089605c83be4f4ade7c7bbf1c452a9e96acab0fa6329c",
    "q5_1": "1b0e51f88bc1b8ece1ba02a301557bd0c7c71a9be02104c2b85dcb97caab9584",
    "q5_0": "1581ef0bb357aff100226d2731999d8a1e98694d0992c33321aba69bb2aad9a5",
    "q4_1": "563e51bfdb3fa42f26ced0c45acff4c63e3db19b07929e0b39c26b0bb549a815",
    "q4_0": "ed316007a17206bd2deb0164d604325b9d396ea5f207fd7a91e011a2263612eb",
    "iq4_nl": "f824b4a4c872113cc9fc730f2375241e4511266b08db9b5e1da0f97b96f608d8",
}
"""SHA-256 of what `quantize_row_*_ref` of ggml's src/ggml-quants.c (commit d99724f2b1) writes for `golden_values`,
compiled with `gcc -O2 -ffp-contract=off`."""


def golden_values() -> torch.Tensor:
    """Exact in float32 and made of integers alone, so that any machine has the same: 3 decades, no all-zero block."""
    index = torch.arange(512 * 96, dtype=torch.int64)
    whole = (index * 7919 % 2003 - 1001) + (index * 104729 % 257 == 0) * 9000
    return torch.ldexp(whole.to(torch.float32) / 256, index // 32 % 11 - 5).reshape(1, 1, 512, 96)


@pytest.mark.parametrize("name", BLOCK_NBYTES)
def test_b66_bytes_equal_those_of_ggmls_own_c_code(name) -> None:
    """The only proof for the encoder of iq4_nl, which `gguf` does not have; for the others a second one."""
    rows = to_ggml_rows(quantizer(parse_side(name)).encode(golden_values()).streams)
    assert hashlib.sha256(rows.numpy().tobytes()).hexdigest() == GGML_C_DIGESTS[name]


@pytest.mark.parametrize(("name", "nbytes"), BLOCK_NBYTES.items())
def test_r14_r22_stored_bits_count_scale_and_minimum(name, nbytes) -> None:
    assert stored_bits_per_value(parse_format(name).keys, 8, 128) == nbytes * 8 / 32


@pytest.mark.parametrize("name", BLOCK_NBYTES)
def test_blocks_whose_inverse_scale_overflows_decode_to_zero(name) -> None:
    """ggml leaves 1/d = infinity undefined; B28."""
    x = torch.full((1, 1, 1, 32), 1e-39)
    x[..., ::2] *= -0.5
    codec = quantizer(parse_side(name))
    found = codec.decode(codec.encode(x).streams)
    assert float(found.abs().max()) == 0.0


@pytest.mark.parametrize("name", BLOCK_NBYTES)
def test_scales_beyond_float16_are_refused_with_a_way_out(name) -> None:
    with pytest.raises(RangeError, match=rf"does not fit the float16 of {name}; use int8:group32/scale=f32"):
        quantizer(parse_side(name)).encode(values(1e8))


@pytest.mark.parametrize("name", BLOCK_NBYTES)
def test_r8_blocks_of_equal_bits_are_formats_apart(name) -> None:
    others = {parse_format(other).digest for other in (*BLOCK_NBYTES, "int4-g32") if other != name}
    assert parse_format(name).digest not in others
