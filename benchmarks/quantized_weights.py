"""Do quantized weights choose the KV format? The same formats on the stored and on the quantized weights of a model.

    python -m benchmarks.quantized_weights [MODEL] [--weights hqq-4] [--documents 24]

Each precision of the weights has its own reference: its full-precision cache. So a mean KL is what the KV format loses
on that model, and what the weights lost is in none of them. Documents are the same, so differences are paired; each
is given with its 90% interval (one-sided 95% bounds, bootstrap-t over documents). Prints the tables of
docs/design/quantized-weights.md.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from typing import Any

import numpy as np
import torch

from benchmarks.orderings.scoring import CORPUS, SEED, Interval, interval
from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import run_document, token_rows
from kvassay.core.format_names import parse_format
from kvassay.core.ledger import predict_ledger
from kvassay.core.records import Role
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.loading import LoadedModel, load_model
from kvassay.measures.teacher_forced import compare_distributions
from kvassay.workloads.corpus import load_corpus
from kvassay.workloads.excerpts import TokenDocument, text_documents

FORMATS = ("int8-token-head", "kivi-4,recent=32", "int4-g32")
PROMPT_TOKENS, SCORED_TOKENS = 256, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--weights", default="hqq-4", choices=["hqq-8", "hqq-4"])
    parser.add_argument("--documents", type=int, default=24)
    arguments = parser.parse_args()
    kl: dict[str, dict[str, np.ndarray]] = {}
    drift = np.array([])
    stored_hidden: list[torch.Tensor] = []
    ledgers: dict[str, dict[str, Any]] = {}
    for weights in ("stored", arguments.weights):
        loaded = load_model(arguments.model, announce=print, weights=weights)
        documents = _documents(loaded, arguments.documents)
        kl[weights], hidden = _mean_kl(loaded, documents)
        ledgers[weights] = {name: _ledger(loaded, name) for name in FORMATS}
        if weights == "stored":
            stored_hidden = hidden
        else:
            triples = zip(documents, stored_hidden, hidden, strict=True)
            drift = np.array([_drift(loaded, *triple) for triple in triples])
            assert loaded.quantized_weights is not None
            print(f"weights: {loaded.quantized_weights}")
    _print(arguments.weights, kl, drift, ledgers)


def _documents(loaded: LoadedModel, documents: int) -> list[TokenDocument]:
    return text_documents(
        load_corpus(CORPUS),
        loaded.tokenizer,
        documents=documents,
        prompt_tokens=PROMPT_TOKENS,
        scored_tokens=SCORED_TOKENS,
        seed=SEED,
    )


def _mean_kl(loaded: LoadedModel, documents: list[TokenDocument]) -> tuple[dict[str, np.ndarray], list[torch.Tensor]]:
    """Mean KL of each document by format, and the reference's hidden states of the scored positions."""
    scorer = DecodeScorer(loaded.model, loaded.geometry)
    arms = [PlannedArm(name, Role.CANDIDATE, parse_format(name)) for name in FORMATS]
    means: dict[str, list[float]] = {name: [] for name in FORMATS}
    hidden = []
    for index, document in enumerate(documents):
        passes = run_document(scorer, document.token_ids, PROMPT_TOKENS, arms, {}, "f32")
        for row in token_rows(scorer, passes, document.id, document.slice):
            means[row.arm].append(float(row.measures.kl_nats.mean()))
        hidden.append(passes.reference_hidden[:-1])
        print(f"document {index + 1} of {len(documents)}", flush=True)
    return {name: np.array(values) for name, values in means.items()}, hidden


def _drift(loaded: LoadedModel, document: TokenDocument, stored: torch.Tensor, quantized: torch.Tensor) -> float:
    """Mean KL of the quantized weights from the stored ones, in nats. One output head serves both: hqq leaves it."""
    head = DecodeScorer(loaded.model, loaded.geometry).output_head
    next_ids = torch.tensor(document.token_ids[PROMPT_TOKENS + 1 :])
    return float(compare_distributions(head, stored, {"quantized": quantized}, next_ids)["quantized"].kl_nats.mean())


def _ledger(loaded: LoadedModel, name: str) -> dict[str, Any]:
    kv_format = parse_format(name)
    tokens = PROMPT_TOKENS + SCORED_TOKENS
    return {"digest": kv_format.digest, **predict_ledger(loaded.geometry, kv_format, tokens).to_json()}


def _print(
    weights: str, kl: dict[str, dict[str, np.ndarray]], drift: np.ndarray, ledgers: dict[str, dict[str, Any]]
) -> None:
    print(f"\n| format | stored weights | {weights} | difference | ledger |\n|---|---|---|---|---|")
    for name in FORMATS:
        before, after = kl["stored"][name], kl[weights][name]
        same = "equal" if ledgers["stored"][name] == ledgers[weights][name] else "DIFFERS"
        cells = (_text(interval(values)) for values in (before, after, after - before))
        print(f"| `{name}` | {' | '.join(cells)} | {same} |")
    print(f"\n| pair | stored weights | {weights} |\n|---|---|---|")
    for first, second in combinations(FORMATS, 2):
        cells = (_text(interval(kl[which][second] - kl[which][first])) for which in ("stored", weights))
        print(f"| `{second}` minus `{first}` | {' | '.join(cells)} |")
    print(f"\nKL of {weights} weights from stored ones, both with a full-precision cache: {_text(interval(drift))}")


def _text(found: Interval) -> str:
    return f"{found.estimate:.3g} [{found.lower:.3g}, {found.upper:.3g}]"


if __name__ == "__main__":
    main()
