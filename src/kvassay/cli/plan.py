"""`kvassay plan`: what a contract asks of a model, or a matrix of machines, before any run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kvassay.cli.assess import dry_run_plan
from kvassay.cli.output import nbytes_text, print_json, print_table, say
from kvassay.cli.torch_extra import require_torch
from kvassay.cli.whole_numbers import whole_number
from kvassay.core.contract import load_contract, read_contract_text
from kvassay.errors import UsageError, printable

if TYPE_CHECKING:
    from kvassay.scale.cost import MatrixCost


def plan(
    model: str,
    /,
    *,
    contract: Path | None = None,
    scales: Path | None = None,
    devices: Annotated[int | None, whole_number(1, 1_000_000)] = None,
    tflops: float | None = None,
    store: str | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Print what a contract asks of a model (as kvassay assess --dry-run), or what a matrix costs; write nothing.

    Parameters
    ----------
    model
        Built-in name (smollm2-135m, gemma3-270m), transformers folder, .gguf file, or hub id; or a matrix file.
    contract
        TOML file with candidates, bounds and controls; for a model.
    scales
        Checkpoint folder, or a .safetensors file in one, whose KV scales serve the formats that they fit.
    devices
        For a matrix: machines or accelerators that share the cells (default 1).
    tflops
        For a matrix: what one device reaches, in 10^12 operations a second; without it and --store, a product of
        matrices is timed here, which is more than cells reach.
    store
        For a matrix: a store with some of its cells, whose times tell what a device reaches.
    json
        Print one JSON document.
    """
    if contract is None:
        return _plan_of_matrix(model, scales, devices or 1, tflops, store, json)
    if devices is not None or tflops is not None or store is not None:
        raise UsageError("--devices, --tflops and --store are for a matrix; a contract is planned for this machine")
    loaded = load_contract(contract)
    require_torch("kvassay plan")
    return dry_run_plan(model, loaded, scales, json)


def _plan_of_matrix(
    name: str, scales: Path | None, devices: int, tflops: float | None, store: str | None, json: bool
) -> int:
    from kvassay.scale.matrix import is_matrix, load_matrix

    path = Path(name)
    if path.suffix == ".toml" and not path.exists():
        raise UsageError(f"matrix {name!r} does not exist; for a model, kvassay plan MODEL needs --contract FILE")
    if not path.is_file() or not is_matrix(read_contract_text(path)):
        raise UsageError(f"{name!r} is no matrix file, and to plan for a model kvassay plan needs --contract")
    if scales is not None:
        raise UsageError("--scales serve one model; a matrix calibrates each format on each model")
    if tflops is not None and not tflops > 0:
        raise UsageError(f"--tflops is {tflops}; expected a positive number")
    if tflops is not None and store is not None:
        raise UsageError("--tflops gives the rate that --store would measure; name one of them")
    loaded = load_matrix(path)
    require_torch("kvassay plan")
    from kvassay.scale.cost import matrix_cost
    from kvassay.scale.planning import plan_matrix
    from kvassay.scale.store import Store

    planned = plan_matrix(loaded, say)
    opened = None if store is None else Store(store)
    cost = matrix_cost(planned, devices, None if tflops is None else tflops * 1e12, say, opened)
    if json:
        print_json(cost.to_json())
    else:
        _print_cost(cost)
    return 0


def _print_cost(cost: MatrixCost) -> None:
    rows = [
        [
            printable(group.label),
            group.cells,
            f"{group.reference_tokens:,}",
            f"{group.candidate_tokens:,}",
            f"{group.flops:.3g}",
            nbytes_text(group.stored_nbytes),
            nbytes_text(group.rows_nbytes),
            nbytes_text(group.memory_nbytes),
        ]
        for group in cost.groups
    ]
    header = [
        "model, workload, seed",
        "cells",
        "reference tokens",
        "candidate tokens",
        "FLOPs",
        "reference",
        "rows",
        "memory",
    ]
    print_table(header, rows, right=tuple(range(1, 8)))
    total = cost.to_json()["total"]
    saved = total["unshared_reference_tokens"] / max(1, total["reference_tokens"])
    print(
        f"{total['cells']} cells, {total['reference_tokens']:,} reference tokens "
        f"({saved:.1f} times fewer than unshared) and {total['candidate_tokens']:,} candidate tokens, "
        f"{total['flops']:.3g} FLOPs, {nbytes_text(total['stored_nbytes'] + total['rows_nbytes'])} stored"
    )
    devices = f"{cost.devices} device{'' if cost.devices == 1 else 's'}"
    print(
        f"about {_duration(3600 * cost.hours)} on {devices} at {cost.flops_per_second:.3g} FLOP/s each "
        f"({cost.rate_source})"
    )


def _duration(seconds: float) -> str:
    """In the largest unit of which there are two; hours otherwise have many zeros, or minutes many digits."""
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.3g} {unit}" if seconds < 1000 * length else f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.3g} s"
