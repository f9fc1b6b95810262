"""A digest of a tensor: equal for equal dtype, shape and bytes, wherever it lies."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 of dtype, shape and the row-major bytes."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    whole = tensor.detach().cpu().contiguous().reshape(-1)
    digest.update(memoryview(whole.view(torch.uint8).numpy()))
    return digest.hexdigest()
