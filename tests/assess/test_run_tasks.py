"""Several tasks with slices, from the contract to the evidence, on a tiny model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kvassay.assess.run import plan_assessment, run_assessment
from kvassay.core.contract import parse_contract
from kvassay.core.slices import slice_labels
from kvassay.errors import ContractError
from kvassay.pack.reader import read_pack
from kvassay.pack.verify import verify_pack

TOML = """
schema = "kvassay.contract/1"
name = "tasks"
[candidates]
order = ["int8-token-head"]
[inference]
pilot_items = 3
[controls]
canary = "int2-g32"
[task.multi-key]
margin = 0.3
ref_floor = 0.0
items = 6
keys = 2
context_tokens = [384, 480]
slices = ["tokens=480", "depth=late"]
[task.variable-tracking]
margin = 0.3
ref_floor = 0.0
items = 3
hops = [1]
context_tokens = [384]
[task.words]
kind = "rare-copy"
margin = 0.3
ref_floor = 0.0
items = 4
depths = ["middle"]
context_tokens = [384]
"""
TASKS = ("multi-key", "variable-tracking", "words")


@pytest.fixture(scope="module")
def pack(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("packs") / "pack"
    result = run_assessment(str(tiny_folder), parse_contract(TOML), TOML, out)
    return result, read_pack(out)


def test_r44_a_run_of_three_kinds_leaves_a_pack_that_verifies(pack) -> None:
    result, content = pack
    verification = verify_pack(result.out, result.manifest.root)
    assert verification.passed, verification.failed
    assert {clause.clause for v in content.verdicts.formats for clause in v.clauses} == {f"task.{n}" for n in TASKS}
    assert {control.name for control in content.verdicts.controls} >= {f"reference_floor.{name}" for name in TASKS}
    report = (result.out / "report.html").read_text()
    assert "task words, kind" in report
    assert "rarity=rare" in report


def test_r45_r46_r47_items_lie_in_the_planned_slices_and_have_their_length(pack) -> None:
    _, content = pack
    rows = [row for row in content.tables.items.to_pylist() if row["arm"] == "int8-token-head"]
    assert Counter(row["task"] for row in rows) == {"multi-key": 6, "variable-tracking": 3, "words": 4}
    counts = Counter((row["task"], label) for row in rows for label in slice_labels(row["slice"]))
    for name, bound in content.contract.task.items():
        for label in bound.settings.labels:
            assert counts[name, label] == bound.planned(label, 3) > 0
    assert counts["multi-key", "tokens=480"] == 3
    assert counts["multi-key", "depth=late"] == counts["words", "rarity=rare"] == 2
    for row in rows:
        (asked,) = (int(label[7:]) for label in slice_labels(row["slice"]) if label.startswith("tokens="))
        assert asked / 2 < row["context_tokens"] < asked
        assert row["stored_reads"] > asked / 2


def test_slices_that_decide_are_planned_and_judged_by_themselves(pack) -> None:
    _, content = pack
    planned = {(e["clause"], e["slice"]): e["n_planned"] for e in content.plan["clauses"] if e["role"] == "candidate"}
    assert planned == {
        ("task.multi-key", "all"): 6,
        ("task.multi-key", "tokens=480"): 3,
        ("task.multi-key", "depth=late"): 2,
        ("task.variable-tracking", "all"): 3,
        ("task.words", "all"): 4,
    }
    assert content.plan["pilot"]["items"] == 9
    (verdict,) = [v for v in content.verdicts.formats if v.role == "candidate"]
    decisive = {(c.clause, c.slice): c.n for c in verdict.clauses if not c.details["descriptive"]}
    assert decisive == planned


def test_the_subject_names_what_was_asked(pack) -> None:
    _, content = pack
    assert content.subject["task"]["words"] == {
        "kind": "rare-copy",
        "items": 4,
        "context_tokens": [384],
        "depths": ["middle"],
        "rarities": ["common", "rare"],
        "seed": 7,
    }


def test_r45_items_beyond_the_context_are_refused_with_the_way_out(tiny_folder) -> None:
    toml = TOML.replace("[384, 480]", "[384, 640]").replace("tokens=480", "tokens=640")
    message = (
        r"task.multi-key: items with context_tokens = \[384, 640\] have up to \d+ tokens, "
        r".* has a context of 512 tokens; write context_tokens of at most 512"
    )
    with pytest.raises(ContractError, match=message):
        plan_assessment(str(tiny_folder), parse_contract(toml))
