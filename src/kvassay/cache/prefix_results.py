"""What PrefixStore answers: how much of a prompt is there already, and why not more."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from kvassay.cache.quantized_cache import QuantizedCache


class PrefixSource(StrEnum):
    """Where the tokens of a lookup come from."""

    NOTHING = "nothing is stored for this prompt"
    BLOCKS = "blocks of coded tokens"
    SNAPSHOT = "a snapshot of the whole cache after exactly these tokens"


class PrefixBound(StrEnum):
    """Why a lookup gives no more tokens than it does."""

    NOT_STORED = "nothing longer is stored"
    LAST_BLOCK = "the prompt has no further whole block"
    STILL_EXACT = (
        "what follows would still be exact, or wait for its block, at the end of the prompt, so it is run again"
    )
    LAST_TOKEN = "at least one token is left to run"
    WINDOW = "behind it, the last window of the sliding layers is not stored"
    NO_BLOCKS = "this format has no block bounds on this model"


class Lookup(NamedTuple):
    """A cache to go on with. Run `token_ids[tokens:]` through the model with it."""

    cache: QuantizedCache
    """The cache that was given, now with `tokens` tokens; it shares their pages with the store."""
    tokens: int
    asked_tokens: int
    matched_tokens: int
    """Tokens of the prompt whose blocks are stored, usable or not."""
    source: PrefixSource
    bound: PrefixBound
    damaged: tuple[str, ...]
    """Files that were not what was written, each with the reason; they were removed and counted as absent."""


class Put(NamedTuple):
    """What a put added."""

    new_blocks: int
    """Blocks of which a part was added, in memory or in the folder."""
    stored_tokens: int
    """Tokens of the text, from its first one, whose blocks the store now has."""
    snapshot: bool
    """True where a snapshot of these tokens is now kept."""
    left_out: str | None
    """Why something that could be stored was not; None if nothing was left out."""


class PrefixStatistics(NamedTuple):
    """Counts since the store was made."""

    puts: int
    """Puts that came to their end."""
    stored_blocks: int
    lookups: int
    hits: int
    """Lookups that gave at least one token."""
    asked_tokens: int
    reused_tokens: int
    damaged_files: int

    @property
    def hit_rate(self) -> float | None:
        """Share of asked tokens that were reused; None before the first lookup."""
        return self.reused_tokens / self.asked_tokens if self.asked_tokens else None
