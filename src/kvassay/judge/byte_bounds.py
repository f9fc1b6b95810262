"""Clauses on bytes: counted from the ledger, without sampling error, so MET or BREACHED."""

from __future__ import annotations

from collections.abc import Iterator

from kvassay.core.contract import Contract
from kvassay.core.geometry import Owner
from kvassay.core.ledger import ByteLedger
from kvassay.core.records import ClauseVerdict, Outcome
from kvassay.judge.judged import JudgedClause
from kvassay.judge.wording import first_fault

LEVEL = "bytes"


def byte_clauses(contract: Contract, ledger: ByteLedger | None, faults: tuple[str, ...]) -> Iterator[JudgedClause]:
    """Persistent bytes per token of the owners that the contract counts, and the transient peak."""
    bounds = contract.bytes
    if bounds.persistent_per_token_max is not None:
        nbytes, words = None, "persistent bytes per token"
        if ledger is not None:
            counted = [owner for owner in Owner if owner in bounds.count and owner is not Owner.WORKSPACE]
            total = sum(ledger.owner_nbytes(owner) for owner in counted)
            nbytes = total / (ledger.tokens * ledger.batch)
            left_out = [owner.value for owner in Owner if owner not in bounds.count and owner is not Owner.WORKSPACE]
            size = f"at {ledger.tokens} tokens, {ledger.basis.value}"
            words = f"persistent bytes per token {size}" + (f", without {', '.join(left_out)}" if left_out else "")
        yield _judge("persistent_per_token_max", nbytes, bounds.persistent_per_token_max, "bytes/token", words, faults)
    if bounds.peak_transient_max is not None:
        nbytes, words = None, "transient peak bytes"
        if ledger is not None and ledger.peak_transient_nbytes is not None:
            nbytes = float(ledger.peak_transient_nbytes)
            basis = ledger.transient_basis.value if ledger.transient_basis else "of unknown basis"
            words = f"transient peak bytes at {ledger.tokens} tokens, {basis}"
        yield _judge("peak_transient_max", nbytes, bounds.peak_transient_max, "bytes", words, faults)


def _judge(
    name: str, nbytes: float | None, limit: float, unit: str, words: str, faults: tuple[str, ...]
) -> JudgedClause:
    met = nbytes is not None and nbytes <= limit
    if nbytes is None:
        outcome, reason = Outcome.NOT_MEASURED, f"no ledger with {words} of this arm"
    elif faults:
        outcome, reason = Outcome.INVALID_EVIDENCE, first_fault(faults)
    else:
        outcome = Outcome.MET if met else Outcome.BREACHED
        reason = f"{words}: {nbytes:,.10g} {'<=' if met else '>'} {limit:,.10g}"
    tested = outcome in (Outcome.MET, Outcome.BREACHED)
    return JudgedClause(
        verdict=ClauseVerdict(
            clause=f"bytes.{name}",
            slice="all",
            outcome=outcome,
            reason=reason,
            unit=unit,
            estimate=nbytes,
            lower=nbytes,
            upper=nbytes,
            limit=limit,
            n=0 if nbytes is None else 1,
            n_unit="formats",
            method="ledger",
            details={"descriptive": False},
        ),
        level=LEVEL,
        decisive=True,
        p_met=(0.0 if met else 1.0) if tested else None,
        p_breached=(1.0 if met else 0.0) if tested else None,
        sampled=False,
    )
