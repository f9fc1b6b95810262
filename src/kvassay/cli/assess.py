"""`kvassay assess`: the main job, from model and contract to verdicts, pack and report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, TextIO

from cyclopts import Parameter

from kvassay.cli.output import print_json, print_table, say, table_lines, terminal_width
from kvassay.cli.progress_display import ProgressDisplay
from kvassay.cli.torch_extra import require_torch
from kvassay.core.contract import Contract, parse_contract, read_contract_text
from kvassay.core.records import ClauseVerdict, FormatVerdict, Outcome, Role
from kvassay.errors import printable

_WORDS = {
    Outcome.MET: "MET",
    Outcome.BREACHED: "BREACHED",
    Outcome.INCONCLUSIVE: "INCONCLUSIVE",
    Outcome.NOT_MEASURED: "NOT MEASURED",
    Outcome.INVALID_EVIDENCE: "INVALID EVIDENCE",
}
_ROLES = {Role.CANDIDATE: "candidate", Role.CANARY: "canary", Role.REFERENCE_AGAIN: "A/A"}


def assess(
    model: str,
    /,
    *,
    contract: Path,
    out: Path | None = None,
    scales: Path | None = None,
    after: tuple[Path, ...] = (),
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Judge KV formats for a model under a contract. Exit code 0 met, 1 breached, 3 inconclusive, 2 no answer.

    Parameters
    ----------
    model
        Built-in name (smollm2-135m, gemma3-270m), transformers folder, .gguf file, or hub id.
    contract
        TOML file with candidates, bounds and controls.
    out
        Folder for the evidence pack; must not exist. Default: kvassay-MODEL-CONTRACT in the current folder.
    scales
        Checkpoint folder, or a .safetensors file in one, whose KV scales (llm-compressor or ModelOpt layout) serve the
        formats that they fit. Other static formats are calibrated on the pilot, as inference.calibration says.
    after
        Pack of an earlier run under this contract, whole or aborted; the new pack names it. Once for each.
    dry_run
        Run the pilot, print plan and cost, and stop.
    json
        Print one JSON document.
    """
    text = read_contract_text(contract)
    loaded = parse_contract(text, str(contract))
    require_torch("kvassay assess")
    if dry_run:
        return dry_run_plan(model, loaded, scales, json)
    from kvassay.assess.run import run_assessment
    from kvassay.pack.aborted import earlier_sentence

    folder = out or default_out(model, loaded.name)
    with ProgressDisplay(quiet=json) as progress:
        result = run_assessment(model, loaded, text, folder, progress, None if json else say_plan, scales, after)
    verdicts = result.verdicts
    if json:
        manifest = {"out": str(result.out), "root": result.manifest.root, "answer": result.answer, "plan": result.plan}
        manifest["after"] = [run.model_dump(mode="json") for run in result.manifest.after]
        print_json({**manifest, "verdicts": verdicts.model_dump(mode="json")})
        return verdicts.exit_code
    print_verdicts(verdicts.formats, result.bits, result.tokens, loaded.inference.alpha)
    for verdict in verdicts.formats:
        if verdict.role is Role.CANDIDATE and verdict.outcome is not Outcome.MET:
            print(f"{verdict.arm}: {_WORDS[verdict.outcome]}: {verdict.reason}")
    for control in verdicts.controls:
        state = "not run" if control.passed is None else "passed" if control.passed else "FAILED"
        print(f"control {control.name}: {state}: {control.reason}")
    print(f"\n{result.answer}")
    print(f"{_WORDS[verdicts.outcome]} (exit code {verdicts.exit_code}): {verdicts.reason}")
    if result.manifest.after:
        print(f"the evidence {earlier_sentence(result.manifest.after)}")
    print(f"evidence {printable(str(folder))}\nreport   {printable(str(folder / 'report.html'))}")
    print(printable(f"verify with: kvassay verify {quote(str(folder))} --root {result.manifest.root}"))
    return verdicts.exit_code


def dry_run_plan(model: str, contract: Contract, scales: Path | None, json: bool) -> int:
    """Pilot, plan and cost, on stdout; what `kvassay plan` does too."""
    from kvassay.assess.run import plan_assessment

    with ProgressDisplay(quiet=json) as progress:
        plan = plan_assessment(model, contract, progress, scales)
    if json:
        print_json(plan)
    else:
        _print_plan(plan, print, sys.stdout)
    return 0


def default_out(model: str, name: str) -> Path:
    """The evidence folder of a run under a contract of that name, in the current folder."""
    return Path(f"kvassay-{_slug(model)}-{_slug(name)}")


def outcome_word(outcome: Outcome) -> str:
    return _WORDS[outcome]


def say_plan(plan: dict[str, Any]) -> None:
    """The plan on stderr."""
    _print_plan(plan, say, sys.stderr)


def _print_plan(plan: dict[str, Any], line: Callable[[str], None], stream: TextIO) -> None:
    """The plan, before the run: what is expected, the sample, the chance of a verdict, and the cost."""
    pilot, cost = plan["pilot"], plan["cost"]
    line(
        f"plan under contract {plan['contract_sha256'][:12]}, from a pilot of {pilot['documents']} documents, "
        f"{pilot['items'] + pilot['answers']} contexts and {pilot['prompts']} prompts that the verdict does not reuse:"
    )
    rows = [
        (
            clause["arm"],
            _planned_clause(clause),
            "-" if clause["expected"] is None else _figure(clause["expected"]),
            _figure(clause["limit"]),
            clause["n_planned"],
            _needed(clause),
            "-" if clause["power"] is None else f"{clause['power']:.2f}",
        )
        for clause in plan["clauses"]
    ]
    header = ["format", "clause", "expected", "limit", "n", "n needed", "chance of a verdict"]
    for text in table_lines(header, rows, right=(2, 3, 4, 5, 6), lead=1, width=terminal_width(stream)):
        line(text)
    asked = plan["power_asked"]
    for clause in plan["clauses"]:
        if clause["role"] == Role.CANDIDATE.value and clause["power"] is not None and clause["power"] < asked:
            line(
                f"note: {clause['arm']}, {_planned_clause(clause)}: {clause['n_planned']} {clause['n_unit']} give a "
                f"chance of {clause['power']:.2f}, the contract asks for {asked}; {clause['n_needed']} would do"
            )
    line(
        f"cost: {cost['reference_tokens']:,} reference and {cost['candidate_tokens']:,} candidate tokens, "
        f"about {cost['seconds_expected']:.0f} s ("
        + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in cost["seconds_by_level"].items())
        + ")"
    )


def _needed(clause: dict[str, Any]) -> str | int:
    """What the pilot does not tell, for it saw no difference or too few units, is not a number that none reaches."""
    if clause["n_needed"] is not None:
        return clause["n_needed"]
    return "unknown" if clause["power"] is None and clause["expected"] != clause["limit"] else "none suffices"


def _planned_clause(clause: dict[str, Any]) -> str:
    return clause["clause"] if clause["slice"] == "all" else f"{clause['clause']} [{clause['slice']}]"


def print_verdicts(formats: tuple[FormatVerdict, ...], bits: dict[str, float], tokens: int, alpha: float) -> None:
    """The table of clauses; each bound errs with a rate of `alpha` to its own side."""
    rows = []
    for verdict in formats:
        decisive = [clause for clause in verdict.clauses if not clause.details.get("descriptive")]
        for index, clause in enumerate(decisive):
            lead = [verdict.arm, _ROLES[verdict.role], f"{bits[verdict.arm]:.3f}", _WORDS[verdict.outcome]]
            rows.append([*(lead if index == 0 else [""] * 4), _clause_name(clause), *_clause_cells(clause)])
    header = [
        "format",
        "role",
        f"bits @{tokens}",
        "verdict",
        "clause",
        "estimate",
        f"one-sided {100 * (1 - alpha):g}% bounds",
        "limit",
        "n",
        "outcome",
    ]
    print_table(header, rows, right=(2, 5, 6, 7, 8), lead=4)


def _clause_name(clause: ClauseVerdict) -> str:
    return clause.clause if clause.slice == "all" else f"{clause.clause} [{clause.slice}]"


def _clause_cells(clause: ClauseVerdict) -> list[str]:
    bounds = f"{_figure(clause.lower)} to {_figure(clause.upper)}"
    return [_figure(clause.estimate), bounds, _figure(clause.limit), str(clause.n), _WORDS[clause.outcome]]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _slug(text: str) -> str:
    """A file name part of a model's or contract's name."""
    return "".join(char if char.isalnum() or char in ".-_" else "-" for char in text.rsplit("/", 1)[-1])[:40] or "x"
