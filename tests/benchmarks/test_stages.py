"""Stage timings: swept, named, and void without a quality gate that passed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.stages import STAGES, gate, main, measure

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry, Owner
from kvassay.core.ledger import predict_ledger
from kvassay.pack.reader import read_whole_pack
from tests.pack.sample_pack import write_sample


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """int8-token-head is MET in it, the KIVI-2 canary BREACHED, q4_0 not run."""
    out = tmp_path_factory.mktemp("packs") / "sample"
    write_sample(out)
    return out


def test_r32_r37_r38_r102_stages_are_timed_apart_over_contexts_and_rows(pack: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "rows.json"
    arguments = ["--pack", str(pack), "--format", "int8-token-head", "--repeats", "2", "--json", str(out)]
    assert main([*arguments, "--context", "64", "--context", "256", "--rows", "1", "--rows", "3"]) == 0
    rows = json.loads(out.read_text())
    assert [(row["context"], row["rows"]) for row in rows] == [(64, 1), (64, 3), (256, 1), (256, 3)]
    for row in rows:
        assert set(row["seconds"]) == set(STAGES) == {"encode", "append", "decode", "attention"}
        for median, least, most in row["seconds"].values():
            assert 0 < least <= median <= most
    assert "MET in sample" in capsys.readouterr().out


def test_r33_the_path_that_ran_is_named_beside_the_bytes_that_it_reads(pack: Path) -> None:
    found = gate(read_whole_pack(pack), "int8-token-head")
    row = measure("int8-token-head", 128, 2, 1, found, ungated=False)
    assert row.path.startswith(("fused", "tiled"))
    layer = LayerGeometry(kv_heads=4, head_dim=64, value_dim=64)
    geometry = CacheGeometry(model_type="llama", query_heads=8, layers=(layer,))
    ledger = predict_ledger(geometry, parse_format("int8-token-head"), 128 + 2, batch=2)
    unread = ledger.owner_nbytes(Owner.PADDING) + ledger.owner_nbytes(Owner.BLOCK_TABLE)
    assert row.read_nbytes == ledger.persistent_nbytes - unread == 130 * 2 * 4 * 2 * (64 + 4)


@pytest.mark.parametrize("name", ["kivi-2,recent=32", "q4_0", "int4-g32", "int8-token-head,sinks=4"])
def test_r39_a_speed_row_is_void_unless_its_quality_gate_passed(name: str, pack: Path) -> None:
    """Breached, not run, unknown to the pack, or nearly the format that was judged."""
    found = gate(read_whole_pack(pack), name)
    assert not found.passed
    assert found.reason.startswith("void: ")
    row = measure(name, 64, 1, 1, found, ungated=False)
    assert row.seconds == dict.fromkeys(STAGES)
    assert (row.read_nbytes, row.path) == (None, "")


def test_r39_without_a_pack_every_row_is_void_and_ungated_figures_claim_nothing(capsys) -> None:
    arguments = ["--format", "f16", "--context", "64", "--rows", "1", "--repeats", "1"]
    assert main(arguments) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert "void: no evidence pack was given" in line
    assert line.split()[3:7] == ["-"] * 4
    assert main([*arguments, "--ungated"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("none: no claim")
