"""Judging a pack's rows under another contract, without a run, and saying what that is worth.

Bounds, error rates, waivers and the choice of candidates may differ; whatever decides which rows there are may not. A
key that is not known to be a bound counts as one that decides rows, so that a key added later is refused and not
overlooked.

The other contract was not fixed before the run, so its outcome is *post hoc*: whoever tries bounds until one fits finds
one. It is evidence for a claim only to who can show that the rows were planned so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from kvassay.core.contract import Contract
from kvassay.core.format_names import parse_format
from kvassay.core.records import Arm, Role, Verdicts
from kvassay.errors import ContractError, PackError
from kvassay.pack.reader import PackContent
from kvassay.pack.rejudge import Difference, differences, judge_tables
from kvassay.pack.tables import Tables, rows_of_arms

POST_HOC = "post hoc"
POST_HOC_SCHEMA = "kvassay.verdicts-post-hoc/1"
NO_EVIDENCE = (
    "post hoc: this contract was not fixed before the run, so this is no evidence for a claim unless the rows were "
    "planned so"
)

_BOUNDS = re.compile(
    r"""(
    name | waivers.* | candidates\..* | bytes(\..*)?
    | subject\.(model | revision | tokenizer_sha256)
    | inference\.(alpha | power | bootstrap_replicates)
    | controls\..*
    | fidelity\.\w+(\.(max | unit | min_docs | tau_nats | max_rate))?
    | free_running\.\w+\.(max | max_rate | margin | min_prompts)
    | numeric\.\w+\.(max | min_docs)
    | task\.[a-z0-9-]+\.(margin | parse_margin | ref_floor | slices.*)
    )""",
    re.VERBOSE,
)
"""Keys that say how rows are judged. All others say which rows there are."""


def post_hoc(outcome: str) -> str:
    return f"{outcome} {POST_HOC}"


class PostHoc(NamedTuple):
    """Verdicts of rows under a contract that was not theirs."""

    verdicts: Verdicts
    changed: tuple[Difference, ...]
    """Keys in which the contract differs from the pack's own: `stored` is the pack's."""
    left_out: tuple[str, ...]
    """Candidates that were run and that the contract does not name."""

    @property
    def outcome(self) -> str:
        """Never the plain outcome: `met post hoc`."""
        return post_hoc(self.verdicts.outcome.value)

    def to_json(self) -> dict[str, Any]:
        """The verdicts with every outcome marked, under a schema of their own, lest a reader take them for a run's."""
        found = self.verdicts.model_dump(mode="json")
        for holder in (found, *found["formats"], *(clause for one in found["formats"] for clause in one["clauses"])):
            holder["outcome"] = post_hoc(holder["outcome"])
        return {**found, "schema_version": POST_HOC_SCHEMA}


def judge_post_hoc(pack: PackContent, other: Contract) -> PostHoc:
    """Judge the pack's rows under `other`; raises ContractError naming what the rows cannot answer."""
    own = pack.contract
    changed = tuple(_changes(own, other))
    refused = [each for each in changed if not _BOUNDS.fullmatch(each.path)]
    faults = [*map(_rows_differ, refused), *_unanswered(pack, own, other)]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ContractError(
            f"the rows of {str(pack.path)!r} cannot answer this contract: {faults[0]}{more}; assess under it instead"
        )
    named = {parse_format(text).digest for text in other.candidates.order}
    arms = [arm for arm in pack.arms if arm.role is not Role.CANDIDATE or arm.format_digest in named]
    kept = {arm.name for arm in arms}
    verdicts = judge_rows(pack, other, arms)
    verdicts = verdicts.model_copy(update={"reason": f"{NO_EVIDENCE}; {verdicts.reason}"})
    left_out = tuple(arm.name for arm in pack.arms if arm.name not in kept)
    return PostHoc(verdicts, changed, left_out)


def judge_rows(pack: PackContent, contract: Contract, arms: list[Arm] | tuple[Arm, ...]) -> Verdicts:
    """The judgement of the rows of `arms`; raises PackError for rows that cannot be judged at all."""
    names = [arm.name for arm in arms]
    tables = Tables(*(rows_of_arms(table, names) for table in pack.tables))
    try:
        return judge_tables(contract, arms, pack.ledgers, tables)
    except PackError:
        raise
    except Exception as error:  # rows of a stranger: whatever they cause is one line
        raise PackError(f"the rows cannot be judged: {type(error).__name__}: {error}") from error


def _changes(own: Contract, other: Contract) -> Iterator[Difference]:
    """Where the contracts differ, but for what only clauses read that the other does not have."""
    for found in differences(own.to_json(), other.to_json()):
        if found.path.startswith("text.") and not _reads_text(other, found.path):
            continue
        section, _, name = found.path.partition(".")
        if section == "task" and name.partition(".")[0] not in other.task:
            yield Difference(f"task.{name.partition('.')[0]}.margin", _shown(own, name), None)
            continue
        yield found


def _reads_text(other: Contract, path: str) -> bool:
    """Whether a clause of the contract rests on what a `text.` key says: scored or captured text, or prompts of it."""
    prompts = other.has_free_running and other.free_running.corpus is None
    return other.needs_text or (prompts and path == "text.corpus")


def _shown(contract: Contract, name: str) -> Any:
    bound = contract.task.get(cast("Any", name.partition(".")[0]))
    return None if bound is None else bound.margin


def _rows_differ(found: Difference) -> str:
    return f"{found.path} is {found.again!r}, the rows were measured with {found.stored!r}"


def _unanswered(pack: PackContent, own: Contract, other: Contract) -> Iterator[str]:
    """What the other contract asks and no row can say."""
    if other.has_fidelity and not own.has_fidelity:
        yield "it has fidelity clauses, and no text was scored"
    for name in sorted(set(other.task) - set(own.task)):
        yield f"it has task.{name}, of which there are no items"
    run = {(arm.role, arm.format_digest) for arm in pack.arms}
    # One that the pack's own contract names and that was not run stays not measured.
    asked = {parse_format(text).digest for text in own.candidates.order}
    for text in other.candidates.order:
        digest = parse_format(text).digest
        if digest not in asked and (Role.CANDIDATE, digest) not in run:
            yield f"its candidate {text!r} was not run as one"
    canary = other.controls.canary
    if canary is not None and (Role.CANARY, parse_format(canary).digest) not in run:
        yield f"its canary {canary!r} was not run as one"
    again = sum(arm.role is Role.REFERENCE_AGAIN for arm in pack.arms)
    if other.controls.aa_runs > again:
        yield f"it asks for {other.controls.aa_runs} runs of the reference against itself, and there are {again}"
    yield from _other_subject(pack, other)


def _other_subject(pack: PackContent, other: Contract) -> Iterator[str]:
    found: Any = pack.subject.get("model")
    model = cast("dict[str, Any]", found) if isinstance(found, dict) else {"name": found}
    for key, field in (("model", "name"), ("revision", "revision"), ("tokenizer_sha256", "tokenizer_sha256")):
        asked = getattr(other.subject, key)
        if asked is not None and asked != model.get(field):
            yield f"subject.{key} is {asked!r}, the rows are of {model.get(field)!r}"
