"""Our reading of other packages' group layouts: their codes and scales, decoded and packed by our rules, are theirs.

What is proven here is named in docs/design/conformance.md. A package that is not installed skips its tests.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvassay.core.side_names import parse_side
from kvassay.formats import Calibration, quantizer
from kvassay.formats.packing import pack_codes, unpack_codes

ROWS, TOKENS, DIM, GROUP = 2, 128, 64, 64


def keys(seed=0) -> torch.Tensor:
    """`[batch, heads, tokens, dim]` with channels of unequal size and offset."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 3, TOKENS, DIM, generator=rng)
    return x * torch.randn(DIM, generator=rng).exp() + torch.randn(DIM, generator=rng)


def our_codes(text: str, x: torch.Tensor) -> torch.Tensor:
    """Unpacked codes in the shape of the values."""
    codec = quantizer(parse_side(text))
    packed = codec.encode(x).streams["codes"].flatten(2, 3)
    return unpack_codes(packed, codec.spec.num_bits)


def our_values(text: str, x: torch.Tensor) -> torch.Tensor:
    codec = quantizer(parse_side(text))
    return codec.decode(codec.encode(x).streams)


class TestQuanto:
    """optimum-quanto, as transformers' quanto cache calls it: MaxOptimizer, float shift, groups of 64."""

    @pytest.fixture(autouse=True)
    def _quanto(self, monkeypatch) -> None:
        self.quanto = pytest.importorskip("optimum.quanto")
        from optimum.quanto.library.extensions.extension import get_extension

        # Its C++ reader of bytes would be compiled for minutes on first use; ours stands in, and is proven below.
        monkeypatch.setattr(get_extension("quanto_cpp"), "_lib", SimpleNamespace(unpack=self.codes_of_bytes))

    @staticmethod
    def codes_of_bytes(packed: torch.Tensor, bits: int) -> torch.Tensor:
        """Code rows i, i + n/lanes, ... share a byte, the first in the lowest bits."""
        return torch.cat([packed >> bits * lane & (1 << bits) - 1 for lane in range(8 // bits)])

    def quantized(self, x: torch.Tensor, bits: int, axis: int):
        kind = {4: self.quanto.qint4, 2: self.quanto.qint2}[bits]
        scale, shift = self.quanto.MaxOptimizer()(x, kind, axis, GROUP)
        return self.quanto.quantize_weight(x, kind, axis, scale, shift, GROUP)

    @pytest.mark.parametrize("bits", [4, 2])
    def test_axis_0_is_our_group_of_channels_bit_for_bit(self, bits) -> None:
        """Rows of 64 values in memory order: groups of channels wherever 64 divides the head size. Equal codes too."""
        x = keys()
        theirs = self.quantized(x, bits, axis=0)
        text = f"int{bits}:group{GROUP}/scale=f32"
        assert torch.equal(theirs._data.unpack().reshape(x.shape), our_codes(text, x))
        assert torch.equal(theirs.dequantize(), our_values(text, x))

    @pytest.mark.parametrize("bits", [4, 2])
    def test_axis_minus_1_is_our_channel_over_64_tokens_bit_for_bit(self, bits) -> None:
        """Column c·G + g of the grouped matrix is channel c of the g-th 64 rows: tokens, if 64 divides them."""
        x = keys()
        theirs = self.quantized(x, bits, axis=-1)
        codes = theirs._data.unpack()
        groups = x[..., 0].numel() // GROUP
        assert codes.shape == (GROUP, DIM * groups)
        text = f"int{bits}:channel{GROUP}/scale=f32"
        assert torch.equal(codes.unflatten(1, (DIM, groups)).permute(2, 0, 1).reshape(x.shape), our_codes(text, x))
        assert torch.equal(theirs.dequantize(), our_values(text, x))

    @pytest.mark.parametrize("axis", [0, -1])
    @pytest.mark.parametrize("bits", [4, 2])
    def test_its_bytes_hold_codes_of_distant_rows_lowest_bits_first(self, bits, axis) -> None:
        """Not our order: at 4 bit rows i and i + n/2 share a byte. Moved side by side, they are our bytes."""
        x = keys()
        theirs = self.quantized(x, bits, axis)
        codes = torch.ops.quanto.quantize_affine(x, bits, axis, GROUP, theirs._scale, theirs._shift)
        assert torch.equal(self.codes_of_bytes(theirs._data._data, bits), codes)
        side_by_side = codes.unflatten(0, (8 // bits, -1)).movedim(0, -1).flatten(-2)
        assert torch.equal(theirs._data._data, pack_codes(side_by_side.contiguous(), bits))

    def test_b32_its_groups_cross_tokens_where_64_does_not_divide_the_head(self) -> None:
        """Head size 96: ours refuses group 64, theirs lets a group end in the next token."""
        x = torch.zeros(1, 1, 64, 96)
        x[0, 0, 1] = 100.0
        theirs = self.quantized(x, 4, axis=0)
        lone = x[:, :, :2].reshape(3, 64)  # the second group holds 32 values of token 0 and 32 of token 1
        assert float(lone[1].amax() - lone[1].amin()) == 100.0
        assert float(theirs._scale.reshape(-1)[1]) == pytest.approx(100 / 15)


class TestHqq:
    """hqq without its optimizer of zero points, whose layout the optimized form shares."""

    @pytest.fixture(autouse=True)
    def _hqq(self) -> None:
        self.quantizer = pytest.importorskip("hqq.core.quantize").Quantizer

    def quantized(self, x: torch.Tensor, bits: int, axis: int, **options) -> tuple[torch.Tensor, dict]:
        codes, meta = self.quantizer.quantize(
            x, nbits=bits, group_size=GROUP, axis=axis, device="cpu", compute_dtype=torch.float32, **options
        )
        return codes, {**meta, "compute_dtype": torch.float32}

    @pytest.mark.parametrize("optimize", [False, True])
    @pytest.mark.parametrize(("bits", "axis"), [(8, 1), (4, 1), (2, 1), (1, 1), (4, 0), (2, 0)])
    def test_its_bytes_scales_and_zero_points_decode_by_our_reading(self, bits, axis, optimize) -> None:
        """x̂ = (q − zero) · scale; code rows i, i + n/lanes, ... share a byte, the first in the highest bits."""
        x = keys()
        packed, meta = self.quantized(x, bits, axis, optimize=optimize)
        lanes = 8 // bits
        codes = torch.cat([packed >> (8 - bits * (lane + 1)) & (1 << bits) - 1 for lane in range(lanes)])
        assert codes.shape == ((x.numel() // GROUP, GROUP) if axis == 1 else (GROUP, x.numel() // GROUP))
        ours = ((codes.float() - meta["zero"]) * meta["scale"]).reshape(x.shape)
        assert torch.equal(ours, self.quantizer.dequantize(packed, meta))

    @pytest.mark.parametrize("bits", [8, 4, 2])
    def test_axis_1_without_the_optimizer_is_our_group_of_channels(self, bits) -> None:
        """The same grid, computed through a rounded inverse: a value near a tie may take the next code."""
        x = keys()
        packed, meta = self.quantized(x, bits, 1, optimize=False, bitpack=False)
        text = f"int{bits}:group{GROUP}/asym/scale=f32"
        codes = our_codes(text, x).int()
        apart = (packed.reshape(x.shape).int() - codes).abs()
        assert int(apart.max()) <= 1
        assert int((apart > 0).sum()) <= x.numel() // 1000
        step = meta["scale"].expand(-1, GROUP).reshape(x.shape)
        allowed = step * apart + float(x.abs().max()) * 4e-6
        assert bool(((our_values(text, x) - self.quantizer.dequantize(packed, meta)).abs() <= allowed).all())


class TestCompressedTensors:
    """compressed-tensors: the checkpoint format of llm-compressor and what vLLM reads."""

    @pytest.fixture(autouse=True)
    def _compressed_tensors(self) -> None:
        pytest.importorskip("compressed_tensors")
        from compressed_tensors import quantization
        from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
        from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
        from compressed_tensors.quantization.utils.helpers import calculate_qparams

        self.args = quantization.QuantizationArgs
        self.pack, self.quantize, self.dequantize, self.qparams = pack_to_int32, quantize, dequantize, calculate_qparams

    @pytest.mark.parametrize("bits", range(1, 9))
    def test_pack_to_int32_writes_our_bytes(self, bits) -> None:
        """A dense little-endian stream of bits, codes offset by 2^(b−1), at every width; rows of whole words."""
        codes = torch.randint(0, 1 << bits, (5, 96), generator=torch.Generator().manual_seed(bits))
        theirs = self.pack((codes - (1 << bits - 1)).to(torch.int8), bits)
        assert torch.equal(theirs.view(torch.uint8), pack_codes(codes.to(torch.uint8), bits))

    def test_fp8_with_its_scale_is_our_static_fp8_bit_for_bit(self) -> None:
        """kv_cache_scheme num_bits 8, type float, strategy tensor: scale = max|x| / 448, x̂ = code · scale."""
        x = keys()
        args = self.args(num_bits=8, type="float", strategy="tensor", symmetric=True)
        scale, zero = self.qparams(x.amin(), x.amax(), args)
        codes = self.quantize(x, scale, zero, args, dtype=torch.float8_e4m3fn)
        codec = quantizer(parse_side("fp8-e4m3:tensor"))
        assert torch.equal(codec.calibrate(x).parameters["scale"].reshape(1), scale)
        calibration = Calibration({"scale": scale.reshape(1, 1, 1)}, "checkpoint")
        ours = codec.encode(x, calibration).streams
        assert torch.equal(ours["codes"].flatten(2, 3).view(torch.uint8), codes.view(torch.uint8))
        expected = self.dequantize(codes, scale, zero, args, dtype=torch.float32)
        assert torch.equal(codec.decode(ours, torch.float32, calibration), expected)

    def test_fp8_per_token_is_our_token_head_bit_for_bit(self) -> None:
        x = keys()
        args = self.args(num_bits=8, type="float", strategy="token", symmetric=True, dynamic=True)
        scale, zero = self.qparams(x.amin(-1, keepdim=True), x.amax(-1, keepdim=True), args)
        codes = self.quantize(x, scale, zero, args, dtype=torch.float8_e4m3fn)
        ours = quantizer(parse_side("fp8-e4m3:token-head")).encode(x).streams
        assert torch.equal(ours["scales"], scale)
        assert torch.equal(ours["codes"].flatten(2, 3).view(torch.uint8), codes.view(torch.uint8))

    def test_symmetric_int8_differs_in_its_scale_and_agrees_once_it_is_given(self) -> None:
        """Theirs is max|x| / 127.5 with codes −128 to 127, ours max|x| / 127 with ±127 (R67, R68): not one format."""
        x = keys()
        args = self.args(num_bits=8, type="int", strategy="tensor", symmetric=True)
        scale, zero = self.qparams(x.amin(), x.amax(), args)
        assert float(scale) == pytest.approx(float(x.abs().max()) / 127.5, rel=1e-6)
        codes = self.quantize(x, scale, zero, args, dtype=torch.int8).clamp_min(-127)
        codec = quantizer(parse_side("int8:tensor"))
        calibration = Calibration({"scale": scale.reshape(1, 1, 1)}, "checkpoint")
        ours = codec.encode(x, calibration).streams
        assert torch.equal(ours["codes"].flatten(2, 3), codes)
        expected = self.dequantize(codes, scale, zero, args, dtype=torch.float32)
        assert torch.equal(codec.decode(ours, torch.float32, calibration), expected)

    @pytest.mark.parametrize("bits", [8, 4])
    def test_asymmetric_groups_decode_by_our_reading_and_are_another_format(self, bits) -> None:
        """x̂ = (q − zero) · scale with a whole zero point, and zero always inside the range: no minimum of ours."""
        x = keys()
        args = self.args(num_bits=bits, type="int", strategy="group", group_size=GROUP // 2, symmetric=False)
        grouped = x.flatten(0, 2).unflatten(-1, (-1, GROUP // 2))
        scale, zero = self.qparams(grouped.amin(-1), grouped.amax(-1), args)
        codes = self.quantize(x.flatten(0, 2), scale, zero, args, dtype=torch.int8)
        ours = (codes.unflatten(-1, (-1, GROUP // 2)).float() - zero.unsqueeze(-1)) * scale.unsqueeze(-1)
        assert torch.equal(ours.flatten(-2), self.dequantize(codes, scale, zero, args, dtype=torch.float32))
        assert bool((zero == zero.round()).all())
        same = our_values(f"int{bits}:group{GROUP // 2}/asym/scale=f32", x).flatten(0, 2)
        assert not torch.equal(same, ours.flatten(-2))
