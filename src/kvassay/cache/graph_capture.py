"""What happens when torch captures a model with a QuantizedCache as a graph.

How much is encoded, and where, depends on lengths and values, so no fixed graph can hold an append. `torch.compile`
runs it between two graphs and compiles the rest of the model; what wants the whole model in one graph is refused.
"""

from __future__ import annotations

import torch

from kvassay.errors import CacheStateError

BREAK_REASON = (
    "a QuantizedCache encodes by lengths and values, so its append is in no graph; call torch.compile without "
    "fullgraph=True, which runs it between graphs"
)


def require_no_export() -> None:
    """Raise CacheStateError inside torch.export or torch.jit.trace, whose graph would hold the codes of one example."""
    exporting = torch.compiler.is_exporting()
    if exporting or torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]  (documented, not exported)
        capturing = "torch.export" if exporting else "torch.jit.trace"
        raise CacheStateError(
            f"{capturing} captures the model with a QuantizedCache, whose append no fixed graph can hold; export the "
            "model without a cache, or run it with torch.compile and without fullgraph=True"
        )
