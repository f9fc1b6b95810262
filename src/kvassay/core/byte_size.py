"""Sizes that a user writes, such as `4GiB`: a number and a unit, and nothing that could be read in two ways."""

from __future__ import annotations

import re
from fractions import Fraction

from kvassay.errors import UsageError

UNIT_NBYTES = {
    "B": 1,
    "byte": 1,
    "bytes": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SIZE = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,9})?) ?(?P<unit>[A-Za-z]*)", re.ASCII)
_SPOKEN = {"K": ("KiB", "kB"), "M": ("MiB", "MB"), "G": ("GiB", "GB"), "T": ("TiB", "TB")}


def parse_nbytes(text: str, what: str = "size") -> int:
    """Bytes of `4GiB`, `1.5 GB` or `1000000 bytes`, rounded down; raises UsageError naming `what`.

    Units are read with their capitals. A number without a unit, `4G` and `4gb` are refused, since a GiB and a GB differ
    by 7% and a bit and a byte by eight times.
    """
    match = _SIZE.fullmatch(text.strip(" "))
    if match is None:
        raise UsageError(f"{what} {text[:60]!r} is not a number with a unit; write for example 4GiB, 512MiB or 4GB")
    number, unit = match["number"], match["unit"]
    if unit not in UNIT_NBYTES:
        found = f"has the unit {unit!r}" if unit else "has no unit"
        binary, decimal = _SPOKEN.get(unit[:1].upper(), ("GiB", "GB"))
        instead = f"{number}{binary} (x {UNIT_NBYTES[binary]:,}), {number}{decimal} (x {UNIT_NBYTES[decimal]:,})"
        raise UsageError(f"{what} {text[:60]!r} {found}; write {instead} or {number}B")
    nbytes = int(Fraction(number) * UNIT_NBYTES[unit])
    if nbytes < 1:
        raise UsageError(f"{what} {text[:60]!r} is less than one byte; write for example 4GiB")
    return nbytes
