"""A writer of prefixes that is killed at the k-th system call, for `test_prefix_folder`, in a process of its own."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import torch

from kvassay.cache import PrefixStore
from tests.cache.prefix_cases import TOKENS, empty_cache, filled_cache, identity_of

CALLS = ("mkdir", "open", "write", "fsync", "rename", "close", "utime", "unlink", "fdopen", "scandir")


def put_and_die(folder: Path, kill_at: int, after: bool) -> None:
    """Put three blocks; SIGKILL before the `kill_at`-th call that changes the folder or, with `after`, behind it.

    A write that is killed `after` has put half of its bytes.
    """
    torch.set_num_threads(1)
    cache = filled_cache()
    count = 0

    def killing(real, is_write: bool):
        def call(*args, **named):
            nonlocal count
            count += 1
            if count != kill_at:
                return real(*args, **named)
            try:
                if after and is_write:
                    return real(args[0], args[1][: len(args[1]) // 2])
                return real(*args, **named) if after else None
            finally:
                os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in CALLS:
        setattr(os, name, killing(getattr(os, name), name == "write"))
    fcntl.flock = killing(fcntl.flock, False)
    PrefixStore(folder=folder).put(cache, range(TOKENS), identity_of(cache))


def put_many(folder: Path, first: int, count: int) -> None:
    """Put texts that begin alike, as a second process would."""
    torch.set_num_threads(1)
    store = PrefixStore(folder=folder, folder_limit_nbytes=600_000)
    for number in range(first, first + count):
        cache = filled_cache(seed=number % 3)
        store.put(cache, [number % 3, *range(1, TOKENS)], identity_of(cache))
        store.lookup([(number + 1) % 3, *range(1, TOKENS)], identity_of(cache), empty_cache())
