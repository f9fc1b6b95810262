"""From a spec to its codec. A method is a row of `core.method_table`; nothing is registered here."""

from __future__ import annotations

import importlib
from functools import cache

from kvassay.core.methods import method_of
from kvassay.core.spec import QuantSpec
from kvassay.errors import FormatError
from kvassay.formats.base import Quantizer
from kvassay.formats.transforms import Transformed


def quantizer(spec: QuantSpec) -> Quantizer:
    """The codec of a spec, rotation and mean included; raises FormatError for a method that is not registered."""
    method = method_of(spec)
    codec = _codec_class(method.codec)
    if spec.rotation is None and not spec.mean:
        return codec(spec)
    return Transformed(spec, codec)


@cache
def _codec_class(path: str) -> type[Quantizer]:
    module, _, name = path.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, Quantizer)):
        raise FormatError(f"codec {path!r} is no Quantizer class; check the method's row")
    return found
