"""Controls of the run as a whole, and what they do to the candidates' clauses.

Reference floor: applied within the task clause itself, here only reported. Below it the task cannot show a loss, and
its clauses are INCONCLUSIVE whatever the figures.

A/A: the reference format run again through the same path must not be BREACHED. A clause that it breaches measures the
harness and not the format, so every other arm's verdict on that clause is INVALID_EVIDENCE. If it was not run, nothing
of its level can be MET. Its KL is the noise floor and is reported; it is never subtracted from a candidate's figure
and never widens a limit.

Canary: a known-bad format must be BREACHED, per level (`fidelity`, each task), on at least one decisive clause, after
the same Holm correction as every other format. A level whose canary is not breached cannot be shown to see damage, and
its clauses cannot be MET. A breach stands all the same: it is evidence of its own. One clause is enough, since clauses
of a level share rows: a canary that ruins the mean KL may well leave its tail within bounds. An inconclusive canary,
as with too few items, counts as not breached.

Slices: every slice stands for itself. What a canary breaches over all rows says nothing of a slice in which it does no
damage, so a slice is MET only if the canary is BREACHED in that slice and the A/A has evidence there and breaches
nothing. A slice that fails does not bear on the whole, nor the whole on it. `canary.LEVEL.SLICE` and `aa.LEVEL.SLICE`
report each slice that decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvassay.core.clauses.tasks import TaskBound
from kvassay.core.contract import Contract
from kvassay.core.format_names import parse_format
from kvassay.core.records import ControlResult, Outcome, Role
from kvassay.judge.arm_clauses import Evidence, JudgedArm
from kvassay.judge.fidelity import LEVEL as FIDELITY
from kvassay.judge.judged import JudgedClause
from kvassay.judge.rows import ALL
from kvassay.judge.task import reference_accuracy
from kvassay.judge.wording import counted, figure, outcome_words
from kvassay.judge.written_tasks import reference_written_accuracy


class Part(NamedTuple):
    """What has its own controls: all rows of a level, or a slice of them."""

    level: str
    slice: str

    def __str__(self) -> str:
        return self.level if self.slice == ALL else f"{self.level} in slice {self.slice!r}"


class _ReferenceShare(NamedTuple):
    share: float
    """Of items that the reference gets right."""
    items: int


class RunControls:
    """What the control arms say, and how it bears on a clause of another arm."""

    def __init__(self, contract: Contract, judged: Sequence[JudgedArm], evidence: Evidence) -> None:
        self._contract = contract
        # Only the contract's own controls count, lest others be chosen after the fact.
        canary, reference = contract.controls.canary, contract.subject.reference_kv
        self._again = [one for one in judged if _is_format(one, Role.REFERENCE_AGAIN, reference)]
        self._canaries = [one for one in judged if canary is not None and _is_format(one, Role.CANARY, canary)]
        sampled = [clause for one in judged for clause in one.clauses if clause.sampled]
        parts = sorted({_part(clause) for clause in sampled})
        self._deciding = sorted({_part(clause) for clause in sampled if clause.decisive})
        self._levels = sorted({part.level for part in self._deciding})
        self._noise = {
            clause.key: one.arm.name
            for one in self._again
            for clause in one.clauses
            if clause.outcome is Outcome.BREACHED and clause.sampled
        }
        self._again_missing = {part: reason for part in parts if (reason := self._missing_again(part))}
        canaries = [self._without_noise(one) for one in self._canaries]
        self._blind = {part: reason for part in parts if (reason := self._blindness(part, canaries))}
        self.results = (
            self._canary_result(),
            self._aa_result(),
            *self._floors(evidence),
            *(result for part in self._deciding if part.slice != ALL for result in self._slice_results(part)),
        )

    def applied(self, one: JudgedArm) -> JudgedArm:
        """The arm with the controls applied to its clauses; the A/A arm itself stays as judged."""
        if one.arm.role is Role.REFERENCE_AGAIN:
            return one
        quiet = self._without_noise(one)
        if one.arm.role is Role.CANARY:
            return quiet
        return quiet._replace(clauses=tuple(self._gated(clause) for clause in quiet.clauses))

    def _without_noise(self, one: JudgedArm) -> JudgedArm:
        return one._replace(clauses=tuple(self._unless_noise(clause) for clause in one.clauses))

    def _unless_noise(self, clause: JudgedClause) -> JudgedClause:
        again = self._noise.get(clause.key)
        if again is None or clause.outcome not in (Outcome.MET, Outcome.BREACHED, Outcome.INCONCLUSIVE):
            return clause
        reason = f"the reference run again ({again!r}) breaches this clause itself; alone: {clause.verdict.reason}"
        return clause.becomes(Outcome.INVALID_EVIDENCE, reason)

    def _gated(self, clause: JudgedClause) -> JudgedClause:
        why = self._again_missing.get(_part(clause)) or self._blind.get(_part(clause))
        if clause.outcome is not Outcome.MET or why is None:
            return clause
        return clause.becomes(Outcome.INCONCLUSIVE, f"{clause.verdict.reason}; but {why}")

    def _missing_again(self, part: Part) -> str | None:
        needed = self._contract.controls.aa_runs
        usable = sum(_has_evidence(one, part) for one in self._again)
        if usable >= needed:
            return None
        return f"the A/A control lacks evidence for {part}: {usable} of {counted(needed, 'runs')}"

    def _blindness(self, part: Part, canaries: Sequence[JudgedArm]) -> str | None:
        if not self._contract.controls.require_canary_fail:
            return None
        if not canaries:
            return f"no canary was run, so nothing shows that {part} would see damage"
        clauses = [c for one in canaries for c in one.clauses if _part(c) == part]
        # Where nothing of a slice decides, what describes it must do.
        clauses = [c for c in clauses if c.decisive] or clauses
        if any(clause.outcome is Outcome.BREACHED for clause in clauses):
            return None
        found = ", ".join(f"{c.verdict.clause} {outcome_words(c.outcome)}" for c in clauses) or "no figures"
        return f"the canary {canaries[0].arm.name!r} is not breached in {part} ({found}): it would not see damage"

    def _canary_result(self) -> ControlResult:
        if not self._levels:
            return _control("canary", None, "does not apply: no clause of the contract rests on samples")
        if not self._contract.controls.require_canary_fail:
            return _control("canary", None, "not required by the contract")
        if blind := [reason for level in self._levels if (reason := self._blind.get(Part(level, ALL)))]:
            ran = any(c.outcome is not Outcome.NOT_MEASURED for one in self._canaries for c in one.clauses if c.sampled)
            return _control("canary", False if ran else None, "; ".join(blind))
        names = ", ".join(repr(one.arm.name) for one in self._canaries)
        return _control("canary", True, f"{names} is breached in {' and '.join(self._levels)}")

    def _aa_result(self) -> ControlResult:
        if not self._levels:
            return _control("aa", None, "does not apply: no clause of the contract rests on samples")
        if noise := [(clause, name) for (clause, of), name in sorted(self._noise.items()) if of == ALL]:
            clauses = ", ".join(f"{clause} ({name})" for clause, name in noise)
            return _control("aa", False, f"the reference run again is breached in {clauses}")
        if missing := [reason for level in self._levels if (reason := self._again_missing.get(Part(level, ALL)))]:
            return _control("aa", None, "; ".join(missing))
        if not self._again:
            return _control("aa", None, "the contract asks for no A/A run")
        floors = self._noise_floors(ALL)
        return _control("aa", True, "; ".join(["the reference run again is not breached", *floors]))

    def _slice_results(self, part: Part) -> tuple[ControlResult, ControlResult]:
        """Canary and A/A of one slice, so that a reader sees which slices are blind and which are noise."""
        suffix = f"{part.level}.{part.slice}"
        if not self._contract.controls.require_canary_fail:
            canary = _control(f"canary.{suffix}", None, "not required by the contract")
        elif blind := self._blind.get(part):
            ran = any(_part(c) == part and c.outcome is not Outcome.NOT_MEASURED for c in _clauses(self._canaries))
            canary = _control(f"canary.{suffix}", False if ran else None, blind)
        else:
            canary = _control(f"canary.{suffix}", True, f"the canary is breached in {part}")
        noise = sorted({c.verdict.clause for c in _clauses(self._again) if _part(c) == part and c.key in self._noise})
        if noise:
            again = _control(f"aa.{suffix}", False, f"the reference run again is breached in {', '.join(noise)}")
        elif missing := self._again_missing.get(part):
            again = _control(f"aa.{suffix}", None, missing)
        elif not self._again:
            again = _control(f"aa.{suffix}", None, "the contract asks for no A/A run")
        else:
            floors = self._noise_floors(part.slice) if part.level == FIDELITY else []
            again = _control(f"aa.{suffix}", True, "; ".join(["the reference run again is not breached", *floors]))
        return canary, again

    def _noise_floors(self, of_slice: str) -> list[str]:
        return [
            f"{one.arm.name!r} has mean KL {figure(clause.verdict.estimate)} nats/token, the noise floor"
            for one in self._again
            for clause in one.clauses
            if clause.key == ("fidelity.kl_mean", of_slice) and clause.verdict.estimate is not None
        ]

    def _floors(self, evidence: Evidence) -> list[ControlResult]:
        results: list[ControlResult] = []
        for task, bound in sorted(self._contract.task.items()):
            name = f"reference_floor.{task}"
            found = self._reference_share(evidence, task, bound)
            if isinstance(found, str):
                results.append(_control(name, None, f"not run: {found}"))
                continue
            passed = found.share >= bound.ref_floor
            words = "reaches" if passed else "misses"
            right = f"{round(found.share * found.items)} of {found.items} items ({figure(found.share)})"
            reason = f"the reference is right in {right} and {words} its floor "
            results.append(_control(name, passed, reason + figure(bound.ref_floor)))
        return results

    def _reference_share(self, evidence: Evidence, task: str, bound: TaskBound) -> _ReferenceShare | str:
        """Of the arm with most items, or why there is none."""
        if not bound.is_written:
            rows = [found for (of, _), found in sorted(evidence.items.arms.items()) if of == task]
            if not rows:
                return "the task has no items"
            most = max(rows, key=lambda found: found.size)
            return _ReferenceShare(reference_accuracy(most), most.size)
        arms, faults = evidence.answers.get(task, {}), evidence.answer_faults[task]
        usable = [rows for arm, rows in arms.items() if arm not in faults]
        if not usable:
            return "no arm has usable answers" if arms else "the task has no items"
        answers = max(usable, key=len)
        return _ReferenceShare(reference_written_accuracy(self._contract, task, answers), len(answers))


def _control(name: str, passed: bool | None, reason: str) -> ControlResult:
    return ControlResult(name=name, passed=passed, reason=reason)


def _is_format(one: JudgedArm, role: Role, text: str) -> bool:
    return one.arm.role is role and one.arm.format_digest == parse_format(text).digest


def _part(clause: JudgedClause) -> Part:
    return Part(clause.level, clause.verdict.slice)


def _clauses(arms: Sequence[JudgedArm]) -> list[JudgedClause]:
    return [clause for one in arms for clause in one.clauses]


def _has_evidence(one: JudgedArm, part: Part) -> bool:
    return any(
        _part(clause) == part and clause.outcome not in (Outcome.NOT_MEASURED, Outcome.INVALID_EVIDENCE)
        for clause in one.clauses
    )
