"""Checks that every codec must pass: `check_method(method)` for authors of methods in other packages.

    from kvassay.testing import check_method
    def test_my_method() -> None:
        check_method(MY_METHOD)

A check runs on one codec text (an example of the method's row, such as `int4:group32`) and raises CheckFailed with the
text, what was found and what was expected. kvassay's own tests run the same checks over the whole method table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvassay.core.layout import stored_bits_per_value, streams
from kvassay.core.methods import ENTRY_POINTS, Family, Method, methods
from kvassay.core.side_names import parse_side, side_name
from kvassay.core.spec import QuantSpec
from kvassay.errors import NonFiniteError
from kvassay.formats import Calibration, Quantizer, quantizer
from kvassay.formats.base import Streams

LARGEST_RELATIVE_ERROR = {1: 1.6, 2: 0.55, 3: 0.35, 4: 0.25, 5: 0.12, 6: 0.08, 7: 0.06, 8: 0.06, 16: 0.005, 32: 1e-6}
"""Of Gaussian values, norm of the error over the norm of the values, by bits: what no method of any family exceeds."""

DIM = 64
"""Head size that every example of a method serves."""
CONSTANTS = (0.0, 100.0, -100.0, 1e-7, -3e-8, 1e-30)
CONSTANT_ERROR = 1.5
"""Share of its norm that a constant row may lose. A rotation turns it into one spike, and a coarse grid without a level
at zero then errs at every other value."""
RESOLUTION = 2**-10
"""An absolute error that is no fault: half the smallest value that the coarsest stored scale (e4m3) tells from zero."""


class CheckFailed(AssertionError):  # noqa: N818  (a failed assertion, as test runners count them)
    """A codec broke a promise that the cache and the ledger build on."""


def check_method(method: Method) -> None:
    """All checks over all examples of a method's row. The method must be registered (an installed entry point)."""
    _expect(
        methods().get(method.name) == method,
        method.name,
        f"is not registered; install the package that names it under the entry point group {ENTRY_POINTS}",
    )
    _expect(bool(method.examples), method.name, "has no examples; name at least one codec text")
    for text in method.examples:
        found = parse_side(text).method
        _expect(found == method.name, text, f"is an example of method {method.name} and names method {found}")
        for check in CHECKS:
            check(text)


def check_name(text: str) -> None:
    """The codec text, read and written again, names the same spec."""
    spec = parse_side(text)
    name = side_name(spec)
    _expect(parse_side(name) == spec, text, f"is written {name}, which reads back as another spec")


def check_declared_bytes(text: str) -> None:
    """Streams have the declared names, order, shapes and dtypes, so that their bytes are those the ledger predicts."""
    codec = codec_of(text)
    for blocks in (1, 3):
        values = sample(codec.spec, blocks=blocks, batch=2, heads=3)
        encoded = codec.encode(values, calibrated(codec, values)).streams
        declared = streams(codec.spec, 3, DIM)
        _equal([stream.name for stream in declared], list(encoded), text, "names of streams")
        for stream in declared:
            found = encoded[stream.name]
            _equal((2, stream.heads, blocks, *stream.block_shape), tuple(found.shape), text, f"shape of {stream.name}")
            _equal(f"torch.{stream.dtype}", str(found.dtype), text, f"dtype of {stream.name}")
        nbytes = sum(part.numel() * part.element_size() for part in encoded.values())
        _equal(stored_bits_per_value(codec.spec, 3, DIM), 8 * nbytes / values.numel(), text, "stored bits a value")


def check_chunks(text: str) -> None:
    """Whole blocks encode and decode alike alone and together, and rows of a batch do not touch each other."""
    codec = codec_of(text)
    values = sample(codec.spec, blocks=4, batch=3, heads=2)
    calibration = calibrated(codec, values)
    whole = codec.encode(values, calibration).streams
    decoded = codec.decode(whole, torch.float32, calibration)
    block = codec.spec.tokens_per_block
    for rows, blocks in ((slice(0, 3), slice(0, 1)), (slice(1, 2), slice(1, 4)), (slice(2, 3), slice(3, 4))):
        tokens = slice(blocks.start * block, blocks.stop * block)
        part = codec.encode(values[rows, :, tokens], calibration).streams
        _same_bytes(part, {name: array[rows, :, blocks] for name, array in whole.items()}, text, "encoded by chunks")
        found = codec.decode(part, torch.float32, calibration)
        _expect(torch.equal(found, decoded[rows, :, tokens]), text, "decodes a chunk to other values than the whole")


def check_strides(text: str) -> None:
    """Neither the strides and storage offset of values nor those of stored arrays change a bit."""
    codec = codec_of(text)
    values = sample(codec.spec, blocks=2, batch=2, heads=3)
    calibration = calibrated(codec, values)
    expected = codec.encode(values, calibration).streams
    decoded = codec.decode(expected, torch.float32, calibration)
    for how, axes in (("tokens before heads", (0, 2, 1, 3)), ("channels before tokens", (0, 1, 3, 2))):
        strided = values.permute(axes).contiguous().permute(axes)
        _same_bytes(codec.encode(strided, calibration).streams, expected, text, f"given {how}")
    _same_bytes(codec.encode(_inside(values), calibration).streams, expected, text, "given a slice of a larger array")
    found = codec.decode({name: _inside(array) for name, array in expected.items()}, torch.float32, calibration)
    _expect(torch.equal(found, decoded), text, "decodes slices of larger arrays to other values")


def check_non_finite(text: str) -> None:
    """NaN and infinity are refused, counted and placed."""
    codec = codec_of(text)
    clean = sample(codec.spec, blocks=1, batch=1, heads=2)
    calibration = calibrated(codec, clean)
    for bad in (torch.nan, torch.inf, -torch.inf):
        values = clean.clone()
        values[0, 1, codec.spec.tokens_per_block - 1, 3] = bad
        place = f"[row, head, token, channel] = [0, 1, {codec.spec.tokens_per_block - 1}, 3]"
        try:
            codec.encode(values, calibration)
        except NonFiniteError as error:
            _expect(place in str(error), text, f"refuses {bad} without its place {place}: {error}")
        else:
            raise CheckFailed(f"{text} encodes {bad}; call require_finite first")


def check_constants(text: str) -> None:
    """Zero, constant and tiny groups keep their stored floats finite and decode to about what they were."""
    codec = codec_of(text)
    for constant in CONSTANTS:
        values = torch.full_like(sample(codec.spec, blocks=2, batch=1, heads=2), constant)
        calibration = calibrated(codec, values)
        encoded = codec.encode(values, calibration).streams
        for name, array in encoded.items():
            if array.is_floating_point():
                finite = bool(torch.isfinite(array.to(torch.float32)).all())
                _expect(finite, text, f"stores a non-finite number in {name} for a constant {constant}")
        found = codec.decode(encoded, torch.float32, calibration)
        _expect(bool(torch.isfinite(found).all()), text, f"decodes a constant {constant} to a non-finite number")
        allowed = max(float(values.norm()) * CONSTANT_ERROR, RESOLUTION * values.numel() ** 0.5)
        error = float((found - values).norm())
        _expect(
            error <= allowed,
            text,
            f"errs by a norm of {error:.4g} on a constant {constant}; at most {allowed:.4g} expected",
        )


def check_dtypes(text: str) -> None:
    """float16, bfloat16, float32 and float64 values round-trip within the largest error of the method's bits."""
    codec = codec_of(text)
    exact = sample(codec.spec, blocks=4, batch=2, heads=2)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        values = exact.to(dtype)
        calibration = calibrated(codec, values)
        encoded = codec.encode(values, calibration).streams
        found = codec.decode(encoded, torch.float64, calibration)
        relative = float((found - values.to(torch.float64)).norm() / values.to(torch.float64).norm())
        largest = largest_relative_error(codec.spec)
        _expect(relative <= largest, text, f"errs by {relative:.4g} of {dtype} values; at most {largest} expected")
        for wanted in (torch.float16, torch.bfloat16, torch.float32):
            _equal(wanted, codec.decode(encoded, wanted, calibration).dtype, text, "dtype of decoded values")


CHECKS: Sequence[Callable[[str], None]] = (
    check_name,
    check_declared_bytes,
    check_chunks,
    check_strides,
    check_non_finite,
    check_constants,
    check_dtypes,
)


def codec_of(text: str) -> Quantizer:
    """The codec of a codec text, rotation and mean included."""
    return quantizer(parse_side(text))


def calibrated(codec: Quantizer, values: Tensor) -> Calibration | None:
    """A calibration on the values themselves where the spec needs one."""
    return codec.calibrate(values) if codec.spec.needs_calibration else None


def sample(spec: QuantSpec, *, blocks: int, batch: int, heads: int, dim: int = DIM) -> Tensor:
    """Gaussian values of whole blocks: `[batch, heads, tokens, dim]` float32."""
    tokens = blocks * spec.tokens_per_block
    return torch.randn(batch, heads, tokens, dim, generator=torch.Generator().manual_seed(0))


def largest_relative_error(spec: QuantSpec) -> float:
    """The bound of the next lower number of bits in the table; a negative control may spend one of its bits in vain."""
    num_bits = spec.num_bits - (methods()[spec.method].family is Family.CONTROL)
    return LARGEST_RELATIVE_ERROR[max(bits for bits in LARGEST_RELATIVE_ERROR if bits <= num_bits)]


def _inside(array: Tensor) -> Tensor:
    """The same values as a view into a larger array, with other strides and a storage offset."""
    larger = array.new_empty([size + 2 for size in array.shape])
    view = larger[tuple(slice(1, 1 + size) for size in array.shape)]
    return view.copy_(array)


def _same_bytes(found: Streams, expected: Streams, text: str, how: str) -> None:
    _equal(list(expected), list(found), text, f"names of streams {how}")
    for name, array in found.items():
        same = torch.equal(_bytes(array), _bytes(expected[name]))
        _expect(same, text, f"stores other bytes in {name} when {how}; use element-wise operations or fixed-order sums")


def _bytes(array: Tensor) -> Tensor:
    return array.contiguous().view(torch.uint8)


def _equal(expected: object, found: object, text: str, what: str) -> None:
    _expect(found == expected, text, f"has {what} {found}; {expected} expected")


def _expect(holds: bool, text: str, failure: str) -> None:
    if not holds:
        raise CheckFailed(f"{text} {failure}")
