"""The header of a saved cache. No torch.

docs/spec/saved-cache.md is this module in prose. The header holds everything but page bytes and block tables, whose
names, types and shapes follow from it: a reader knows every byte of the file before it allocates one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = "kvassay.saved-cache/1"

_MAX_TOKENS = 1 << 40
_MAX_ROWS = 1 << 20
_MAX_PAGES = (1 << 31) - 1
"""A block table holds int32."""

Tokens = Annotated[int, Field(ge=0, le=_MAX_TOKENS)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
PoolNumber = Annotated[int, Field(ge=0, le=_MAX_ROWS)]
Part = Literal["coded", "tail", "sinks"]


class _Saved(BaseModel):
    # Strict: 1.0, true and "1" are no whole numbers, so that a header has one form only.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SavedRun(_Saved):
    """Coded tokens `first` to `end - 1` of a cohort; the first place of the first page is that of token `start`."""

    start: Tokens
    first: Tokens
    end: Tokens


class SavedPools(_Saved):
    """Which of the layer's pools hold the pages of a store."""

    coded: PoolNumber
    tail: PoolNumber
    sinks: PoolNumber


class SavedStore(_Saved):
    """Keys or values of one head group of one cohort. Token numbers count from the end of the sinks."""

    coded: Tokens
    """End of the coded tokens."""
    dropped: Tokens
    """Coded tokens before it were left behind by a sliding window."""
    recording: bool
    clipped_values: int = Field(ge=0, le=(1 << 53) - 1)
    encoded_values: int = Field(ge=0, le=(1 << 53) - 1)
    runs: list[SavedRun] = Field(max_length=_MAX_ROWS)
    tail_first: Tokens | None
    """First token of the tail, which ends with the last token; null where there is none."""
    pools: SavedPools | None
    """Null while the store holds no token."""


class SavedCohort(_Saved):
    """Rows of the batch with equal padding. `stores` are keys and values of each head group, in this order."""

    rows: list[PoolNumber] = Field(min_length=1, max_length=_MAX_ROWS)
    padding: Tokens
    """Columns before the first token of these rows; each store holds `columns - padding` tokens, at least 0."""
    stores: list[SavedStore]


class SavedPool(_Saved):
    """Pages of one layout. `store` is a store's place in its cohort: 2·group for keys, 2·group + 1 for values."""

    store: int = Field(ge=0, le=1 << 16)
    part: Part
    pages: int = Field(ge=0, le=_MAX_PAGES)
    layout: Digest


class SavedLayer(_Saved):
    columns: Tokens
    """Tokens of the batch, padding included."""
    dtype: Literal["float64", "float32", "float16", "bfloat16"]
    """Of the keys appended last."""
    recording: bool
    static: list[Digest | None]
    """Digest of the static arrays of each store, null where it has none."""
    key_transform: Digest | None
    pools: list[SavedPool] = Field(max_length=_MAX_ROWS)
    cohorts: list[SavedCohort] = Field(max_length=_MAX_ROWS)


class SavedHeader(_Saved):
    """`digest` is the SHA-256 of the canonical JSON of the rest, and so names the cache with all its pages."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    schema_: Literal["kvassay.saved-cache/1"] = Field(default=SCHEMA, alias="schema")
    layout_version: int
    page_order: str
    format: dict[str, Any]
    format_digest: Digest
    geometry: dict[str, Any]
    """`CacheGeometry`: the model's type and, for each layer, KV heads, sizes and sliding window."""
    config_digest: Digest
    revision: str | None = Field(min_length=1, max_length=1000)
    on_clip: Literal["raise", "count"]
    left_padding: list[Tokens] | None = Field(max_length=_MAX_ROWS)
    layers: list[SavedLayer]
    arrays: dict[str, Digest]
    """SHA-256 of the bytes of each array."""
    digest: Digest

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def pages_name(layer: int, pool: int) -> str:
    """The array `[pages, page_nbytes]` of a pool."""
    return f"layer{layer}.pool{pool}.pages"


def table_name(layer: int, cohort: int, store: int, part: str) -> str:
    """`part` is `sinks`, `tail` or `run0`, `run1`, ..."""
    return f"layer{layer}.cohort{cohort}.store{store}.{part}.table"
