"""A pack for the report's tests: made-up rows of known quality; ledgers, judge, writer and reader are the real ones.

The free JSON files hold every field that an assessment writes. `bare` packs hold none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvassay.core.contract import parse_contract
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.ledger import Basis, predict_ledger
from kvassay.core.records import Arm, Role
from kvassay.core.slices import slice_cell
from kvassay.core.tasks.kinds import task_draw
from kvassay.core.tasks.settings import DEPTHS
from kvassay.judge import judge
from kvassay.pack.reader import ArmLedgers, PackContent, read_pack
from kvassay.pack.writer import PackWriter

DOCUMENTS, POSITIONS, ITEMS, LAYERS, HEADS = 24, 12, 60, 12, 3
PROMPT_TOKENS = 256

CONTRACT_TOML = """# margins reasoned in docs
schema = "kvassay.contract/1"
name = "demo"

[text]
documents = 24
prompt_tokens = 256
scored_tokens = 13

[candidates]
order = ["int8-token-head", "q8_0", "kivi-4", "int4-g32", "q4_0"]

[inference]
bootstrap_replicates = 200

[controls]
canary = "kivi-2,recent=32"

[fidelity.kl_mean]
max = 0.02

[fidelity.kl_exceed]
tau_nats = 0.5
max_rate = 0.02

[task.recall]
margin = 0.1
items = 60
"""

MEAN_KL_NATS: Mapping[str, float] = {
    "int8-token-head": 0.00021,
    "q8_0": 0.00034,
    "kivi-4": 0.0082,
    "int4-g32": 0.0205,
    "kivi-2,recent=32": 1.1,
    "f32 again 1": 0.0,
}
"""By arm; q4_0 is a candidate that was not run."""
WRONG_SHARE: Mapping[str, float] = {"int4-g32": 0.05, "kivi-2,recent=32": 0.95}
ROLES: Mapping[str, Role] = {"kivi-2,recent=32": Role.CANARY, "f32 again 1": Role.REFERENCE_AGAIN}

GEOMETRY = CacheGeometry(
    model_type="llama",
    query_heads=9,
    layers=tuple(LayerGeometry(kv_heads=HEADS, head_dim=64, value_dim=64) for _ in range(LAYERS)),
    max_context=8192,
)
TOKENS = 512


def arms_and_ledgers(names: Mapping[str, str] = {}) -> tuple[tuple[Arm, ...], dict[str, ArmLedgers]]:
    """Arms of `MEAN_KL_NATS` with computed and allocated ledgers; `names` replaces an arm's name."""
    arms: list[Arm] = []
    ledgers: dict[str, ArmLedgers] = {}
    for name in MEAN_KL_NATS:
        kv_format = parse_format(name.split(" again ")[0])
        role = ROLES.get(name, Role.CANDIDATE)
        shown = names.get(name, name)
        arms.append(
            Arm(
                name=shown,
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
        ledgers[shown] = ArmLedgers(computed, None if kv_format.is_exact else allocated)
    return tuple(arms), ledgers


def document_slice(document: int, slices: int) -> str:
    return "all" if slices < 2 else ("prose", "code", "tables")[document % slices]


def token_rows(arm: str, name: str, document: int, slices: int) -> dict[str, Any]:
    rng = np.random.default_rng([document, list(MEAN_KL_NATS).index(arm)])
    texts = np.random.default_rng(document)
    nll_reference = texts.gamma(2.0, 1.0, POSITIONS)
    level = MEAN_KL_NATS[arm] * rng.gamma(8.0, 0.125)
    kl = level * rng.gamma(1.0, 1.0, POSITIONS)
    return {
        "arm": name,
        "slice": document_slice(document, slices),
        "document": f"doc-{document:02}",
        "position": np.arange(PROMPT_TOKENS, PROMPT_TOKENS + POSITIONS),
        "token_id": texts.integers(0, 1000, POSITIONS),
        "kl_nats": kl,
        "reverse_kl_nats": kl * 1.05,
        "nll_reference_nats": nll_reference,
        "nll_candidate_nats": nll_reference + kl * rng.normal(0.5, 0.1, POSITIONS),
        "reference_top1_nats": nll_reference / 2,
        "top1_agrees": kl < 0.05,
        "top10_overlap": np.clip(1 - kl, 0, 1).round(1),
        "stored_reads": 0 if arm in ROLES and ROLES[arm] is Role.REFERENCE_AGAIN else PROMPT_TOKENS - 128,
    }


def item_rows(arm: str, name: str) -> dict[str, Any]:
    rng = np.random.default_rng(list(MEAN_KL_NATS).index(arm))
    numbers = np.arange(ITEMS)
    correct = numbers % 10 != 9
    candidate = correct & (rng.random(ITEMS) >= WRONG_SHARE.get(arm, 0.0))
    recall = parse_contract(CONTRACT_TOML).task["recall"].settings
    asked = [task_draw("recall", recall, 7, 8 + number) for number in range(ITEMS)]
    answers = [item.expected for item in asked]
    return {
        "arm": name,
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
        "stored_reads": 0 if ROLES.get(arm) is Role.REFERENCE_AGAIN else 52,
    }


def tensor_rows(arm: str, name: str) -> dict[str, Any]:
    sides = ("keys", "values", "both")
    cells = LAYERS * HEADS * len(sides)
    size = MEAN_KL_NATS[arm] ** 0.5
    relative = size * np.random.default_rng(list(MEAN_KL_NATS).index(arm)).gamma(2.0, 0.2, cells)
    weights = {"reconstruction": 0.5, "score": 4.0, "weight": 0.2, "output": 1.0}
    figures = {
        f"{part}_{kind}": relative * weight * share
        for part, weight in weights.items()
        for kind, share in (("rmse", 0.1), ("max_abs", 1.5), ("relative", 1.0))
    }
    return {
        "arm": name,
        "document": "doc-00",
        "layer": np.repeat(np.arange(LAYERS), HEADS * len(sides)),
        "head": np.tile(np.repeat(np.arange(HEADS), len(sides)), LAYERS),
        "substituted": list(sides) * (LAYERS * HEADS),
        **figures,
        "stored_reads": 0 if ROLES.get(arm) is Role.REFERENCE_AGAIN else 1000,
    }


def plan_record() -> dict[str, Any]:
    return {
        "contract_sha256": parse_contract(CONTRACT_TOML).sha256,
        "pilot": {"documents": 4, "items": 8, "document_ids": ["pilot-00", "pilot-01", "pilot-02", "pilot-03"]},
        "clauses": [
            {
                "arm": "kivi-4",
                "clause": "fidelity.kl_mean",
                "unit": "nats/token",
                "expected": 0.0079,
                "limit": 0.02,
                "n_planned": 24,
                "n_needed": 21,
                "n_unit": "documents",
                "power": 0.93,
                "assumption": "variation between documents as in the pilot",
            }
        ],
        "cost": {"reference_tokens": 6432, "candidate_tokens": 38592, "seconds_expected": 200.0},
    }


def environment_record() -> dict[str, Any]:
    return {
        "kvassay_version": "0.1.0",
        "python": "3.11.2",
        "platform": "Linux-6.1-x86_64",
        "cpu": "Some CPU @ 2.0 GHz",
        "cores": 2,
        "threads": 2,
        "memory_nbytes": 8 * 2**30,
        "packages": {"numpy": "2.4.6", "torch": "2.13.0", "gguf": None},
        "commit": "da5bbe1f" * 5,
        "dirty": True,
        "source_sha256": {"core/ledger.py": "ab" * 32, "judge.py": "cd" * 32},
        "seconds": {"load": 10.5, "documents": 90.25, "items": 150.0},
        "peak_rss_nbytes": 1_500_000_000,
        "started_utc": "2026-01-02T03:04:05Z",
        "finished_utc": "2026-01-02T03:08:16Z",
    }


def example(arm: str, kl_nats: float, candidate_next: str, **changed: Any) -> dict[str, Any]:
    return {
        "arm": arm,
        "document": "doc-03",
        "position": 261,
        "kl_nats": kl_nats,
        "before": "The capital of France\nis\tnamed",
        "true_next": " Paris",
        "reference_next": " Paris",
        "reference_probability": 0.93,
        "candidate_next": candidate_next,
        "candidate_probability": 0.31,
        **changed,
    }


def subject_record() -> dict[str, Any]:
    return {
        "model": {
            "name": "sample-135m",
            "source": "local folder",
            "revision": "r1",
            "weights_sha256": "12" * 32,
            "tokenizer_sha256": "34" * 32,
            "config_sha256": "56" * 32,
            "parameters": 134_515_008,
            "dtype": "float32",
        },
        "engine": {"name": "transformers", "version": "5.24.0", "attention": "decode-faithful"},
        "geometry": GEOMETRY.model_dump(mode="json"),
        "corpus": {
            "name": "python-topics",
            "source": "pydoc_data",
            "version": "3.11",
            "licence": "PSF-2.0",
            "sha256": "78" * 32,
            "documents": [
                {"id": f"doc-{number:02}", "sha256": f"{number:02}" * 32, "slice": "all", "tokens": 268}
                for number in range(DOCUMENTS)
            ],
        },
        "task": {"recall": {"kind": "recall", "items": ITEMS, "context_lines": 24, "depths": list(DEPTHS), "seed": 7}},
        "examples": [
            example("kivi-4", 0.4, " Paris"),
            example("kivi-2,recent=32", 5.5, " the"),
            example("kivi-2,recent=32", 7.25, " ,"),
            example("f32 again 1", 4e-7, " Paris"),
        ],
    }


def write_sample(
    out: Path,
    *,
    bare: bool = False,
    slices: int = 1,
    names: Mapping[str, str] = {},
    subject: Mapping[str, Any] | None = None,
    with_rows: bool = True,
    contract_toml: str = CONTRACT_TOML,
) -> PackContent:
    """Write a pack and read it back. `bare`: the free files hold nothing but the geometry."""
    contract = parse_contract(contract_toml)
    arms, ledgers = arms_and_ledgers(names)
    with PackWriter(out, contract, contract_toml) as pack:
        if with_rows:
            for arm in MEAN_KL_NATS:
                name = names.get(arm, arm)
                for document in range(DOCUMENTS):
                    pack.append("tokens", token_rows(arm, name, document, slices))
                pack.append("items", item_rows(arm, name))
                pack.append("tensors", tensor_rows(arm, name))
        pack.write_plan({} if bare else plan_record())
        pack.write_arms(arms)
        pack.write_ledgers(ledgers)
        pack.write_environment({} if bare else environment_record())
        bare_subject = {"geometry": GEOMETRY.model_dump(mode="json")}
        pack.write_subject(bare_subject if bare else {**subject_record(), **(subject or {})})
        tables = pack.tables()
        chosen = {name: pair.allocated or pair.computed for name, pair in ledgers.items()}
        pack.write_verdicts(judge(contract, arms, chosen, tables.tokens, tables.items))
        pack.commit()
    return read_pack(out)
