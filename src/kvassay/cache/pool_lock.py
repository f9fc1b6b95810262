"""One thread at a time in a pool that forks of several threads share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Lockable(Protocol):
    """A pool, as the lock sees it."""

    @property
    def lock(self) -> threading.RLock: ...

    depth: int
    """Locked methods that are running, one within another."""

    def take_back(self) -> None:
        """Take in what rows that were freed meanwhile gave up."""


_Pool = TypeVar("_Pool", bound=Lockable)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def alone(method: Callable[Concatenate[_Pool, _P], _T]) -> Callable[Concatenate[_Pool, _P], _T]:
    """One thread at a time, and what rows that were freed meanwhile gave back is taken in before and after."""

    @wraps(method)
    def locked(self: _Pool, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self.lock:
            self.take_back()
            self.depth += 1
            try:
                return method(self, *args, **kwargs)
            finally:
                self.depth -= 1
                self.take_back()

    return locked
