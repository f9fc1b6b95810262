"""Format strings, their canonical names, and digests as identity."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.kv_format import KVFormat
from kvassay.core.spec import QuantSpec
from kvassay.errors import FormatError

PRESET_NAMES = [preset.name for preset in PRESETS]
SIDES = ["f32", "f16", "bf16", "q8_0", "q4_0", "fp8-e4m3", "fp8-e4m3:token-head/scale=f16", "int8:tensor"] + [
    f"int{bits}:{granularity}{modifier}"
    for bits in (8, 4, 2)
    for granularity in ("token", "token-head", "group32", "channel16")
    for modifier in ("", "/sym", "/asym", "/scale=f32", "/sym/scale=f16")
]
formats = st.builds(
    "k={},v={},sinks={},recent={},skip={},exact={}".format,
    st.sampled_from(SIDES),
    st.sampled_from(SIDES),
    st.integers(0, 9),
    st.integers(0, 300),
    st.sampled_from(["none", "0", "3", "0+1+29"]),
    st.sampled_from(["f16", "bf16", "f32"]),
)


@given(formats | st.sampled_from(PRESET_NAMES))
def test_a_name_reads_back_to_the_same_format(text) -> None:
    kv_format = parse_format(text)
    assert parse_format(kv_format.name) == kv_format
    assert len(kv_format.name) <= max(len(text), 80)


@given(formats, formats)
def test_digests_are_equal_exactly_when_formats_are(left, right) -> None:
    """R8, R20: identity is the digest, and every field is part of it."""
    one, other = parse_format(left), parse_format(right)
    assert (one.digest == other.digest) == (one == other)


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_presets_keep_their_names(name) -> None:
    assert parse_format(name).name == name


def test_r8_formats_of_equal_bits_are_not_interchangeable() -> None:
    digests = {parse_format(name).digest for name in ("int4-g32", "q4_0", "kivi-4,recent=0", "kv=int4:group32/sym")}
    assert len(digests) == 4


def test_a_preset_takes_options_and_the_long_form_means_the_same() -> None:
    long = parse_format("k=int4:channel32,v=int4:token/group32,sinks=4,recent=128")
    assert long == parse_format("kivi-4,sinks=4")
    assert long.name == "kivi-4,sinks=4"


GOLDEN_DIGESTS = {
    "f16": "0086983acb",
    "int8-token-head": "8600cbd88d",
    "q4_0": "bbf73851ce",
    "kivi-4": "a112f9e56a",
}


@pytest.mark.parametrize(("name", "prefix"), GOLDEN_DIGESTS.items())
def test_digests_never_move(name, prefix) -> None:
    """Packs name formats by digest: a change here orphans every pack that exists."""
    assert parse_format(name).digest.startswith(prefix)


def test_a_changed_copy_has_a_digest_and_name_of_its_own() -> None:
    original = parse_format("kivi-4,recent=32")
    assert original.digest
    assert original.name
    changed = original.model_copy(update={"recent": 64})
    assert changed.digest == parse_format("kivi-4,recent=64").digest != original.digest
    assert changed.name == "kivi-4,recent=64"


def test_digests_are_equal_in_another_process() -> None:
    code = "from kvassay import parse_format; print(parse_format('kivi-2,recent=32').digest)"
    environment = {"PYTHONHASHSEED": "123", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == parse_format("kivi-2,recent=32").digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "format '' is unknown"),
        ("kivi-5", "did you mean 'kivi-4'"),
        ("kivy", "did you mean 'kivi-4'? See kvassay formats, or write k=...,v=..."),
        ("zzz", "format 'zzz' is unknown; see kvassay formats, or write k=...,v=..."),
        ("int4:group63/had", "is the codec of one side; write kv=int4:group63/had, or k=...,v=..."),
        ("kv=itn4:group32", "codec 'itn4' is unknown; did you mean 'int4'? See kvassay formats --methods"),
        ("k=int8:token-head", "says nothing of v"),
        ("kv=int9:token", "codec 'int9' is unknown"),
        ("kv=int8", "codec int8 needs a granularity, for example int8:token-head"),
        ("kv=int4:group0", "needs a group size of at least 1"),
        ("kv=int4:tokenn", "granularity 'tokenn' is unknown"),
        ("kv=q8_0:group16", "is fixed and takes no granularity"),
        ("kv=int4:group32/odd", "modifier of int4 'odd' is unknown"),
        ("kivi-4,recent=-1", "is not a whole number"),
        ("kivi-4,recent=1e3", "is not a whole number"),
        ("kivi-4,window=3", "format option 'window' is unknown"),
        ("kivi-4,skip=3+1", "skip_layers must be distinct numbers from 0 in rising order, found [3, 1]"),
        ("kivi-4,exact=f64", "exact dtype 'f64' is unknown"),
        ("kivi-4,recent", "is not of the form name=value"),
        ("kivi-4,sinks=99999999999999999999", "is not a whole number"),
        ("k=int8:token-head,v=\x00", "is unknown"),
        ("kivi-4,recent=1,recent=2", "says recent twice: 'recent=1' and 'recent=2'; remove one"),
        ("kv=f16,k=f16", "says k twice: 'kv=f16' and 'k=f16'"),
        ("k=f16,v=f16,k=f32", "says k twice"),
        ("kivi-4,skip=0,skip=none", "says skip twice"),
        ("kivi-4,@0.k=f16,@0.k=f32", "says @0.k twice"),
        ("kivi-4,@0.k=f16,@00.k=f32", "layers [0] are overridden twice"),
        ("kv=int8:token/scale=f16/scale=f32", "says scale twice: 'scale=f16' and 'scale=f32'"),
        ("kv=int8:token/scale=f16/scale=f16", "says scale twice"),
        ("kv=int8:token/sym/asym", "says sym or asym twice: 'sym' and 'asym'"),
        ("kv=int8:token/had/had=32", "says had twice"),
        ("kv=int8:token/had/seed=1/seed=2", "says seed twice"),
        ("kv=int8:token/mean/mean", "says mean twice"),
        ("kv=f16/had", "modifier of f16 'had' is unknown; known: none"),
    ],
)
def test_bad_formats_say_what_was_found_and_what_would_do(text, message) -> None:
    with pytest.raises(FormatError) as caught:
        parse_format(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_a_format_or_a_format_error(text) -> None:
    with suppress(FormatError):
        assert isinstance(parse_format(text), KVFormat)


@pytest.mark.parametrize("codec", ["q8_0", "q4_0", "f16", "fp8-e4m3", "fp8-e4m3:token-head", "int4:group32"])
@pytest.mark.parametrize("modifier", ["sym", "asym", "scale=f32", "scale=f16", "scale=e8m0", "had", "seed=1", "mean"])
def test_no_error_suggests_what_was_written(codec, modifier) -> None:
    """A modifier that this codec does not take is neither suggested nor listed as known."""
    message = ""
    try:
        parse_format(f"kv={codec}/{modifier}")
    except FormatError as error:
        message = str(error)
    assert f"did you mean {modifier!r}" not in message
    assert modifier not in re.split(", |: ", message.casefold().partition("known")[2])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_bits": 0}, "num_bits is 0; expected 1 to 8, the bits of uint8"),
        ({"num_bits": -4}, "num_bits is -4"),
        ({"num_bits": 9}, "num_bits is 9; expected 1 to 8"),
        ({"num_bits": 9, "code_dtype": "int8"}, "expected 1 to 8, the bits of int8"),
        ({"code_dtype": "int4"}, "code_dtype 'int4' is unknown"),
    ],
)
def test_specs_that_cannot_exist_are_refused(fields, message) -> None:
    """Specs also come from other people's files, not only from the grammar."""
    with pytest.raises(FormatError, match=re.escape(message)):
        QuantSpec(**{"method": "int", "num_bits": 4, "granularity": "group", "group_size": 32, **fields})


def test_a_spec_of_an_unknown_method_has_no_name() -> None:
    spec = QuantSpec(method="magic", num_bits=4)
    with pytest.raises(FormatError, match="method 'magic' is unknown"):
        _ = KVFormat(keys=spec, values=spec).name
