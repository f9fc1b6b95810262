"""The free-running level: prompts that the model continues by itself over a real cache of every format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from kvassay.assess.arms import PlannedArm
from kvassay.assess.levels.base import Columns, Cost, Level, PilotRows, Sink, Subject
from kvassay.assess.levels.outputs import output_columns
from kvassay.assess.levels.plan_entries import ClausePlan, PairedCounts, cluster_entry, pairs_entry, rate_entry
from kvassay.core.clauses.free_running import (
    DivergedBound,
    EditDistanceBound,
    FreeRunningBound,
    RepetitionBound,
    slice_length,
)
from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.core.format_names import parse_format
from kvassay.core.free_running_rule import (
    TokenIds,
    edit_distance,
    first_divergence,
    is_empty,
    parse_ids,
    repeated_share,
)
from kvassay.core.slices import ALL, slice_labels
from kvassay.engines.transformers.generating import (
    CacheFormat,
    Generation,
    GenerationPlan,
    Generator,
    Prompt,
    end_token_ids,
)
from kvassay.engines.transformers.sampling import Greedy, Sampling, Seeded
from kvassay.workloads.corpus import load_corpus
from kvassay.workloads.excerpts import TokenDocument, text_documents


class PromptLevel(Level):
    """Rows of the table `generations`. A unit is the beginning of a document, of which the first part is the prompt.

    The text that follows the prompt is never read; it is as long as what may be generated, so that byte ledgers and
    static scales, where this level gives them, are of the length that generation reaches.
    """

    name = "prompts"
    words = "prompts"
    generates = True

    def __init__(self, contract: Contract, tokenizer: Any, taken: Collection[str] = ()) -> None:
        """Draw prompts for verdict and pilot, which share none. `taken` are documents that another level's pilot used
        for calibration. Raises WorkloadError where there are too few."""
        self._contract = contract
        self._section = contract.free_running
        self._corpus = load_corpus(self._section.corpus or contract.text.corpus)
        self._end_ids: frozenset[int] = frozenset()
        draw = partial(
            text_documents,
            self._corpus,
            tokenizer,
            prompt_tokens=self._section.prompt_tokens,
            scored_tokens=self._section.generated_tokens,
            seed=contract.inference.seed,
        )
        self.units: Sequence[TokenDocument] = draw(documents=self._section.prompts, exclude=taken)
        used = {*taken, *(unit.id for unit in self.units)}
        self.pilot_units: Sequence[TokenDocument] = draw(documents=self._section.pilot_prompts, exclude=used)

    def batches(self, units: Sequence[Any]) -> list[Sequence[Any]]:
        most = self._section.batch_prompts
        return [units[begin : begin + most] for begin in range(0, len(units), most)]

    def token_ids(self, unit: TokenDocument) -> Sequence[int]:
        return unit.token_ids

    def measure(self, subject: Subject, unit: TokenDocument, sink: Sink, *, pilot: bool = False) -> None:
        self._measure_batch(subject, (unit,), sink, lambda: None)

    def measure_all(
        self, subject: Subject, units: Sequence[Any], sink: Sink, done: Callable[[], None], *, pilot: bool = False
    ) -> None:
        for batch in self.batches(units):
            self._measure_batch(subject, batch, sink, done)

    def plan(self, arms: Sequence[PlannedArm], rows: PilotRows) -> list[dict[str, Any]]:
        return [
            self._entry(arm, name, bound, slice_name, self._pilot_pairs(arm, rows, slice_name))
            for arm in arms
            for name, bound in self._section.bounds.items()
            for slice_name in (ALL, *bound.slices)
        ]

    def cost(self, arms: Sequence[PlannedArm]) -> Cost:
        """The last generated token is not fed back; outputs that end early cost less."""
        total = len(self.units) * (self._section.prompt_tokens + self._section.generated_tokens - 1)
        return Cost(total, total * len(arms))

    def to_json(self) -> dict[str, Any]:
        """`sha256` is of the prompt's token ids, which the rows hold."""
        corpus, section = self._corpus, self._section
        return {
            "free_running": {
                "corpus": corpus.name,
                "source": corpus.source,
                "version": corpus.version,
                "licence": corpus.licence,
                "corpus_sha256": corpus.sha256,
                "end_ids": sorted(self._end_ids),
                "sampling": section.sampling,
                "noise": "none" if section.sampling == "greedy" else "Gumbel, from seed, prompt, step and token",
                "prompts": [
                    {"id": unit.id, "slice": unit.slice, "sha256": sha256_json(list(self._prompt(unit).token_ids))}
                    for unit in self.units
                ],
            }
        }

    def _prompt(self, unit: TokenDocument) -> Prompt:
        return Prompt(unit.id, tuple(unit.token_ids[: self._section.prompt_tokens]))

    def _measure_batch(
        self, subject: Subject, units: Sequence[TokenDocument], sink: Sink, done: Callable[[], None]
    ) -> None:
        generator = Generator(subject.model, subject.scorer.output_head)
        self._end_ids = end_token_ids(subject.model)
        plan = GenerationPlan(
            prompts=tuple(map(self._prompt, units)),
            tokens=self._section.generated_tokens,
            end_ids=self._end_ids,
            sampling=self._sampling(),
            prefill_reads=self._contract.inference.prefill_reads,
        )
        reference = subject.generate_reference(generator, plan, CacheFormat(parse_format(subject.reference_kv)))
        arms = len(subject.arms)
        for index, arm in enumerate(subject.arms):
            transforms = subject.scorer.key_transforms(arm.kv_format)
            stored = CacheFormat(arm.kv_format, subject.calibrations.get(arm.name), transforms)
            found = generator.run(plan, stored)
            subject.tally.add(arm.name, found.counts)
            sink("generations", self._columns(arm.name, units, reference, found))
            # A batch's prompts all end with its last arm, so each arm counts as its share of them.
            for _ in range((index + 1) * len(units) // arms - index * len(units) // arms):
                done()

    def _sampling(self) -> Sampling:
        section = self._section
        if section.sampling == "greedy":
            return Greedy()
        return Seeded(self._contract.inference.seed, section.temperature, section.top_p)

    def _columns(self, arm: str, units: Sequence[TokenDocument], reference: Generation, found: Generation) -> Columns:
        count = len(units)
        return {
            "arm": [arm] * count,
            "slice": [unit.slice for unit in units],
            "prompt": [unit.id for unit in units],
            **output_columns(
                [self._prompt(unit).token_ids for unit in units], self._end_ids, reference, found, first_step=1
            ),
        }

    def _pilot_pairs(self, arm: PlannedArm, rows: PilotRows, slice_name: str) -> list[tuple[TokenIds, TokenIds]]:
        """Outputs of the reference and of the arm that lie in a slice, cut to its length if it is one of lengths."""
        length = slice_length(slice_name)
        return [
            (parse_ids(reference)[:length], parse_ids(candidate)[:length])
            for own in rows["generations"]
            if own["arm"][0] == arm.name
            for labels, reference, candidate in zip(
                own["slice"], own["reference_ids"], own["candidate_ids"], strict=True
            )
            if slice_name == ALL or length is not None or slice_name in slice_labels(labels)
        ]

    def _planned(self, slice_name: str) -> int:
        if slice_name == ALL or slice_length(slice_name) is not None:
            return self._section.prompts
        return sum(slice_name in slice_labels(unit.slice) for unit in self.units)

    def _entry(
        self,
        arm: PlannedArm,
        name: str,
        bound: FreeRunningBound,
        slice_name: str,
        pairs: Sequence[tuple[TokenIds, TokenIds]],
    ) -> dict[str, Any]:
        section, inference = self._section, self._contract.inference
        unit = "share" if isinstance(bound, (DivergedBound, EditDistanceBound)) else "share of prompts"
        clause = ClausePlan(f"free_running.{name}", bound.limit, unit, self._planned(slice_name), "prompts", slice_name)
        if isinstance(bound, DivergedBound):
            within = slice_length(slice_name) or section.within_tokens
            events = sum((at := first_divergence(*both)) is not None and at < within for both in pairs)
            return rate_entry(inference, arm, clause, events, len(pairs))
        if isinstance(bound, EditDistanceBound):
            return cluster_entry(inference, arm, clause, [edit_distance(*both) for both in pairs])
        sound = [tuple(self._sound(bound, ids) for ids in both) for both in pairs]
        losses = sum(before and not after for before, after in sound)
        gains = sum(after and not before for before, after in sound)
        return pairs_entry(inference, arm, clause, PairedCounts(len(pairs), losses, gains))

    def _sound(self, bound: FreeRunningBound, ids: TokenIds) -> bool:
        if isinstance(bound, RepetitionBound):
            return repeated_share(ids) <= bound.repeated_share
        return not is_empty(ids, tuple(self._end_ids))
