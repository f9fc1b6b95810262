"""The pilot: a few units of every level that fix static scales, tell the spread, and time the run.

Its rows are never part of the verdict: planning from the data that is then judged would bias the judgement.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import Calibrations
from kvassay.assess.given_scales import GivenScales
from kvassay.assess.levels.base import Columns, Level, PilotRows, Subject, Tally
from kvassay.assess.progress import Progress
from kvassay.cache.cohorts import LayerCalibration
from kvassay.core.calibration_policy import CalibrationPolicy, parse_policy
from kvassay.core.contract import Contract
from kvassay.engines.transformers.decode_scorer import DecodeScorer

MOST_CALIBRATION_UNITS = 4
"""Of a level without documents; documents of the pilot are all used."""


class Pilot(NamedTuple):
    calibrations: Calibrations
    calibration_sources: dict[str, str]
    rows: Mapping[str, PilotRows]
    """By level, then by table."""
    seconds_per_unit: Mapping[str, float]
    """By level."""


def run_pilot(
    contract: Contract,
    subject: Subject,
    levels: Sequence[Level],
    progress: Progress,
    given: GivenScales | None = None,
) -> Pilot:
    """Calibrate what needs it and has no `given` scales, then measure the pilot's units under all arms."""
    progress.stage("pilot", sum(len(level.pilot_units) for level in levels))
    known = {} if given is None else given.calibrations
    policy = parse_policy(contract.inference.calibration)
    measured = calibrate(subject.scorer, [arm for arm in subject.arms if arm.name not in known], levels, policy)
    calibrations = {**measured, **known}
    subject = subject._replace(calibrations=calibrations, tally=Tally())
    rows: dict[str, PilotRows] = {}
    seconds: dict[str, float] = {}
    for level in levels:
        found: defaultdict[str, list[Columns]] = defaultdict(list)
        ends = [time.monotonic()]

        def keep(table: str, columns: Columns, found: defaultdict[str, list[Columns]] = found) -> None:
            found[table].append(columns)

        def done(ends: list[float] = ends) -> None:
            ends.append(time.monotonic())
            progress.step()

        level.measure_all(subject, level.pilot_units, keep, done, pilot=True)
        rows[level.name] = found
        seconds[level.name] = _seconds_per_unit(ends, level.generates)
    return Pilot(
        calibrations=calibrations,
        calibration_sources={
            **{name: calibration_source(scales) for name, scales in measured.items()},
            **({} if given is None else dict.fromkeys(known, given.source)),
        },
        rows=rows,
        seconds_per_unit=seconds,
    )


def _seconds_per_unit(ends: Sequence[float], together: bool) -> float:
    """From the moments at which units ended, the beginning first.

    The first unit of a level also pays for what is done once (kernels chosen, memory asked for the first time), which
    a run of many units hardly feels. Units that run together end together, and only all of them tell.
    """
    units = len(ends) - 1
    if units < 3 or together:
        return (ends[-1] - ends[0]) / max(1, units)
    return (ends[-1] - ends[1]) / (units - 1)


def calibration_token_ids(levels: Sequence[Level]) -> list[Sequence[int]]:
    """Tokens of the pilot's units on whose keys and values static scales are chosen."""
    level = levels[0]
    units = level.pilot_units if level.is_text else level.pilot_units[:MOST_CALIBRATION_UNITS]
    return [level.token_ids(unit) for unit in units]


def calibrate(
    scorer: DecodeScorer, arms: Sequence[PlannedArm], levels: Sequence[Level], policy: CalibrationPolicy
) -> dict[str, dict[int, LayerCalibration]]:
    """Static scales by arm and layer, of those arms that need them."""
    needing = [arm for arm in arms if any(spec.needs_calibration for spec in arm.kv_format.specs)]
    if not needing:
        return {}
    references = [scorer.reference(torch.tensor(ids)) for ids in calibration_token_ids(levels)]
    return {arm.name: scorer.calibrate(arm.kv_format, references, policy) for arm in needing}


def calibration_source(scales: Any) -> str:
    """All layers are calibrated on the same tokens, so any side tells."""
    layer: LayerCalibration = next(iter(scales.values()))
    return next(side.source for sides in layer for side in sides if side is not None)
