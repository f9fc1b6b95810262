"""JSON that two readers could read differently is refused."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvassay.errors import PackError
from kvassay.pack.strict_json import MAX_JSON_NBYTES, parse_json, render_json

FAULTS = {
    b'{"margin": 0.02, "margin": 0.9}': "'margin' stands twice",
    b'{"a": {"b": 1, "b": 1}}': "'b' stands twice",
    b'{"kl": NaN}': "NaN is no JSON number",
    b"[Infinity]": "Infinity is no JSON number",
    b"[-Infinity]": "-Infinity is no JSON number",
    b"[1e400]": "beyond the range of a double",
    b"[9007199254740993]": "safe integer",
    b"[" + b"1" * 5000 + b"]": "not valid JSON",
    b"[" * 100_000: "nested too deeply",
    b'["\\ud800"]': "not valid JSON",
    b"\xff\xfe": "not valid JSON",
    b"": "not valid JSON",
    b"{} {}": "not valid JSON",
    b"\xef\xbb\xbf{}": "not valid JSON",
}


@pytest.mark.parametrize("data", FAULTS, ids=range(len(FAULTS)))
def test_ambiguous_json_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(PackError) as caught:
        parse_json(data, "plan.json")
    assert str(caught.value).startswith("plan.json: ")
    assert FAULTS[data] in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_a_file_beyond_the_cap_is_not_parsed() -> None:
    with pytest.raises(PackError, match="at most"):
        parse_json(b" " * (MAX_JSON_NBYTES + 1), "plan.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**60, "\ud800", {1: 2}, {"a": object()}])
def test_what_would_be_refused_is_not_written(value: object) -> None:
    with pytest.raises(PackError, match="cannot be written as JSON"):
        render_json(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=20,
)


@given(JSON)
def test_what_is_written_reads_back_equal(value: object) -> None:
    again = parse_json(render_json(value), "x")
    assert json.dumps(again) == json.dumps(value)


@given(st.binary(max_size=200))
def test_no_bytes_cause_another_error(data: bytes) -> None:
    with suppress(PackError):
        parse_json(data, "x")
