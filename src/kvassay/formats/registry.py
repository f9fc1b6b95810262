"""Which class serves which method. A new method adds one line here."""

from __future__ import annotations

from kvassay.core.spec import QuantSpec
from kvassay.errors import FormatError
from kvassay.formats.base import Quantizer
from kvassay.formats.float8 import Float8Quantizer
from kvassay.formats.floating import FloatQuantizer
from kvassay.formats.ggml_blocks import Q4Quantizer, Q8Quantizer
from kvassay.formats.integer import IntegerQuantizer

METHODS: dict[str, type[Quantizer]] = {
    "float": FloatQuantizer,
    "int": IntegerQuantizer,
    "float8": Float8Quantizer,
    "q8_0": Q8Quantizer,
    "q4_0": Q4Quantizer,
}


def quantizer(spec: QuantSpec) -> Quantizer:
    """The codec of a spec; raises FormatError for a method that is not registered."""
    try:
        method = METHODS[spec.method]
    except KeyError as error:
        raise FormatError(f"method {spec.method!r} is unknown; registered: {', '.join(METHODS)}") from error
    return method(spec)
