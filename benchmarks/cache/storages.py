"""Bytes of every tensor that an object reaches: one count for all libraries' caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def storage_nbytes(root: Any) -> int:
    """Sum of the distinct storages of tensors and numpy arrays in `root`: attributes, containers, wrapped tensors.

    Modules and classes are not entered, so that a cache which knows its model does not count the weights.
    """
    storages: dict[int, int] = {}
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, (str, bytes, int, float, type, torch.nn.Module)):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            if hasattr(item, "__tensor_flatten__"):  # a wrapper, such as quanto's: its own storage is empty
                names, _ = item.__tensor_flatten__()
                waiting += [getattr(item, name) for name in names]
            else:
                storage = item.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(item, np.ndarray):
            whole = item if item.base is None else item.base
            storages[item.ctypes.data] = whole.nbytes if isinstance(whole, np.ndarray) else item.nbytes
        elif isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting += item
        else:
            waiting += vars(item).values() if hasattr(item, "__dict__") else []
            names = {name for kind in type(item).__mro__ for name in _slots(kind)}
            waiting += [getattr(item, name) for name in names if hasattr(item, name)]
    storages.pop(0, None)  # tensors of no elements
    return sum(storages.values())


def _slots(kind: type) -> tuple[str, ...]:
    slots = getattr(kind, "__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
