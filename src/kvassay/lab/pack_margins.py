"""Other margins for a pack's rows: what they would have decided, always marked as after the fact."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvassay.core.contract import Contract
from kvassay.errors import ContractError
from kvassay.pack.post_hoc import NO_EVIDENCE, judge_post_hoc
from kvassay.pack.reader import PackContent

_MARGIN = re.compile(
    r"fidelity\.\w+\.(max|max_rate|tau_nats)|free_running\.\w+\.(max|max_rate|margin)|numeric\.\w+\.max"
    r"|task\.[a-z0-9-]+\.(margin|parse_margin)|bytes\.\w+(\.\w+)?|inference\.alpha"
)
MAX_BOUNDS = 60
MAX_BOOTSTRAP_REPLICATES = 20_000
"""A stranger's contract must not keep the page waiting for ever; `kvassay judge` has the time."""


class OtherBounds(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    bounds: dict[str, float] = Field(max_length=MAX_BOUNDS)
    """By dotted key of the contract."""


def editable_bounds(contract: Contract) -> list[dict[str, Any]]:
    """Every number of the contract that says how rows are judged, and not which rows there are."""
    return [{"path": path, "value": value} for path, value in _leaves(contract.to_json()) if _MARGIN.fullmatch(path)][
        :MAX_BOUNDS
    ]


def judged_again(content: PackContent, other: OtherBounds) -> dict[str, Any]:
    """Verdicts under the other bounds; raises ContractError for a key that is no margin, or a bound that is none."""
    contract = _with_bounds(content.contract, other.bounds)
    if contract.inference.bootstrap_replicates > MAX_BOOTSTRAP_REPLICATES:
        raise ContractError(
            f"the contract asks for {contract.inference.bootstrap_replicates} bootstrap replicates; the lab judges up "
            f"to {MAX_BOOTSTRAP_REPLICATES}: use kvassay judge --contract"
        )
    found = judge_post_hoc(content, contract)
    return {
        "mark": "post hoc",
        "sentence": NO_EVIDENCE,
        "outcome": found.outcome,
        "before": content.verdicts.outcome.value,
        "changed": [
            {"key": each.path, "pack": each.stored, "now": each.again} for each in found.changed if each.path != "name"
        ],
        "formats": [
            {
                "arm": now.arm,
                "role": now.role.value,
                "before": before.outcome.value,
                "after": now.outcome.value,
                "reason": now.reason,
            }
            for now in found.verdicts.formats
            for before in content.verdicts.formats
            if before.arm == now.arm
        ],
    }


def _with_bounds(contract: Contract, bounds: Mapping[str, float]) -> Contract:
    known = {each["path"]: each["value"] for each in editable_bounds(contract)}
    unknown = [path for path in bounds if path not in known]
    if unknown:
        raise ContractError(f"{unknown[0]!r} is no margin of this contract; it has {', '.join(known)}")
    fields = contract.to_json()
    for path, value in bounds.items():
        *sections, name = path.split(".")
        place: dict[str, Any] = fields
        for section in sections:
            place = place[section]
        place[name] = int(value) if isinstance(known[path], int) and value.is_integer() else value
    try:
        return Contract.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ContractError(f"{where}: {first['msg']}, found {str(first['input'])[:80]}") from error


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, float | int]]:
    if isinstance(value, dict):
        for name, member in cast("dict[str, Any]", value).items():
            yield from _leaves(member, f"{path}.{name}" if path else name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
