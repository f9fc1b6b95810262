"""Memory on large pages: where slabs get it, and that it holds what they hold."""

from __future__ import annotations

import copy
import gc
import re
import sys
from pathlib import Path

import pytest
import torch

from kvassay.cache.huge_pages import HUGE_NBYTES, huge_page_memory
from kvassay.cache.page_pool import PagePool
from kvassay.core.format_names import parse_format
from kvassay.core.paging import page_layout

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked for on Linux")

MADVISE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def mapping(address: int) -> dict[str, str]:
    """The fields of the mapping that an address lies in."""
    fields: dict[str, str] = {}
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            found = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif found:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    return fields


def test_memory_is_as_long_as_asked_and_begins_on_a_large_page() -> None:
    memory = huge_page_memory(2 * HUGE_NBYTES + 4096)
    assert memory is not None
    assert memory.data_ptr() % HUGE_NBYTES == 0
    assert memory.untyped_storage().nbytes() == memory.numel() == 2 * HUGE_NBYTES + 4096
    memory.fill_(7)
    assert int(memory.to(torch.int64).sum()) == 7 * memory.numel()
    assert torch.equal(copy.deepcopy(memory), memory)


@pytest.mark.skipif(not MADVISE.exists() or "[never]" in MADVISE.read_text(), reason="this system gives no large pages")
def test_what_is_written_lies_on_large_pages() -> None:
    memory = huge_page_memory(2 * HUGE_NBYTES)
    assert memory is not None
    memory.fill_(1)
    if mapping(memory.data_ptr())["AnonHugePages"] == "0 kB":
        pytest.skip("the system had no large page free")
    assert mapping(memory.data_ptr())["AnonHugePages"] == f"{2 * HUGE_NBYTES // 1024} kB"


def test_small_memory_is_left_to_torch() -> None:
    assert huge_page_memory(HUGE_NBYTES - 1) is None


def test_it_is_given_back_with_its_tensor() -> None:
    memory = huge_page_memory(HUGE_NBYTES)
    assert memory is not None
    memory.fill_(1)
    address = memory.data_ptr()
    del memory
    gc.collect()
    assert mapping(address).get("Rss", "0 kB") == "0 kB"


@pytest.mark.parametrize("inference", [False, True])
def test_a_large_slab_is_one_and_a_pool_counts_its_pages(inference) -> None:
    layout = page_layout(parse_format("int4-g64").keys, 8, 128, "keys")
    pool = PagePool(layout)
    count = HUGE_NBYTES // layout.nbytes + 1
    with torch.inference_mode(inference):
        pool.allocate(count)
    (slab,) = pool.slabs
    assert slab.data_ptr() % HUGE_NBYTES == 0
    assert not slab.is_inference()
    assert slab.untyped_storage().nbytes() == pool.nbytes == count * layout.nbytes
