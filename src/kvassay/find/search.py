"""The search: pilot, allocation, frontier, then one judged run of a short sequence on fresh documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvassay.assess.levels.base import Level
from kvassay.assess.levels.drawn import drawn_levels
from kvassay.assess.progress import Progress, Silent
from kvassay.assess.run import Assessment, run_assessment
from kvassay.core.contract import parse_contract
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry
from kvassay.core.model_source import geometry_of
from kvassay.core.records import ExitCode, FormatVerdict, Outcome, Role
from kvassay.core.serving import check_serves
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.loading import load_model
from kvassay.errors import ContractError, KvassayError, SearchError
from kvassay.find.attention_time import AttentionTime, AttentionTimer
from kvassay.find.candidates import (
    Candidate,
    Dropped,
    allocated_candidates,
    byte_refusal,
    even_budgets,
    frontier,
    sequence,
    uniform_candidates,
)
from kvassay.find.derived_contract import derive_contract
from kvassay.find.ladder import By, Ladder, parse_ladder
from kvassay.find.pilot import PilotFigures, PilotSize, SearchPilot, draw_pilot_text, verdict_documents
from kvassay.find.records import AttentionMicroseconds, DroppedRow, FormatRow, Found, JudgedKl, Target
from kvassay.find.running import how_to_run
from kvassay.find.sensitivity import (
    Sensitivities,
    Wanted,
    choices,
    measure_sensitivities,
    read_sensitivities,
    write_sensitivities,
)
from kvassay.pack.folder import FolderWriter
from kvassay.pack.layout import PACK_SCHEMA
from kvassay.pack.reader import read_pack
from kvassay.pack.whole_file import refuse_existing, write_whole_file
from kvassay.report.findings import find as findings_of

DEFAULT_LADDERS = ("kv=exl3-{bits}", "kv=int{bits}:group32", "kv=int{bits}:token-head")
"""The first that serves the model's head size."""
DEFAULT_WIDTHS: dict[Target, tuple[int, ...]] = {"bytes": (2, 3, 4, 5, 6, 8), "speed": (2, 4, 8)}
"""For speed, those that compiled kernels read."""


class SearchOptions(NamedTuple):
    target: Target = "bytes"
    ladder: str | None = None
    widths: tuple[int, ...] | None = None
    by: By = "layer"
    formats: tuple[str, ...] = ()
    """Searched beside the list of uniform formats."""
    sensitivities: Path | None = None
    pilot: PilotSize = PilotSize()
    most_judged: int = 6


class _Chosen(NamedTuple):
    """What the pilot decided, as plain data: the model is released before the judged run loads it again."""

    context_tokens: int
    ladder: Ladder
    pilot: dict[str, Any]
    sensitivities: dict[str, Any]
    timing: dict[str, Any] | None
    candidates: dict[str, Candidate]
    figures: dict[str, PilotFigures]
    shares: dict[str, float | None]
    times: dict[str, AttentionTime]
    dropped: tuple[Dropped, ...]
    on_frontier: tuple[str, ...]
    sequence: tuple[str, ...]


def run_search(
    model_name: str,
    contract_toml: str,
    out: Path,
    options: SearchOptions = SearchOptions(),  # noqa: B008  (frozen)
    progress: Progress | None = None,
    on_plan: Callable[[dict[str, Any]], None] | None = None,
) -> Found:
    """Search, judge and say how to run. Writes the evidence pack `out` and the search's record beside it.

    Raises KvassayError for everything that a user can mend, before the model is read where that is possible.
    """
    progress = progress or Silent()
    with FolderWriter(out, PACK_SCHEMA):
        pass  # shows, before the search and not after it, that the pack can be written there; nothing stays
    record = out.with_name(f"{out.name}.find.json")
    refuse_existing(record)
    if options.sensitivities is not None and not options.sensitivities.parent.is_dir():
        raise SearchError(f"--sensitivities {str(options.sensitivities)!r}: its folder does not exist; make it first")
    chosen = _choose(model_name, contract_toml, options, progress)
    derived = derive_contract(contract_toml, chosen.sequence)
    progress.note(f"judging {len(chosen.sequence)} formats on fresh documents, from conservative to bold")
    result = run_assessment(model_name, derived.contract, derived.toml, out, progress, on_plan)
    found = _found(model_name, contract_toml, options, chosen, result, geometry_of(model_name))
    write_whole_file(record, json.dumps(found.model_dump(mode="json"), indent=1, allow_nan=False).encode() + b"\n")
    return found


def _choose(model_name: str, contract_toml: str, options: SearchOptions, progress: Progress) -> _Chosen:
    contract = parse_contract(contract_toml)
    if not contract.needs_run:
        raise ContractError("the contract bounds bytes alone, which need no search: kvassay capacity computes them")
    if contract.subject.model not in (None, model_name):
        raise ContractError(
            f"the contract is for model {contract.subject.model!r}, found {model_name!r}; search for that model, or "
            "change subject.model in a copy of the contract"
        )
    geometry = geometry_of(model_name)
    ladder = _ladder(options, geometry)
    for name in options.formats:
        check_serves(parse_format(name), geometry)
    loaded = load_model(model_name, announce=progress.note)
    levels = drawn_levels(contract, loaded.tokenizer)
    tokens = _context_tokens(levels)
    # Refuses where kernels are missing, before the pilot's minutes.
    timer = AttentionTimer(geometry, tokens) if options.target == "speed" else None
    taken = verdict_documents(levels)
    scorer = DecodeScorer(loaded.model, loaded.geometry, contract.inference.prefill_reads)
    pilot = SearchPilot(scorer, draw_pilot_text(contract, loaded.tokenizer, options.pilot, taken), contract)
    wanted = Wanted(model_name, loaded.hashes, geometry, ladder, options.by, taken)
    isolated_kl, source = _sensitivities(options, pilot, wanted, progress)
    isolated = choices(isolated_kl.mean_kl(), ladder, geometry, options.by, tokens)

    uniform = uniform_candidates(contract, geometry, tokens, options.formats)
    budgets = even_budgets(isolated, geometry, tokens)
    allocated = allocated_candidates(contract, geometry, tokens, ladder, options.by, isolated, budgets)
    dropped = [*uniform.dropped, *allocated.dropped]
    candidates: dict[str, Candidate] = {}
    for candidate in (*uniform.found, *allocated.found):
        reason = pilot.refusal(candidate.kv_format)
        if reason is None and timer is not None:
            reason = timer.obstacle(candidate.kv_format)
        if reason is not None:
            dropped.append(Dropped(candidate.name, reason))
        else:
            candidates.setdefault(candidate.name, candidate)
    candidates, too_large = _within_bytes(contract_toml, candidates)
    dropped += too_large
    figures, failed = _figures(pilot, candidates, progress)
    dropped += failed
    candidates = {name: candidates[name] for name in figures}
    if not candidates:
        raise SearchError("no format is left to search; kvassay formats lists them, give some with --format")
    times = {} if timer is None else _times(timer, pilot, candidates, progress)
    cost = {
        name: times[name].median_us if times else candidate.ledger.persistent_nbytes
        for name, candidate in candidates.items()
    }
    on_frontier = frontier(cost, {name: each.kl_mean for name, each in figures.items()})
    shares = {name: each.share_of_limit(pilot.limits) for name, each in figures.items()}
    return _Chosen(
        context_tokens=tokens,
        ladder=ladder,
        pilot=pilot.text.to_json(),
        sensitivities=source,
        timing=None if timer is None else timer.to_json(),
        candidates=candidates,
        figures=figures,
        shares=shares,
        times=times,
        dropped=tuple(dropped),
        on_frontier=tuple(on_frontier),
        sequence=tuple(sequence(on_frontier, shares, options.most_judged)),
    )


def _ladder(options: SearchOptions, geometry: CacheGeometry) -> Ladder:
    widths = options.widths or DEFAULT_WIDTHS[options.target]
    if options.ladder is not None:
        ladder = parse_ladder(options.ladder, widths)
        for kv_format in ladder.formats:
            check_serves(kv_format, geometry)
        return ladder
    for template in DEFAULT_LADDERS:
        ladder = parse_ladder(template, widths)
        try:
            for kv_format in ladder.formats:
                check_serves(kv_format, geometry)
        except KvassayError:
            continue
        return ladder
    raise SearchError("no ladder of this search serves the model's head size; give one with --ladder")


def _context_tokens(levels: Sequence[Level]) -> int:
    """The length at which the judged run counts bytes: a document's, or the longest item's where there is no text."""
    level = levels[0]
    units = level.units[:1] if level.is_text else level.units
    return max(len(level.token_ids(unit)) for unit in units)


def _sensitivities(
    options: SearchOptions, pilot: SearchPilot, wanted: Wanted, progress: Progress
) -> tuple[Sensitivities, dict[str, Any]]:
    path = options.sensitivities
    if path is not None and path.exists():
        found = read_sensitivities(path, pilot, wanted)
        source = "read"
    else:
        found = measure_sensitivities(pilot, wanted, progress)
        source = "measured"
        if path is not None:
            write_sensitivities(path, found)
    return found, {
        "source": source,
        "file": None if path is None else str(path),
        "passes": found.passes,
        "seconds": found.seconds,
        "documents": [document.id for document in found.text.documents],
    }


def _within_bytes(contract_toml: str, candidates: dict[str, Candidate]) -> tuple[dict[str, Candidate], list[Dropped]]:
    """Without those whose ledger breaks the contract's byte bounds: judged first, they would only stop the sequence.

    Where all of them do, the smallest stays, so that the evidence says so.
    """
    contract = parse_contract(contract_toml)
    reasons = {name: byte_refusal(contract, candidate.ledger) for name, candidate in candidates.items()}
    kept = {name: candidate for name, candidate in candidates.items() if reasons[name] is None}
    if not kept and candidates:
        smallest = min(candidates, key=lambda name: candidates[name].ledger.persistent_nbytes)
        kept = {smallest: candidates[smallest]}
    return kept, [Dropped(name, reason) for name, reason in reasons.items() if reason is not None and name not in kept]


def _figures(
    pilot: SearchPilot, candidates: dict[str, Candidate], progress: Progress
) -> tuple[dict[str, PilotFigures], list[Dropped]]:
    progress.stage(f"pilot of {len(candidates)} formats", len(candidates) * len(pilot.text.documents))
    try:
        return pilot.figures({name: each.kv_format for name, each in candidates.items()}, progress), []
    except KvassayError:
        # Some format refuses this model's numbers (range, NaN): find out which, one by one.
        figures, failed = {}, []
        for name, candidate in candidates.items():
            try:
                figures |= pilot.figures({name: candidate.kv_format}, Silent())
            except KvassayError as error:
                failed.append(Dropped(name, str(error)))
        return figures, failed


def _times(
    timer: AttentionTimer, pilot: SearchPilot, candidates: dict[str, Candidate], progress: Progress
) -> dict[str, AttentionTime]:
    progress.stage("attention time", len(candidates))
    found = {}
    for name, candidate in candidates.items():
        found[name] = timer.time(candidate.kv_format, pilot.calibration(candidate.kv_format))
        progress.step()
    return found


def _found(
    model_name: str,
    contract_toml: str,
    options: SearchOptions,
    chosen: _Chosen,
    result: Assessment,
    geometry: CacheGeometry,
) -> Found:
    contract = parse_contract(contract_toml)
    content = read_pack(result.out)
    mean_kl = findings_of(content).mean_kl
    verdicts = {each.arm: each for each in result.verdicts.formats if each.role is Role.CANDIDATE}
    rows = []
    for name, candidate in sorted(chosen.candidates.items(), key=lambda item: -item[1].ledger.persistent_nbytes):
        verdict, kl, time = verdicts.get(name), mean_kl.get(name), chosen.times.get(name)
        rows.append(
            FormatRow(
                format=name,
                digest=candidate.kv_format.digest,
                kind=candidate.kind,
                stored_bits=candidate.stored_bits,
                nbytes_per_token=candidate.nbytes_per_token,
                attention_us=None
                if time is None
                else AttentionMicroseconds(median=time.median_us, low=time.low_us, high=time.high_us),
                pilot_kl_nats=chosen.figures[name].kl_mean,
                pilot_share_of_limit=chosen.shares[name],
                predicted_kl_nats=candidate.predicted_kl,
                on_frontier=name in chosen.on_frontier,
                judged=verdict is not None,
                outcome=None if verdict is None else verdict.outcome,
                reason=None if verdict is None else verdict.reason,
                kl=None
                if kl is None or verdict is None
                else JudgedKl(
                    estimate=kl.estimate, lower=kl.lower, upper=kl.upper, documents=content.contract.text.documents
                ),
            )
        )
    met = [name for name in chosen.sequence if verdicts[name].outcome is Outcome.MET]
    winner = None
    if met:
        kv_format = chosen.candidates[met[-1]].kv_format
        winner = how_to_run(kv_format, model_name, geometry, contract, result.out, chosen.context_tokens)
    outcome, code, reason = _conclusion([verdicts[name] for name in chosen.sequence])
    return Found(
        model=model_name,
        target=options.target,
        contract_name=contract.name,
        contract_sha256=contract.sha256,
        derived_contract_sha256=content.contract.sha256,
        context_tokens=chosen.context_tokens,
        ladder=chosen.ladder.template,
        widths=chosen.ladder.widths,
        by=options.by,
        pilot=chosen.pilot,
        sensitivities=chosen.sensitivities,
        timing=chosen.timing,
        formats=tuple(rows),
        dropped=tuple(DroppedRow(format=each.name, reason=each.reason) for each in chosen.dropped),
        sequence=chosen.sequence,
        winner=winner,
        out=str(result.out),
        root=result.manifest.root,
        answer=result.answer,
        outcome=outcome,
        exit_code=int(code),
        reason=reason,
    )


def _conclusion(judged: Sequence[FormatVerdict]) -> tuple[Outcome, ExitCode, str]:
    """Of the search: the boldest format that is MET, or why the safest one is not."""
    met = [verdict for verdict in judged if verdict.outcome is Outcome.MET]
    if met:
        after = judged[len(met)] if len(met) < len(judged) else None
        stop = "it is the boldest that was judged" if after is None else f"{after.arm} is not met: {after.reason}"
        return Outcome.MET, ExitCode.MET, f"{met[-1].arm} meets the contract; {stop}"
    first = judged[0]
    code = ExitCode.BREACHED if first.outcome is Outcome.BREACHED else ExitCode.INCONCLUSIVE
    return first.outcome, code, f"no format is shown to meet the contract; the safest, {first.arm}: {first.reason}"
