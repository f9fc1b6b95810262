"""`kvassay plan`: what a contract asks of a model, with what chance of a verdict and at what cost, before any run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvassay.cli.assess import dry_run_plan
from kvassay.cli.torch_extra import require_torch
from kvassay.core.contract import load_contract


def plan(
    model: str,
    /,
    *,
    contract: Path,
    scales: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run the pilot, print sample sizes, chances and cost, and write nothing (as kvassay assess --dry-run).

    Parameters
    ----------
    model
        Built-in name (smollm2-135m, gemma3-270m), transformers folder, .gguf file, or hub id.
    contract
        TOML file with candidates, bounds and controls.
    scales
        Checkpoint folder, or a .safetensors file in one, whose KV scales serve the formats that they fit.
    json
        Print one JSON document.
    """
    loaded = load_contract(contract)
    require_torch("kvassay plan")
    return dry_run_plan(model, loaded, scales, json)
