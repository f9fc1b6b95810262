"""Codes and attention keep their own precision inside torch.autocast.

Autocast would multiply in 16 bits what a codec and the reading of pages compute in float32: codes would depend on the
context in which a token came, and kernels would be handed numbers of a type that they do not know.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def own_precision(device: torch.device) -> AbstractContextManager[object]:
    """A context without autocast on tensors of `device`."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
