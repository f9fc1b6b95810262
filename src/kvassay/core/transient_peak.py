"""What one layer's call needs beyond what it leaves behind, predicted: prefill, flush and decode. No torch.

`core.workspace` bounds any call from above; this counts the arrays that the cache's code holds at its fullest moments,
for a cache whose rows are not padded, on each of two paths (`TransientPath`). Lengths and pieces follow `core.tiles`,
as the cache does; what a codec takes while it works is its method's own row (`Method.working`). Bytes are those asked
of the allocator, and on the kernels' path what their own scratch memory takes.

The moments of a call: the last piece of keys or of values is encoded, while all before it is held and pages that will
be kept are not yet allocated; everything is encoded and enters the pages; kernels read the pages, or one side of one
tile is decoded.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kernel_reach import reads_layer
from kvassay.core.kv_format import KVFormat, head_groups
from kvassay.core.spec import FloatDtype
from kvassay.core.transient_attend import kernel_scratch_nbytes, kernel_tensors_nbytes, tiled_nbytes
from kvassay.core.transient_side import Side, working_nbytes
from kvassay.core.workspace import workspace


class Phase(StrEnum):
    """A kind of call."""

    PREFILL = "prefill"
    """All tokens in one call, into an empty cache."""
    FLUSH = "flush"
    """A step of one token that completes a block of several."""
    DECODE = "decode"
    """A step of one token that completes none."""


class TransientPath(StrEnum):
    """By what the cache's work is done, which decides what it takes."""

    KERNELS = "kernels"
    """With the compiled module, and attention as it is by default: kernels read every layer that they can."""
    TORCH = "torch"
    """Without the module: pages are written by torch and read tile by tile."""


PATH_WORDS = {TransientPath.KERNELS: "by compiled kernels", TransientPath.TORCH: "in torch alone"}


class TransientBasis(StrEnum):
    """What a transient figure claims."""

    PREDICTED = "predicted"
    """Within 10% of what is taken on the kernels' path, 15% in torch (`tests/cache/test_transient_peak.py`)."""
    BOUND = "bound"
    """Not less than that: some layer's format has no prediction, and `core.workspace` bounds it."""


class TransientPeaks(BaseModel):
    """Most transient bytes of one layer's call, over all layers, at one length and batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    basis: TransientBasis
    path: TransientPath = TransientPath.TORCH
    """Files from before there was a choice are of torch."""
    prefill_nbytes: int
    """All tokens in one call, into the empty cache."""
    flush_nbytes: int | None
    """None where no step completes a block of several tokens."""
    decode_nbytes: int
    step_bound_nbytes: int
    """Upper bound of any step (`core.workspace`). Unlike the others it never falls with the tokens or the batch."""

    @property
    def largest_nbytes(self) -> int:
        return max(self.prefill_nbytes, self.flush_nbytes or 0, self.decode_nbytes)


def transient_peaks(
    geometry: CacheGeometry,
    kv_format: KVFormat,
    tokens: int,
    batch: int = 1,
    path: TransientPath = TransientPath.KERNELS,
) -> TransientPeaks:
    """Of a float32 model whose cache holds `tokens` tokens in each of `batch` rows."""
    basis = TransientBasis.PREDICTED
    found: dict[Phase, int] = {}
    step_bound = 0
    alike: set[tuple[object, ...]] = set()
    for index, layer in enumerate(geometry.layers):
        kind = (layer, head_groups(kv_format, index, layer))
        if kind in alike:
            continue
        alike.add(kind)
        query_heads = geometry.query_heads
        bound = workspace(kv_format, layer, query_heads, chunk=1, context=tokens, batch=batch, index=index)
        step_bound = max(step_bound, bound.nbytes)
        predicted = is_predicted(kv_format, index, layer)
        if not predicted:
            basis = TransientBasis.BOUND
        for phase in Phase:
            if predicted:
                nbytes = layer_peak(kv_format, index, layer, query_heads, phase, path, tokens=tokens, batch=batch)
            else:
                nbytes = _layer_bound(kv_format, index, layer, query_heads, phase, tokens=tokens, batch=batch)
            if nbytes is not None:
                found[phase] = max(found.get(phase, 0), nbytes)
    return TransientPeaks(
        basis=basis,
        path=path,
        prefill_nbytes=found[Phase.PREFILL],
        flush_nbytes=found.get(Phase.FLUSH),
        decode_nbytes=found.get(Phase.DECODE, 0),
        step_bound_nbytes=step_bound,
    )


def _layer_bound(
    kv_format: KVFormat,
    index: int,
    layer: LayerGeometry,
    query_heads: int,
    phase: Phase,
    *,
    tokens: int,
    batch: int,
) -> int | None:
    if call_tokens(kv_format, index, layer, phase, tokens) is None:
        return None
    chunk = tokens if phase is Phase.PREFILL else 1
    bound = workspace(kv_format, layer, query_heads, chunk=chunk, context=tokens, batch=batch, index=index)
    return bound.appending_only_nbytes if phase is Phase.PREFILL else bound.nbytes


def is_predicted(kv_format: KVFormat, index: int, layer: LayerGeometry) -> bool:
    """False where only `workspace` says something: transformed keys, heads of several formats, undeclared methods."""
    groups = head_groups(kv_format, index, layer)
    return (
        len(groups) == 1
        and not kv_format.transforms_keys
        and all(plan.spec.is_exact or working_nbytes(plan.spec) for plan in (groups[0].keys, groups[0].values))
    )


def call_tokens(kv_format: KVFormat, index: int, layer: LayerGeometry, phase: Phase, tokens: int) -> int | None:
    """The largest length up to `tokens` that a call of this kind ends at; None where the format has no such call."""
    if phase is Phase.PREFILL:
        return tokens
    plans = [plan for group in head_groups(kv_format, index, layer) for plan in (group.keys, group.values)]
    blocked = [plan for plan in plans if plan.spec.tokens_per_block > 1]

    def completes(length: int) -> bool:
        return any(plan.committed_tokens(length) > plan.committed_tokens(length - 1) for plan in blocked)

    if phase is Phase.DECODE:
        # Each side completes a block at every other length at most.
        return next((length for length in range(tokens, max(1, tokens - 4), -1) if not completes(length)), None)
    ends = (
        plan.sinks + plan.recent + plan.committed_tokens(tokens) for plan in blocked if plan.committed_tokens(tokens)
    )
    return next((length for length in sorted(ends, reverse=True) if length > 1), None)


def layer_peak(
    kv_format: KVFormat,
    index: int,
    layer: LayerGeometry,
    query_heads: int,
    phase: Phase,
    path: TransientPath = TransientPath.KERNELS,
    *,
    tokens: int,
    batch: int = 1,
    dtype: FloatDtype = "float32",
    counts_scratch: bool = True,
) -> int | None:
    """Transient bytes of one call; None where there is no such call.

    `tokens` are held in each row after it; steps take the largest length up to it that is of their kind. `dtype` is
    the model's. Without `counts_scratch` only tensors count, which is what torch's allocator sees. Only where
    `is_predicted`.
    """
    group = head_groups(kv_format, index, layer)[0]
    length = call_tokens(kv_format, index, layer, phase, tokens)
    if length is None:
        return None
    before = 0 if phase is Phase.PREFILL else length - 1
    sides = [
        Side(plan, kv_format.exact_dtype, dtype, batch, layer.kv_heads, dim, by_kernels=path is TransientPath.KERNELS)
        for plan, dim in ((group.keys, layer.head_dim), (group.values, layer.value_dim))
    ]
    appending = _append(sides, before, length)
    if phase is Phase.PREFILL:
        return round(appending)
    keys, values = sides
    if path is TransientPath.TORCH or not reads_layer(kv_format, index, layer, query_heads):
        return round(max(appending, tiled_nbytes(keys, values, query_heads, length)))
    attending = kernel_tensors_nbytes(keys, values, query_heads)
    if counts_scratch:
        attending += kernel_scratch_nbytes(keys, values, query_heads, length)
    return round(max(appending, attending))


def _append(sides: list[Side], before: int, after: int) -> float:
    """Most bytes beyond those of the pages after it. Pages count once they are allocated, which is side by side."""
    encodings = [side.encoding(before, after) for side in sides]
    new_pages = [side.new_pages_nbytes(before, after) for side in sides]
    kept = sum(new_pages)
    held = allocated = 0.0
    largest = 0.0
    for encoding, pages in zip(encodings, new_pages, strict=True):
        largest = max(largest, allocated + held + encoding.peak_nbytes - kept)
        held += encoding.held_nbytes
        allocated += pages
    return max(largest, held + max(each.writing_nbytes for each in encodings))
