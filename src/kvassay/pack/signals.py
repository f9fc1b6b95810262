"""Holding signals back while something half-written is removed."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager

_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_held() -> Generator[None]:
    """Deliver Ctrl-C and the like after the block: a second one must not cut the clean-up after the first short."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
