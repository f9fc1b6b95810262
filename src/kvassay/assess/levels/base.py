"""What every level of evidence offers to a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import Calibrations
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.decode_view import EncodeCounts
from kvassay.engines.transformers.generating import CacheFormat, Generation, GenerationPlan, Generator
from kvassay.errors import ContractError

Columns = Mapping[str, Any]
"""Rows of one table, a sequence a column."""
Sink = Callable[[str, Columns], None]
"""Takes rows of the named table."""
ReferenceGeneration = Callable[[Generator, GenerationPlan, CacheFormat], Generation]
PilotRows = Mapping[str, Sequence[Columns]]
"""What the pilot's units gave, by table."""


class Tally:
    """Encoded and saturated values by arm."""

    def __init__(self) -> None:
        self.encoded: Counter[str] = Counter()
        self.clipped: Counter[str] = Counter()

    def add(self, arm: str, counts: EncodeCounts) -> None:
        self.encoded[arm] += counts.encoded_values
        self.clipped[arm] += counts.clipped_values


class Subject(NamedTuple):
    """What is measured and how: fixed for a run."""

    model: Any
    """The transformers model, for levels that generate."""
    scorer: DecodeScorer
    tokenizer: Any
    arms: tuple[PlannedArm, ...]
    calibrations: Calibrations
    reference_kv: str
    tally: Tally
    generate_reference: ReferenceGeneration = Generator.run
    """What generates over the reference cache; a matrix, which generates once for all its formats, reads it."""


class Cost(NamedTuple):
    """Tokens that pass through the model for the verdict's units."""

    reference_tokens: int
    candidate_tokens: int
    """Over all arms."""


class Level(ABC):
    """One kind of evidence. Its units are drawn when it is made: some for the pilot, others for the verdict."""

    name: str
    """Key of its seconds in the environment record and of its size in the plan's pilot, e.g. `documents`."""
    words: str
    """What progress calls its units."""
    is_text: bool = False
    """Units are documents of the contract's text: equally long, and in the pilot all of them calibrate."""
    generates: bool = False
    """The model writes by itself, several units in one pass, so none has a time of its own; and the reference is what
    `Subject.generate_reference` gives."""
    units: Sequence[Any]
    pilot_units: Sequence[Any]

    @property
    def parts(self) -> Sequence[Sequence[Any]]:
        """The verdict's units, in those parts that a sequential run may end each by itself."""
        return [self.units]

    def batches(self, units: Sequence[Any]) -> list[Sequence[Any]]:
        """Units that run together, and so are never split between two processes."""
        return [[unit] for unit in units]

    @abstractmethod
    def token_ids(self, unit: Any) -> Sequence[int]:
        """All tokens of a unit that are known before the run."""

    @abstractmethod
    def measure(self, subject: Subject, unit: Any, sink: Sink, *, pilot: bool = False) -> None:
        """Run the reference and every arm on one unit and give its rows."""

    def measure_all(
        self, subject: Subject, units: Sequence[Any], sink: Sink, done: Callable[[], object], *, pilot: bool = False
    ) -> None:
        """Measure units, call `done` after each and end where it returns something true.

        A level that runs several units together overrides this; it need not end early.
        """
        for unit in units:
            self.measure(subject, unit, sink, pilot=pilot)
            if done():
                return

    @abstractmethod
    def plan(self, arms: Sequence[PlannedArm], rows: PilotRows) -> list[dict[str, Any]]:
        """An entry of the plan for each arm and clause (`levels.plan_entries`)."""

    @abstractmethod
    def cost(self, arms: Sequence[PlannedArm]) -> Cost: ...

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Entries of the subject record that identify the verdict's units."""

    def pilot_json(self) -> dict[str, Any]:
        return {self.name: len(self.pilot_units)}

    def examples_json(self) -> list[dict[str, Any]]:
        """Worst cases as text, for people."""
        return []

    def check_lengths(self, context: int | None, model_name: str) -> None:
        """Raise ContractError for units beyond the model's context: some models fail there, others answer nonsense."""
        longest = max(len(self.token_ids(unit)) for unit in (*self.pilot_units, *self.units))
        if context is not None and longest > context:
            raise ContractError(
                f"{self.words} have up to {longest} tokens, {model_name} has a context of {context} tokens"
            )
