"""ByteLedger: every stored byte, by side and owner, with the basis of each figure.

`predict_ledger` computes the ledger of a cache from geometry and format alone. The cache reports an `allocated`
ledger from its real storages; a test asserts that the two are equal, byte for byte.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from kvassay.core.geometry import CacheGeometry, Owner
from kvassay.core.kv_format import KVFormat, SidePlan, head_groups
from kvassay.core.layout import static_nbytes
from kvassay.core.paging import (
    PAGE_RECORD_NBYTES,
    PAGE_TOKENS,
    TABLE_ENTRY_NBYTES,
    TAIL_PAGE_TOKENS,
    exact_page_layout,
    page_layout,
    side_pages,
)
from kvassay.core.transient_peak import TransientPath, TransientPeaks, transient_peaks

ASSUMPTIONS = (
    "Persistent bytes are those of the arrays that this library's cache allocates at this length: codes, scales, "
    "minimums, full-precision window, sinks and skipped layers, and the unused end of the last page. A shorter cache "
    "may take more, just before waiting tokens are packed.",
    "Codes are tightly packed; the alignment of an array within its page is 64 bytes, and a page has no header.",
    f"Stored arrays grow by pages of {PAGE_TOKENS} tokens, rounded up to whole blocks; the full-precision tail by "
    f"pages of {TAIL_PAGE_TOKENS}. Block tables, reference counts and places of pages are counted.",
    "Object headers, allocator rounding, weights and activations are excluded.",
    "The transient figure is the most that one layer's call allocates and gives back, of a float32 model: a prefill of "
    "all tokens in one call, a flush (a step of one token that completes a block of several) and a decode step, at "
    "these tokens and rows. It is given by path: with the compiled kernels, their own memory for one thread included, "
    "which is what is taken by default, and in torch alone, where attention reads pages tile by tile. The attention of "
    "a prefill reads the model's own keys and values and is not in it; attention='decoded' holds a whole layer as "
    "floats besides. A thread of the kernels keeps less than 1 MiB to work in.",
)

KEY_TRANSFORM_ASSUMPTION = (
    "Key bias and rotary embedding that a format removes before encoding cost no stored byte: decoding regenerates "
    "them from the model's weights and the token's position. Their cosine tables, shared by all layers, are excluded."
)


def ledger_assumptions(kv_format: KVFormat) -> tuple[str, ...]:
    """What the byte figures of this format leave out or take for granted."""
    return (*ASSUMPTIONS, KEY_TRANSFORM_ASSUMPTION) if kv_format.transforms_keys else ASSUMPTIONS


class Basis(StrEnum):
    """Where a byte figure comes from."""

    COMPUTED = "computed"
    ALLOCATED = "allocated"
    ENGINE_REPORTED = "engine_reported"


class ByteLedger(BaseModel):
    """Bytes of one cache. Keys and values are counted apart; `persistent` excludes the transient workspace."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_name: str
    format_digest: str
    basis: Basis
    tokens: int
    batch: int
    keys_nbytes: dict[Owner, int]
    values_nbytes: dict[Owner, int]
    peak_transient_nbytes: int | None
    """The largest of `transient_phases`."""
    transient_basis: Basis | None
    transient_phases: TransientPeaks | None = None
    """By kind of call, on the path that is taken by default, and whether predicted or only bounded; None where nobody
    said."""
    transient_in_torch: TransientPeaks | None = None
    """The same without the compiled module."""
    float32_nbytes: int
    """The same tokens as float32: one denominator of savings."""
    float16_nbytes: int
    """The same tokens in 16 bits: the usual denominator of savings."""
    assumptions: tuple[str, ...] = ASSUMPTIONS

    @property
    def persistent_nbytes(self) -> int:
        return sum(self.keys_nbytes.values()) + sum(self.values_nbytes.values())

    @property
    def persistent_nbytes_per_token(self) -> float:
        """Mean over all tokens of all rows, windows, sinks and padding included."""
        return self.persistent_nbytes / (self.tokens * self.batch)

    @property
    def ratio_to_float16(self) -> float:
        """Persistent bytes as a share of the same tokens in 16 bits."""
        return self.persistent_nbytes / self.float16_nbytes

    def owner_nbytes(self, owner: Owner) -> int:
        return self.keys_nbytes.get(owner, 0) + self.values_nbytes.get(owner, 0)

    def to_json(self) -> dict[str, object]:
        """Fields plus the derived figures, so that a reader of the JSON needs no arithmetic."""
        return {
            **self.model_dump(mode="json"),
            "persistent_nbytes": self.persistent_nbytes,
            "persistent_nbytes_per_token": self.persistent_nbytes_per_token,
            "ratio_to_float16": self.ratio_to_float16,
        }


def predict_ledger(geometry: CacheGeometry, kv_format: KVFormat, tokens: int, batch: int = 1) -> ByteLedger:
    """The ledger of a cache that holds `tokens` tokens in each of `batch` rows."""
    if tokens < 1 or batch < 1:
        raise ValueError(f"tokens and batch must be at least 1, found {tokens} and {batch}")
    keys: Counter[Owner] = Counter()
    values: Counter[Owner] = Counter()
    elements = 0
    for index, layer in enumerate(geometry.layers):
        skipped = kv_format.skips(index)
        for group in head_groups(kv_format, index, layer):
            heads = group.num_heads
            keys.update(_side_nbytes(group.keys, heads, layer.head_dim, tokens, batch, kv_format, skipped))
            values.update(_side_nbytes(group.values, heads, layer.value_dim, tokens, batch, kv_format, skipped))
        visible = min(tokens, layer.sliding_window or tokens)
        elements += batch * layer.kv_heads * (layer.head_dim + layer.value_dim) * visible
    transient, in_torch = (transient_peaks(geometry, kv_format, tokens, batch, path) for path in TransientPath)
    return ByteLedger(
        format_name=kv_format.name,
        format_digest=kv_format.digest,
        basis=Basis.COMPUTED,
        tokens=tokens,
        batch=batch,
        keys_nbytes=dict(keys),
        values_nbytes=dict(values),
        peak_transient_nbytes=transient.largest_nbytes,
        transient_basis=Basis.COMPUTED,
        transient_phases=transient,
        transient_in_torch=in_torch,
        float32_nbytes=4 * elements,
        float16_nbytes=2 * elements,
        assumptions=ledger_assumptions(kv_format),
    )


def _side_nbytes(
    plan: SidePlan,
    kv_heads: int,
    dim: int,
    tokens: int,
    batch: int,
    kv_format: KVFormat,
    skipped: bool,
) -> dict[Owner, int]:
    """Bytes by owner of one side of a head group."""
    pages = side_pages(plan, tokens)
    coded = page_layout(plan.spec, kv_heads, dim, plan.side)
    nbytes: Counter[Owner] = Counter(static_nbytes(plan.spec, kv_heads, dim))
    blocks = batch * pages.stored_tokens // coded.block_tokens
    filled = 0
    for region in coded.regions:
        part = blocks * region.stream.block_nbytes
        nbytes[Owner.SKIPPED_LAYERS if skipped else region.stream.owner] += part
        filled += part
    allocated = batch * pages.coded_pages * coded.nbytes
    numbers = batch * pages.page_numbers
    for tokens_held, kept, page, owner in (
        (pages.tail_tokens, pages.tail_pages, TAIL_PAGE_TOKENS, Owner.WINDOW),
        (pages.sink_tokens, pages.sink_pages, plan.sinks, Owner.SINKS),
    ):
        if not kept:
            continue
        layout = exact_page_layout(kv_format.exact_dtype, kv_heads, dim, plan.side, page)
        part = batch * tokens_held * layout.regions[0].stream.block_nbytes
        nbytes[owner] += part
        filled += part
        allocated += batch * kept * layout.nbytes
    nbytes[Owner.PADDING] += allocated - filled
    nbytes[Owner.BLOCK_TABLE] += numbers * (PAGE_RECORD_NBYTES + TABLE_ENTRY_NBYTES)
    return {owner: count for owner, count in nbytes.items() if count}
