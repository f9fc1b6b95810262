"""A small assessment with made-up rows of known quality, judged by the real judge.

int8 token-head loses next to nothing, KIVI-4 lies close to the bound, the KIVI-2 canary is bad: verdicts of several
outcomes without running a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvassay.core.contract import Contract, parse_contract
from kvassay.core.digest import sha256_json
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.ledger import Basis, predict_ledger
from kvassay.core.records import Arm, Role
from kvassay.core.slices import slice_cell
from kvassay.core.tasks.kinds import task_draw
from kvassay.judge import judge
from kvassay.pack.layout import PackManifest
from kvassay.pack.reader import ArmLedgers
from kvassay.pack.writer import PackWriter

CONTRACT_TOML = """
schema = "kvassay.contract/1"
name = "sample"

[text]
documents = 20
prompt_tokens = 193
scored_tokens = 7

[candidates]
order = ["int8-token-head", "kivi-4", "q4_0"]

[inference]
bootstrap_replicates = 200

[controls]
canary = "kivi-2,recent=32"

[fidelity.kl_mean]
max = 0.02

[task.recall]
margin = 0.1
items = 40
"""

MEAN_KL_NATS = {"int8-token-head": 0.001, "kivi-4": 0.018, "kivi-2,recent=32": 0.9, "reference": 0.0}
"""q4_0 is a candidate that was not run."""
WRONG_SHARE = {"int8-token-head": 0.0, "kivi-4": 0.02, "kivi-2,recent=32": 0.6, "reference": 0.0}

GEOMETRY = CacheGeometry(
    model_type="llama",
    query_heads=4,
    layers=tuple(LayerGeometry(kv_heads=2, head_dim=32, value_dim=32) for _ in range(3)),
    max_context=512,
)
TOKENS = 200


class Sample(NamedTuple):
    contract: Contract
    arms: tuple[Arm, ...]
    ledgers: dict[str, ArmLedgers]


def sample() -> Sample:
    arms: list[Arm] = []
    ledgers: dict[str, ArmLedgers] = {}
    for name in MEAN_KL_NATS:
        kv_format = parse_format("f32" if name == "reference" else name)
        role = {"reference": Role.REFERENCE_AGAIN, "kivi-2,recent=32": Role.CANARY}.get(name, Role.CANDIDATE)
        arms.append(
            Arm(
                name=name,
                role=role,
                format_digest=kv_format.digest,
                format=kv_format.model_dump(mode="json"),
                scale_source="none" if kv_format.is_exact else "dynamic",
                clipped_values=0,
                encoded_values=0 if kv_format.is_exact else 38_400,
            )
        )
        computed = predict_ledger(GEOMETRY, kv_format, TOKENS)
        allocated = computed.model_copy(
            update={"basis": Basis.ALLOCATED, "peak_transient_nbytes": None, "transient_basis": None}
        )
        ledgers[name] = ArmLedgers(computed, None if name == "reference" else allocated)
    return Sample(parse_contract(CONTRACT_TOML), tuple(arms), ledgers)


def token_rows(arm: str, document: int) -> dict[str, Any]:
    """Rows of one arm and document; the same in every run."""
    rng = np.random.default_rng([document, len(arm)])
    texts = np.random.default_rng(document)
    nll_reference = texts.gamma(2.0, 1.0, 6)
    kl = MEAN_KL_NATS[arm] * rng.gamma(4.0, 0.25, 6)
    return {
        "arm": arm,
        "slice": "all",
        "document": f"doc-{document:02}",
        "position": np.arange(193, 199),
        "token_id": texts.integers(0, 1000, 6),
        "kl_nats": kl,
        "reverse_kl_nats": kl * 1.05,
        "nll_reference_nats": nll_reference,
        "nll_candidate_nats": nll_reference + kl * rng.normal(1.0, 0.1, 6),
        "reference_top1_nats": nll_reference / 2,
        "top1_agrees": kl < 0.5,
        "top10_overlap": np.clip(1 - kl, 0, 1).round(1),
        "stored_reads": 0 if arm == "reference" else 65,
    }


def item_rows(arm: str) -> dict[str, Any]:
    rng = np.random.default_rng(len(arm))
    correct = np.arange(40) % 10 != 9
    candidate = correct & (rng.random(40) >= WRONG_SHARE[arm])
    recall = parse_contract(CONTRACT_TOML).task["recall"].settings
    asked = [task_draw("recall", recall, 7, 8 + index) for index in range(40)]
    answers = [item.expected for item in asked]
    return {
        "arm": arm,
        "task": "recall",
        "slice": [slice_cell(item.labels) for item in asked],
        "context": [item.id for item in asked],
        "context_tokens": 180,
        "question": [item.question for item in asked],
        "expected": answers,
        "reference_answer": [answer if right else "0000" for answer, right in zip(answers, correct, strict=True)],
        "candidate_answer": [answer if right else "0001" for answer, right in zip(answers, candidate, strict=True)],
        "reference_correct": correct,
        "candidate_correct": candidate,
        "stored_reads": 0 if arm == "reference" else 180,
    }


def tensor_rows(arm: str) -> dict[str, Any]:
    """One document, 3 layers of 2 heads; scores of the last layer's second head were not measured."""
    sides = ("keys", "values", "both")
    figures: dict[str, Any] = {
        f"{part}_{kind}": 0.25 * (part != "score")
        for part in ("reconstruction", "score", "weight", "output")
        for kind in ("rmse", "max_abs", "relative")
    }
    return {
        "arm": arm,
        "document": "doc-00",
        "layer": np.repeat(np.arange(3), 6),
        "head": np.tile(np.repeat(np.arange(2), 3), 3),
        "substituted": list(sides) * 6,
        **figures,
        "score_rmse": [0.0] * 17 + [None],
        "stored_reads": 0 if arm == "reference" else 65,
    }


def subject_record() -> dict[str, Any]:
    documents = [
        {
            "id": f"doc-{document:02}",
            "slice": "all",
            "tokens": TOKENS,
            "sha256": "00" * 32,
            "scored_sha256": sha256_json(token_rows("reference", document)["token_id"].tolist()),
        }
        for document in range(20)
    ]
    return {
        "model": "sample",
        "geometry": GEOMETRY.model_dump(mode="json"),
        "corpus": {"documents": documents},
        "numeric": {"documents": documents[:1]},
    }


def write_rows(pack: PackWriter) -> None:
    for arm in MEAN_KL_NATS:
        for document in range(20):
            pack.append("tokens", token_rows(arm, document))
        pack.append("items", item_rows(arm))
        pack.append("tensors", tensor_rows(arm))


def fill(pack: PackWriter) -> None:
    """All of the sample but `commit`."""
    contract, arms, ledgers = sample()
    write_rows(pack)
    pack.write_plan({"documents": 20, "power": 0.83})
    pack.write_arms(arms)
    pack.write_ledgers(ledgers)
    pack.write_environment({"python": "3.11", "platform": "linux"})
    pack.write_subject(subject_record())
    tables = pack.tables()
    computed = {arm: pair.computed for arm, pair in ledgers.items()}
    pack.write_verdicts(judge(contract, arms, computed, tables.tokens, tables.items))
    pack.write_chart("frontier", {"mark": "point"})
    pack.write_report("<!doctype html><title>sample</title>")


def write_sample(out: Path) -> PackManifest:
    with PackWriter(out, parse_contract(CONTRACT_TOML), CONTRACT_TOML) as pack:
        fill(pack)
        return pack.commit()
