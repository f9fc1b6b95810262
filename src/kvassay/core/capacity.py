"""The largest batch, and the longest context, whose KV cache fits a memory budget: by formula, without torch.

A cache that grows to N tokens passes every shorter length, and it is larger just before waiting tokens are packed than
after. So "N tokens fit" means here that every length up to N fits, and what a batch uses is its peak over these lengths
(`core.fullest_length`), not what it takes at N.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from kvassay.core.fullest_length import RowGrowth
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat
from kvassay.core.ledger import ByteLedger, predict_ledger
from kvassay.errors import GeometryError

MOST_TOKENS = 1_000_000_000
"""No longer context is looked for; a cache of sliding layers alone would fit any."""


class Holds(StrEnum):
    """What has to fit into a budget."""

    CACHE = "persistent bytes of the cache; weights and workspace are beside it"
    EVERYTHING = "weights, persistent bytes of the cache, and the workspace of one decode step"


class Limit(StrEnum):
    """What keeps a batch or a context from being larger."""

    BUDGET = "budget"
    BATCH_STEP = "batch step"
    """One row more would fit, the next multiple of the step would not."""
    MODEL_CONTEXT = "model's context"
    SEARCH_END = "search end"
    """Bytes stop growing, so the budget sets no limit."""


class Budget(NamedTuple):
    """Memory to fill. `weights_nbytes` is None where they are not known."""

    nbytes: int
    holds: Holds = Holds.CACHE
    weights_nbytes: int | None = None

    def used_nbytes(self, ledger: ByteLedger, longest: ByteLedger | None = None) -> int:
        """What a cache takes of the budget that is fullest in `ledger`, and grows to `longest` if that is another.

        Steps need most at the longest, since their bound never falls with the tokens.
        """
        if self.holds is Holds.CACHE:
            return ledger.persistent_nbytes
        if self.weights_nbytes is None:
            raise GeometryError("weights belong into the budget and their size is not known; give it")
        return self.weights_nbytes + ledger.persistent_nbytes + step_workspace_nbytes(longest or ledger)


def step_workspace_nbytes(ledger: ByteLedger) -> int:
    """What a decode step is given: the bound, which rises with tokens and rows as bytes do, unlike a prediction."""
    return 0 if ledger.transient_phases is None else ledger.transient_phases.step_bound_nbytes


class LargestBatch(NamedTuple):
    """Rows of `context` tokens that fit. `batch` is 0 where not even one step of rows does."""

    batch: int
    limit: Limit
    used_nbytes: int
    """Of the budget, at the fullest length on the way to the context; 0 without a row."""
    next_batch: int
    next_nbytes: int
    """What the next batch would take at that length: more than the budget."""
    fullest_tokens: int
    """That length."""


class LargestContext(NamedTuple):
    """Tokens of one row, so that every shorter row fits too. `tokens` is 0 where one token does not fit."""

    tokens: int
    limit: Limit
    tokens_by_bytes: int
    """What the budget alone allows, whatever the model's context is."""


class Capacity(NamedTuple):
    """Both answers for one format. `sequence` is the ledger of one row alone."""

    kv_format: KVFormat
    sequence: ByteLedger
    batch: LargestBatch
    context: LargestContext


def capacity(
    geometry: CacheGeometry, kv_format: KVFormat, budget: Budget, context: int, batch_step: int = 1
) -> Capacity:
    """Largest batch at `context` tokens, in multiples of `batch_step`, and longest context of one row.

    Raises GeometryError for a context that the model does not have.
    """
    check_context(geometry, context)
    return Capacity(
        kv_format,
        predict_ledger(geometry, kv_format, context),
        largest_batch(geometry, kv_format, budget, context, batch_step),
        largest_context(geometry, kv_format, budget),
    )


def check_context(geometry: CacheGeometry, context: int) -> None:
    if geometry.max_context is not None and context > geometry.max_context:
        raise GeometryError(
            f"--context {context} is longer than this {geometry.model_type} model's own {geometry.max_context} tokens; "
            f"use at most --context {geometry.max_context}"
        )


def largest_batch(
    geometry: CacheGeometry, kv_format: KVFormat, budget: Budget, context: int, batch_step: int = 1
) -> LargestBatch:
    """By doubling and bisection: bytes rise with the batch, and the fullest length is the same for any."""
    fullest = fullest_length(geometry, kv_format, context)

    def used(batch: int) -> int:
        longest = predict_ledger(geometry, kv_format, context, batch)
        at_fullest = longest if fullest == context else predict_ledger(geometry, kv_format, fullest, batch)
        return budget.used_nbytes(at_fullest, longest)

    steps = _largest(lambda count: used(count * batch_step) <= budget.nbytes)
    batch = steps * batch_step
    one_more_fits = batch_step > 1 and used(batch + 1) <= budget.nbytes
    return LargestBatch(
        batch=batch,
        limit=Limit.BATCH_STEP if one_more_fits else Limit.BUDGET,
        used_nbytes=used(batch) if batch else 0,
        next_batch=batch + batch_step,
        next_nbytes=used(batch + batch_step),
        fullest_tokens=fullest,
    )


def largest_context(geometry: CacheGeometry, kv_format: KVFormat, budget: Budget) -> LargestContext:
    """Longest context of one row, at most the model's own."""
    growth = RowGrowth(geometry, kv_format)

    def fits(tokens: int) -> bool:
        longest, fullest = predict_ledger(geometry, kv_format, tokens), growth.fullest_length(tokens)
        at_fullest = longest if fullest == tokens else predict_ledger(geometry, kv_format, fullest)
        return budget.used_nbytes(at_fullest, longest) <= budget.nbytes

    by_bytes = _largest(fits, MOST_TOKENS)
    if geometry.max_context is not None and by_bytes >= geometry.max_context:
        return LargestContext(geometry.max_context, Limit.MODEL_CONTEXT, by_bytes)
    return LargestContext(by_bytes, Limit.SEARCH_END if by_bytes == MOST_TOKENS else Limit.BUDGET, by_bytes)


def fullest_length(geometry: CacheGeometry, kv_format: KVFormat, tokens: int) -> int:
    """The length of 1 to `tokens` at which a cache holds most, whatever its batch."""
    return RowGrowth(geometry, kv_format).fullest_length(tokens)


def _largest(fits: Callable[[int], bool], end: int | None = None) -> int:
    """The largest number up to `end` for which a falling condition holds; 0 if it does not for 1."""
    good, bad = 0, 1
    while fits(bad):
        if bad == end:
            return bad
        good, bad = bad, 2 * bad if end is None else min(2 * bad, end)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good
