"""The main job: `assess` a model under a contract and leave an evidence pack."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kvassay.assess.arms import PlannedArm, planned_arms
from kvassay.assess.engagement_check import check_engagement
from kvassay.assess.environment import environment_record, peak_rss_nbytes
from kvassay.assess.given_scales import read_given_scales
from kvassay.assess.levels.base import Columns, Level, Subject, Tally
from kvassay.assess.levels.documents import check_text_length
from kvassay.assess.levels.drawn import drawn_levels
from kvassay.assess.pilot import Pilot, run_pilot
from kvassay.assess.planning import plan_record
from kvassay.assess.progress import Progress, Silent
from kvassay.assess.real_ledgers import allocated_ledger
from kvassay.assess.sequential_stop import SequentialStop
from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat
from kvassay.core.ledger import predict_ledger
from kvassay.core.model_source import geometry_of
from kvassay.core.records import Arm, Verdicts
from kvassay.core.serving import check_serves
from kvassay.core.spec import QuantSpec
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.loading import LoadedModel, load_model
from kvassay.errors import KEPT, ContractError, ModelError, printable
from kvassay.formats import quantizer
from kvassay.judge import judge
from kvassay.pack.aborted import AbortedRun, read_earlier
from kvassay.pack.layout import PackManifest
from kvassay.pack.reader import ArmLedgers
from kvassay.pack.writer import PackWriter
from kvassay.report import chart_specs, headline, render_report


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
    after: Sequence[Path] = (),
) -> Assessment:
    """Assess `model_name` under `contract` and write the fresh pack `out`.

    `scales` is a checkpoint folder, or a file in it, whose KV scales serve the formats that they fit.
    Everything that can be refused is refused before the model is read: the folder, the formats against the model's
    head size, the contract's subject. Raises KvassayError; nothing half-written stays behind.

    `after` are packs of earlier runs under the contract, whole or aborted, which the manifest then names. A run that
    an error or a signal ends once rows were measured leaves an aborted pack at `out`.
    """
    with PackWriter(out, contract, contract_toml, read_earlier(after, contract.sha256)) as pack:
        run = _Run(model_name, contract, progress or Silent(), scales)
        try:
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
            manifest = pack.commit()
        except BaseException as error:
            if pack.abort(run.aborted(error).model_dump(mode="json")) is not None:
                error.add_note(f"{KEPT}: {pack.out}")
            raise
        return Assessment(pack.out, manifest, verdicts, run.plan, headline(content), run.ledger_tokens, run.bits)


class _Run:
    """One run, stage by stage."""

    def __init__(self, model_name: str, contract: Contract, progress: Progress, scales: Path | None = None) -> None:
        self._contract = contract
        self._progress = progress
        self._model_name = model_name
        self._arms = planned_arms(contract)
        self._tally = Tally()
        self._seconds: dict[str, float] = {}
        self._done: Counter[str] = Counter()
        self._levels: tuple[Level, ...] = ()
        self._began = datetime.now(UTC)
        self._loaded: LoadedModel | None = None
        geometry = self._check_before_loading()
        self._scales = None if scales is None else read_given_scales(scales, self._arms, geometry)
        if self._scales is not None and self._scales.record["all_unit"]:
            progress.note("every scale of the checkpoint is 1.0: a plain cast, which most likely nobody calibrated")

    def prepare(self) -> None:
        """Load the model, draw the workload, run the pilot and write the plan."""
        with _timed(self._seconds, "load"):
            self._loaded = load_model(
                self._model_name, announce=self._progress.note, weights=self._contract.subject.weights
            )
            self._check_subject(self._loaded)
            self._levels = drawn_levels(self._contract, self._loaded.tokenizer)
            for level in self._levels:
                level.check_lengths(self._loaded.geometry.max_context, self._model_name)
            self._scorer = DecodeScorer(
                self._loaded.model, self._loaded.geometry, self._contract.inference.prefill_reads
            )
            subject = Subject(
                self._loaded.model,
                self._scorer,
                self._loaded.tokenizer,
                self._arms,
                {},
                self._contract.subject.reference_kv,
                self._tally,
            )
        with _timed(self._seconds, "pilot"):
            self._pilot: Pilot = run_pilot(self._contract, subject, self._levels, self._progress, self._scales)
        self.plan = plan_record(self._contract, self._arms, self._pilot, self._levels)
        self._subject = subject._replace(calibrations=self._pilot.calibrations)

    def measure(self, pack: PackWriter) -> None:
        pack.write_plan(self.plan)
        append = {
            "tokens": pack.append_tokens,
            "items": pack.append_items,
            "tensors": pack.append_tensors,
            "generations": pack.append_generations,
            "answers": pack.append_answers,
        }

        for level in self._levels:
            self._measure_level(level, append)
        with _timed(self._seconds, "ledgers"):
            self._ledgers = self._measure_ledgers()
        pack.write_ledgers(self._ledgers)
        pack.write_subject(self._subject_record())

    def _measure_level(self, level: Level, append: Mapping[str, Callable[[Columns], None]]) -> None:
        """All units of a level, or as many of each of its parts as the sequential design needs."""
        self._progress.stage(level.words, len(level.units))
        with _timed(self._seconds, level.name):
            measured = [unit for part in level.parts for unit in self._measure_part(level, part, append)]
        if len(measured) < len(level.units):
            self._progress.note(f"{level.words}: settled after {len(measured)} of {len(level.units)}")
            level.units = measured  # what the record names

    def _measure_part(
        self, level: Level, units: Sequence[Any], append: Mapping[str, Callable[[Columns], None]]
    ) -> Sequence[Any]:
        """Those that were measured: all, unless the sequential design stops."""
        stop, before = SequentialStop(self._contract, self._arms), self._done[level.name]

        def sink(table: str, columns: Columns) -> None:
            append[table](columns)
            stop.see(table, columns)

        def done() -> bool:
            self._done[level.name] += 1
            self._progress.step()
            return stop.reached

        level.measure_all(self._subject, units, sink, done)
        return units[: self._done[level.name] - before] if stop.reached else units

    def judge(self, pack: PackWriter) -> Verdicts:
        arms = [self._arm_record(arm) for arm in self._arms]
        pack.write_arms(arms)
        tables = pack.tables()
        computed = {name: pair.computed for name, pair in self._ledgers.items()}
        with _timed(self._seconds, "judge"):
            verdicts = judge(
                self._contract,
                arms,
                computed,
                tables.tokens,
                tables.items,
                generations=tables.generations,
                answers=tables.answers,
                tensors=tables.tensors,
            )
        pack.write_verdicts(verdicts)
        return verdicts

    @property
    def ledger_tokens(self) -> int:
        return next(iter(self._ledgers.values())).computed.tokens

    @property
    def bits(self) -> dict[str, float]:
        return {name: 16 * pair.computed.ratio_to_float16 for name, pair in self._ledgers.items()}

    def aborted(self, error: BaseException) -> AbortedRun:
        """The record of a run that `error` ended."""
        return AbortedRun(
            model=self._model_name,
            weights_sha256=None if self._loaded is None else self._loaded.hashes.weights,
            last_stage=next(reversed(self._seconds), "load"),
            units_done={level.name: self._done[level.name] for level in self._levels},
            units_planned={level.name: len(level.units) for level in self._levels},
            reason=printable(f"{type(error).__name__}: {error}".removesuffix(": "))[:1000],
            started_utc=_utc(self._began),
            ended_utc=_utc(datetime.now(UTC)),
        )

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
        if not self._contract.needs_run:
            raise ContractError(
                "the contract bounds bytes alone, which need no run: kvassay bytes computes them; "
                "add [fidelity.*], [free_running.*], [numeric.*] or [task.*] to assess what they cost"
            )
        geometry = geometry_of(self._model_name)
        for arm in self._arms:
            check_serves(arm.kv_format, geometry)
        check_engagement(self._contract, self._arms)
        check_text_length(self._contract, geometry.max_context, self._model_name)
        return geometry

    def _check_subject(self, loaded: LoadedModel) -> None:
        subject = self._contract.subject
        for what, expected, found in (
            ("revision", subject.revision, loaded.revision),
            ("tokenizer_sha256", subject.tokenizer_sha256, loaded.hashes.tokenizer),
        ):
            if expected is not None and expected != found:
                raise ModelError(f"subject.{what} of the contract is {expected}, the model has {found}")

    def _measure_ledgers(self) -> dict[str, ArmLedgers]:
        """Computed beside allocated, at the length of one text document, or of the longest item without text."""
        assert self._loaded is not None, "prepare comes first"
        level = self._levels[0]
        units = level.units[:1] if level.is_text else level.units
        token_ids = max((level.token_ids(unit) for unit in units), key=len)
        reference = self._scorer.reference(torch.tensor(token_ids))
        tokens = len(token_ids)
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

    def _subject_record(self) -> dict[str, Any]:
        assert self._loaded is not None, "prepare comes first"
        loaded, contract = self._loaded, self._contract
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
                "parameters": loaded.parameters,
                "dtype": "float32",
                "weights": contract.subject.weights,
                "quantized_weights": loaded.quantized_weights and loaded.quantized_weights._asdict(),
            },
            "engine": {
                "name": "transformers",
                "version": environment_record()["packages"]["transformers"],
                "attention": "decode-faithful, one pass, torch reference path",
                "prefill_reads": contract.inference.prefill_reads,
            },
            "geometry": loaded.geometry.model_dump(mode="json"),
            "corpus": None,
            "numeric": None,
            "items_sha256": sha256_json([]),
            "task": {},
            **{key: value for level in self._levels for key, value in level.to_json().items()},
            "scales": None if self._scales is None else self._scales.record,
            "examples": [example for level in self._levels for example in level.examples_json()],
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


def _utc(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Record the block's seconds as `seconds[stage]`."""
    began = time.monotonic()
    try:
        yield
    finally:
        seconds[stage] = time.monotonic() - began
