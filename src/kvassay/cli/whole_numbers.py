"""Options that are whole numbers: the command line library rounds 1.5 to 2, and nobody asked for 2."""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import Parameter, Token
from cyclopts.validators import Number


def whole_number(least: int, most: int) -> Parameter:
    """An option that takes whole numbers from `least` to `most`, and refuses fractions."""
    return Parameter(converter=_whole, validator=Number(gte=least, lte=most))


def _whole(type_: type, tokens: Sequence[Token]) -> int:
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        # Given on by the library, with the option's name.
        raise ValueError(f"{text!r} is not a whole number") from None
