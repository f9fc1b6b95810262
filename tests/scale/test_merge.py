"""Cells that were run apart become the pack that one run would have left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvassay.assess.run import run_assessment
from kvassay.pack.verify import verify_pack
from kvassay.report.again import with_report_checks
from kvassay.scale.bench import Bench
from kvassay.scale.cell import Group, items_of
from kvassay.scale.cell_files import read_units
from kvassay.scale.executors.base import Job
from kvassay.scale.executors.pull import PullExecutor
from kvassay.scale.failures import failed_items
from kvassay.scale.matrix import load_matrix
from kvassay.scale.merge import merge_group
from kvassay.scale.planning import plan_matrix
from kvassay.scale.plans import write_plan
from kvassay.scale.store import Store
from tests.thorough import some

SAME = (
    "rows/tokens.parquet",
    "rows/items.parquet",
    "rows/tensors.parquet",
    "rows/generations.parquet",
    "rows/answers.parquet",
    "verdicts.json",
    "arms.json",
    "ledgers.json",
    "subject.json",
    "contract.json",
)

ALL_LEVELS = """
schema = "kvassay.contract/1"
name = "all"
[subject]
reference_kv = "bf16"
[text]
corpus = "path:{texts}"
documents = 20
prompt_tokens = 32
scored_tokens = 12
[candidates]
order = ["f16"]
[inference]
pilot_documents = 2
pilot_items = 2
bootstrap_replicates = 300
[controls]
canary = "int2-g32"
aa_runs = 2
[fidelity.kl_mean]
max = 0.001
[numeric]
documents = 20
queries = 4
[numeric.output_relative]
max = 0.5
[free_running]
prompts = 20
pilot_prompts = 2
batch_prompts = 3
prompt_tokens = 24
generated_tokens = 8
[free_running.repetition]
margin = 0.2
[task.arithmetic]
margin = 0.1
ref_floor = 0.0
items = 4
[task.json]
answer = "written"
answer_tokens = 64
margin = 0.1
ref_floor = 0.0
items = 4
context_tokens = [384]
"""


def run_all(path: Path, root: Path, parts: int = 1) -> tuple[Store, list[Group]]:
    plan = plan_matrix(load_matrix(path), lambda _line: None)
    store = Store(str(root))
    digest = write_plan(store, plan)
    states: list[str] = []
    PullExecutor().run(Job(store, digest, items_of(plan, parts), parts, 2.0), lambda item, state: states.append(state))
    assert set(states) == {"done"}, failed_items(store)
    return store, list(plan.groups)


@pytest.mark.parametrize("parts", some([3, 1], 2))
def test_merged_cells_are_the_pack_of_one_run_byte_for_byte(matrix_file, texts, tmp_path, tiny_folder, parts) -> None:
    (tmp_path / "all.toml").write_text(ALL_LEVELS.format(texts=texts))
    path = matrix_file(workloads=("all.toml",), formats=("int8-token-head", "int8-tensor", "kivi-4,recent=8"))
    store, (group,) = run_all(path, tmp_path / "store", parts)
    ready = Bench().prepare(group)
    generated = [
        batch
        for level in ready.levels
        if level.generates
        for batch in (*level.batches(level.pilot_units), *level.batches(level.units))
    ]
    assert len(read_units(store, group.reference)) == len(ready.units) + len(generated)
    merged = merge_group(store, group, tmp_path / "merged")
    alone = run_assessment(str(tiny_folder), group.contract, group.contract_toml, tmp_path / "alone")
    for name in SAME:
        assert (merged.out / name).read_bytes() == (alone.out / name).read_bytes(), name
    plans = [json.loads((out / "plan.json").read_text()) for out in (merged.out, alone.out)]
    assert plans[0]["clauses"] == plans[1]["clauses"]
    assert plans[0]["pilot"] == plans[1]["pilot"]
    assert plans[0]["cost"]["candidate_tokens"] == plans[1]["cost"]["candidate_tokens"]
    assert merged.verdicts == alone.verdicts
    found = with_report_checks(merged.out, verify_pack(merged.out, merged.manifest.root))
    assert found.passed, found.failed
