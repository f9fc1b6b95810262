"""Attention by compiled kernels against the definition on decoded tokens in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kvassay.cache import QuantizedCache
from kvassay.cache.attention import packed_attention
from kvassay.cache.attention_path import AttentionPath
from kvassay.cache.packed_view import PackedView
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import geometry_from_config
from kvassay.core.kv_format import head_groups
from kvassay.core.methods import methods
from kvassay.core.presets import PRESETS
from kvassay.errors import KernelError
from kvassay.formats import quantizer
from kvassay.kernels import native_state
from tests.cache.cache_configs import one_layer_config
from tests.cache.test_attention_paths import causal, defined, draw

pytestmark = pytest.mark.skipif(native_state().missing is not None, reason="kvassay was built without its module")

EXACT = 4e-4
"""Relative error of the output over all queries: queries and weights have 16 bits where codes are integers."""

FLOATS = 3e-6
"""The same where all is multiplied as float32."""

CODECS = sorted({example for method in methods().values() for example in method.examples})
FORMATS = [*(preset.name for preset in PRESETS), *(f"kv={codec}" for codec in CODECS)]
SETS = native_state().instruction_sets or ("none",)
CALLS = (150, 1, 1, 7, 1)


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("KVASSAY_INSTRUCTION_SET", request.param)
    return request.param


class Layer:
    """One layer that is filled by hand, and how far kernels are from the definition on it."""

    def __init__(self, name: str, kv_heads=2, ratio=3, dim=64, paddings=(0, 0), dtype=torch.float32, **options) -> None:
        self.shape = len(paddings), kv_heads, ratio, dim
        self.paddings, self.dtype = paddings, dtype
        config = one_layer_config(kv_heads, ratio, dim)
        kv_format = parse_format(name)
        geometry = geometry_from_config(config.to_dict()).layers[0]
        padding = list(paddings) if any(paddings) else None
        calibration = {0: tuple(self._calibrated(group) for group in head_groups(kv_format, 0, geometry))}
        needed = any(spec.needs_calibration for spec in kv_format.specs)
        self.cache = QuantizedCache(
            config,
            kv_format,
            calibration=calibration if needed else None,
            on_clip="count",
            left_padding=padding,
            **options,
        )
        self.length = 0

    def _calibrated(self, group):
        values = 2 * draw(7, 1, group.num_heads, 400, self.shape[3])
        return tuple(
            quantizer(plan.spec).calibrate(values) if plan.spec.needs_calibration else None
            for plan in (group.keys, group.values)
        )

    def call(self, tokens: int, seed: int, softcap=None, sinks=None, mask=None, magnitude=1.0) -> float | None:
        """Relative error of a call of `tokens` tokens; None where no kernel served it."""
        rows, kv_heads, ratio, dim = self.shape
        query = (magnitude * draw(seed, rows, kv_heads * ratio, tokens, dim)).to(self.dtype)
        keys, values = (draw(base + seed, rows, kv_heads, tokens, dim).to(self.dtype) for base in (100, 200))
        self.length += tokens
        seen_mask = causal(rows, tokens, self.length, self.paddings)
        if mask is not None:
            seen_mask = seen_mask & mask(seen_mask.shape)
        packed = self.cache.update(keys, values, 0)
        module = nn.Module()
        module.is_causal, module.num_key_value_groups = True, ratio
        given = None if mask is None and not any(self.paddings) else seen_mask
        out, _ = packed_attention(module, query, *packed, given, scaling=0.3, softcap=softcap, s_aux=sinks)
        if self.cache.explain()[0].last is not AttentionPath.FUSED:
            return None
        plain = [each.decode() for each in packed if isinstance(each, PackedView)]
        expected = defined(query, *plain, seen_mask, 0.3, softcap, sinks)
        assert torch.isfinite(out).all()
        return float((out.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_from_its_codes_or_says_why_not(name, instruction_set) -> None:
    layer = Layer(name)
    found = layer.cache.explain()[0]
    errors = [layer.call(tokens, seed) for seed, tokens in enumerate(CALLS)]
    if found.next is AttentionPath.TILED:
        assert "kernels do not: " in found.reason
        assert errors == [None] * len(CALLS)
        return
    assert found.next is AttentionPath.FUSED
    # The prompt is attended to exactly, without the cache.
    assert max(errors[1:]) < (EXACT if _has_integers(name) else FLOATS)


def _has_integers(name: str) -> bool:
    readings = [quantizer(spec).tile_reading(64) for spec in parse_format(name).specs]
    return any(reading is not None and "int" in reading.code for reading in readings)


KERNEL_FORMATS = (
    "int8-token-head",
    "fp8-e4m3-token-head",
    "int4-g32",
    "int4-g64",
    "kv=int4:group32/sym",
    "kivi-4,recent=32",
    "kivi-2,recent=32",
    "nf4-g64",
    "turboquant-mse-4",
    "kv=lloyd-2:token-head/had",
    "q8_0",
    "q4_0",
    "kv=q4_0/had",
    "exl3-4",
    "f16",
    "bf16",
    "f32",
)


@pytest.mark.parametrize("name", KERNEL_FORMATS)
def test_formats_that_kernels_are_made_for_are_read_by_them(name) -> None:
    assert Layer(name, attention="fused").call(1, 0) is not None


@pytest.mark.parametrize("dim", [64, 80, 96, 112, 128, 192, 256])
@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize(
    "name", ["k=int8:token-head,v=int4:token-head", "kv=fp8-e4m3:token-head", "kv=f16", "kv=int2:group16"]
)
def test_head_sizes_and_ratios(name, ratio, dim, instruction_set) -> None:
    layer = Layer(name, ratio=ratio, dim=dim)
    layer.call(90, 0)
    assert layer.call(1, 1) < EXACT
    assert layer.call(2, 2) < EXACT


@pytest.mark.parametrize("name", ["kivi-4,recent=20,sinks=3", "int8-token-head", "kv=q4_0/had,recent=7", "nf4-g64"])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("paddings", [(0, 0), (0, 9), (30, 9), (100, 0)])
def test_softcap_sinks_and_padded_rows(name, softcap, paddings, instruction_set) -> None:
    layer = Layer(name, paddings=paddings)
    sinks = draw(9, 6)
    for seed, tokens in enumerate((60, 1, 17, 1, 130, 1, 4)):
        error = layer.call(tokens, seed, softcap=softcap, sinks=sinks)
        assert error is None or error < EXACT
    assert error is not None


@pytest.mark.parametrize("axes", [(1, 1), (2, 1), (1, 6), (2, 6)])
def test_masks_of_every_shape(axes, instruction_set) -> None:
    def drawn(shape):
        open_ = torch.rand(*axes, *shape[2:], generator=torch.Generator().manual_seed(3)) < 0.5
        open_[..., -1:] = True
        return open_

    layer = Layer("kivi-4,recent=20")
    for seed, tokens in enumerate((200, 1, 1, 5)):
        error = layer.call(tokens, seed, mask=drawn)
    assert error < EXACT


@pytest.mark.parametrize("magnitude", [1e-3, 30.0])
@pytest.mark.parametrize("name", ["int8-token-head", "int4-g64", "kivi-4,recent=32", "nf4-g64"])
def test_flat_and_peaked_softmax(name, magnitude, instruction_set) -> None:
    """A tiny query weighs all tokens alike; a large one looks at one of them."""
    layer = Layer(name)
    layer.call(500, 0)
    assert layer.call(1, 1, magnitude=magnitude) < 5 * EXACT


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_models_get_their_own_dtype_back(dtype) -> None:
    layer = Layer("int4-g64,exact=bf16", dtype=dtype)
    layer.call(100, 0)
    assert layer.call(1, 1) < 4e-3  # the output itself is rounded to 8 bits or more


def test_a_long_text_in_ranges_and_a_row_alone_give_the_same_numbers() -> None:
    """Ranges begin at fixed tokens, so a row's result does not depend on who stands beside it."""
    both, alone = Layer("int4-g64", paddings=(0, 0)), Layer("int4-g64", paddings=(0,))
    query, keys, values = draw(1, 2, 6, 1, 64), draw(2, 2, 2, 9000, 64), draw(3, 2, 2, 9000, 64)
    module = nn.Module()
    module.is_causal, module.num_key_value_groups = True, 3
    found = []
    for layer, rows in ((both, slice(0, 2)), (alone, slice(0, 1))):
        layer.cache.update(keys[rows, :, :-1], values[rows, :, :-1], 0)
        packed = layer.cache.update(keys[rows, :, -1:], values[rows, :, -1:], 0)
        found.append(packed_attention(module, query[rows], *packed, None, scaling=0.3)[0])
        assert layer.cache.explain()[0].last is AttentionPath.FUSED
    torch.testing.assert_close(found[0][:1], found[1], rtol=0, atol=0)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_nothing(threads) -> None:
    layer, before = Layer("kivi-4,recent=32"), torch.get_num_threads()
    layer.call(4500, 0)
    torch.set_num_threads(threads)
    try:
        error = layer.call(1, 1)
    finally:
        torch.set_num_threads(before)
    assert error < EXACT


def test_what_kernels_cannot_read_is_refused_where_they_were_asked_for() -> None:
    with pytest.raises(KernelError, match="scales of float8_e4m3fn"):
        Layer("nvfp4", attention="fused").call(1, 0)
    layer = Layer("int4-g64", attention="fused")
    layer.call(10, 0)
    module = nn.Module()
    module.is_causal, module.num_key_value_groups = True, 3
    packed = layer.cache.update(draw(1, 2, 2, 1, 64), draw(2, 2, 2, 1, 64), 0)
    with pytest.raises(KernelError, match="the mask is added to scores"):
        packed_attention(module, draw(3, 2, 6, 1, 64), *packed, torch.zeros(1, 1, 1, 11), scaling=0.3)


def test_an_instruction_set_that_is_not_there_is_refused(monkeypatch) -> None:
    layer = Layer("int4-g64")
    layer.call(10, 0)
    layer.call(1, 1)
    monkeypatch.setenv("KVASSAY_INSTRUCTION_SET", "mmx")
    refused = "KVASSAY_INSTRUCTION_SET is 'mmx'; this processor and build have"
    with pytest.raises(KernelError, match=f"^{refused}"):
        layer.call(1, 2)  # appended by the step that was made before, then read
    with pytest.raises(KernelError, match=f"^keys of layer 0: {refused}"):
        layer.call(5, 3)
