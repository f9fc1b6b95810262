"""Types of a contract's fields: bounds within which a number makes sense, and the base of its sections."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from kvassay.core.format_names import parse_format
from kvassay.core.kv_format import KVFormat
from kvassay.errors import FormatError

MAX_WHOLE = (1 << 53) - 1
"""The largest integer that every JSON reader reads as written."""
MAX_POSITION = (1 << 31) - 1
"""Positions are 32-bit in the row tables."""

Probability = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Alpha = Annotated[float, Field(ge=1e-6, lt=0.5, allow_inf_nan=False)]
"""Below, no test of a run's size decides anything; from a half on, a coin decides."""
Power = Annotated[float, Field(ge=0.01, le=0.9999, allow_inf_nan=False)]
Margin = Annotated[float, Field(ge=1e-4, lt=1, allow_inf_nan=False)]
"""A smaller one needs tens of thousands of contexts without a single loss."""
Rate = Annotated[float, Field(ge=1e-6, lt=1, allow_inf_nan=False)]
Whole = Annotated[int, Field(le=MAX_WHOLE)]
Count = Annotated[int, Field(le=1_000_000)]
Tokens = Annotated[int, Field(le=MAX_POSITION // 2)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Part of a contract. Unknown keys are refused: a misspelt bound that is silently ignored is a false pass."""

    # A field's docstring is its description in the JSON Schema.
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def contract_format(text: str) -> KVFormat:
    """The format that a contract names; raises ValueError, which a validator may."""
    try:
        return parse_format(text)
    except FormatError as error:
        raise ValueError(str(error)) from error
