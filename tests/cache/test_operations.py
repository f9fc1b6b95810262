"""Every operation at every point of the stream, against a cache made of lists (`reference_cache`)."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from transformers import Gemma3TextConfig

from kvassay.cache import QuantizedCache
from kvassay.cache.side_store import RECORDED_TOKENS
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.geometry import geometry_from_config
from kvassay.core.method_table import TABLE
from kvassay.errors import CacheStateError, GeometryError
from kvassay.formats import quantizer
from tests.cache.reference_cache import ReferenceCache

HEADS, DIM, WINDOW = 2, 64, 40
STEPS = int(os.environ.get("KVASSAY_CACHE_STEPS", "600"))
"""Random steps in all; `KVASSAY_CACHE_STEPS=10000` for the long run."""
STEPS_A_RUN = 25


def small_config() -> Gemma3TextConfig:
    """A full and a sliding layer; no model is made of it."""
    return Gemma3TextConfig(
        vocab_size=8,
        hidden_size=HEADS * DIM,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=DIM,
        sliding_window=WINDOW,
        layer_types=["full_attention", "sliding_attention"],
    )


def _dynamic(text: str) -> bool:
    parsed = parse_format(text)
    return not any(spec.needs_calibration for spec in parsed.specs) and not parsed.transforms_keys


FORMATS = [
    *(preset.name for preset in PRESETS if _dynamic(preset.name)),
    *(text for method in TABLE for example in method.examples if _dynamic(text := f"kv={example}")),
    "k=int4:channel8,v=int2:group16",
    "k=kvarn-4:tile16/had,v=int4:block8x16",
]


class CacheMachine(RuleBasedStateMachine):
    """Up to three caches that share pages, each beside its lists. Other kinds of cache override the two hooks."""

    def make_cache(self, config, kv_format, **options) -> QuantizedCache:
        return QuantizedCache(config, kv_format, **options)

    def nbytes_elsewhere(self, cache: QuantizedCache) -> int:
        """Bytes of pages that are not in the storages."""
        return 0

    @initialize(
        name=st.sampled_from(FORMATS),
        sinks=st.integers(0, 5),
        recent=st.integers(0, 40),
        padding=st.lists(st.sampled_from([0, 0, 0, 3, 20]), min_size=1, max_size=4),
        recording=st.booleans(),
        views=st.booleans(),
    )
    def begin(self, name, sinks, recent, padding, recording, views) -> None:
        self.seed = 0
        self.held = []
        kv_format = parse_format(f"{name},sinks={sinks},recent={recent}")
        config = small_config()
        geometry = geometry_from_config(config.to_dict())
        config._attn_implementation = "sdpa" if views else "eager"
        cache = self.make_cache(config, kv_format, on_clip="count", left_padding=padding if any(padding) else None)
        self.pairs = [(cache, ReferenceCache(kv_format, geometry, padding, RECORDED_TOKENS))]
        self.forked = False
        if recording:
            cache.activate_past_recording()
            self.pairs[0][1].recording = True

    def values(self, rows: int, tokens: int) -> torch.Tensor:
        self.seed += 1
        return torch.randn(rows, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(self.seed))

    @rule(which=st.integers(0, 2), tokens=st.one_of(st.just(1), st.integers(1, 70)), holds=st.booleans())
    def append(self, which, tokens, holds) -> None:
        cache, lists = self.pairs[which % len(self.pairs)]
        given = [(self.values(len(lists.rows), tokens), self.values(len(lists.rows), tokens)) for _ in range(2)]
        before = lists.copy()
        lists.append(given)
        for layer, (keys, values) in enumerate(given):
            length, offset = cache.get_mask_sizes(tokens, layer)
            seen = cache.update(keys, values, layer)
            for side, exact in ((0, keys), (1, values)):
                assert seen[side].shape[2] == length
                if tokens == 1:
                    expected = lists.read(layer, side, offset)
                else:
                    expected = torch.cat((before.read(layer, side, min(offset, before.columns)), exact), dim=2)
                    if before.columns == 0:
                        expected = exact
                if holds:
                    self.held.append((before.padding, seen[side], expected, offset))
                else:
                    self.check_rows(before.padding, seen[side], expected, offset)

    @staticmethod
    def check_rows(paddings, seen, expected, begin) -> None:
        """Equal but for padding, which no query may look at and which must be finite."""
        assert torch.isfinite(seen).all()
        for row, padding in enumerate(paddings):
            first = max(0, padding - begin)
            assert torch.equal(seen[row, :, first:], expected[row, :, first:])

    @rule()
    def let_go(self) -> None:
        """What an earlier call handed out is what it was then, whatever happened since."""
        for held in self.held:
            self.check_rows(*held)
        self.held.clear()

    @rule(which=st.integers(0, 2), share=st.floats(0, 1))
    def crop(self, which, share) -> None:
        cache, lists = self.pairs[which % len(self.pairs)]
        removed = round(share * share * lists.columns)
        if lists.may_crop(removed):
            assert cache.crop(-removed) == removed
            lists.crop(removed)
        else:
            with pytest.raises(CacheStateError, match="activate_past_recording"):
                cache.crop(-removed)

    @rule(which=st.integers(0, 2), picks=st.lists(st.integers(0, 50), min_size=1, max_size=4), beams=st.booleans())
    def select(self, which, picks, beams) -> None:
        cache, lists = self.pairs[which % len(self.pairs)]
        if not lists.columns:
            return
        rows = [pick % len(lists.rows) for pick in picks]
        (cache.reorder_cache if beams else cache.batch_select_indices)(torch.tensor(rows))
        lists.select(rows)

    @rule(which=st.integers(0, 2), repeats=st.integers(1, 3))
    def repeat(self, which, repeats) -> None:
        cache, lists = self.pairs[which % len(self.pairs)]
        if lists.columns and repeats * len(lists.rows) <= 4:
            cache.batch_repeat_interleave(repeats)
            lists.select([row for row in range(len(lists.rows)) for _ in range(repeats)])

    @precondition(lambda self: len(self.pairs) < 3)
    @rule(which=st.integers(0, 2))
    def fork(self, which) -> None:
        cache, lists = self.pairs[which % len(self.pairs)]
        self.pairs.append((cache.fork(), lists.copy()))
        self.forked = True

    @precondition(lambda self: len(self.pairs) > 1)
    @rule(which=st.integers(0, 2))
    def drop_a_fork(self, which) -> None:
        self.pairs.pop(which % len(self.pairs))

    @precondition(lambda self: len(self.pairs) > 1)
    @rule()
    def take_rows(self) -> None:
        (cache, lists), (other, other_lists) = self.pairs[0], self.pairs[1]
        if lists.columns and other_lists.columns and len(lists.rows) + len(other_lists.rows) <= 4:
            cache.take_rows(other)
            lists.take_rows(other_lists)

    @rule(which=st.integers(0, 2))
    def trim(self, which) -> None:
        cache, lists = self.pairs[which % len(self.pairs)]
        if lists.columns and min(lists.padding) <= lists.columns:
            assert cache.trim_padding() == lists.trim_padding()

    @rule(which=st.integers(0, 2))
    def record(self, which) -> None:
        cache, lists = self.pairs[which % len(self.pairs)]
        cache.activate_past_recording()
        lists.recording = True

    @invariant()
    def reads_equal(self) -> None:
        for cache, lists in getattr(self, "pairs", []):
            assert cache.get_seq_length() == lists.columns
            if not lists.columns:
                continue
            assert cache.batch_size == len(lists.rows)
            for layer in range(2):
                begin = lists.shown_from(layer, cache.get_mask_sizes(0, layer)[1])
                for side, seen in enumerate((cache.layers[layer].keys, cache.layers[layer].values)):
                    assert torch.equal(seen, lists.read(layer, side, begin))

    @invariant()
    def bytes_are_the_storages(self) -> None:
        """R19: with one cache left and all others gone, its ledger is the sum of what is allocated."""
        if len(getattr(self, "pairs", [])) == 1:
            cache, lists = self.pairs[0]
            if lists.columns:
                ledger = cache.ledger()  # first, so that every layer has written what it was given
                slabs = {
                    slab.untyped_storage().data_ptr(): slab.untyped_storage().nbytes() for slab in cache.storages()
                }
                paged = sum(slabs.values()) + self.nbytes_elsewhere(cache)
                assert ledger.persistent_nbytes - ledger.owner_nbytes("block_table") == paged


CacheMachine.TestCase.settings = settings(
    max_examples=max(1, STEPS // STEPS_A_RUN),
    stateful_step_count=STEPS_A_RUN,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestCacheMachine = CacheMachine.TestCase


def test_a_crop_to_nothing_and_another_batch() -> None:
    cache = QuantizedCache(small_config(), "kivi-4,recent=8")
    for layer in range(2):
        cache.update(torch.randn(2, HEADS, 30, DIM), torch.randn(2, HEADS, 30, DIM), layer)
    assert cache.crop(-500) == 30
    assert cache.get_seq_length() == 0
    with pytest.raises(GeometryError, match="empty"):
        cache.ledger()


def test_b47_a_crop_that_cannot_be_done_raises_and_changes_nothing() -> None:
    cache = QuantizedCache(small_config(), "int4-g32")
    for layer in range(2):
        cache.update(torch.randn(1, HEADS, 90, DIM), torch.randn(1, HEADS, 90, DIM), layer)
    before = cache.layers[0].keys
    with pytest.raises(CacheStateError, match=r"layer 1 sees 40 tokens and holds them from 50 on"):
        cache.crop(-20)
    with pytest.raises(ValueError, match=r"crop\(-n\) removes the last n tokens"):
        cache.crop(20)
    assert torch.equal(cache.layers[0].keys, before)


@pytest.mark.parametrize("name", ["kivi-4,recent=8,sinks=2", "int8-tensor"])
def test_r19_rows_that_share_pages_and_scales_are_counted_once(name) -> None:
    calibration = None
    if name == "int8-tensor":
        codec = quantizer(parse_format(name).keys)
        scale = codec.calibrate(torch.randn(1, HEADS, 64, DIM) * 3)
        calibration = dict.fromkeys(range(2), ((scale, scale),))
    cache = QuantizedCache(small_config(), name, calibration=calibration, on_clip="count")
    for layer in range(2):
        cache.update(torch.randn(2, HEADS, 100, DIM), torch.randn(2, HEADS, 100, DIM), layer)
    alone = cache.ledger()
    cache.take_rows(cache.fork())
    both = cache.ledger()
    assert cache.batch_size == 4
    tables = both.owner_nbytes("block_table") - alone.owner_nbytes("block_table")
    assert both.persistent_nbytes - alone.persistent_nbytes == tables
