"""A clause verdict on its way through Holm, controls and aggregation."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.records import ClauseVerdict, Outcome


class JudgedClause(NamedTuple):
    verdict: ClauseVerdict
    level: str
    """`fidelity`, `free_running`, `task.NAME` or `bytes`: what shares a workload, and so its controls."""
    decisive: bool
    """False for descriptive slices and waived clauses: judged and shown, without weight."""
    p_met: float | None
    """Against the clause being breached; 0 or 1 for a clause without sampling error, None if not tested."""
    p_breached: float | None
    sampled: bool
    """False for bytes, which are counted and not sampled."""

    @property
    def outcome(self) -> Outcome:
        return self.verdict.outcome

    @property
    def key(self) -> tuple[str, str]:
        return self.verdict.clause, self.verdict.slice

    def becomes(self, outcome: Outcome, reason: str) -> JudgedClause:
        """The same figures with another outcome, since a control or a correction requires it."""
        return self._replace(verdict=self.verdict.model_copy(update={"outcome": outcome, "reason": reason}))

    def with_details(self, **details: float | int | str | bool | None) -> JudgedClause:
        found = {**self.verdict.details, **details}
        return self._replace(verdict=self.verdict.model_copy(update={"details": found}))
