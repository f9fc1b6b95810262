"""The checks for authors of methods can fail: each finds the codec that breaks what it is named for."""

from __future__ import annotations

import pytest
import torch

from kvassay import testing
from kvassay.core.methods import Family, Method, Word, methods
from kvassay.formats import Encoded
from kvassay.formats.integer import IntegerQuantizer

SIDE = "int4:group32"


def break_encode(monkeypatch, change) -> None:
    """Let `change(values, encode)` stand for the codec's encode."""
    plain = IntegerQuantizer.encode

    def encode(self, values, calibration=None) -> Encoded:
        return change(values, lambda given: plain(self, given, calibration))

    monkeypatch.setattr(IntegerQuantizer, "encode", encode)


def test_a_method_of_the_table_passes() -> None:
    testing.check_method(methods()["q4_0"])


def test_wrong_order_shape_and_dtype_of_streams_are_found(monkeypatch) -> None:
    with monkeypatch.context() as patch:
        break_encode(patch, lambda x, encode: Encoded(dict(reversed(encode(x).streams.items())), 0))
        with pytest.raises(testing.CheckFailed, match="int4:group32 has names of streams"):
            testing.check_declared_bytes(SIDE)
    with monkeypatch.context() as patch:
        break_encode(patch, lambda x, encode: Encoded({n: a.squeeze(3) for n, a in encode(x).streams.items()}, 0))
        with pytest.raises(testing.CheckFailed, match="shape of codes"):
            testing.check_declared_bytes(SIDE)
    with monkeypatch.context() as patch:
        break_encode(patch, lambda x, encode: Encoded({n: a.float() for n, a in encode(x).streams.items()}, 0))
        with pytest.raises(testing.CheckFailed, match=r"dtype of codes torch\.float32; torch\.uint8 expected"):
            testing.check_declared_bytes(SIDE)


def test_codes_that_depend_on_other_rows_are_found(monkeypatch) -> None:
    break_encode(monkeypatch, lambda x, encode: encode(x - x.mean()))
    with pytest.raises(testing.CheckFailed, match="when encoded by chunks; use element-wise operations"):
        testing.check_chunks(SIDE)


def test_codes_that_depend_on_strides_are_found(monkeypatch) -> None:
    break_encode(monkeypatch, lambda x, encode: encode(x if x.is_contiguous() else x * 1.001))
    with pytest.raises(testing.CheckFailed, match="when given tokens before heads"):
        testing.check_strides(SIDE)


def test_silent_non_finite_values_are_found(monkeypatch) -> None:
    break_encode(monkeypatch, lambda x, encode: encode(x.nan_to_num(0, 1, -1)))
    with pytest.raises(testing.CheckFailed, match="int4:group32 encodes nan; call require_finite first"):
        testing.check_non_finite(SIDE)


def test_a_scale_of_zero_by_zero_is_found(monkeypatch) -> None:
    def divide_by_the_range(x, encode) -> Encoded:
        encoded = encode(x)
        if float(x.amax() - x.amin()) == 0:
            encoded.streams["scales"].fill_(torch.nan)
        return encoded

    break_encode(monkeypatch, divide_by_the_range)
    with pytest.raises(testing.CheckFailed, match=r"stores a non-finite number in scales for a constant 0\.0"):
        testing.check_constants(SIDE)


def test_codes_that_decode_to_something_else_are_found(monkeypatch) -> None:
    break_encode(monkeypatch, lambda x, encode: encode(x.flip(-1)))
    with pytest.raises(testing.CheckFailed, match=r"errs by 1\.\d+ of torch\.float16 values; at most 0\.25 expected"):
        testing.check_dtypes(SIDE)


def test_a_method_without_an_entry_point_is_told_what_to_do() -> None:
    method = Method("new", Family.GROUPED, "", "", "new:Codec", (Word("new4", 4),), ("new4",))
    with pytest.raises(testing.CheckFailed, match=r"new is not registered; install the package .* kvassay\.methods"):
        testing.check_method(method)
