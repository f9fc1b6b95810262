"""Runs a capacity: fills real caches in a fresh process and says what they, and the process, really held.

The process is fresh so that its high-water mark of resident memory belongs to one batch of one format. It reads one
request from standard input and writes lines of JSON: progress, then one result or one error.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from kvassay.core.capacity import Capacity, Holds
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat
from kvassay.core.ledger import ByteLedger, predict_ledger
from kvassay.errors import CapacityError, KvassayError
from kvassay.measures.process_memory import available_memory, reset_high_water, resident_memory

BASE_NBYTES = 512 * 2**20
"""Interpreter, libraries and the chunk that fills the cache."""
WORKSPACE_FACTOR = 4
"""How much more than the largest call's tensors resident memory may take: what allocators keep, and chunks of the
fill, which are drawn in float32."""


FRESH_ENVIRONMENT = {"TORCH_CPP_LOG_LEVEL": "ERROR", "MALLOC_MMAP_THRESHOLD_": str(2**20)}
"""Freed arrays from 1 MiB go back to the kernel at once, so that resident memory is memory in use; glibc keeps them
otherwise."""


class FillRequest(BaseModel):
    """What the fresh process is to fill."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    geometry: CacheGeometry
    kv_format: KVFormat
    batch: int
    context: int
    holds: Holds
    weights_nbytes: int | None
    budget_nbytes: int


class FillResult(BaseModel):
    """What it then held."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: int
    context: int
    fits: bool
    tokens: int
    """Length reached: the context, or where the budget was passed."""
    used_nbytes: int
    """Most of the budget that was used at any chunk's end, the fullest length among them, from real storages."""
    used_tokens: int
    """Length at which that was."""
    persistent_nbytes: int
    """Sum of the real storages at the length reached."""
    predicted_nbytes: int
    """The formula for that length."""
    transient_nbytes: int | None
    """Recorded peak of the last decode step of the fill beyond what it kept; None where it was not reached."""
    resident_before_nbytes: int
    resident_after_nbytes: int
    resident_high_water_nbytes: int
    high_water_is_of_fill: bool
    """False where the kernel could not begin the mark anew, so that it includes the start of the process."""
    seconds: float

    @property
    def agrees(self) -> bool:
        return self.persistent_nbytes == self.predicted_nbytes


class CapacityRun(NamedTuple):
    """The answer filled, and one step of rows more. `at_batch` is None where no row fits."""

    at_batch: FillResult | None
    beyond: FillResult
    batch: int
    next_batch: int

    @property
    def confirmed(self) -> bool:
        """The real cache fits at the computed batch, does not at the next, and holds the predicted bytes."""
        fits = self.at_batch is None or (self.at_batch.fits and self.at_batch.agrees)
        return fits and self.beyond.agrees and not self.beyond.fits


def needed_nbytes(geometry: CacheGeometry, found: Capacity, context: int) -> int:
    """Resident memory that filling up to the next batch takes, rounded up: cache, workspace, libraries."""
    ledger = predict_ledger(geometry, found.kv_format, context, found.batch.next_batch)
    fullest = predict_ledger(geometry, found.kv_format, found.batch.fullest_tokens, found.batch.next_batch)
    most = max(ledger.persistent_nbytes, fullest.persistent_nbytes)
    # Whether the compiled module is there or not.
    calls = [phases.largest_nbytes for phases in (ledger.transient_phases, ledger.transient_in_torch) if phases]
    return most + WORKSPACE_FACTOR * max(calls, default=0) + BASE_NBYTES


def check_machine(geometry: CacheGeometry, found: Capacity, context: int, budget_nbytes: int) -> None:
    """Raise CapacityError, before anything is filled, where the machine cannot give what the run takes."""
    available = available_memory()
    instead = "give a smaller --budget, or leave out --run: the formula needs no memory"
    if budget_nbytes > available.nbytes:
        raise CapacityError(
            f"machine memory: the budget is {budget_nbytes:,} B and this machine can give {available.nbytes:,} B "
            f"({available.source}); {instead}"
        )
    needed = needed_nbytes(geometry, found, context)
    if needed > available.nbytes:
        raise CapacityError(
            f"machine memory: filling {found.kv_format.name} takes about {needed:,} B (cache, workspace of an append, "
            f"libraries) and this machine can give {available.nbytes:,} B ({available.source}); {instead}"
        )


Advance = Callable[[int, int], None]


def run_fill(request: FillRequest, advance: Advance = lambda done, of: None) -> FillResult:
    """Fill in a fresh process; raises CapacityError if that process ends without an answer."""
    environment = {**os.environ, **FRESH_ENVIRONMENT}
    command = [sys.executable, "-m", "kvassay.measures.capacity_run"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(request.model_dump_json())
                process.stdin.close()
            for line in process.stdout:
                answer: dict[str, Any] = json.loads(line)
                if "progress" in answer:
                    advance(*answer["progress"])
                elif "error" in answer:
                    raise CapacityError(answer["error"])
                else:
                    return FillResult.model_validate(answer["result"])
        except BaseException:
            process.kill()
            raise
    code = process.returncode
    how = f"was ended by signal {-code}, for lack of memory most likely" if code < 0 else f"ended with code {code}"
    raise CapacityError(
        f"the process that filled {request.batch} rows of {request.kv_format.name} {how} and gave no result; "
        "give a smaller --budget, or leave out --run"
    )


def _fill(request: FillRequest) -> FillResult:
    from kvassay.core.capacity import Budget, fullest_length
    from kvassay.measures.cache_fill import fill, synthetic_cache

    budget = Budget(request.budget_nbytes, request.holds, request.weights_nbytes)
    cache = synthetic_cache(request.geometry, request.kv_format)
    before = resident_memory()
    is_of_fill = reset_high_water()
    began = time.monotonic()
    reported = -math.inf

    def advance(done: int, of: int) -> None:
        nonlocal reported
        if done == of or time.monotonic() - reported > 0.2:
            reported = time.monotonic()
            _answer("progress", [done, of])

    used = used_tokens = 0
    filled = None
    fullest = fullest_length(request.geometry, request.kv_format, request.context)
    longest = predict_ledger(request.geometry, request.kv_format, request.context, request.batch)
    for filled in fill(cache, request.batch, request.context, stops=[fullest], advance=advance):
        now = budget.used_nbytes(filled.ledger, longest)
        if now > used:
            used, used_tokens = now, filled.tokens
        if used > budget.nbytes:
            break
    assert filled is not None, "a context has at least one token"
    after = resident_memory()
    ledger: ByteLedger = filled.ledger
    return FillResult(
        batch=request.batch,
        context=request.context,
        fits=used <= budget.nbytes,
        tokens=filled.tokens,
        used_nbytes=used,
        used_tokens=used_tokens,
        persistent_nbytes=ledger.persistent_nbytes,
        predicted_nbytes=predict_ledger(
            request.geometry, request.kv_format, filled.tokens, request.batch
        ).persistent_nbytes,
        transient_nbytes=filled.transient_nbytes,
        resident_before_nbytes=before.now_nbytes,
        resident_after_nbytes=after.now_nbytes,
        resident_high_water_nbytes=after.high_water_nbytes,
        high_water_is_of_fill=is_of_fill,
        seconds=time.monotonic() - began,
    )


def _answer(kind: Literal["progress", "error", "result"], value: object) -> None:
    print(json.dumps({kind: value}), flush=True)


def main() -> None:
    """The fresh process."""
    try:
        _answer("result", _fill(FillRequest.model_validate_json(sys.stdin.read())).model_dump(mode="json"))
    except KvassayError as error:
        _answer("error", str(error))
    except (MemoryError, RuntimeError) as error:
        # torch raises RuntimeError where the allocator gets nothing.
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        _answer("error", f"memory ran out while the cache was filled ({str(error)[:120]}); give a smaller --budget")


if __name__ == "__main__":
    main()
