"""A cache inside one graph of torch.compile: two custom operators, whose outputs' shapes a graph can know.

How much an append encodes, and where, depends on lengths and values, so no graph can hold its steps. `append` and
`attend` are opaque to it instead: at run time they call the cache named by a number, and to the compiler they are
functions of their tensors. What `append` returns stands for the stored keys and values and has their shape; it holds
NaN, in one element that is spread over it, so that a model which does anything else with keys than to attend to them
cannot get a number out of it. That `attend` follows is agreed while the graph is traced (`Promise`).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kvassay.cache.packed_view import PackedView
from kvassay.errors import CacheStateError

_caches: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)
_views: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
"""What `update` handed out, by cache and layer, until `attend` takes it."""


def number_of(cache: Any) -> int:
    """A number by which operators find a cache as long as it lives."""
    number = next(_numbers)
    _caches[number] = cache
    return number


class Promise:
    """While a graph is traced: the layer whose `append` was traced last and whose `attend` was not yet."""

    keys: Tensor | None = None
    """What it returned: attention that is given other keys has nothing to do with it."""
    number: int = 0
    """Of the cache."""
    layer: int = 0

    def made(self, keys: Tensor) -> bool:
        return self.keys is not None and self.keys is keys


promise = Promise()
_attends: list[Callable[..., Tensor]] = []


def attend_by(function: Callable[..., Tensor]) -> None:
    """What `attend` calls: the attention of packed views, which stands above this module."""
    _attends[:] = [function]


@torch.library.custom_op("kvassay::append", mutates_args=())
def append(keys: Tensor, values: Tensor, number: int, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
    cache = _caches.get(number)
    if cache is None:
        raise CacheStateError("the compiled graph's cache is gone; call the model with a cache that is kept")
    _views[number, layer] = cache.update(keys, values, layer)
    return _spread(keys, tokens), _spread(values, tokens)


@append.register_fake
def _(keys: Tensor, values: Tensor, number: int, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
    return _spread(keys, tokens), _spread(values, tokens)


def _spread(states: Tensor, tokens: int) -> Tensor:
    rows, heads, _, dim = states.shape
    return states.new_full((1, 1, 1, 1), torch.nan).expand(rows, heads, tokens, dim)


@torch.library.custom_op("kvassay::attend", mutates_args=())
def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    number: int,
    layer: int,
) -> Tensor:
    stored = _views.pop((number, layer), None)
    if stored is None or not isinstance(stored[0], PackedView):
        raise CacheStateError("the compiled graph attends to keys that it did not append; this is a fault of kvassay")
    return _attends[0](query, *stored, mask, scaling=scaling, softcap=softcap, s_aux=sinks)


@attend.register_fake
def _(query, keys, values, mask, sinks, scaling, softcap, number, layer) -> Tensor:
    rows, heads, queries, _ = query.shape
    return query.new_empty((rows, queries, heads, values.shape[3]))
