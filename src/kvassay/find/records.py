"""What a search says: every format that it looked at, the winner, and how to run it. JSON that reads back."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from kvassay.core.presets import Conformance
from kvassay.core.records import Outcome

SCHEMA = "kvassay.find/1"

Target = Literal["bytes", "speed"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class JudgedKl(_Record):
    """Mean KL on the verdict's documents, in nats per token, with one-sided bounds at 1 − alpha."""

    estimate: float
    lower: float | None
    upper: float | None
    documents: int


class AttentionMicroseconds(_Record):
    median: float
    low: float
    high: float


class FormatRow(_Record):
    """One format. What was not measured is null."""

    format: str
    digest: str
    kind: Literal["uniform", "allocated"]
    stored_bits: float
    """Persistent bits a value at the contract's context, windows, scales and padding included."""
    nbytes_per_token: float
    attention_us: AttentionMicroseconds | None
    """Measured on this machine, with `--target speed` alone."""
    pilot_kl_nats: float
    """Mean over the pilot's documents, which no verdict reuses; too few for an interval."""
    pilot_share_of_limit: float | None
    """The nearest fidelity clause's pilot figure as a share of its limit; null without such a clause."""
    predicted_kl_nats: float | None
    """Sum of isolated KL; of allocations alone."""
    on_frontier: bool
    """No other format costs less and loses less, by the pilot."""
    judged: bool
    outcome: Outcome | None
    reason: str | None
    kl: JudgedKl | None


class DroppedRow(_Record):
    format: str
    reason: str


class EngineRow(_Record):
    engine: str
    name: str
    flags: tuple[str, ...]
    environment: tuple[str, ...]
    scales: str
    conformance: str
    """The name of a `Conformance`."""
    conformance_text: str
    note: str
    measured: bool
    """Whether this library ran that engine on the format."""


class Winner(_Record):
    """The cheapest format that is MET, and how to run it."""

    format: str
    digest: str
    kvassay_python: tuple[str, ...]
    kvassay_commands: tuple[str, ...]
    engines: tuple[EngineRow, ...]
    engines_text: str
    """`none has it`, or how many do."""


class Found(_Record):
    """The whole answer."""

    schema_version: Literal["kvassay.find/1"] = SCHEMA
    model: str
    target: Target
    contract_name: str
    contract_sha256: str
    derived_contract_sha256: str
    context_tokens: int
    """Of the cache whose bytes and time are counted."""
    ladder: str
    widths: tuple[int, ...]
    by: Literal["layer", "head"]
    pilot: dict[str, Any]
    sensitivities: dict[str, Any]
    """Source, passes and seconds of the isolated KL, and the file, if there is one."""
    timing: dict[str, Any] | None
    formats: tuple[FormatRow, ...]
    """Most stored bits first."""
    dropped: tuple[DroppedRow, ...]
    sequence: tuple[str, ...]
    """What was judged, conservative first."""
    winner: Winner | None
    out: str
    root: str
    """Of the evidence pack."""
    answer: str
    outcome: Outcome
    exit_code: int
    """0 where a format is met, 1 where the safest one is breached, 3 where nothing can be said."""
    reason: str


def conformance_row(conformance: Conformance) -> dict[str, str]:
    return {"conformance": conformance.name, "conformance_text": conformance.value}
