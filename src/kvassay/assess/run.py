"""The main job: `assess` a model under a contract and leave an evidence pack."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from kvassay.assess.arms import planned_arms
from kvassay.assess.checks import check_before_loading, check_subject
from kvassay.assess.environment import environment_record, peak_rss_nbytes
from kvassay.assess.given_scales import read_given_scales
from kvassay.assess.levels.base import Columns, Level, Sink, Subject, Tally
from kvassay.assess.levels.drawn import drawn_levels
from kvassay.assess.pilot import Pilot, run_pilot
from kvassay.assess.planning import plan_record
from kvassay.assess.progress import Progress, Silent
from kvassay.assess.real_ledgers import measure_ledgers
from kvassay.assess.sequential_stop import SequentialStop
from kvassay.assess.subject_record import arm_record, subject_record
from kvassay.core.contract import Contract
from kvassay.core.records import Verdicts
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.loading import LoadedModel, load_model
from kvassay.errors import KEPT, printable
from kvassay.pack.aborted import AbortedRun, read_earlier
from kvassay.pack.layout import PackManifest
from kvassay.pack.rejudge import judge_tables
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
        geometry = check_before_loading(model_name, contract, self._arms)
        self._scales = None if scales is None else read_given_scales(scales, self._arms, geometry)
        if self._scales is not None and self._scales.record["all_unit"]:
            progress.note("every scale of the checkpoint is 1.0: a plain cast, which most likely nobody calibrated")

    def prepare(self) -> None:
        """Load the model, draw the workload, run the pilot and write the plan."""
        with _timed(self._seconds, "load"):
            self._loaded = load_model(
                self._model_name, announce=self._progress.note, weights=self._contract.subject.weights
            )
            check_subject(self._contract, self._loaded)
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
        for level in self._levels:
            self._measure_level(level, pack.append)
        with _timed(self._seconds, "ledgers"):
            assert self._loaded is not None, "prepare comes first"
            self._ledgers = measure_ledgers(self._loaded, self._levels, self._subject)
        pack.write_ledgers(self._ledgers)
        scales = None if self._scales is None else self._scales.record
        pack.write_subject(subject_record(self._model_name, self._contract, self._loaded, self._levels, scales))

    def _measure_level(self, level: Level, append: Sink) -> None:
        """All units of a level, or as many of each of its parts as the sequential design needs."""
        self._progress.stage(level.words, len(level.units))
        with _timed(self._seconds, level.name):
            measured = [unit for part in level.parts for unit in self._measure_part(level, part, append)]
        if len(measured) < len(level.units):
            self._progress.note(f"{level.words}: settled after {len(measured)} of {len(level.units)}")
            level.units = measured  # what the record names

    def _measure_part(self, level: Level, units: Sequence[Any], append: Sink) -> Sequence[Any]:
        """Those that were measured: all, unless the sequential design stops."""
        stop, before = SequentialStop(self._contract, self._arms), self._done[level.name]

        def sink(table: str, columns: Columns) -> None:
            append(table, columns)
            stop.see(table, columns)

        def done() -> bool:
            self._done[level.name] += 1
            self._progress.step()
            return stop.reached

        level.measure_all(self._subject, units, sink, done)
        return units[: self._done[level.name] - before] if stop.reached else units

    def judge(self, pack: PackWriter) -> Verdicts:
        sources = self._pilot.calibration_sources
        arms = [arm_record(arm, sources.get(arm.name), self._tally) for arm in self._arms]
        pack.write_arms(arms)
        tables = pack.tables()
        with _timed(self._seconds, "judge"):
            verdicts = judge_tables(self._contract, arms, self._ledgers, tables)
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
