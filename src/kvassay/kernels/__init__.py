"""Fused attention over packed KV tiles, compiled for the processor; `docs/design/tile-layout.md` draws the tiles.

The compiled module may be missing: without a compiler kvassay installs as pure Python. `native_state` says which.
"""

from kvassay.kernels.native import NativeState, kernels_text, native_state

__all__ = ["NativeState", "kernels_text", "native_state"]
