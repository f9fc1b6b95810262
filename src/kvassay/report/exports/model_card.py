"""A section for a model card: what was measured of each format, on what, and what was not (R9, R97).

Every figure comes from the pack; what a pack does not hold is called not measured. Names and texts of a pack are a
stranger's, so nothing of them is read as Markdown or HTML.
"""

from __future__ import annotations

import re

from kvassay.core.records import ClauseVerdict, FormatVerdict
from kvassay.pack.reader import PackContent
from kvassay.report.answer import headline, level
from kvassay.report.exports.deciding import candidates, clause_title, deciding_clauses
from kvassay.report.figures import significant
from kvassay.report.findings import find
from kvassay.report.free_fields import text_at
from kvassay.report.scope_limits import scope_limits
from kvassay.report.visible_text import clipped, visible

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$:@])")
_MAX_TEXT = 300


def model_card(content: PackContent) -> str:
    lines = ["## KV cache formats, measured", "", _plain(headline(content)), ""]
    lines += [*_facts(content), "", *_table(content), "", *_clauses(content), "", "### What this does not say", ""]
    for scope in scope_limits(content):
        lines += [f"- {scope.heading}: {_plain(' '.join(scope.sentences))}"]
    if content.manifest is not None:
        lines += [
            "",
            f"Evidence pack: root `{content.manifest.root}`. Check it with `kvassay verify PACK --root ROOT`.",
        ]
    return "\n".join(lines) + "\n"


def _facts(content: PackContent) -> list[str]:
    subject, text = content.subject, content.contract.text
    found = {
        "Model": text_at(subject, "model", "name"),
        "Revision": text_at(subject, "model", "revision"),
        "Weights": text_at(subject, "model", "stored_weights"),
        "Weights SHA-256": text_at(subject, "model", "weights_sha256"),
        "Engine": text_at(subject, "engine", "name"),
        "Engine version": text_at(subject, "engine", "version"),
        "Corpus": text_at(subject, "corpus", "name"),
    }
    lines = [f"- {name}: {_plain(value) if value else 'not recorded'}" for name, value in found.items()]
    if content.contract.needs_text:
        lines.append(f"- Length: {text.prompt_tokens} prompt and {text.scored_tokens} scored tokens")
    return [*lines, f"- Contract: {_plain(content.contract.name)}, SHA-256 `{content.contract.sha256}`"]


def _table(content: PackContent) -> list[str]:
    lines = ["| Format | Stored bits per value | Share of a 16-bit cache | Verdict |", "|---|---|---|---|"]
    figures = find(content).figures
    for verdict in candidates(content):
        ledger = figures.get(verdict.arm)
        bits = significant(ledger.stored_bits, 4) if ledger else "not measured"
        share = f"{significant(100 * ledger.share_of_16_bit)}%" if ledger else "not measured"
        lines.append(f"| {_plain(verdict.arm)} | {bits} | {share} | {_words(verdict.outcome.value)} |")
    return lines


def _clauses(content: PackContent) -> list[str]:
    one_sided = level(1 - content.contract.inference.alpha)
    head = f"| Format | Clause | Estimate | One-sided {one_sided} bounds | Limit | n | Outcome |"
    rows = [_clause(verdict, clause) for verdict in candidates(content) for clause in deciding_clauses(verdict)]
    return [head, "|---|---|---|---|---|---|---|", *rows]


def _clause(verdict: FormatVerdict, clause: ClauseVerdict) -> str:
    estimate = "not measured" if clause.estimate is None else f"{significant(clause.estimate)} {_plain(clause.unit)}"
    bounds = " to ".join("unbounded" if bound is None else significant(bound) for bound in (clause.lower, clause.upper))
    cells = [
        _plain(verdict.arm),
        _plain(clause_title(clause)),
        estimate,
        "not measured" if clause.estimate is None else bounds,
        significant(clause.limit),
        f"{clause.n} {_plain(clause.n_unit)}",
        _words(clause.outcome.value),
    ]
    return f"| {' | '.join(cells)} |"


def _words(outcome: str) -> str:
    return outcome.replace("_", " ").upper()


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: every character that could begin markup, a link or HTML is escaped."""
    shown = clipped(visible(text), _MAX_TEXT * 10)
    return _SPECIAL.sub(r"\\\1", shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
