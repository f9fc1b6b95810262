"""The formats that a search looks at: uniform ones of several families, and allocations of a ladder at many budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from kvassay.assess.arms import PlannedArm
from kvassay.assess.engagement_check import check_engagement
from kvassay.core.contract import Contract
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, Owner
from kvassay.core.kv_format import KVFormat
from kvassay.core.ledger import ByteLedger, predict_ledger
from kvassay.core.records import Role
from kvassay.core.serving import check_serves
from kvassay.errors import KvassayError
from kvassay.find.allocation import Choice, allocate
from kvassay.find.ladder import By, Ladder, allocated_format, units_of

UNIFORM: tuple[str, ...] = (
    "int8-token-head",
    "q8_0",
    "fp8-e4m3-token-head",
    "fp8-e4m3-tensor",
    "k=int8:token-head,v=int4:group32",
    "exl3-8",
    "exl3-6",
    "exl3-5",
    "k=exl3-6,v=exl3-4",
    "exl3-4",
    "k=exl3-5,v=exl3-3",
    "exl3-3",
    "k=q8_0,v=q4_0",
    "q5_1",
    "q5_0",
    "q4_1",
    "q4_0",
    "iq4_nl",
    "kv=q4_0/had",
    "int4-g32",
    "int4-g64",
    "nvfp4",
    "nf4-g64",
    "turboquant-mse-4",
    "turboquant-mse-3",
    "kivi-4,recent=32",
    "kivi-2,recent=32",
    "int2-g32",
)
"""One or more of each family, from 8 bit down."""

BUDGET_STEP_BITS = 0.25
"""Allocations are made at budgets this many stored bits a value apart, the span of the ladder divided evenly."""


class Candidate(NamedTuple):
    """A format that the search may propose."""

    name: str
    kv_format: KVFormat
    kind: Literal["uniform", "allocated"]
    ledger: ByteLedger
    predicted_kl: float | None
    """Sum of isolated KL, of an allocation."""

    @property
    def stored_bits(self) -> float:
        return 16 * self.ledger.ratio_to_float16

    @property
    def nbytes_per_token(self) -> float:
        return self.ledger.persistent_nbytes_per_token


class Dropped(NamedTuple):
    """A format that was not searched, and why."""

    name: str
    reason: str


class Candidates(NamedTuple):
    found: tuple[Candidate, ...]
    dropped: tuple[Dropped, ...]


def uniform_candidates(
    contract: Contract, geometry: CacheGeometry, tokens: int, more: Iterable[str] = ()
) -> Candidates:
    """The list above, the contract's own candidates, and `more`, those that cannot be judged left out by name."""
    found: dict[str, Candidate] = {}
    dropped: list[Dropped] = []
    canary = None if contract.controls.canary is None else parse_format(contract.controls.canary).digest
    for text in (*contract.candidates.order, *more, *UNIFORM):
        kv_format = parse_format(text)
        if kv_format.digest in found or kv_format.name in {each.name for each in dropped}:
            continue
        reason = refusal(contract, kv_format, geometry)
        if kv_format.digest == canary:
            reason = "it is the contract's canary"
        if reason is not None:
            dropped.append(Dropped(kv_format.name, reason))
            continue
        ledger = predict_ledger(geometry, kv_format, tokens)
        kind = "allocated" if kv_format.overrides else "uniform"
        found[kv_format.digest] = Candidate(kv_format.name, kv_format, kind, ledger, None)
    return Candidates(tuple(found.values()), tuple(dropped))


def allocated_candidates(
    contract: Contract,
    geometry: CacheGeometry,
    tokens: int,
    ladder: Ladder,
    by: By,
    isolated: Sequence[Sequence[Choice]],
    budgets: Iterable[int],
) -> Candidates:
    """One allocation a budget, each counted by the real ledger and never above its budget."""
    found: dict[str, Candidate] = {}
    dropped: list[Dropped] = []
    for budget in sorted(set(budgets), reverse=True):
        candidate = allocation_within(geometry, tokens, ladder, by, isolated, budget)
        if candidate is None or candidate.kv_format.digest in found:
            continue
        if (reason := refusal(contract, candidate.kv_format, geometry)) is not None:
            dropped.append(Dropped(candidate.name, reason))
            continue
        found[candidate.kv_format.digest] = candidate
    return Candidates(tuple(found.values()), tuple(dropped))


def allocation_within(
    geometry: CacheGeometry,
    tokens: int,
    ladder: Ladder,
    by: By,
    isolated: Sequence[Sequence[Choice]],
    budget: int,
) -> Candidate | None:
    """The best allocation of at most `budget` persistent bytes at `tokens` tokens; None where none is so small."""
    if sum(min(choice.nbytes for choice in choices) for choices in isolated) > budget:
        return None
    allocation = allocate(isolated, budget)
    widths = {unit: ladder.widths[index] for unit, index in zip(units_of(geometry, by), allocation.chosen, strict=True)}
    kv_format = allocated_format(ladder, geometry, widths)
    ledger = predict_ledger(geometry, kv_format, tokens)
    assert ledger.persistent_nbytes <= allocation.nbytes <= budget, "units count at least what the ledger does"
    return Candidate(kv_format.name, kv_format, "allocated", ledger, allocation.loss)


def even_budgets(isolated: Sequence[Sequence[Choice]], geometry: CacheGeometry, tokens: int) -> list[int]:
    """From the ladder's cheapest to its most expensive, `BUDGET_STEP_BITS` apart."""
    least, most = (sum(pick(c.nbytes for c in choices) for choices in isolated) for pick in (min, max))
    values = predict_ledger(geometry, parse_format("f16"), tokens).float16_nbytes / 2
    step = BUDGET_STEP_BITS * values / 8
    steps = max(1, math.ceil((most - least) / step))
    return [round(least + (most - least) * index / steps) for index in range(steps + 1)]


def refusal(contract: Contract, kv_format: KVFormat, geometry: CacheGeometry) -> str | None:
    """Why a format could not be judged under this contract; None where it can."""
    if kv_format.is_exact:
        return "it quantizes nothing"
    try:
        check_serves(kv_format, geometry)
        check_engagement(contract, [PlannedArm(kv_format.name, Role.CANDIDATE, kv_format)])
    except KvassayError as error:
        return str(error)
    return None


def byte_refusal(contract: Contract, ledger: ByteLedger) -> str | None:
    """Why a format breaches the contract's byte bounds, which its ledger tells before any run; None if it does not."""
    bounds = contract.bytes
    if bounds.persistent_per_token_max is not None:
        counted = (owner for owner in bounds.count if owner is not Owner.WORKSPACE)
        nbytes = sum(ledger.owner_nbytes(owner) for owner in counted) / (ledger.tokens * ledger.batch)
        if nbytes > bounds.persistent_per_token_max:
            return (
                f"it stores {nbytes:,.6g} bytes per token, the contract allows {bounds.persistent_per_token_max:,.6g}"
            )
    peak = ledger.peak_transient_nbytes
    if bounds.peak_transient_max is not None and peak is not None and peak > bounds.peak_transient_max:
        return f"it takes {peak:,} transient bytes, the contract allows {bounds.peak_transient_max:,.10g}"
    return None


def frontier(cost: Mapping[str, float], kl: Mapping[str, float]) -> list[str]:
    """Names from most to least cost such that each loses less than every cheaper one: the others are dominated."""
    kept: list[str] = []
    least = math.inf
    for name in sorted(cost, key=lambda each: (cost[each], kl[each], each)):
        if kl[name] < least:
            kept.append(name)
            least = kl[name]
    return kept[::-1]


SHARES_OF_LIMIT = (0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.6)
"""Of the contract's limits, by the pilot: where between safe and broken the judged sequence takes its steps."""


def sequence(ordered: Sequence[str], share: Mapping[str, float | None], most: int) -> list[str]:
    """At most `most` of a frontier, conservative first: the safest, then steps towards the limit and just beyond it.

    Where the contract has no fidelity clause the pilot cannot tell how near the limit is, and steps are even.
    """
    shares = {name: share[name] for name in ordered}
    if any(value is None for value in shares.values()):
        picks = {round(index * (len(ordered) - 1) / max(1, most - 1)) for index in range(most)}
        return [ordered[index] for index in sorted(picks)]
    wanted = [ordered[0]]
    for target in SHARES_OF_LIMIT:
        within = [name for name in ordered if (shares[name] or 0.0) <= target]
        if within and within[-1] not in wanted:
            wanted.append(within[-1])
    if len(wanted) > most:
        # Steps nearest the limit decide what is smallest; the safest one anchors the sequence.
        near = sorted(wanted[1:], key=lambda name: abs(math.log(max(shares[name] or 0.0, 1e-9))))[: most - 1]
        wanted = [name for name in wanted if name == ordered[0] or name in near]
    return wanted
