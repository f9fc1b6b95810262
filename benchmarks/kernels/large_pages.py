"""Memory in pages of 2 MiB, where large slabs of our cache lie; other engines' caches lie there too."""

from __future__ import annotations

from torch import Tensor

from kvassay.cache.huge_pages import huge_page_memory


def on_large_pages(tensor: Tensor) -> Tensor:
    """The same numbers on large pages; the tensor itself where it is too small or the system has none."""
    memory = huge_page_memory(tensor.numel() * tensor.element_size())
    return tensor if memory is None else memory.view(tensor.dtype).view(tensor.shape).copy_(tensor)
