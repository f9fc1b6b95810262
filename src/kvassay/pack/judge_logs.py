"""The paired test on logs of another suite, under the same controls as a task of a contract.

What a log cannot show is whether the candidate's codes were ever read. So nothing is MET unless a run of a known-bad
format is BREACHED on the same items and the reference run again is not; and where every logged likelihood equals the
reference's to the last digit, the quantized cache was not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from kvassay.core.clauses.fields import Alpha, Margin
from kvassay.core.digest import sha256_json
from kvassay.core.records import ControlResult, ExitCode, Outcome
from kvassay.errors import PackError, printable
from kvassay.judge.wording import counted, figure, level_percent
from kvassay.pack.post_hoc import post_hoc
from kvassay.pack.suite_logs import SuiteLog
from kvassay.stats.binary import PairedBinary, paired_noninferiority


class LogTest(BaseModel):
    """What is tested; its hash, written down before the runs, shows that the margin was fixed then."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    metric: str
    margin: Margin
    alpha: Alpha = 0.05
    ref_floor: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)

    @property
    def sha256(self) -> str:
        return sha256_json({"schema": "kvassay.log-test/1", **self.model_dump(mode="json")})


class LogVerdict(NamedTuple):
    outcome: Outcome
    fixed_before: bool
    """Whether the caller named the test's hash. Else the outcome is marked post hoc."""
    reason: str
    result: PairedBinary
    reference_accuracy: float
    copies: int
    """Items left out since another one asks the same."""
    controls: tuple[ControlResult, ...]

    @property
    def marked_outcome(self) -> str:
        return self.outcome.value if self.fixed_before else post_hoc(self.outcome.value)

    @property
    def exit_code(self) -> ExitCode:
        found = {Outcome.MET: ExitCode.MET, Outcome.BREACHED: ExitCode.BREACHED}
        return found.get(self.outcome, ExitCode.INCONCLUSIVE)

    def to_json(self) -> dict[str, Any]:
        shown = ("n", "losses", "gains", "margin", "alpha", "delta", "lower", "upper", "p_met", "p_breached")
        return {
            "outcome": self.marked_outcome,
            "post_hoc": not self.fixed_before,
            "reason": self.reason,
            "exit_code": int(self.exit_code),
            **{name: getattr(self.result, name) for name in shown},
            "reference_accuracy": self.reference_accuracy,
            "copies": self.copies,
            "controls": [control.model_dump(mode="json") for control in self.controls],
        }


class LogRuns(NamedTuple):
    reference: SuiteLog
    candidate: SuiteLog
    canary: SuiteLog | None
    """A known-bad format."""
    again: SuiteLog | None
    """The reference, run once more."""


def judge_logs(runs: LogRuns, test: LogTest, named_sha256: str | None = None) -> LogVerdict:
    """The verdict; raises PackError for logs that cannot be paired item by item."""
    if named_sha256 is not None and named_sha256.strip().lower() != test.sha256:
        raise PackError(
            f"the test's hash is {test.sha256}, not the one given ({printable(named_sha256)[:80]}); task, metric, "
            "margin, alpha or floor differ from what was fixed before the run"
        )
    _require_pairs(runs)
    kept = _without_copies(runs.reference)
    result = _paired(runs.reference, runs.candidate, kept, test)
    accuracy = sum(runs.reference.items[key].correct for key in kept) / len(kept)
    controls = tuple(_controls(runs, kept, test, accuracy))
    outcome, reason = _decide(result, controls, test)
    copies = len(runs.reference.items) - len(kept)
    return LogVerdict(outcome, named_sha256 is not None, reason, result, accuracy, copies, controls)


def _require_pairs(runs: LogRuns) -> None:
    reference = runs.reference
    for other in runs[1:]:
        if other is None:
            continue
        if (other.suite, other.metric) != (reference.suite, reference.metric):
            raise PackError(
                f"{str(other.path)!r} is of {other.suite}, {other.metric}; the reference of {reference.suite}, "
                f"{reference.metric}"
            )
        lacking = sorted(set(reference.items) ^ set(other.items))
        if lacking:
            raise PackError(
                f"not paired: {counted(len(lacking), 'items')} stand in one of {str(reference.path)!r} and "
                f"{str(other.path)!r} only, first {printable(lacking[0])[:80]}; run both on the same items"
            )
        differing = [key for key, item in reference.items.items() if other.items[key].asked != item.asked]
        if differing:
            raise PackError(
                f"not paired: {counted(len(differing), 'items')} ask something else in {str(other.path)!r}, first "
                f"{printable(differing[0])[:80]}; run both with the same task version, prompt and few-shot seed"
            )
    # An A/A run may well give the very bytes again; a candidate's log that is the reference's own is a mistake.
    if runs.candidate.sha256 == reference.sha256:
        raise PackError(f"{str(runs.candidate.path)!r} is the reference's own log; give the candidate's")


def _without_copies(log: SuiteLog) -> list[str]:
    """Items of which no earlier one asks the same: a copy is no independent trial."""
    first: dict[str, str] = {}
    for key in sorted(log.items):
        first.setdefault(log.items[key].asked, key)
    return sorted(first.values())


def _paired(reference: SuiteLog, other: SuiteLog, kept: list[str], test: LogTest) -> PairedBinary:
    pairs = [(reference.items[key].correct, other.items[key].correct) for key in kept]
    losses = sum(before and not after for before, after in pairs)
    gains = sum(after and not before for before, after in pairs)
    return paired_noninferiority(len(pairs), losses, gains, test.margin, test.alpha)


def _controls(runs: LogRuns, kept: list[str], test: LogTest, accuracy: float) -> Iterator[ControlResult]:
    passed = accuracy >= test.ref_floor
    words = "reaches" if passed else "misses"
    right = f"{round(accuracy * len(kept))} of {len(kept)} items ({figure(accuracy)})"
    reason = f"the reference is right in {right} and {words} its floor "
    yield ControlResult(name="reference_floor", passed=passed, reason=reason + figure(test.ref_floor))
    if runs.canary is None:
        yield ControlResult(name="canary", passed=None, reason="no log of a known-bad format was given (--canary)")
    else:
        found = _paired(runs.reference, runs.canary, kept, test)
        passed = found.upper < -test.margin
        reason = f"the known-bad format is {'' if passed else 'not '}breached: {_found(found)}"
        yield ControlResult(name="canary", passed=passed, reason=reason)
    if runs.again is None:
        yield ControlResult(name="aa", passed=None, reason="no log of the reference run again was given (--again)")
    else:
        found = _paired(runs.reference, runs.again, kept, test)
        passed = not found.upper < -test.margin
        reason = f"the reference run again is {'not ' if passed else ''}breached: {_found(found)}"
        yield ControlResult(name="aa", passed=passed, reason=reason)
    same = all(runs.reference.items[key].said == runs.candidate.items[key].said for key in kept)
    if not same:
        yield ControlResult(name="drift", passed=True, reason="some responses differ from the reference's")
    elif runs.reference.likelihoods and runs.candidate.likelihoods:
        reason = f"every likelihood of {len(kept)} items equals the reference's: the quantized cache was not used"
        yield ControlResult(name="drift", passed=False, reason=reason)
    else:
        reason = "every response is the reference's text, so nothing shows that another cache was used"
        yield ControlResult(name="drift", passed=None, reason=reason)


def _decide(result: PairedBinary, controls: tuple[ControlResult, ...], test: LogTest) -> tuple[Outcome, str]:
    by_name = {control.name: control for control in controls}
    found = f"{test.task} {test.metric} changed by {_found(result)}"
    if by_name["drift"].passed is False:
        return Outcome.INVALID_EVIDENCE, by_name["drift"].reason
    if by_name["aa"].passed is False:
        return Outcome.INVALID_EVIDENCE, f"{by_name['aa'].reason}; the candidate: {found}"
    if by_name["reference_floor"].passed is False:
        return Outcome.INCONCLUSIVE, f"{by_name['reference_floor'].reason}: the task cannot show a loss; {found}"
    level, margin = level_percent(test.alpha), f"{-100 * test.margin:g}"
    if result.upper < -test.margin:
        return Outcome.BREACHED, f"{found}, {level} upper bound {100 * result.upper:+.2f} < {margin} points"
    if not result.lower > -test.margin:
        bounds = f"{100 * result.lower:+.2f} and {100 * result.upper:+.2f}"
        return Outcome.INCONCLUSIVE, f"{found}, {level} bounds {bounds} enclose {margin} points"
    inside = f"{found}, {level} lower bound {100 * result.lower:+.2f} > {margin} points"
    for name in ("canary", "aa", "drift"):
        if by_name[name].passed is not True:
            return Outcome.INCONCLUSIVE, f"{inside}; but {by_name[name].reason}"
    return Outcome.MET, inside


def _found(result: PairedBinary) -> str:
    return f"{100 * result.delta:+.2f} points ({result.losses} lost and {result.gains} gained of {result.n} items)"
