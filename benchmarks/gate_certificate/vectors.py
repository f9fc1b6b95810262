"""Make the difference vectors from one real run: `python -m benchmarks.gate_certificate.vectors`.

A few minutes on a CPU. Writes `vectors.json`: by format the sum of KL of every document, and by recall item whether
the answer was gained (+1), lost (−1) or kept (0) against the full-precision cache.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from kvassay.assess.run import run_assessment
from kvassay.core.contract import parse_contract
from kvassay.pack.reader import PackContent, read_pack

MODEL = "smollm2-135m"
COMMAND = "python -m benchmarks.gate_certificate.vectors"
FILE = Path(__file__).parent / "vectors.json"
CONTRACT = """
schema = "kvassay.contract/1"
name = "difference vectors"
[text]
documents = 32
prompt_tokens = 96
scored_tokens = 65
[candidates]
order = ["int8-token-head", "kivi-4,recent=32", "int4-g32", "kivi-2,recent=32"]
[inference]
pilot_documents = 2
pilot_items = 2
[controls]
aa_runs = 0
canary = "int2-g32"
[fidelity.kl_mean]
max = 0.01
[task.recall]
margin = 0.1
items = 64
context_lines = 16
"""


def vectors_of(content: PackContent) -> dict[str, Any]:
    sums: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in content.tables.tokens.to_pylist():
        sums[row["arm"]][row["document"]].append(row["kl_nats"])
    changes: defaultdict[str, list[int]] = defaultdict(list)
    for row in content.tables.items.to_pylist():
        changes[row["arm"]].append(int(row["candidate_correct"]) - int(row["reference_correct"]))
    tokens = {len(values) for documents in sums.values() for values in documents.values()}
    return {
        "command": COMMAND,
        "model": MODEL,
        "weights_sha256": content.subject["model"]["weights_sha256"],
        "contract_sha256": content.contract.sha256,
        "tokens_a_document": tokens.pop(),
        "kl_nats_sums": {
            arm: [float(f"{sum(values):.6g}") for _, values in sorted(documents.items())]
            for arm, documents in sums.items()
        },
        "recall_changes": dict(changes),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pack"
        run_assessment(MODEL, parse_contract(CONTRACT), CONTRACT, out)
        vectors = vectors_of(read_pack(out))
    lines = json.dumps(vectors, indent=1)
    FILE.write_text(lines + "\n")


if __name__ == "__main__":
    main()
