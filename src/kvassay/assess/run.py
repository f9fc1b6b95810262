"""The main job: `assess` a model under a contract and leave an evidence pack."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kvassay.assess.arms import PlannedArm, planned_arms
from kvassay.assess.document_rows import DocumentPasses, TokenRows
from kvassay.assess.engagement_check import check_engagement
from kvassay.assess.environment import environment_record, peak_rss_nbytes
from kvassay.assess.examples import WorstExamples
from kvassay.assess.given_scales import read_given_scales
from kvassay.assess.measurement import Subject, Tally, measure_documents, measure_items
from kvassay.assess.numeric_level import tensor_rows
from kvassay.assess.pilot import Pilot, run_pilot
from kvassay.assess.planning import plan_record
from kvassay.assess.progress import Progress, Silent
from kvassay.assess.real_ledgers import allocated_ledger
from kvassay.assess.workload import Workload, item_ids, prepare_workload
from kvassay.core.contract import Contract
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat
from kvassay.core.ledger import predict_ledger
from kvassay.core.model_source import geometry_of
from kvassay.core.records import Arm, Verdicts
from kvassay.core.serving import check_serves
from kvassay.core.spec import QuantSpec
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.loading import LoadedModel, load_model
from kvassay.errors import ContractError, ModelError
from kvassay.formats import quantizer
from kvassay.judge import judge
from kvassay.pack.layout import PackManifest
from kvassay.pack.reader import ArmLedgers
from kvassay.pack.writer import PackWriter
from kvassay.report import chart_specs, headline, render_report
from kvassay.workloads.excerpts import TokenDocument


class Assessment(NamedTuple):
    """What a run leaves: the pack's folder and manifest, and the judgement."""

    out: Path
    manifest: PackManifest
    verdicts: Verdicts
    plan: dict[str, Any]
    answer: str
    """One sentence: the smallest candidate that met the contract, its bytes and its loss."""
    tokens: int
    """Of the cache whose bytes are counted."""
    bits: dict[str, float]
    """Stored bits per value by arm: persistent bytes of a document's cache, windows, sinks and padding included."""


def plan_assessment(
    model_name: str, contract: Contract, progress: Progress | None = None, scales: Path | None = None
) -> dict[str, Any]:
    """Pilot and plan only (`--dry-run`): sample sizes, power and cost. Writes nothing."""
    run = _Run(model_name, contract, progress or Silent(), scales)
    run.prepare()
    return run.plan


def run_assessment(
    model_name: str,
    contract: Contract,
    contract_toml: str,
    out: Path,
    progress: Progress | None = None,
    on_plan: Callable[[dict[str, Any]], None] | None = None,
    scales: Path | None = None,
) -> Assessment:
    """Assess `model_name` under `contract` and write the fresh pack `out`.

    `scales` is a checkpoint folder, or a file in it, whose KV scales serve the formats that they fit.
    Everything that can be refused is refused before the model is read: the folder, the formats against the model's
    head size, the contract's subject. Raises KvassayError; nothing half-written stays behind.
    """
    with PackWriter(out, contract, contract_toml) as pack:
        run = _Run(model_name, contract, progress or Silent(), scales)
        run.prepare()
        if on_plan is not None:
            on_plan(run.plan)
        run.measure(pack)
        verdicts = run.judge(pack)
        pack.write_environment(run.environment())
        content = pack.content()
        for name, spec in chart_specs(content).items():
            pack.write_chart(name, spec)
        pack.write_report(render_report(content))
        return Assessment(pack.out, pack.commit(), verdicts, run.plan, headline(content), run.ledger_tokens, run.bits)


class _Run:
    """One run, stage by stage."""

    def __init__(self, model_name: str, contract: Contract, progress: Progress, scales: Path | None = None) -> None:
        self._contract = contract
        self._progress = progress
        self._model_name = model_name
        self._arms = planned_arms(contract)
        self._tally = Tally()
        self._seconds: dict[str, float] = {}
        self._began = datetime.now(UTC)
        self._loaded: LoadedModel | None = None
        geometry = self._check_before_loading()
        self._scales = None if scales is None else read_given_scales(scales, self._arms, geometry)
        if self._scales is not None and self._scales.record["all_unit"]:
            progress.note("every scale of the checkpoint is 1.0: a plain cast, which most likely nobody calibrated")

    def prepare(self) -> None:
        """Load the model, draw the workload, run the pilot and write the plan."""
        with _timed(self._seconds, "load"):
            self._loaded = load_model(self._model_name, announce=self._progress.note)
            self._check_subject(self._loaded)
            self._workload: Workload = prepare_workload(self._contract, self._loaded.tokenizer)
            self._check_lengths(self._loaded)
            self._scorer = DecodeScorer(
                self._loaded.model, self._loaded.geometry, self._contract.inference.prefill_reads
            )
        with _timed(self._seconds, "pilot"):
            self._pilot: Pilot = run_pilot(
                self._contract,
                self._scorer,
                self._loaded.tokenizer,
                self._arms,
                self._workload,
                self._progress,
                self._scales,
            )
        self.plan = plan_record(self._contract, self._arms, self._pilot, self._workload)
        self._subject = Subject(
            self._scorer,
            self._loaded.tokenizer,
            self._arms,
            self._pilot.calibrations,
            self._contract.subject.reference_kv,
        )

    def measure(self, pack: PackWriter) -> None:
        pack.write_plan(self.plan)
        contract, workload = self._contract, self._workload
        examples = WorstExamples(self._scorer, self._subject.tokenizer)
        first = True

        def on_document(document: TokenDocument, passes: DocumentPasses, rows: list[TokenRows]) -> None:
            nonlocal first
            examples.offer(passes, rows, document.id)
            if first:
                pack.append_tensors(
                    tensor_rows(self._scorer, passes, document.id, self._arms, self._subject.calibrations)
                )
                first = False

        if workload.documents:
            self._progress.stage("documents", len(workload.documents))
            prompt = contract.text.prompt_tokens
            self._seconds["documents"] = measure_documents(
                self._subject, workload.documents, prompt, pack.append_tokens, self._tally, self._progress, on_document
            )
        if workload.items:
            self._progress.stage("recall items", len(workload.items))
            self._seconds["items"] = measure_items(
                self._subject, workload.items, pack.append_items, self._tally, self._progress
            )
        with _timed(self._seconds, "ledgers"):
            self._ledgers = self._measure_ledgers()
        pack.write_ledgers(self._ledgers)
        pack.write_subject(self._subject_record(examples))

    def judge(self, pack: PackWriter) -> Verdicts:
        arms = [self._arm_record(arm) for arm in self._arms]
        pack.write_arms(arms)
        tables = pack.tables()
        computed = {name: pair.computed for name, pair in self._ledgers.items()}
        with _timed(self._seconds, "judge"):
            verdicts = judge(self._contract, arms, computed, tables.tokens, tables.items)
        pack.write_verdicts(verdicts)
        return verdicts

    @property
    def ledger_tokens(self) -> int:
        return next(iter(self._ledgers.values())).computed.tokens

    @property
    def bits(self) -> dict[str, float]:
        return {name: 16 * pair.computed.ratio_to_float16 for name, pair in self._ledgers.items()}

    def environment(self) -> dict[str, Any]:
        return {
            **environment_record(),
            "seconds": self._seconds,
            "peak_rss_nbytes": peak_rss_nbytes(),
            "started_utc": self._began.isoformat(timespec="seconds"),
            "finished_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _check_before_loading(self) -> CacheGeometry:
        """The model's shape, from its config."""
        subject = self._contract.subject
        if subject.model is not None and subject.model != self._model_name:
            raise ContractError(
                f"the contract is for model {subject.model!r}, found {self._model_name!r}; "
                "assess that model, or change subject.model in a copy of the contract"
            )
        if not self._contract.has_fidelity and not self._contract.task:
            raise ContractError(
                "the contract bounds bytes alone, which need no run: kvassay bytes computes them; "
                "add [fidelity.*] or [task.*] to assess what they cost"
            )
        geometry = geometry_of(self._model_name)
        for arm in self._arms:
            check_serves(arm.kv_format, geometry)
        check_engagement(self._contract, self._arms)
        length = self._contract.text.prompt_tokens + self._contract.text.scored_tokens
        if self._contract.has_fidelity and geometry.max_context is not None and length > geometry.max_context:
            raise ContractError(
                f"text.prompt_tokens + text.scored_tokens is {length}, {self._model_name} has a context of "
                f"{geometry.max_context} tokens"
            )
        return geometry

    def _check_subject(self, loaded: LoadedModel) -> None:
        subject = self._contract.subject
        for what, expected, found in (
            ("revision", subject.revision, loaded.revision),
            ("tokenizer_sha256", subject.tokenizer_sha256, loaded.hashes.tokenizer),
        ):
            if expected is not None and expected != found:
                raise ModelError(f"subject.{what} of the contract is {expected}, the model has {found}")

    def _check_lengths(self, loaded: LoadedModel) -> None:
        """Refuse items beyond the model's context: some models fail there, and others answer nonsense without a word.

        How long an item is depends on the tokenizer; the length of a text is the contract's and was checked before.
        """
        context = loaded.geometry.max_context
        items = (*self._workload.pilot_items, *self._workload.items)
        longest = max((len(item_ids(item)) for item in items), default=0)
        if context is not None and longest > context:
            lines = self._contract.task["recall"].context_lines
            raise ContractError(
                f"task.recall: items with context_lines = {lines} have up to {longest} tokens, "
                f"{self._model_name} has a context of {context} tokens; at most about "
                f"{max(1, lines * context // longest)} lines fit"
            )

    def _measure_ledgers(self) -> dict[str, ArmLedgers]:
        """Computed beside allocated, at the length of one text document, or of the longest item without text."""
        assert self._loaded is not None, "prepare comes first"
        sequences = [document.token_ids for document in self._workload.documents[:1]] or [
            max((item_ids(item) for item in self._workload.items), key=len)
        ]
        reference = self._scorer.reference(torch.tensor(sequences[0]))
        tokens = len(sequences[0])
        ledgers = {}
        for arm in self._arms:
            calibration = self._subject.calibrations.get(arm.name)
            ledgers[arm.name] = ArmLedgers(
                predict_ledger(self._loaded.geometry, arm.kv_format, tokens),
                allocated_ledger(
                    self._loaded.model.config,
                    arm,
                    reference,
                    calibration,
                    self._scorer.key_transforms(arm.kv_format),
                ),
            )
        return ledgers

    def _arm_record(self, arm: PlannedArm) -> Arm:
        return Arm(
            name=arm.name,
            role=arm.role,
            format_digest=arm.kv_format.digest,
            format=arm.kv_format.model_dump(mode="json"),
            scale_source=scale_source(arm.kv_format, self._pilot.calibration_sources.get(arm.name)),
            clipped_values=self._tally.clipped[arm.name],
            encoded_values=self._tally.encoded[arm.name],
        )

    def _subject_record(self, examples: WorstExamples) -> dict[str, Any]:
        assert self._loaded is not None, "prepare comes first"
        loaded, contract = self._loaded, self._contract
        recall = contract.task.get("recall")
        return {
            "model": {
                "name": self._model_name,
                "source": loaded.source.kind.value,
                "stored_weights": loaded.stored_weights,
                "revision": loaded.revision,
                "weights_sha256": loaded.hashes.weights,
                "weight_files_sha256": loaded.hashes.weight_files,
                "tokenizer_sha256": loaded.hashes.tokenizer,
                "config_sha256": loaded.hashes.config,
                "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
                "dtype": "float32",
            },
            "engine": {
                "name": "transformers",
                "version": environment_record()["packages"]["transformers"],
                "attention": "decode-faithful, one pass, torch reference path",
                "prefill_reads": contract.inference.prefill_reads,
            },
            "geometry": loaded.geometry.model_dump(mode="json"),
            **self._workload.to_json(contract.text.prompt_tokens),
            "task": {
                "recall": None
                if recall is None
                else {"items": recall.items, "context_lines": recall.context_lines, "seed": contract.inference.seed}
            },
            "scales": None if self._scales is None else self._scales.record,
            "examples": examples.to_json(),
        }


def scale_source(kv_format: KVFormat, calibrated: str | None) -> str:
    """Where the scales of a format come from, for both sides: never empty."""

    def of(spec: QuantSpec) -> str:
        if spec.needs_calibration:
            assert calibrated, "static formats are calibrated by the pilot"
            return calibrated
        return quantizer(spec).scale_source

    keys, values = of(kv_format.keys), of(kv_format.values)
    return keys if keys == values else f"keys {keys}, values {values}"


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Record the block's seconds as `seconds[stage]`."""
    began = time.monotonic()
    try:
        yield
    finally:
        seconds[stage] = time.monotonic() - began
