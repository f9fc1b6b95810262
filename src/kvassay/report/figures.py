"""Figures as text: significant digits, units, and "not recorded" where a value is absent, never zero.

A `Figure` keeps the exact value beside the rounded text; the page carries both (`<data value=...>`), so that a reader
can copy the figure that the pack holds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

NOT_RECORDED = "not recorded"

DIGITS = 3
_PLAIN_FROM, _PLAIN_TO = 1e-4, 1e6
"""Magnitudes that are written without a power of ten."""
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Figure(NamedTuple):
    """Text as shown, and the value it stands for as the shortest decimal that reads back to it."""

    text: str
    exact: str


Shown = Figure | str
"""A figure, or the words that stand in its place."""


def number(value: float | int | None, unit: str = "", digits: int = DIGITS) -> Shown:
    """`value` with `digits` significant digits; integers whole."""
    if value is None:
        return NOT_RECORDED
    if isinstance(value, int):
        return Figure(f"{value:,}{_spaced(unit)}", str(value))
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "no upper bound" if value > 0 else "no lower bound"
    return Figure(significant(value, digits) + _spaced(unit), repr(value))


def given(value: float | None, unit: str = "") -> Shown:
    """A value that someone chose, such as a limit: all its digits and no trailing zeros."""
    if value is None or not math.isfinite(value):
        return number(value)
    return Figure(as_given(value) + _spaced(unit), repr(value))


def as_given(value: float) -> str:
    return f"{value:,.10g}".replace("-", "−")


def percent(share: float | None, digits: int = DIGITS) -> Shown:
    """A share of 1 as percent; the exact value is the share."""
    if share is None or not math.isfinite(share):
        return number(share)
    return Figure(f"{significant(100 * share, digits)}%", repr(float(share)))


def times_smaller(share: float) -> str:
    """A share of a denominator in words; `as large` where it is 1."""
    if share <= 0:
        return "no bytes"
    if share == 1:
        return "as large"
    return f"{significant(1 / share)} times smaller" if share < 1 else f"{significant(share)} times larger"


def size(nbytes: float | int | None) -> Shown:
    """Bytes, in binary units from 10 KiB; the exact value is bytes."""
    if nbytes is None or not math.isfinite(nbytes):
        return number(nbytes)
    amount, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < (10 * 1024 if unit == "B" else 1024):
            break
        amount, unit = amount / 1024, larger
    text = f"{nbytes:,}" if unit == "B" and isinstance(nbytes, int) else significant(amount, 4)
    return Figure(f"{text} {unit}", repr(nbytes))


def duration(seconds: float | None) -> Shown:
    if seconds is None or not math.isfinite(seconds):
        return number(seconds)
    if abs(seconds) < 120:
        return Figure(f"{significant(float(seconds))} s", repr(seconds))
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    return Figure(text, repr(seconds))


def significant(value: float, digits: int = DIGITS) -> str:
    """`value` in plain decimals where that is short, else as a multiple of a power of ten."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    if _PLAIN_FROM <= abs(rounded) < _PLAIN_TO:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
        return f"{rounded:,.{decimals}f}".replace("-", "−")
    # From `value`: the largest floats round to infinity.
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPTS)}".replace("-", "−")


def _spaced(unit: str) -> str:
    return f" {unit}" if unit else ""
