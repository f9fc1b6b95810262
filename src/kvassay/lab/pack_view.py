"""A pack for the page: the answer first, then clauses, controls and the figures of the report's own charts."""

from __future__ import annotations

from typing import Any

from kvassay.core.records import ClauseVerdict, FormatVerdict
from kvassay.lab.pack_margins import editable_bounds
from kvassay.lab.pack_rows import tables_of
from kvassay.lab.pack_shelf import PackShelf, model_name
from kvassay.pack.compare import compare_packs
from kvassay.report.answer import answer
from kvassay.report.charts import charts
from kvassay.report.figures import Figure, Shown
from kvassay.report.findings import Findings
from kvassay.report.ledger_tables import OWNER_WORDS
from kvassay.report.outcomes import mark
from kvassay.report.scope_limits import scope_limits

SHOWN_CHARTS = ("bytes-against-loss", "kl-by-slice", "bytes-by-owner")
MAX_CHART_ROWS = 240
_OWNER_OF_WORDS = {words: owner for owner, words in OWNER_WORDS.items()}


def pack_view(shelf: PackShelf, number: int) -> dict[str, Any]:
    findings = shelf.findings(number)
    content = findings.content
    assert content.manifest is not None, "read_whole_pack reads it"
    found = answer(findings)
    return {
        "number": number,
        "name": shelf.name(number),
        "root": content.manifest.root,
        "model": model_name(content),
        "contract": content.contract.name,
        "contract_sha256": content.contract.sha256,
        "headline": found.headline,
        "outcome": content.verdicts.outcome.value,
        "reason": content.verdicts.reason,
        "answer": [
            {
                "arm": row.arm,
                "outcome": row.mark.word,
                "css": row.mark.css_class,
                "symbol": row.mark.symbol,
                "smallest": row.is_smallest_met,
                "stored_bits": _text(row.stored_bits),
                "share": _text(row.share_of_16_bit),
                "reason": row.reason,
            }
            for row in found.rows
        ],
        "clauses": clause_lines(content.verdicts.formats),
        "controls": [control.model_dump(mode="json") for control in content.verdicts.controls],
        "charts": _charts(findings),
        "bounds": editable_bounds(content.contract),
        "tables": tables_of(content.tables),
        "limits": [scope._asdict() for scope in scope_limits(content)],
    }


def clause_lines(formats: tuple[FormatVerdict, ...]) -> list[dict[str, Any]]:
    return [_clause(one, clause) for one in formats for clause in one.clauses]


def compared(shelf: PackShelf, first: int, second: int) -> dict[str, Any]:
    """Two packs side by side; a comparison decides nothing."""
    found = compare_packs(shelf.content(first), shelf.content(second)).to_json()
    return {"first": shelf.name(first), "second": shelf.name(second), **found}


def _clause(one: FormatVerdict, clause: ClauseVerdict) -> dict[str, Any]:
    shown = mark(clause.outcome)
    return {
        "arm": one.arm,
        "role": one.role.value,
        "clause": clause.clause,
        "slice": clause.slice,
        "outcome": shown.word,
        "css": shown.css_class,
        "symbol": shown.symbol,
        "estimate": clause.estimate,
        "lower": clause.lower,
        "upper": clause.upper,
        "limit": clause.limit,
        "unit": clause.unit,
        "n": clause.n,
        "n_unit": clause.n_unit,
        "reason": clause.reason,
        "descriptive": clause.details.get("descriptive") is True,
    }


def _charts(findings: Findings) -> dict[str, Any]:
    """The figures that the report draws, from the same chart specs; the page draws them itself."""
    found = charts(findings)
    return {
        name: {
            "title": chart.kind.title,
            "description": chart.kind.description,
            "columns": chart.kind.columns,
            "rows": [_with_owner(row) for row in chart.rows[:MAX_CHART_ROWS]],
            "left_out": max(0, len(chart.rows) - MAX_CHART_ROWS),
        }
        for name, chart in found.items()
        if name in SHOWN_CHARTS
    }


def _with_owner(row: dict[str, Any]) -> dict[str, Any]:
    """A row of bytes also names its owner as the style sheet does, so that both draw it in one colour."""
    owner = _OWNER_OF_WORDS.get(row.get("owner", ""))
    return row if owner is None else {**row, "key": owner.value}


def _text(shown: Shown) -> str:
    return shown.text if isinstance(shown, Figure) else shown
