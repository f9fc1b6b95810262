"""What happens when torch captures a model with a QuantizedCache as a graph.

How much is encoded, and where, depends on lengths and values, so no fixed graph can hold an append. Once a cache holds
tokens, `torch.compile` has append and attention as operators (`traced`), and a forward is one graph. The first tokens,
and models whose attention reads no pages, run between two graphs, or are refused where one graph is wanted.
"""

from __future__ import annotations

import torch

from kvassay.errors import CacheStateError

BREAK_REASON = (
    "the first tokens of a QuantizedCache, and models whose attention reads no pages, are in no graph; run the prompt "
    "by the model that is not compiled (decoding is one graph then), or call torch.compile without fullgraph=True, "
    "which runs them between graphs"
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
