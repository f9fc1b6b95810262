"""`kvassay formats` and `kvassay formats show`: complete, true to the codecs, and useful without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvassay.cli import format_details
from kvassay.cli.app import run
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.layout import stored_bits_per_value
from kvassay.core.methods import methods
from kvassay.core.presets import Conformance

EXAMPLES = [example for method in methods().values() for example in method.examples]


def printed(capsys, *arguments: str) -> str:
    assert run(["formats", *arguments]) == 0
    return capsys.readouterr().out


def shown(capsys, *arguments: str) -> dict:
    return json.loads(printed(capsys, "show", *arguments, "--json"))


def test_r11_every_preset_is_listed_with_bits_family_source_and_engines(capsys) -> None:
    rows = {row["name"]: row for row in json.loads(printed(capsys, "--json", "--head-dim", "64"))}
    text = printed(capsys, "--head-dim", "64")
    assert list(rows) == [preset.name for preset in PRESETS]
    for preset in PRESETS:
        row, kv_format = rows[preset.name], parse_format(preset.name)
        assert row["digest"] == kv_format.digest
        assert row["key_bits"] == stored_bits_per_value(kv_format.keys, 8, 64)
        for side, spec in (("keys", kv_format.keys), ("values", kv_format.values)):
            method = methods()[spec.method]
            found = row[side]
            assert (found["family"], found["method_source"]) == (method.family.value, method.source)
            assert method.source in text
        assert [(each["engine"], each["name"]) for each in row["engines"]] == [each[:2] for each in preset.engines]
        for each in preset.engines:
            assert f"{each.engine} {each.name}" in text
        for found, given in zip(row["engines"], preset.engines, strict=True):
            assert found["codes_proven_equal"] == (given.conformance is Conformance.PROVEN)


def test_a_format_that_cannot_serve_a_head_size_says_so_and_shows_no_bits(capsys) -> None:
    rows = {row["name"]: row for row in json.loads(printed(capsys, "--json", "--head-dim", "80"))}
    assert rows["int4-g64"]["key_bits"] is None
    assert "not a multiple of group 64; use group 40 or 80" in rows["int4-g64"]["keys"]["refusal"]
    line = next(line for line in printed(capsys, "--head-dim", "80").splitlines() if line.startswith("int4-g64 "))
    assert line.split()[1:3] == ["-", "-"]
    assert "  refused  head_dim 80" in printed(capsys, "show", "int4-g64", "--head-dim", "80")


@pytest.mark.parametrize("side", EXAMPLES)
def test_show_explains_every_example_byte_by_byte(side, capsys, monkeypatch) -> None:
    """R22: offsets and bytes add up to the block, and the block to the stored bits; nominal bits stand beside them."""
    monkeypatch.setattr(format_details, "_has_torch", lambda: False)
    one_head = ("--head-dim", "64", "--kv-heads", "1")
    found = shown(capsys, f"kv={side}", *one_head)["keys"]
    place = 0
    for array in found["block"]:
        assert array["offset"] == place
        place += array["nbytes"]
    assert place == found["block_nbytes"]
    assert found["stored_bits"] == 8 * place / (found["tokens_per_block"] * 64)
    assert found["nominal_bits"] == parse_format(f"kv={side}").keys.num_bits
    text = printed(capsys, "show", f"kv={side}", *one_head)
    for array in found["block"]:
        assert f"{array['offset']}" in text
        assert str(array["shape"]) in text
    assert found["method_source"] in text
    assert f"{found['nominal_bits']} nominal, {found['stored_bits']:.5g} really stored" in text
    assert "needs the torch extra: pip install 'kvassay[torch]'" in text


def test_show_measures_the_format_between_its_neighbours(capsys) -> None:
    """The measured SQNR is that of the rate table of iid Gaussian values, and the sparkline has a mark for each."""
    value = shown(capsys, "k=int4:group64,v=int2:group32")
    for side, expected_db in (("keys", 21.0), ("values", 8.1)):
        own = [each for each in value["sqnr_db"][side] if each["is_this"]]
        assert len(own) == 1
        assert abs(own[0]["sqnr_db"] - expected_db) < 0.15
        bits = [each["stored_bits"] for each in value["sqnr_db"][side]]
        assert bits == sorted(bits)
        assert len(bits) >= 4
    lines = [line for line in printed(capsys, "show", "int4-g64").splitlines() if line.startswith("  SQNR ")]
    assert len(lines) == 1  # keys and values are alike and explained once
    marks = lines[0].split()[1]
    assert len(marks) == len(value["sqnr_db"]["keys"])
    assert {"▁", "█"} <= set(marks) <= set("▁▂▃▄▅▆▇█")


def test_show_names_engines_and_the_source_of_a_preset_with_options(capsys) -> None:
    text = printed(capsys, "show", "q4_0,recent=16")
    assert "llama.cpp calls q4_0 q4_0: proven: a test compares" in text
    assert "0 sinks and 16 recent tokens in float16" in text


def test_show_names_a_scale_that_all_heads_share(capsys) -> None:
    assert "once for all heads" in printed(capsys, "show", "int8-token")
    assert "once for all heads" not in printed(capsys, "show", "int8-token-head")


@pytest.mark.parametrize("heads", [1, 2, 8, 32])
def test_r22_stored_bits_are_those_of_all_heads(heads, capsys) -> None:
    """A scale that heads share costs each of them its part: the listing, the methods and `show` say the same."""
    expected = {preset.name: stored_bits_per_value(parse_format(preset.name).keys, heads, 64) for preset in PRESETS}
    shape = ("--head-dim", "64", "--kv-heads", str(heads))
    rows = json.loads(printed(capsys, "--json", *shape))
    assert {row["name"]: row["key_bits"] for row in rows} == expected
    assert {row["kv_heads"] for row in rows} == {heads}
    assert expected["int8-token"] == 8 + 32 / (64 * heads)
    assert f"64 channels and {heads} KV heads" in printed(capsys, *shape)
    methods_rows = {row["codec"]: row for row in json.loads(printed(capsys, "--methods", "--json", *shape))}
    assert methods_rows["int8:token"]["stored_bits"] == expected["int8-token"]
    value = shown(capsys, "int8-token", *shape)
    assert value["keys"]["stored_bits"] == expected["int8-token"]
    own = next(each for each in value["sqnr_db"]["keys"] if each["is_this"])
    assert own["stored_bits"] == expected["int8-token"]
    assert f"; of {heads} KV heads" in printed(capsys, "show", "int8-token", *shape)
    assert "KV heads" not in printed(capsys, "show", "int8-token-head", *shape)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "kivi-5"], "format 'kivi-5' is unknown; did you mean 'kivi-4'?"),
        (["show"], "NAME"),
        (["show", "kivi-4", "--head-dim", "0"], "head-dim"),
        (["show", "kivi-4", "--kv-heads", "0"], "kv-heads"),
        (["--kv-heads", "4097"], "kv-heads"),
        (["sho", "kivi-4"], "sho"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys) -> None:
    assert run(["formats", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


def test_listing_formats_loads_no_torch() -> None:
    code = (
        "import sys\nfrom kvassay.cli.app import run\nassert run(['formats']) == 0\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
