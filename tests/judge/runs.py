"""Small runs with chosen quality, as the tables that the judge reads. Quality is chosen; nothing of the judge is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from kvassay.core.contract import Contract, parse_contract
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.ledger import ByteLedger, predict_ledger
from kvassay.core.records import ITEM_COLUMNS, TOKEN_COLUMNS, Arm, ClauseVerdict, FormatVerdict, Role, Verdicts
from kvassay.core.slices import slice_cell
from kvassay.core.tasks.kinds import TaskDraw, task_draw
from kvassay.core.tasks.settings import DEPTHS, TaskSettings
from kvassay.judge import judge

CANARY = "kivi-2,recent=32"
REFERENCE = "f32 again 1"
PROMPT_TOKENS = 96
SCORED_TOKENS = 16
"""Scored positions that have a true next token; the contract counts one more."""
PILOT_ITEMS, SEED = 8, 7
RECALL = TaskSettings("recall", context_lines=24, depths=DEPTHS)
GEOMETRY = CacheGeometry(
    model_type="llama",
    query_heads=4,
    layers=tuple(LayerGeometry(kv_heads=2, head_dim=64, value_dim=64) for _ in range(2)),
    max_context=512,
)
ARROW = {"string": pa.string(), "int32": pa.int32(), "float64": pa.float64(), "bool": pa.bool_()}


def contract(text: str = "", order: Sequence[str] = ("int8-token-head",), **fields: Any) -> Contract:
    """A contract with mean KL at most 0.01 over 24 documents, unless `text` holds other clauses."""
    clauses = text or "[fidelity.kl_mean]\nmax = 0.01\n"
    names = ", ".join(f'"{name}"' for name in order)
    multiplicity = fields.pop("multiplicity", "fixed-sequence")
    scored_tokens = fields.pop("scored_tokens", SCORED_TOKENS + 1)
    more = "".join(
        f"{key} = {json.dumps(fields.pop(key))}\n" for key in ("corpus", "documents", "scored") if key in fields
    )
    pilot = f"pilot_documents = {fields.pop('pilot_documents')}\n" if "pilot_documents" in fields else ""
    assert not fields, fields
    return parse_contract(
        f'schema = "kvassay.contract/1"\nname = "test"\n[candidates]\norder = [{names}]\n'
        f'multiplicity = "{multiplicity}"\n[inference]\nbootstrap_replicates = 2000\n{pilot}'
        f"[text]\nprompt_tokens = {PROMPT_TOKENS}\nscored_tokens = {scored_tokens}\n{more}{clauses}"
    )


@dataclass
class ArmRun:
    """One arm and its rows as lists of columns; tests change them before judging."""

    name: str
    role: Role = Role.CANDIDATE
    format_name: str | None = None
    tokens: dict[str, list[Any]] = field(default_factory=dict)
    items: dict[str, list[Any]] = field(default_factory=dict)
    encoded_values: int = 10_000

    @property
    def kv_format(self):
        return parse_format(self.format_name or self.name)

    def record(self) -> Arm:
        exact = self.kv_format.is_exact
        return Arm(
            name=self.name,
            role=self.role,
            format_digest=self.kv_format.digest,
            format=self.kv_format.model_dump(mode="json"),
            scale_source="none" if exact else "dynamic",
            clipped_values=0,
            encoded_values=0 if exact else self.encoded_values,
        )

    def ledger(self, tokens: int = PROMPT_TOKENS + SCORED_TOKENS) -> ByteLedger:
        return predict_ledger(GEOMETRY, self.kv_format, tokens)


def with_tokens(
    run: ArmRun, mean_kl: float, documents: int = 24, slices: Mapping[int, str] | None = None, sigma: float = 0.25
) -> ArmRun:
    """Token rows whose KL has about this mean; 0 gives rows that are exactly the reference."""
    columns: dict[str, list[Any]] = {name: [] for name in TOKEN_COLUMNS}
    for document in range(documents):
        texts = np.random.default_rng(document)
        nll = texts.gamma(2.0, 1.0, SCORED_TOKENS)
        ids = texts.integers(0, 1000, SCORED_TOKENS)
        rng = np.random.default_rng([document, *run.name.encode()])
        level = mean_kl * np.exp(rng.normal(0, sigma) - sigma**2 / 2)
        kl = level * rng.gamma(2.0, 0.5, SCORED_TOKENS)
        reads = 0 if run.kv_format.is_exact else PROMPT_TOKENS - run.kv_format.recent - run.kv_format.sinks
        columns["arm"] += [run.name] * SCORED_TOKENS
        columns["slice"] += [(slices or {}).get(document, "all")] * SCORED_TOKENS
        columns["document"] += [f"doc-{document:02}"] * SCORED_TOKENS
        columns["position"] += list(range(PROMPT_TOKENS, PROMPT_TOKENS + SCORED_TOKENS))
        columns["token_id"] += ids.tolist()
        columns["kl_nats"] += kl.tolist()
        columns["reverse_kl_nats"] += kl.tolist()
        columns["nll_reference_nats"] += nll.tolist()
        columns["nll_candidate_nats"] += (nll + kl).tolist()
        columns["reference_top1_nats"] += np.minimum(nll, texts.gamma(2.0, 0.4, SCORED_TOKENS)).tolist()
        columns["top10_overlap"] += np.clip(1 - kl, 0, 1).round(1).tolist()
        columns["top1_agrees"] += (kl < 0.5).tolist()
        columns["stored_reads"] += [reads] * SCORED_TOKENS
    run.tokens = columns
    return run


def item(index: int, task: str = "recall", settings: TaskSettings = RECALL) -> TaskDraw:
    """The item that the contract asks at this place."""
    return task_draw(task, settings, SEED, PILOT_ITEMS + index)


def with_items(
    run: ArmRun,
    losses: int,
    gains: int = 0,
    items: int = 64,
    reference_wrong: int = 8,
    task: str = "recall",
    settings: TaskSettings = RECALL,
) -> ArmRun:
    """One item a context; the last `reference_wrong` are wrong under the reference, gains are among them."""
    right = [index < items - reference_wrong for index in range(items)]
    correct = [index >= losses if right[index] else index - (items - reference_wrong) < gains for index in range(items)]
    asked = [item(index, task, settings) for index in range(items)]
    context_tokens = [one.context_tokens - 40 if one.context_tokens else PROMPT_TOKENS for one in asked]
    expected = [one.expected for one in asked]
    run.items = {
        "arm": [run.name] * items,
        "task": [task] * items,
        "slice": [slice_cell(one.labels) for one in asked],
        "context": [one.id for one in asked],
        "context_tokens": context_tokens,
        "question": [one.question for one in asked],
        "expected": expected,
        "reference_answer": [text if good else "0000" for text, good in zip(expected, right, strict=True)],
        "candidate_answer": [text if good else "9999" for text, good in zip(expected, correct, strict=True)],
        "reference_correct": right,
        "candidate_correct": correct,
        "stored_reads": [0 if run.kv_format.is_exact else older - run.kv_format.recent for older in context_tokens],
    }
    return run


def canary(**options: Any) -> ArmRun:
    return with_tokens(ArmRun(CANARY, Role.CANARY), options.get("mean_kl", 0.8), options.get("documents", 24))


def again(**options: Any) -> ArmRun:
    run = ArmRun(REFERENCE, Role.REFERENCE_AGAIN, "f32")
    return with_tokens(run, options.get("mean_kl", 0.0), options.get("documents", 24))


def candidate(name: str = "int8-token-head", mean_kl: float = 0.001, **options: Any) -> ArmRun:
    return with_tokens(ArmRun(name), mean_kl, **options)


def table(rows: Iterable[Mapping[str, list[Any]]], schema: Mapping[str, str]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name in schema}
    for part in rows:
        for name, values in part.items():
            columns[name] += values
    return pa.table({name: pa.array(columns[name], ARROW[kind]) for name, kind in schema.items()})


def judged(of: Contract, *runs: ArmRun, ledgers: Mapping[str, ByteLedger] | None = None) -> Verdicts:
    return judge(
        of,
        [run.record() for run in runs],
        {run.name: run.ledger() for run in runs} if ledgers is None else ledgers,
        table((run.tokens for run in runs), TOKEN_COLUMNS),
        table((run.items for run in runs), ITEM_COLUMNS),
    )


def verdict_of(verdicts: Verdicts, arm: str) -> FormatVerdict:
    return next(verdict for verdict in verdicts.formats if verdict.arm == arm)


def clause_of(verdicts: Verdicts, arm: str, clause: str = "fidelity.kl_mean", part: str = "all") -> ClauseVerdict:
    return next(c for c in verdict_of(verdicts, arm).clauses if c.clause == clause and c.slice == part)


def control_of(verdicts: Verdicts, name: str):
    return next(control for control in verdicts.controls if control.name == name)
