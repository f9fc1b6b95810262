"""Offload: the same bits as without it, within the limit, every byte counted, and nothing left behind."""

from __future__ import annotations

import errno
import gc
import os
import resource
import tempfile
import threading
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant

from kvassay.cache import Offload, QuantizedCache
from kvassay.cache.offload import smallest_resident_nbytes
from kvassay.cache.page_backing import FileBacking, FreeRanges, HostBacking
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import geometry_from_config
from kvassay.errors import CacheStateError
from tests import tiny_models
from tests.cache.test_operations import DIM, HEADS, STEPS, STEPS_A_RUN, CacheMachine, small_config

GARBAGE = 0xA5


class GarblingFile(FileBacking):
    """Overwrites what it has taken, as whoever uses that memory next would."""

    def write(self, begin, pages) -> None:
        super().write(begin, pages)
        pages.fill_(GARBAGE)


class GarblingHost(HostBacking):
    def write(self, begin, pages) -> None:
        super().write(begin, pages)
        pages.fill_(GARBAGE)


def limit(config, name: str, share: float = 1.0) -> int:
    kv_format = parse_format(name) if isinstance(name, str) else name
    return int(smallest_resident_nbytes(geometry_from_config(config.to_dict()), kv_format) * share)


def garbling(nbytes: int, folder=None, **options) -> Offload:
    """An offload on disk whose evicted buffers become garbage."""
    folder = folder or tempfile.gettempdir()
    offload = Offload(nbytes, folder, **options)
    offload._residency.backing = GarblingFile(folder)
    return offload


def host_offload(nbytes: int) -> Offload:
    """Host memory, without the refusal for caches that lie there themselves."""
    offload = Offload(nbytes)
    offload._residency = offload._make_residency(GarblingHost(torch.device("cpu")))
    return offload


def read_thread_count() -> int:
    return sum(thread.name.startswith("kvassay-read-ahead") for thread in threading.enumerate())


class OffloadedCacheMachine(CacheMachine):
    """B54: every operation with a limit of a page or a few, and garbage in memory that pages have left."""

    def make_cache(self, config, kv_format, **options) -> QuantizedCache:
        # Which limit and which place follow from the format, so that the machine draws nothing more.
        pick = int(kv_format.digest[-4:], 16)
        nbytes = limit(config, kv_format, (1, 1.5, 3, 8)[pick % 4])
        make = (garbling, host_offload, lambda n: garbling(n, read_ahead=False))[pick // 4 % 3]
        self.offload = make(nbytes)
        return QuantizedCache(config, kv_format, offload=self.offload, **options)

    def nbytes_elsewhere(self, cache) -> int:
        return self.offload.counts().offloaded_nbytes

    @invariant()
    def memory_is_within_the_limit(self) -> None:
        if offload := getattr(self, "offload", None):
            counts = offload.counts()
            assert counts.resident_nbytes <= counts.peak_resident_nbytes <= counts.limit_nbytes


OffloadedCacheMachine.TestCase.settings = settings(
    max_examples=max(1, STEPS // STEPS_A_RUN),
    stateful_step_count=STEPS_A_RUN,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestOffloadedCacheMachine = OffloadedCacheMachine.TestCase
