"""The recorded peak against allocations whose size is known beforehand (KNOWN_FAULTS B60, B63, B64 rest on it)."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.measures.memory_peak import watch_memory

SCALARS = 64
"""Bytes of the wrapped numbers that an operator such as `a + 1` allocates."""


def test_b60_the_peak_is_the_most_alive_at_once() -> None:
    with watch_memory() as watch:
        first = torch.empty(1000, dtype=torch.uint8)
        second = torch.empty(3000, dtype=torch.uint8)
        del first
        third = torch.empty(500, dtype=torch.uint8)
        del second
    assert watch.peak == (4000, 500, 4500, 3000, 3)
    assert watch.peak.transient_nbytes == 3500
    del third


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 100_000), st.integers(0, 30)), min_size=1, max_size=25))
def test_b64_any_order_of_allocations_and_frees_is_followed(steps) -> None:
    """Each step allocates some bytes and frees the block that is so many places back, if it still lives."""
    now = peak = 0
    sizes: list[int] = []
    blocks: list[torch.Tensor | None] = []
    with watch_memory() as watch:
        for nbytes, back in steps:
            blocks.append(torch.empty(nbytes, dtype=torch.uint8))
            sizes.append(nbytes)
            now += nbytes
            peak = max(peak, now)
            if back < len(blocks) and blocks[-1 - back] is not None:
                blocks[-1 - back] = None
                now -= sizes[-1 - back]
    found = watch.peak
    assert (found.peak_nbytes, found.kept_nbytes, found.allocations) == (peak, now, len(steps))
    assert (found.total_nbytes, found.largest_nbytes) == (sum(sizes), max(sizes))


def test_memory_from_before_the_block_is_neither_counted_nor_set_off() -> None:
    before = torch.zeros(50_000, dtype=torch.uint8)
    with watch_memory() as first:
        kept = torch.empty(40_000, dtype=torch.uint8)
    with watch_memory() as second:
        del before, kept
        torch.empty(100, dtype=torch.uint8)
    assert first.peak.kept_nbytes == 40_000
    assert second.peak == (100, 0, 100, 100, 1)


def test_b60_what_an_earlier_step_allocated_is_set_off_when_a_later_one_frees_it() -> None:
    """A cache that copies itself to grow: a step keeps its growth, and has old and new copy alive at once."""
    cache = [torch.empty(10_000 + 100 * step, dtype=torch.uint8) for step in range(4)][:1]

    def step() -> None:
        grown = torch.empty(cache[0].numel() + 100, dtype=torch.uint8)
        cache[0] = grown

    with watch_memory() as watch:
        step()
        watch.count_from_here()
        step()
        step()
    assert watch.peak == (10_300 + 100, 200, 10_200 + 10_300, 10_300, 2)
    with watch_memory() as watch:
        block = torch.empty(500, dtype=torch.uint8)
        watch.count_from_here()
        del block
        torch.empty(50, dtype=torch.uint8)
    assert watch.peak == (0, -500, 50, 50, 1)


def test_b60_temporaries_inside_operators_are_seen() -> None:
    """`x.double() + y` needs the converted x, and a broadcast softmax over a view its own copy."""
    x = torch.zeros(10_000, dtype=torch.float32)
    with watch_memory() as watch:
        total = (x.double() + x.double()).float()
    assert watch.peak.kept_nbytes == 40_000
    assert 3 * 80_000 <= watch.peak.peak_nbytes <= 3 * 80_000 + SCALARS
    query = torch.randn(1, 2, 300, 64, dtype=torch.float64)
    with watch_memory() as watch:
        result = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert watch.peak.kept_nbytes >= result.untyped_storage().nbytes()
    assert watch.peak.transient_nbytes > 0, "the flash kernel's buffers are allocated inside the operator"
    assert total.numel() == x.numel()


def test_views_and_writes_in_place_cost_nothing() -> None:
    x = torch.zeros(10_000)
    with watch_memory() as watch:
        x[10:].view(-1).mul_(2.0)
        x.t()
    assert watch.peak.peak_nbytes <= SCALARS
    assert watch.peak.kept_nbytes == 0


def test_a_resized_storage_holds_old_and_new_at_once() -> None:
    """As a store that grows by copying does: both buffers live during the copy."""
    with watch_memory() as watch:
        x = torch.empty(1000, dtype=torch.uint8)
        x.untyped_storage().resize_(1500)
    assert (watch.peak.peak_nbytes, watch.peak.kept_nbytes) == (2500, 1500)
    with watch_memory() as watch:
        grown = torch.cat([x, x])
    assert watch.peak.peak_nbytes == grown.numel()


def test_an_error_in_the_block_passes_and_leaves_the_record_usable() -> None:
    blocks = []

    def fails_after_allocating() -> None:
        blocks.append(torch.empty(700, dtype=torch.uint8))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), watch_memory() as watch:
        fails_after_allocating()
    assert watch.peak.kept_nbytes == blocks[0].numel()
    with watch_memory() as again:
        pass
    assert again.peak == (0, 0, 0, 0, 0)


def test_a_watch_in_a_watch_or_in_a_profiler_is_refused_and_an_early_read_too() -> None:
    with watch_memory() as watch:
        with pytest.raises(RuntimeError, match="after it"):
            _ = watch.peak
        with pytest.raises(RuntimeError, match="already being recorded"), watch_memory():
            pass
        torch.empty(10, dtype=torch.uint8)
    assert watch.peak.total_nbytes == 10
    with (
        torch.profiler.profile(profile_memory=True),
        pytest.raises(RuntimeError, match="already being recorded"),
        watch_memory(),
    ):
        pass


def test_nothing_is_written_to_standard_error(capfd) -> None:
    with watch_memory():
        torch.empty(10)
    gc.collect()
    written = capfd.readouterr()
    assert (written.out, written.err) == ("", "")
