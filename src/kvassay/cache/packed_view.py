"""PackedView: what `update` hands to a model instead of decoded keys or values.

Attention that knows it (`attention`) reads the pages tile by tile and never holds a decoded layer. To everything else
it is a tensor: the first operation on it decodes what it stands for, once.

A call of several tokens reads older tokens as they stood before the call, and the call's own tokens exactly. So what
the call appends is worked out at once, and enters the pages when nobody can ask for the older state any more: when both
views are gone or decoded, or before the next change of the layer.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from kvassay.cache.attention_path import AttentionPath
from kvassay.core.kv_format import Side

if TYPE_CHECKING:
    from kvassay.cache.cohorts import Cohort, StoredHeads
    from kvassay.cache.quantized_layer import QuantizedLayer


class NewTokens(NamedTuple):
    """Keys and values of a call of several tokens, `[batch, kv_heads, tokens, dim]`."""

    keys: Tensor
    values: Tensor


class SeenTokens:
    """What the queries of one call read: columns `begin` to `end - 1` of the pages, then `new`."""

    def __init__(
        self, layer: QuantizedLayer, cohorts: tuple[Cohort, ...], begin: int, end: int, new: NewTokens | None
    ) -> None:
        self.layer = layer
        self.cohorts = cohorts
        self.begin = begin
        self.end = end
        self.new = new
        self.whole: StoredHeads | None = None
        """The stores of the layer where there is one a side (`cohorts.stored_as_one`); None where there are more."""
        self._views: list[weakref.ref[PackedView]] = []

    def views(self, tokens: int, keys_dtype: torch.dtype, values_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values of `tokens` columns, to be read when they are needed."""
        geometry = self.layer.geometry
        rows = sum(len(cohort.rows) for cohort in self.cohorts)
        device = next(iter(self.cohorts[0].stores)).device
        sides: tuple[tuple[Side, int, torch.dtype], ...] = (
            ("keys", geometry.head_dim, keys_dtype),
            ("values", geometry.value_dim, values_dtype),
        )
        made = [
            PackedView(self, side, (rows, geometry.kv_heads, tokens, dim), dtype, device) for side, dim, dtype in sides
        ]
        self._views = [weakref.ref(view) for view in made]
        return made[0], made[1]

    def decode_views(self) -> None:
        """Decode those that somebody still holds."""
        for reference in self._views:
            view = reference()
            if view is not None:
                view.decode()

    def __del__(self) -> None:
        # Views that still need this would hold it; one that is just being freed must not be touched.
        self._views = []
        # One that is freed while the layer is being written has nothing to do.
        if sys.is_finalizing() or not self.layer.is_whole:
            return
        try:
            self.layer.settle()
        except BaseException as error:  # nobody sees what is raised here; the next use of the layer says it
            self.layer.interruption = error

    def decoded(self, side: Side, dtype: torch.dtype) -> Tensor:
        """`[batch, kv_heads, tokens, dim]`, all of it."""
        old = self.layer.read_columns(self.cohorts, side, dtype, self.begin, self.end)
        return old if self.new is None else torch.cat((old, getattr(self.new, side)), dim=2)


class PackedView(Tensor):
    """Keys or values of a layer, decoded when a tensor operation asks for them."""

    _seen: SeenTokens | None
    _side: Side
    _decoded: Tensor | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore  (the documented way to skip it)

    @staticmethod
    def __new__(cls, seen: SeenTokens, side: Side, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device):
        return Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

    def __init__(
        self, seen: SeenTokens, side: Side, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._seen, self._side, self._decoded = seen, side, None

    def seen(self) -> SeenTokens | None:
        """The packed tokens; None once they were decoded."""
        return self._seen

    def decode(self) -> Tensor:
        """The plain tensor; the same one each time."""
        if self._decoded is None:
            assert self._seen is not None, "a view is packed or decoded"
            self._seen.layer.path = AttentionPath.DECODED
            self._decoded = self._seen.decoded(self._side, self.dtype)
            self._seen = None
        return self._decoded

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"PackedView({self._side}, {tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def plain(each: Any) -> Any:
            return each.decode() if isinstance(each, PackedView) else each

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))
