"""GitHub workflow commands: an annotation for each clause that is not met, and one line that says the whole.

`::error title=TITLE::MESSAGE` (GitHub documentation, "Workflow commands for GitHub Actions"). A line is a command, so
percent signs and line ends are written as %25, %0D and %0A, and within a title also colons and commas.
"""

from __future__ import annotations

from kvassay.core.records import Outcome
from kvassay.pack.reader import PackContent
from kvassay.report.exports.deciding import findings
from kvassay.report.visible_text import visible

_LEVELS = {
    Outcome.BREACHED: "error",
    Outcome.INVALID_EVIDENCE: "error",
    Outcome.INCONCLUSIVE: "warning",
    Outcome.NOT_MEASURED: "warning",
    Outcome.MET: "notice",
}


def github_annotations(content: PackContent) -> str:
    """One line each; of what is met, the verdicts of candidates alone."""
    lines = [
        _command(finding.outcome, f"{finding.group}: {finding.name}", finding.reason)
        for finding in findings(content)
        if finding.outcome is not Outcome.MET or finding.name == "verdict"
    ]
    verdicts = content.verdicts
    root = f"; evidence {content.manifest.root}" if content.manifest is not None else ""
    lines.append(_command(verdicts.outcome, f"contract {content.contract.name}", verdicts.reason + root))
    return "\n".join(lines) + "\n"


def _command(outcome: Outcome, title: str, message: str) -> str:
    words = outcome.value.replace("_", " ").upper()
    shown = _data(f"{words}: {visible(message)}")
    return f"::{_LEVELS[outcome]} title={_property(visible(title))}::{shown}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
