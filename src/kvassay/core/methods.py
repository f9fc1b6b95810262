"""What kvassay knows of a method before any tensor exists: its words, its arrays, its source. No torch.

A method is one row here (`core.method_table`) and one codec class in `kvassay.formats`. A package of another author
adds a row through the entry point group `kvassay.methods`; the grammar, the ledger, every command and every test of
formats read the rows and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple

from kvassay.core.geometry import Owner
from kvassay.core.spec import DTYPE_NBYTES, Granularity, OptionValue, QuantSpec, ScaleDtype
from kvassay.errors import FormatError

ENTRY_POINTS = "kvassay.methods"

EVERY_SCALE = tuple(each for each in Granularity if each not in (Granularity.NONE, Granularity.TILE))
"""Granularities of one scale (and minimum) a group, which `core.layout.scaled_layout` lays out."""


class Family(StrEnum):
    """The families of KV compression; values are what tables print."""

    FLOAT = "plain float"
    SCALED = "scaled int8 or fp8"
    GROUPED = "integer groups"
    KIVI = "KIVI"
    ROTATED = "rotation + absmax groups"
    TILED = "dual-axis tiles"
    CODEBOOK = "codebook"
    MICROSCALING = "4-bit floats with block scales"
    SPARSE = "dense and sparse"
    CONTROL = "negative control"


class Stream(NamedTuple):
    """One stored array of a side: `[batch, heads, blocks, *block_shape]` of `dtype`.

    Of a static array, which a layer stores once, `block_shape` is `[heads, *block_shape]` in whole.
    """

    name: str
    owner: Owner
    dtype: str
    heads: int
    """kv_heads, or 1 where one value serves all heads."""
    block_shape: tuple[int, ...]

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block over all heads of one batch row."""
        elements = self.heads
        for size in self.block_shape:
            elements *= size
        return elements * DTYPE_NBYTES[self.dtype]


Layout = Callable[[QuantSpec, int, int], tuple[Stream, ...]]
"""(spec, kv_heads, dim) -> arrays of one side. Raises GeometryError where the spec cannot serve `dim`."""


StaticLayout = Callable[[QuantSpec, int, int], tuple[Stream, ...]]
"""(spec, kv_heads, dim) -> arrays that a side stores once a layer. The spec alone says whether there are any."""


class Working(NamedTuple):
    """Bytes a value that a codec takes while it works, at its fullest moment, stored parameters left out.

    Counted by the allocator (`measures.memory_peak`), on float32 and without rotation and mean, for which
    `core.transient_peak` adds what they take.
    """

    encode_nbytes: float
    """Beyond the values given, result included."""
    decode_nbytes: float
    """Beyond the packed arrays, float32 result included."""
    cast_nbytes: float = 4
    """More where the values given have 16 bits: their float32 copy, or 0 where a copy is made anyway."""


WorkingOf = Callable[[QuantSpec], Working | None]
"""What the codec of a spec takes; None where that does not follow from the spec."""


class InPlace(StrEnum):
    """What compiled kernels multiply a query with, without decoding a code."""

    NO = "no"
    """Codes must be decoded first."""
    CHANNELS = "channels"
    """Codes stand for the channels themselves."""
    BASIS = "basis"
    """Codes stand for the channels in another order or basis, into which the query is brought."""


class Option(NamedTuple):
    """A parameter that only this method has."""

    name: str
    default: OptionValue
    help: str
    check: Callable[[OptionValue], bool] = lambda _: True
    """False for a value that the method does not take; `help` then says which it takes."""


class Word(NamedTuple):
    """A codec's name in the grammar and what it stands for."""

    text: str
    num_bits: int
    granularities: tuple[Granularity, ...] = ()
    """Those it can be written with; none for a codec that is fixed."""
    fixed: tuple[Granularity, int] | None = None
    """Granularity and group size of a codec that has exactly one."""
    bare: bool = False
    """True where it may stand without a granularity, and then has scale one."""
    symmetric: bool = True
    may_flip: bool = False
    """True where `/sym` and `/asym` choose the grid."""
    code_dtypes: tuple[str, str] = ("uint8", "uint8")
    """Stored element of the symmetric and of the asymmetric grid."""
    scale_dtype: ScaleDtype | None = None
    """Default; None takes float32 for a scale of a whole row and float16 for a group's."""
    scale_dtypes: tuple[ScaleDtype, ...] = ("float32", "float16", "bfloat16")
    default_options: tuple[tuple[str, OptionValue], ...] = ()
    """Where this word stands for other option values than the method's defaults."""


class Method(NamedTuple):
    """One row of the method table."""

    name: str
    family: Family
    summary: str
    source: str
    """Paper and section, or specification."""
    codec: str
    """`package.module:Class` of the codec; imported when it first encodes or decodes."""
    words: tuple[Word, ...]
    examples: tuple[str, ...]
    """Codec texts that stand for the method in tests, tables and charts: every granularity and option that matters."""
    layout: Layout | None = None
    """Arrays of the method's own; None for codes with scales (and minimums) by granularity."""
    static_layout: StaticLayout | None = None
    """Static arrays of the method's own, beside the scale of a static granularity and the mean; None for none."""
    options: tuple[Option, ...] = ()
    may_rotate: bool = True
    rotates: bool = False
    """True where the codec rotates by itself, without a rotation in the spec."""
    in_place: InPlace | Callable[[QuantSpec], InPlace] = InPlace.NO
    """As the codec's `tile_reading` says with its details (`formats.tile_reading`), rotation and mean left out."""
    working: Working | WorkingOf | None = None
    """Without it, or for a spec that it gives None, the transient figure of a ledger is an upper bound that holds for
    any method."""
    error_bound: str = ""
    """A sentence on |x − x̂| that `formats show` prints, or why there is no bound; empty where none is given. For finite
    values, in exact arithmetic, whose stored parameters lie in the normal range of their
    dtype. Every row of kvassay's own has one."""


@cache
def methods() -> dict[str, Method]:
    """All rows by name: kvassay's own, then those of other installed packages."""
    from kvassay.core.method_table import TABLE  # the table's rows are made of this module's types

    rows = {method.name: method for method in TABLE}
    owners = {word.text: f"kvassay's {method.name}" for method in TABLE for word in method.words}
    for point in entry_points(group=ENTRY_POINTS):
        method = point.load()
        where = f"entry point {point.name} of {point.value.partition(':')[0]}"
        if not isinstance(method, Method):
            raise FormatError(f"{where} is a {type(method).__name__}; expected a kvassay.core.methods.Method")
        if method.name in rows:
            raise FormatError(f"{where} names its method {method.name!r}, which exists; rename it")
        for word in method.words:
            if word.text in owners:
                raise FormatError(
                    f"{where} takes the codec name {word.text!r}, which {owners[word.text]} has; rename it, or remove "
                    "one of the two packages"
                )
            owners[word.text] = f"{method.name} of {where}"
        rows[method.name] = method
    return rows


def method_of(spec: QuantSpec) -> Method:
    """The row of a spec; raises FormatError for a method that is not registered."""
    try:
        return methods()[spec.method]
    except KeyError as error:
        raise FormatError(f"method {spec.method!r} is unknown; registered: {', '.join(methods())}") from error


def words() -> dict[str, tuple[Method, Word]]:
    """Every codec name of the grammar."""
    return {word.text: (method, word) for method in methods().values() for word in method.words}
