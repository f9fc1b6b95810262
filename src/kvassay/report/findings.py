"""What the sections and charts share, computed from a pack once."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.records import ClauseVerdict, FormatVerdict
from kvassay.pack.reader import PackContent
from kvassay.report.free_running import ArmOutputs, arm_outputs
from kvassay.report.ledger_figures import LedgerFigures, leading_ledger, ledger_figures
from kvassay.report.numeric_level import LayerError, layer_errors
from kvassay.report.token_summary import ALL, KlSummary, slice_summaries, summarise_kl

KL_MEAN = "fidelity.kl_mean"


class MeanKl(NamedTuple):
    """Mean KL of an arm in nats per token, from its clause, or from its rows where the contract has no such clause."""

    estimate: float
    lower: float | None
    upper: float | None
    limit: float | None


class Findings(NamedTuple):
    content: PackContent
    kl: tuple[KlSummary, ...]
    """One an arm that has token rows."""
    kl_by_slice: tuple[KlSummary, ...]
    """One an arm and slice, largest mean first; empty where the rows have one slice only."""
    mean_kl: dict[str, MeanKl]
    """By arm; arms whose evidence gives no figure are absent."""
    figures: dict[str, LedgerFigures]
    """By arm, of the ledger of the real cache where one ran."""
    layers: tuple[LayerError, ...]
    outputs: tuple[ArmOutputs, ...]
    """One an arm that has usable generation rows."""


def find(content: PackContent) -> Findings:
    arms = [arm.name for arm in content.arms]
    kl = tuple(summarise_kl(content.tables.tokens, content.contract, arms))
    return Findings(
        content=content,
        kl=kl,
        kl_by_slice=tuple(slice_summaries(content.tables.tokens, content.contract, arms)),
        mean_kl=_mean_kl(content, kl),
        figures={arm: ledger_figures(arm, leading_ledger(pair)) for arm, pair in content.ledgers.items()},
        layers=tuple(layer_errors(content)),
        outputs=tuple(arm_outputs(content)),
    )


def whole_clause(verdict: FormatVerdict, name: str) -> ClauseVerdict | None:
    """The clause of that name over the whole, not one slice of it."""
    return next((clause for clause in verdict.clauses if clause.clause == name and clause.slice == ALL), None)


def _mean_kl(content: PackContent, kl: tuple[KlSummary, ...]) -> dict[str, MeanKl]:
    found = {
        summary.arm: MeanKl(summary.mean_nats, summary.lower_nats, summary.upper_nats, None)
        for summary in kl
        if summary.mean_nats is not None
    }
    for verdict in content.verdicts.formats:
        clause = whole_clause(verdict, KL_MEAN)
        if clause is None:
            continue
        found.pop(verdict.arm, None)
        # A clause without an estimate rests on rows that may not be used, so they give no figure here either.
        if clause.estimate is not None:
            found[verdict.arm] = MeanKl(clause.estimate, clause.lower, clause.upper, clause.limit)
    return found
