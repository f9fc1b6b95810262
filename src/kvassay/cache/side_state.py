"""The state of a SideStore as one value: what a file or a store of prefixes keeps of it, and how it comes back.

The value holds the pages themselves; `page_bytes` reads them, and `require_possible` says whether counts that come from
elsewhere can be those of a store.
"""

from __future__ import annotations

from typing import NamedTuple

from kvassay.cache.side_parts import SideParts
from kvassay.cache.side_store import SideStore
from kvassay.core.kv_format import SidePlan
from kvassay.core.paging import TAIL_PAGE_TOKENS, PageLayout
from kvassay.errors import CacheStateError


class SideState(NamedTuple):
    """All that a store holds."""

    tokens: int
    coded: int
    dropped: int
    recording: bool
    clipped_values: int
    encoded_values: int
    parts: SideParts | None
    """None while no token is held."""


class RunTokens(NamedTuple):
    """Which tokens a block table serves: `first` to `end - 1`, from a page that begins with token `start`."""

    start: int
    first: int
    end: int

    def num_pages(self, layout: PageLayout) -> int:
        return -(-(self.end - self.start) // layout.tokens)


def side_state(store: SideStore) -> SideState:
    """The state of a store; it shares the store's pages and is valid until the store changes."""
    return SideState(
        store.tokens,
        store.coded,
        store.dropped,
        store.recording,
        store.clipped_values,
        store.encoded_values,
        store.parts,
    )


def restore_side(store: SideStore, state: SideState) -> None:
    """Give an empty store a state; it takes over the pages."""
    store.parts = state.parts
    store.tokens, store.coded, store.dropped = state.tokens, state.coded, state.dropped
    store.recording = state.recording
    store.clipped_values, store.encoded_values = state.clipped_values, state.encoded_values


def sinks_tokens(plan: SidePlan, tokens: int) -> RunTokens:
    """Sinks of a store of `tokens` tokens."""
    return RunTokens(0, 0, min(tokens, plan.sinks))


def tail_tokens(plan: SidePlan, tokens: int, first: int | None) -> RunTokens:
    """The tail from token `first` on; without one, it is empty."""
    if first is None:
        return RunTokens(0, 0, 0)
    return RunTokens(first // TAIL_PAGE_TOKENS * TAIL_PAGE_TOKENS, first, max(0, tokens - plan.sinks))


def require_possible(
    plan: SidePlan,
    page_tokens: int,
    tokens: int,
    coded: int,
    dropped: int,
    runs: list[RunTokens],
    tail_first: int | None,
) -> None:
    """Raise CacheStateError unless a store of this plan can hold `tokens` tokens in just these parts."""
    left = max(0, tokens - plan.sinks)
    if not 0 <= dropped <= coded <= left:
        raise CacheStateError(
            f"{coded} coded tokens of which {dropped} were dropped; {left} tokens stand behind the sinks"
        )
    window = plan.sliding_window
    if dropped > (0 if window is None else max(0, tokens - window + 1)):
        raise CacheStateError(f"{dropped} tokens are dropped that the next query would still see")
    end = runs[0].first if runs else coded
    if end > dropped:
        raise CacheStateError(f"codes begin with token {end}, expected at most {dropped}")
    for run in runs:
        if run.first != end or not run.start <= run.first < min(run.end, run.start + page_tokens):
            raise CacheStateError(
                f"a run has tokens {run.first} to {run.end} in pages from token {run.start} on; runs follow each "
                "other, each with its first token in its first page"
            )
        end = run.end
    if end != coded:
        raise CacheStateError(f"codes end with token {end}, expected {coded}")
    if tail_first is None and coded != left:
        raise CacheStateError(f"tokens {coded} to {left} are neither coded nor in a tail")
    if tail_first is not None and not (tail_first <= coded and tail_first < left):
        raise CacheStateError(f"the tail begins with token {tail_first}; codes end with {coded}, tokens with {left}")
