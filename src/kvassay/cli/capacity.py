"""`kvassay capacity`: the largest batch that a memory budget holds, by formula and, with --run, in real caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from kvassay.cli.capacity_tables import capacity_document, print_answers, print_runs
from kvassay.cli.output import print_json
from kvassay.cli.progress_display import ProgressDisplay
from kvassay.cli.torch_extra import require_torch
from kvassay.core.byte_size import parse_nbytes
from kvassay.core.capacity import Budget, Capacity, Holds, capacity
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry
from kvassay.core.model_source import geometry_of, weight_files_nbytes
from kvassay.core.records import ExitCode
from kvassay.core.serving import check_serves
from kvassay.errors import UsageError

if TYPE_CHECKING:
    from kvassay.measures.capacity_run import CapacityRun, FillResult

Count = Annotated[int, Parameter(validator=Number(gte=1, lte=1_000_000_000))]
_BASELINE = "f16"


def capacity_command(
    model: str,
    /,
    *,
    format: Annotated[list[str], Parameter(negative=())],
    budget: str,
    context: Count = 4096,
    batch_step: Count = 1,
    weights: str | None = None,
    include_weights: Annotated[bool, Parameter(negative=())] = False,
    run: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Largest batch in a memory budget, and longest context of one row. Exit code 1 if --run contradicts the formula.

    Parameters
    ----------
    model
        Built-in name, folder with config.json, .gguf file, or hub id.
    format
        KV format, for example kivi-4; repeat it to compare several.
    budget
        Memory to fill, with its unit: 4GiB, 512MiB, 4GB or "4294967296 bytes".
    context
        Tokens in each row.
    batch_step
        Batches are multiples of this.
    weights
        Size of the weights in memory, for example 14GiB; the size of the model's files if it is left out.
    include_weights
        The budget holds weights, cache and the workspace of a decode step; without it, the cache alone.
    run
        Fill real caches of that batch, and of one step more, each in a fresh process, and count what they hold.
    json
        Print one JSON document.
    """
    budget_nbytes = parse_nbytes(budget, "--budget")
    weights_nbytes = weight_files_nbytes(model) if weights is None else parse_nbytes(weights, "--weights")
    geometry = geometry_of(model)
    formats = [parse_format(name) for name in format]
    for kv_format in formats:
        check_serves(kv_format, geometry)
    if include_weights and weights_nbytes is None:
        raise UsageError(
            f"--include-weights: {model!r} has no weight files here; say how much they take: --weights SIZE"
        )
    limits = Budget(budget_nbytes, Holds.EVERYTHING if include_weights else Holds.CACHE, weights_nbytes)
    found = [capacity(geometry, kv_format, limits, context, batch_step) for kv_format in formats]
    plain = capacity(geometry, parse_format(_BASELINE), limits, context, batch_step)
    runs = _run(geometry, found, limits, context, quiet=json) if run else {}
    if json:
        print_json(capacity_document(model, limits, weights is not None, context, batch_step, found, plain, runs))
    else:
        print_answers(model, limits, weights is not None, geometry, context, found, plain)
        print_runs(found, runs)
    return ExitCode.MET if all(one.confirmed for one in runs.values()) else ExitCode.BREACHED


def _run(
    geometry: CacheGeometry, found: list[Capacity], limits: Budget, context: int, quiet: bool
) -> dict[int, CapacityRun]:
    """What was filled for each answer. Everything that can be refused is refused before the first byte."""
    require_torch("kvassay capacity --run")
    from kvassay.measures.cache_fill import check_fillable
    from kvassay.measures.capacity_run import CapacityRun, FillRequest, check_machine, run_fill

    for one in found:
        check_fillable(one.kv_format)
        check_machine(geometry, one, context, limits.nbytes)
    runs: dict[int, CapacityRun] = {}
    with ProgressDisplay(quiet) as display:
        for index, one in enumerate(found):

            def filled(batch: int, one: Capacity = one) -> FillResult:
                stage = _Stage(display, f"{one.kv_format.name}, {batch} rows")
                request = FillRequest(
                    geometry=geometry,
                    kv_format=one.kv_format,
                    batch=batch,
                    context=context,
                    holds=limits.holds,
                    weights_nbytes=limits.weights_nbytes,
                    budget_nbytes=limits.nbytes,
                )
                return run_fill(request, stage.advance)

            at_batch = filled(one.batch.batch) if one.batch.batch else None
            runs[index] = CapacityRun(at_batch, filled(one.batch.next_batch), one.batch.batch, one.batch.next_batch)
    return runs


class _Stage:
    """One fill on the display; its number of steps comes with the first report."""

    def __init__(self, display: ProgressDisplay, name: str) -> None:
        self._display, self._name, self._shown = display, name, -1

    def advance(self, done: int, of: int) -> None:
        if self._shown < 0:
            self._display.stage(self._name, of)
            self._shown = 0
        for _ in range(done - self._shown):
            self._display.step()
        self._shown = done
