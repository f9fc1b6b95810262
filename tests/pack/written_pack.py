"""A pack of a task whose answers were written, with made-up texts, judged by the real judge."""

from __future__ import annotations

from pathlib import Path

from kvassay.core.contract import parse_contract
from kvassay.core.records import Role
from kvassay.judge import judge
from kvassay.pack.layout import PackManifest
from kvassay.pack.reader import ArmLedgers
from kvassay.pack.writer import PackWriter
from tests.judge.answer_runs import NAME, failing, right, rows
from tests.judge.runs import CANARY, GEOMETRY, REFERENCE, ArmRun

TASK, ITEMS = "tool-call", 60
CONTRACT_TOML = f"""
schema = "kvassay.contract/1"
name = "written"

[candidates]
order = ["{NAME}"]

[inference]
bootstrap_replicates = 200

[task.{TASK}]
answer = "written"
margin = 0.1
parse_margin = 0.05
items = {ITEMS}
"""


def write_written(out: Path, lost: float = 0.0) -> PackManifest:
    """`lost` is the share of the candidate's answers that do not parse."""
    contract = parse_contract(CONTRACT_TOML)
    runs = [
        (ArmRun(NAME), failing(lost, "?\n")),
        (ArmRun(CANARY, Role.CANARY), failing(1.0, "?\n")),
        (ArmRun(REFERENCE, Role.REFERENCE_AGAIN, "f32"), right),
    ]
    arms = [run.record() for run, _ in runs]
    with PackWriter(out, contract, CONTRACT_TOML) as pack:
        for run, writes in runs:
            pack.append("answers", rows(contract, run, writes, task=TASK))
        ledgers = {run.name: ArmLedgers(run.ledger(), None) for run, _ in runs}
        pack.write_plan({"power": 0.8})
        pack.write_arms(arms)
        pack.write_ledgers(ledgers)
        pack.write_environment({"python": "3.11"})
        pack.write_subject({"model": {"name": "sample"}, "geometry": GEOMETRY.model_dump(mode="json")})
        tables = pack.tables()
        computed = {arm: pair.computed for arm, pair in ledgers.items()}
        pack.write_verdicts(judge(contract, arms, computed, tables.tokens, tables.items, answers=tables.answers))
        pack.write_report("<!doctype html><title>written</title>")
        return pack.commit()
