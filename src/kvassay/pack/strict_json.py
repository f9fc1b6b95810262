"""JSON as evidence: one meaning per file, or an error.

The usual parser takes the last of two equal keys, accepts NaN and turns 1e400 into infinity. Two readers of
such a file can see two different contracts, so each of these is refused by name here.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from kvassay.core.bounded_json import MAX_JSON_VALUES, json_size_fault
from kvassay.core.digest import canonical_json
from kvassay.errors import PackError

MAX_JSON_NBYTES = 64 << 20
MAX_LOG_VALUES = 10_000_000
"""Of a log; 14,000 samples with some hundred fields each have half of that."""


def render_json(value: object) -> bytes:
    """Readable JSON bytes: two spaces of indent, keys in the order given, a final newline.

    Raises PackError for what `parse_json` would refuse (NaN, infinity, integers beyond 2^53, unpaired
    surrogates).
    """
    try:
        canonical_json(value)
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
        return text.encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise PackError(f"a value cannot be written as JSON: {_one_line(error)}") from error


def parse_json(data: bytes, origin: str, *, max_nbytes: int = MAX_JSON_NBYTES, any_integers: bool = False) -> Any:
    """The value of `data`; raises PackError naming `origin` and the fault.

    `any_integers` also takes those beyond 2^53 and unpaired surrogates, which a stranger's log may hold in fields that
    nobody reads here.
    """
    if len(data) > max_nbytes:
        raise PackError(f"{origin}: {len(data)} bytes, at most {max_nbytes} are read as JSON")
    if fault := json_size_fault(data, MAX_LOG_VALUES if any_integers else MAX_JSON_VALUES):
        raise PackError(f"{origin}: {fault}")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_float=_finite_float,
        )
        if not any_integers:
            canonical_json(value)  # refuses integers that a double cannot hold and unpaired surrogates
    except (ValueError, RecursionError) as error:
        raise PackError(f"{origin}: not valid JSON: {_one_line(error)}") from error
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key[:100]!r} stands twice in one object")
        result[key] = value
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond the range of a double")
    return value


def _one_line(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return " ".join(str(error).split())[:300] or type(error).__name__
