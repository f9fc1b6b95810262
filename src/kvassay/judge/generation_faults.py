"""Faults that make an arm's generation rows unusable: unplanned, unpaired, doubled, copied, or at odds with their ids.

As for the other levels (`judge.pairing`): every arm must hold the same prompts, each once, as the contract plans them,
with one reference. Each fault is one sentence, by arm.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kvassay.core.clauses.free_running import LENGTH_SLICE, FreeRunning
from kvassay.core.free_running_rule import TokenIds
from kvassay.judge.generation_rows import GenerationRow, GenerationTable
from kvassay.judge.pairing import Faults
from kvassay.judge.wording import listed

_SHARED: tuple[tuple[str, Callable[[GenerationRow], Any]], ...] = (
    ("prompt tokens", lambda row: row.prompt_ids),
    ("slice", lambda row: row.slice),
    ("end tokens", lambda row: row.end_ids),
    ("reference output", lambda row: row.reference),
)


def generation_faults(table: GenerationTable, section: FreeRunning) -> Faults:
    faults = unpaired_outputs(table)
    for arm, rows in table.items():
        faults[arm] += _contradictions(rows, section)
        faults[arm] += impossible_figures(rows)
    return {arm: tuple(found) for arm, found in faults.items() if found}


def unpaired_outputs(table: Mapping[str, Sequence[GenerationRow]]) -> defaultdict[str, list[str]]:
    """What rows of several arms say of each other: doubled, missing or copied prompts, another prompt or reference."""
    faults: defaultdict[str, list[str]] = defaultdict(list)
    union = {row.prompt for rows in table.values() for row in rows}
    for arm, rows in table.items():
        counts = Counter(row.prompt for row in rows)
        if doubled := sorted(prompt for prompt, count in counts.items() if count > 1):
            faults[arm].append(f"several rows of one prompt: {listed(doubled)}")
        if lacking := sorted(union - set(counts)):
            faults[arm].append(f"not paired: lacks the other arms' prompts {listed(lacking)}")
        faults[arm] += _copied_prompts(rows)
    for what, value in _SHARED:
        differing = _differing(table, value)
        for arm, rows in table.items():
            if names := sorted({row.prompt for row in rows if row.prompt in differing}):
                faults[arm].append(f"{what} differs between arms for the prompts {listed(names)}")
    return faults


def _differing(table: Mapping[str, Sequence[GenerationRow]], value: Callable[[GenerationRow], Any]) -> set[str]:
    """Prompts under which rows disagree: which of them is right cannot be known."""
    first: dict[str, Any] = {}
    return {
        row.prompt for rows in table.values() for row in rows if first.setdefault(row.prompt, value(row)) != value(row)
    }


def _copied_prompts(rows: Sequence[GenerationRow]) -> Iterator[str]:
    """Prompts of equal tokens under two names: copies, not independent evidence."""
    first: dict[TokenIds, str] = {}
    copies = [
        f"{row.prompt!r} of {original!r}"
        for row in rows
        if (original := first.setdefault(row.prompt_ids, row.prompt)) != row.prompt
    ]
    if copies:
        more = f" (and {len(copies) - 1} more)" if len(copies) > 1 else ""
        yield f"prompts are copies, which are not independent: {copies[0]}{more}"


def _contradictions(rows: Sequence[GenerationRow], section: FreeRunning) -> Iterator[str]:
    planned = section.prompt_tokens
    if odd := [row for row in rows if len(row.prompt_ids) != planned]:
        found = len(odd[0].prompt_ids)
        yield f"the contract plans prompts of {planned} tokens, {odd[0].prompt!r} has {found} ({len(odd)} such prompts)"
    outputs = {"reference": [row.reference for row in rows], "candidate": [row.candidate for row in rows]}
    for what, ids_of in outputs.items():
        found = [
            (row.prompt, fault)
            for row, ids in zip(rows, ids_of, strict=True)
            if (fault := end_fault(ids, row.end_ids, section.generated_tokens, over=False))
        ]
        if found:
            prompt, fault = found[0]
            yield f"the {what} output of prompt {prompt!r} {fault} ({len(found)} such outputs)"
    if odd := [row.prompt for row in rows if any(label.startswith(LENGTH_SLICE) for label in row.labels)]:
        yield f"slices of lengths are the judge's own, found in the rows of {listed(odd)}"


def impossible_figures(rows: Sequence[GenerationRow]) -> Iterator[str]:
    """Reads and drifts that no run can have."""
    if odd := [row.prompt for row in rows if not _possible_reads(row)]:
        yield f"more stored reads than queries or older tokens for the prompts {listed(odd)}"
    if odd := [row.prompt for row in rows if row.logit_drift is not None and not 0 <= row.logit_drift < math.inf]:
        yield f"logit_drift is negative or not finite for the prompts {listed(odd)}"


def end_fault(ids: TokenIds, end_ids: TokenIds, most: int, over: bool) -> str | None:
    """An output has `most` tokens, or fewer and then an end token last and nowhere before.

    `over` says that something else ended it too, so that it needs no end token.
    """
    if not 1 <= len(ids) <= most:
        return f"has {len(ids)} tokens, the contract plans 1 to {most}"
    ends = [index for index, token in enumerate(ids) if token in end_ids]
    if ends and ends[0] < len(ids) - 1:
        return f"goes on for {len(ids) - 1 - ends[0]} tokens after its end token {ids[ends[0]]}"
    if len(ids) < most and not ends and not over:
        return f"stops after {len(ids)} of {most} tokens without an end token"
    return None


def _possible_reads(row: GenerationRow) -> bool:
    if row.reading_queries is None or row.stored_reads is None:
        return True  # the engagement check says that they are missing
    # The last query stands behind the prompt and all tokens but itself and the one that it predicts.
    most = len(row.prompt_ids) + max(0, row.queries - 1)
    return 0 <= row.reading_queries <= row.queries and 0 <= row.stored_reads <= most
