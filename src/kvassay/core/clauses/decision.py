"""How a contract is decided: error rates, the design, and the controls without which nothing is shown."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from kvassay.core.calibration_policy import MIN_MAX, parse_policy
from kvassay.core.clauses.fields import Alpha, Count, Power, Section, Whole, contract_format
from kvassay.errors import CalibrationError


class Candidates(Section):
    """Formats to judge, from most to least conservative.

    With `fixed-sequence` the claims stop at the first format that is not MET, and no correction is needed; `holm`
    judges all of them and corrects.
    """

    order: tuple[str, ...] = Field(min_length=1)
    multiplicity: Literal["fixed-sequence", "holm"] = "fixed-sequence"

    @field_validator("order")
    @classmethod
    def _known_formats(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        digests = [contract_format(text).digest for text in order]
        if len(set(digests)) != len(digests):
            raise ValueError(f"the same format stands twice in {list(order)}; remove one")
        return order


class Inference(Section):
    alpha: Alpha = 0.05
    power: Power = 0.8
    design: Literal["fixed", "sequential"] = "fixed"
    """`sequential` looks at the evidence in the run and stops once nothing can change a verdict; for tasks alone."""
    look_every: Count = Field(default=16, ge=1)
    """Units between two looks of the sequential design; part of its stopping rule. The fixed design never looks."""
    cluster: Literal["document"] = "document"
    prefill_reads: Literal["exact", "stored"] = "exact"
    """What prompt tokens read of older prompt tokens: the exact values (as when the prompt runs in one piece), or the
    stored ones (as when every token goes through the cache)."""
    pilot_documents: Count = Field(default=4, ge=2)
    """Documents of the pilot that planning and calibration use; never reused for the verdict."""
    pilot_items: Count = Field(default=8, ge=2)
    calibration: str = MIN_MAX.text
    """How static scales are chosen from the pilot's keys and values: a policy of `core.calibration_policy`."""
    bootstrap_replicates: int = Field(default=10_000, ge=200, le=1_000_000)
    seed: Whole = Field(default=7, ge=0)

    @field_validator("calibration")
    @classmethod
    def _known_policy(cls, calibration: str) -> str:
        """In the one spelling of each policy, so that two of them have one hash."""
        try:
            return parse_policy(calibration).text
        except CalibrationError as error:
            raise ValueError(str(error)) from error


class Controls(Section):
    aa_runs: int = Field(default=1, ge=0, le=10)
    canary: str | None = "kivi-2,recent=32"
    require_canary_fail: bool = True
    require_engaged: bool = True

    @field_validator("canary")
    @classmethod
    def _known_format(cls, canary: str | None) -> str | None:
        if canary is not None:
            contract_format(canary)
        return canary
