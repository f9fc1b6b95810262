"""Compare a run that had a QuantizedCache with the plain run of the same tests, and say what it shows."""

from __future__ import annotations

import enum
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch


class Run(NamedTuple):
    """One run of all tests."""

    name: str
    kv_format: str
    """Empty for a plain run."""
    dtype: str
    tolerance: float
    """Largest relative L2 error of one forward's logits against the plain run; 0 asks for equal bits."""

    @property
    def plain(self) -> str:
        """Name of the run that this one is compared with."""
        return f"plain-{self.dtype}"


class Verdict(enum.Enum):
    """What one test shows of one run."""

    PASSED = "passed"
    FAILED = "failed"
    LOSSY = "lossy"
    """The logits are within the tolerance, but the test compares to 1e-5 what a lossy cache makes different."""
    NOT_APPLICABLE = "does not apply"


class Outcome(NamedTuple):
    verdict: Verdict
    why: str
    error: float
    """Largest relative L2 error of the logits of one forward, over those with the same input as in the plain run."""
    num_forwards: int


_CLOSE = re.compile(r"Tensor-likes are not close|Tensor-likes are not equal|is not true|Lists differ|not equal")


def read_tests(record: Path) -> dict[str, dict[str, object]]:
    """The lines that the plugin wrote, by test."""
    path = record / "tests.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["test"]: line for line in map(json.loads, lines)}


def judge(test: str, run: Run, plain: dict[str, object], seen: dict[str, object] | None, folder: Path) -> Outcome:
    """The verdict on one test, from the lines of the plain run and of this one and from their logits."""
    message = str(plain["message"])
    if plain["outcome"] == "skipped":
        return Outcome(Verdict.NOT_APPLICABLE, f"skips itself: {_short(message)}", 0.0, 0)
    if plain["outcome"] != "passed":
        return Outcome(Verdict.NOT_APPLICABLE, _why_plain_fails(message), 0.0, 0)
    if seen is None:
        return Outcome(Verdict.FAILED, "was not run with the QuantizedCache", 0.0, 0)
    made = seen["made"]
    assert isinstance(made, dict)
    if not made.get("QuantizedCache"):
        whys = "; ".join(made) if made else "makes no cache"
        return Outcome(Verdict.NOT_APPLICABLE, f"made no QuantizedCache: {whys}", 0.0, 0)
    before, after = (_forwards(folder / name, test) for name in (run.plain, run.name))
    error, num_same, alike = compare(before, after)
    message = str(seen["message"])
    if seen["outcome"] != "passed":
        lossy = run.tolerance > 0 and error <= run.tolerance and bool(_CLOSE.search(message))
        if lossy and not num_same:
            return Outcome(Verdict.NOT_APPLICABLE, "compares stored numbers bit for bit; the format is lossy", 0.0, 0)
        return Outcome(Verdict.LOSSY if lossy else Verdict.FAILED, _short(message), error, num_same)
    if error > run.tolerance:
        return Outcome(Verdict.FAILED, f"logits differ by {error:.2g}, allowed {run.tolerance:g}", error, num_same)
    if not run.tolerance and not alike:
        return Outcome(Verdict.FAILED, "the model was called otherwise than in the plain run", error, num_same)
    return Outcome(Verdict.PASSED, "", error, num_same)


def compare(before: list[dict[str, torch.Tensor]], after: list[dict[str, torch.Tensor]]) -> tuple[float, int, bool]:
    """Largest relative L2 error of logits; forwards compared; whether all forwards and all bits are alike.

    Forwards are compared in their order until the first whose input differs: from there on the runs went apart.
    """
    worst, num_same = 0.0, 0
    alike = len(before) == len(after)
    for old, new in zip(before, after, strict=False):
        if not torch.equal(old["ids"], new["ids"]) or old["logits"].shape != new["logits"].shape:
            alike = False
            break
        num_same += 1
        if torch.equal(old["logits"], new["logits"]):
            continue
        alike = False
        size = float(old["logits"].norm())
        worst = max(worst, float((new["logits"] - old["logits"]).norm()) / size if size else float("inf"))
    return worst, num_same, alike


def _forwards(record: Path, test: str) -> list[dict[str, torch.Tensor]]:
    path = record / (test.replace("/", "+").replace("::", "--") + ".pt")
    return torch.load(path) if path.exists() else []


def _why_plain_fails(message: str) -> str:
    if re.search(r"huggingface\.co|LocalEntryNotFound|OfflineMode|outgoing traffic", message):
        return "needs a model from the hub"
    return f"fails with DynamicCache too: {_short(message)}"


def _short(message: str) -> str:
    line = re.sub(r"\s+", " ", re.sub(r"^Skipped: ", "", message)).strip()
    line = re.sub(r"\b\w+For(CausalLM|ConditionalGeneration)\b", "the model", line)
    return line if len(line) <= 160 else line[:157] + "..."


def table(outcomes: dict[str, dict[str, Outcome]], runs: list[Run], left_out: dict[str, str]) -> str:
    """A Markdown table with a row a test name (all models together) and a list of what does not apply and why."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for test, cells in outcomes.items():
        if any(cell.verdict is not Verdict.NOT_APPLICABLE for cell in cells.values()):
            by_name[_test_name(test)].append(test)
    lines = ["| test | classes |" + "".join(f" `{run.kv_format}` |" for run in runs), "|---|--:|" + "---|" * len(runs)]
    for name, tests in sorted(by_name.items()):
        cells = [_cell([outcomes[test][run.name] for test in tests]) for run in runs]
        lines.append(f"| `{name}` | {len(tests)} |" + "".join(f" {cell} |" for cell in cells))
    lines += ["", "| does not apply: why | tests |", "|---|---|"]
    whys: dict[str, set[str]] = defaultdict(set)
    for test, why in left_out.items():
        whys[f"not run: {why}"].add(_test_name(test))
    for test, cells in outcomes.items():
        for cell in cells.values():
            if cell.verdict is Verdict.NOT_APPLICABLE:
                # A test name stands here too if it applies to some models or formats and not to others.
                whys[cell.why].add(_test_name(test))
    for why, names in sorted(whys.items()):
        text = why.replace("|", "\\|")
        lines.append(f"| {text} | {', '.join(f'`{name}`' for name in sorted(names))} |")
    return "\n".join(lines) + "\n"


def _test_name(test: str) -> str:
    return test.rpartition("::")[2]


def _cell(outcomes: list[Outcome]) -> str:
    applied = [outcome for outcome in outcomes if outcome.verdict is not Verdict.NOT_APPLICABLE]
    if not applied:
        return "-"
    counts = {verdict: [o for o in applied if o.verdict is verdict] for verdict in Verdict}
    parts = []
    if passed := counts[Verdict.PASSED]:
        worst = max(outcome.error for outcome in passed)
        parts.append(f"{len(passed)} passed" + (f" ({worst:.2g})" if worst else ""))
    if lossy := counts[Verdict.LOSSY]:
        parts.append(f"{len(lossy)} lossy ({max(outcome.error for outcome in lossy):.2g})")
    if failed := counts[Verdict.FAILED]:
        whys = "; ".join(sorted({outcome.why for outcome in failed})).replace("|", "\\|")
        parts.append(f"**{len(failed)} failed**: {whys}")
    return ", ".join(parts)
