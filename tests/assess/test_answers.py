"""Written answers on a tiny model: plan, write, judge, pack, report, verify."""

from __future__ import annotations

import pytest

from kvassay.assess.run import plan_assessment, run_assessment
from kvassay.core.contract import parse_contract
from kvassay.pack.reader import read_pack
from kvassay.pack.verify import verify_pack
from kvassay.report.again import with_report_checks

TOML = """
schema = "kvassay.contract/1"
name = "tiny"
[candidates]
order = ["int8-token-head", "int8-tensor"]
[inference]
pilot_items = 2
[controls]
canary = "int2-g32"
[free_running]
batch_prompts = 3
[task.json]
answer = "written"
answer_tokens = 12
margin = 0.2
parse_margin = 0.3
ref_floor = 0.0
items = 6
context_tokens = [384]
depths = ["early", "late"]
slices = ["depth=late"]
[task.counting]
margin = 0.2
ref_floor = 0.0
items = 4
lines = [2, 3]
[task.recall]
margin = 0.1
ref_floor = 0.0
items = 4
context_lines = 4
"""


@pytest.fixture(scope="module")
def pack(tiny_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("packs") / "pack"
    result = run_assessment(str(tiny_folder), parse_contract(TOML), TOML, out)
    return result, read_pack(out)


def test_r53_a_run_leaves_answers_that_verify_and_judge_again_to_the_byte(pack) -> None:
    result, content = pack
    verification = with_report_checks(result.out, verify_pack(result.out, result.manifest.root))
    assert verification.passed, verification.failed
