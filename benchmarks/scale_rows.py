"""A store of a million token rows: made once, then queried and judged in a process of its own.

    python -m benchmarks.scale_rows [--documents 402]

The rows are drawn and not measured, since how long they take to read does not depend on what they say; they go through
the same writers as measured ones. Prints seconds of an SQL summary over the cells, seconds to read the merged pack and
judge it, and the peak resident memory of the process that did both.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCORED, PROMPT = 417, 64
CONTRACT = """
schema = "kvassay.contract/1"
name = "million"
[text]
documents = {documents}
prompt_tokens = 64
scored_tokens = 417
[candidates]
order = ["int8-token-head", "int4-g32", "int4-g64", "q8_0"]
[fidelity.kl_mean]
max = 0.01
"""


def make(folder: Path, documents: int) -> None:
    """Write the cells of one group, and merge them."""
    import numpy as np

    from kvassay.assess.arms import planned_arms
    from kvassay.core.contract import parse_contract
    from kvassay.core.ledger import predict_ledger
    from kvassay.core.model_source import geometry_of
    from kvassay.core.records import Arm
    from kvassay.judge.engagement import expected_reads
    from kvassay.pack.reader import ArmLedgers
    from kvassay.scale.cell import Cell, Group, Item, MatrixPlan, ModelIdentity
    from kvassay.scale.measure import CellResult
    from kvassay.scale.merge import merge_group
    from kvassay.scale.plans import write_plan
    from kvassay.scale.results import write_cell
    from kvassay.scale.store import Store

    toml = CONTRACT.format(documents=documents)
    contract = parse_contract(toml)
    geometry = geometry_of("smollm2-135m")
    arms = planned_arms(contract)
    identity = ModelIdentity(
        name="smollm2-135m", weights_sha256="0" * 64, tokenizer_sha256="0" * 64, config_sha256="0" * 64, revision=None
    )
    cells = tuple(
        Cell(id=f"{index:064x}", arm=arm.name, role=arm.role, format_digest=arm.kv_format.digest, again=0)
        for index, arm in enumerate(arms)
    )
    group = Group(
        model=identity,
        workload=contract.name,
        workload_sha256="0" * 64,
        seed=7,
        engine="drawn",
        device="none",
        threads=1,
        device_given=True,
        contract_toml=toml,
        contract_sha256=contract.sha256,
        reference="f" * 64,
        cells=cells,
    )
    store = Store(str(folder / "store"))
    write_plan(store, MatrixPlan(name="million", groups=(group,)))
    draw = np.random.default_rng(7)
    count = SCORED - 1
    positions = np.arange(PROMPT, PROMPT + count)
    pilot = {"documents": 4, "document_ids": []}
    subject = {"model": {}, "geometry": geometry.model_dump(mode="json"), "corpus": None, "task": {}}
    run = {
        "host": "here",
        "started_utc": "2026-01-01T00:00:00+00:00",
        "finished_utc": "2026-01-01T00:00:01+00:00",
        "seconds": {"documents": 1.0},
        "seconds_expected": {},
        "environment": {},
        "peak_rss_nbytes": 0,
    }
    for index, (arm, cell) in enumerate(zip(arms, cells, strict=True)):
        exact = arm.kv_format.is_exact
        reads = np.zeros(count, np.int64) if exact else expected_reads(arm.kv_format, positions)
        chunks = []
        for document in range(documents):
            kl = np.zeros(count) if exact else draw.exponential(0.001 * 3**index, count)
            # The reference is one and the same for every arm.
            same = np.random.default_rng(document)
            nll = same.exponential(3.0, count)
            tokens = same.integers(0, 49152, count)
            chunks.append(
                {
                    "arm": [arm.name] * count,
                    "slice": ["speech"] * count,
                    "document": [f"document {document}"] * count,
                    "position": positions,
                    "token_id": tokens,
                    "kl_nats": kl,
                    "reverse_kl_nats": kl,
                    "nll_reference_nats": nll,
                    "nll_candidate_nats": nll + kl,
                    "reference_top1_nats": nll / 4,
                    "top1_agrees": kl < 0.01,
                    "top10_overlap": np.ones(count),
                    "stored_reads": reads,
                }
            )
        record = {
            "plan": [],
            "pilot": pilot,
            "cost": {"documents": [documents * (PROMPT + SCORED), documents * SCORED]},
            "ledgers": ArmLedgers(predict_ledger(geometry, arm.kv_format, PROMPT + SCORED), None).to_json(),
            "arm": Arm(
                name=arm.name,
                role=arm.role,
                format_digest=arm.kv_format.digest,
                format=arm.kv_format.model_dump(mode="json"),
                scale_source="dynamic",
                clipped_values=0,
                encoded_values=0 if exact else 1,
            ).model_dump(mode="json"),
            "examples": [],
            "subject": subject,
        }
        write_cell(store, Item(group, cell), CellResult({"tokens": chunks}, record, run), "")
    began = time.monotonic()
    merge_group(store, group, folder / "pack")
    print(f"merging the cells into a pack, with its report, took {time.monotonic() - began:.1f} s")


def measure(folder: Path) -> None:
    """Query and judge; imports nothing of torch."""
    from kvassay.pack.reader import read_pack
    from kvassay.pack.rejudge import judge_tables
    from kvassay.scale.plans import read_groups
    from kvassay.scale.query import query
    from kvassay.scale.store import Store

    store = Store(str(folder / "store"))
    began = time.monotonic()
    sql = (
        "SELECT model, arm, count(*) AS n, avg(kl_nats) AS kl, quantile_cont(kl_nats, 0.99) AS tail FROM tokens "
        "GROUP BY ALL ORDER BY ALL"
    )
    answer = query(sql, store, read_groups(store))
    queried = time.monotonic() - began
    began = time.monotonic()
    pack = read_pack(folder / "pack")
    verdicts = judge_tables(pack.contract, pack.arms, pack.ledgers, pack.tables)
    judged = time.monotonic() - began
    status = Path("/proc/self/status").read_text()
    peak = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
    assert "torch" not in sys.modules, "an auditor needs no torch"
    print(f"{sum(row[2] for row in answer.rows):,} rows in {len(answer.rows)} cells, verdict {verdicts.outcome.value}")
    print(f"query {queried:.2f} s, read and judge {judged:.2f} s, together {queried + judged:.2f} s of wall time")
    print(f"processor time of all of it, imports included: {time.process_time():.2f} s")
    for control in verdicts.controls:
        print(f"control {control.name}: {control.passed}: {control.reason}")
    print(f"peak resident memory {peak / 1024**2:.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=402)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        measure(given.measure)
        return
    with tempfile.TemporaryDirectory() as place:
        make(Path(place), given.documents)
        subprocess.run([sys.executable, "-m", "benchmarks.scale_rows", "--measure", place], check=True)


if __name__ == "__main__":
    main()
