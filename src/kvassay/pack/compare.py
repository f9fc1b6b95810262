"""Two packs side by side: what was the same, and how far each clause of each format moved.

Where both packs scored the same tokens of the same documents, or asked the same items, a difference is paired and has
an interval of its own, far narrower than two separate ones. A comparison decides nothing: it has no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from kvassay.core.clauses.tasks import PARSE
from kvassay.core.contract import Contract
from kvassay.core.free_running_rule import TokenIds
from kvassay.core.records import ClauseVerdict, FormatVerdict
from kvassay.core.slices import ALL
from kvassay.judge.answer_faults import answer_faults
from kvassay.judge.answer_rows import AnswerTable, in_slice, read_answers, scored
from kvassay.judge.fidelity import FIGURES
from kvassay.judge.rows import Floats, ItemTable, TokenRows, TokenTable, read_items, read_tokens, rows_in_slice
from kvassay.judge.token_slices import TokenCounts, run_counts, token_slices
from kvassay.pack.reader import PackContent
from kvassay.pack.rejudge import Difference, differences
from kvassay.stats.cluster import MINIMUM_DOCUMENTS, cluster_bound
from kvassay.stats.tango import tango_interval

ALPHA = 0.05
"""One-sided, of both ends of a paired interval, so that the interval is one of 90%."""
_MODEL_FIELDS = ("name", "revision", "weights_sha256", "tokenizer_sha256", "config_sha256", "dtype")


class PairedDifference(NamedTuple):
    """Second minus first, over what both packs hold."""

    estimate: float
    lower: float | None
    """90% interval; None with fewer than 20 documents."""
    upper: float | None
    n: int
    n_unit: str


class ClauseComparison(NamedTuple):
    clause: str
    slice: str
    first: ClauseVerdict | None
    """None where a pack does not have the clause."""
    second: ClauseVerdict | None
    difference: float | None
    """Of the two estimates, second minus first, each over its own rows."""
    paired: PairedDifference | None
    unpaired: str
    """Why there is no paired difference; empty where there is one."""

    @property
    def changed(self) -> bool:
        return _outcome(self.first) != _outcome(self.second)

    def to_json(self) -> dict[str, Any]:
        return {
            "clause": self.clause,
            "slice": self.slice,
            "first": None if self.first is None else self.first.model_dump(mode="json"),
            "second": None if self.second is None else self.second.model_dump(mode="json"),
            "difference": self.difference,
            "paired": None if self.paired is None else self.paired._asdict(),
            "unpaired": self.unpaired,
            "changed": self.changed,
        }


class FormatComparison(NamedTuple):
    """One format that both packs ran in the same role."""

    arm: str
    role: str
    first: str
    """Outcomes."""
    second: str
    clauses: tuple[ClauseComparison, ...]

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "clauses": [clause.to_json() for clause in self.clauses]}


class Comparison(NamedTuple):
    contract_differences: tuple[Difference, ...]
    model_differences: tuple[Difference, ...]
    formats: tuple[FormatComparison, ...]
    first_only: tuple[str, ...]
    second_only: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "same_contract": not self.contract_differences,
            "contract_differences": [each._asdict() for each in self.contract_differences],
            "same_model": not self.model_differences,
            "model_differences": [each._asdict() for each in self.model_differences],
            "formats": [one.to_json() for one in self.formats],
            "first_only": list(self.first_only),
            "second_only": list(self.second_only),
        }


class _Side(NamedTuple):
    """One pack, with its rows in the judge's order."""

    pack: PackContent
    tokens: TokenTable
    token_counts: TokenCounts
    items: ItemTable
    answers: AnswerTable
    verdicts: dict[tuple[str, str], FormatVerdict]
    """By role and format digest; runs of the reference against itself in their order."""


def compare_packs(first: PackContent, second: PackContent) -> Comparison:
    """Raises PackError for rows that cannot be read as rows."""
    sides = _side(first), _side(second)
    both = [key for key in sides[0].verdicts if key in sides[1].verdicts]
    return Comparison(
        contract_differences=tuple(differences(first.contract.to_json(), second.contract.to_json())),
        model_differences=tuple(differences(_model(first), _model(second))),
        formats=tuple(_format(sides[0], sides[1], key) for key in both),
        first_only=tuple(one.arm for key, one in sides[0].verdicts.items() if key not in both),
        second_only=tuple(one.arm for key, one in sides[1].verdicts.items() if key not in both),
    )


def _side(pack: PackContent) -> _Side:
    names = sorted(arm.name for arm in pack.arms)
    verdicts: dict[tuple[str, str], FormatVerdict] = {}
    for one in pack.verdicts.formats:
        verdicts.setdefault((one.role.value, one.format_digest), one)
    tokens = read_tokens(pack.tables.tokens, names)
    return _Side(
        pack,
        tokens,
        run_counts(tokens, pack.contract.text),
        read_items(pack.tables.items, names),
        read_answers(pack.tables.answers, names),
        verdicts,
    )


def _model(pack: PackContent) -> dict[str, Any]:
    """What identifies model and engine, as the subject records it."""
    found: Any = pack.subject.get("model")
    model = cast("dict[str, Any]", found) if isinstance(found, dict) else {"name": found}
    return {**{field: model.get(field) for field in _MODEL_FIELDS}, "engine": pack.subject.get("engine")}


def _format(first: _Side, second: _Side, key: tuple[str, str]) -> FormatComparison:
    mine, theirs = first.verdicts[key], second.verdicts[key]
    named = [{(clause.clause, clause.slice): clause for clause in one.clauses} for one in (mine, theirs)]
    clauses = [
        _clause(first, second, (mine.arm, theirs.arm), name, named[0].get(name), named[1].get(name))
        for name in dict.fromkeys([*named[0], *named[1]])
    ]
    return FormatComparison(mine.arm, mine.role.value, mine.outcome.value, theirs.outcome.value, tuple(clauses))


def _clause(
    first: _Side,
    second: _Side,
    arms: tuple[str, str],
    name: tuple[str, str],
    mine: ClauseVerdict | None,
    theirs: ClauseVerdict | None,
) -> ClauseComparison:
    estimates = [one.estimate if one is not None else None for one in (mine, theirs)]
    difference = None if None in estimates else cast("float", estimates[1]) - cast("float", estimates[0])
    paired, reason = None, "one pack lacks the clause"
    if mine is not None and theirs is not None:
        found = _paired(first, second, arms, *name)
        paired, reason = (found, "") if isinstance(found, PairedDifference) else (None, found)
    return ClauseComparison(*name, mine, theirs, difference, paired, reason)


def _paired(first: _Side, second: _Side, arms: tuple[str, str], clause: str, slice_name: str) -> PairedDifference | str:
    section, _, name = clause.partition(".")
    if section == "fidelity":
        return _paired_documents(first, second, arms, name, slice_name)
    if section == "task":
        return _paired_items(first, second, arms, name, slice_name)
    return "it is counted and not sampled" if section == "bytes" else "documents and items are paired, no other rows"


class _Documents(NamedTuple):
    """Sums and counts of a figure by document, and the tokens that were scored, which identify the document."""

    figures: dict[str, tuple[float, int]]
    tokens: dict[str, bytes]


def _paired_documents(
    first: _Side, second: _Side, arms: tuple[str, str], name: str, slice_name: str
) -> PairedDifference | str:
    if _threshold(first.pack.contract, name) != _threshold(second.pack.contract, name):
        return "the two contracts count another exceedance"
    sides: list[_Documents] = []
    for side, arm in zip((first, second), arms, strict=True):
        rows = side.tokens.arms.get(arm)
        found = None if rows is None else _documents(side, rows, name, slice_name)
        if found is None:
            return "no rows, or rows without the figure"
        sides.append(found)
    mine, theirs = sides
    shared = [key for key in sorted(mine.figures) if mine.tokens[key] == theirs.tokens.get(key)]
    if not shared:
        return "the packs have no document in common"
    counts = [mine.figures[key][1] for key in shared]
    sums = [theirs.figures[key][0] - mine.figures[key][0] for key in shared]
    inference = first.pack.contract.inference
    bound = cluster_bound(sums, counts, 0.0, ALPHA, inference.bootstrap_replicates, inference.seed, MINIMUM_DOCUMENTS)
    return PairedDifference(bound.estimate, _finite(bound.lower), _finite(bound.upper), len(shared), "documents")


def _documents(side: _Side, rows: TokenRows, name: str, slice_name: str) -> _Documents | None:
    """Of the rows that the clause looks at; None where a figure is missing, or no row is in the slice."""
    cut = token_slices(side.tokens, rows, side.pack.contract.text, side.token_counts)
    rows = cut.rows
    if slice_name != ALL:
        mask = next((part.mask for part in cut.slices if part.label == slice_name), None)
        if mask is None:
            return None
        rows = rows.take(mask)
    values = _figures(side.pack.contract, rows, name)
    if values is None or not rows.size or not bool(np.all(np.isfinite(values))):
        return None
    figures: dict[str, tuple[float, int]] = {}
    tokens: dict[str, bytes] = {}
    starts = np.flatnonzero(np.diff(rows.document, prepend=-1)).tolist()
    for begin, end in zip(starts, [*starts[1:], rows.size], strict=True):
        document = side.tokens.documents[int(rows.document[begin])]
        figures[document] = (float(np.sum(values[begin:end])), end - begin)
        tokens[document] = _joined(rows.position[begin:end], rows.token_id[begin:end])
    return _Documents(figures, tokens)


def _figures(contract: Contract, rows: TokenRows, name: str) -> Floats | None:
    """The figure of each row, whose mean a clause bounds; None for a clause that this comparison does not know."""
    threshold = _threshold(contract, name)
    if threshold is not None:
        return (rows.kl_nats > threshold).astype(np.float64)
    return FIGURES[name](rows) if name in FIGURES else None


def _threshold(contract: Contract, name: str) -> float | None:
    bound = contract.fidelity.kl_exceed
    return bound.tau_nats if name == "kl_exceed" and bound is not None else None


def _joined(*columns: NDArray[np.int64]) -> bytes:
    return b"".join(column.tobytes() for column in columns)


def _paired_items(
    first: _Side, second: _Side, arms: tuple[str, str], task: str, slice_name: str
) -> PairedDifference | str:
    task, _, part = task.partition(".")
    mine, theirs = (
        dict(
            _written_answers(side, task, part, arm, slice_name)
            if task in side.pack.contract.written_tasks
            else _answers(side.items, task, arm, slice_name)
        )
        for side, arm in zip((first, second), arms, strict=True)
    )
    shared = [key for key in mine if key in theirs]
    if not shared:
        return "the packs have no item in common"
    if any(np.isnan(mine[key]) or np.isnan(theirs[key]) for key in shared):
        return "correctness is missing in some items"
    losses = sum(mine[key] > theirs[key] for key in shared)
    gains = sum(mine[key] < theirs[key] for key in shared)
    interval = tango_interval(len(shared), losses, gains, ALPHA)
    return PairedDifference((gains - losses) / len(shared), interval.lower, interval.upper, len(shared), "contexts")


Item = tuple[str, str | TokenIds | None]
"""What two packs must share: the item's name, and the answer that it expects, or the prompt of a written one."""


def _written_answers(side: _Side, task: str, part: str, arm: str, slice_name: str) -> Iterator[tuple[Item, float]]:
    """Whether the candidate's answer was right, or parsed, by item: the same context with the same prompt."""
    contract = side.pack.contract
    if arm in answer_faults(side.answers, task, contract):
        return
    rows = in_slice(side.answers.get(task, {}).get(arm, ()), slice_name)
    for row, found in zip(rows, scored(contract, task, contract.task[task], rows), strict=True):
        sound = found.candidate.parses if part == PARSE else found.candidate.right
        yield (row.context, row.output.prompt_ids), float(bool(sound))


def _answers(table: ItemTable, task: str, arm: str, slice_name: str) -> Iterator[tuple[Item, float]]:
    """Whether the candidate was right, by item: the same context that expects the same answer."""
    rows = table.arms.get((task, arm))
    if rows is None:
        return
    if slice_name != ALL:
        rows = rows.take(rows_in_slice(table.slices, rows.slice, slice_name))
    for context, expected, correct in zip(
        rows.context.tolist(), rows.expected.tolist(), rows.candidate_correct.tolist(), strict=True
    ):
        yield (table.contexts[context], table.expected[expected]), correct


def _outcome(verdict: ClauseVerdict | None) -> str | None:
    return None if verdict is None else verdict.outcome.value


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
