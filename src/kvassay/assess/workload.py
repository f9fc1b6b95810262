"""The tokens of a run: documents and task items for the pilot, and others for the verdict."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.workloads.corpus import Corpus, load_corpus
from kvassay.workloads.excerpts import TokenDocument, text_documents
from kvassay.workloads.recall import RecallItem, recall_items


class Workload(NamedTuple):
    corpus: Corpus | None
    """None for a contract without fidelity clauses."""
    pilot_documents: tuple[TokenDocument, ...]
    documents: tuple[TokenDocument, ...]
    pilot_items: tuple[RecallItem, ...]
    items: tuple[RecallItem, ...]

    def to_json(self, prompt_tokens: int) -> dict[str, Any]:
        """What identifies the workload: corpus, licence, and digests of each document's tokens.

        `sha256` is of all token ids, `scored_sha256` of those that rows hold: the true next token of each position.
        """
        corpus = None
        if self.corpus is not None:
            corpus = {
                "name": self.corpus.name,
                "source": self.corpus.source,
                "version": self.corpus.version,
                "licence": self.corpus.licence,
                "sha256": self.corpus.sha256,
                "documents": [
                    {
                        "id": document.id,
                        "slice": document.slice,
                        "tokens": len(document.token_ids),
                        "sha256": sha256_json(list(document.token_ids)),
                        "scored_sha256": sha256_json(list(document.token_ids[prompt_tokens + 1 :])),
                    }
                    for document in self.documents
                ],
            }
        return {"corpus": corpus, "items_sha256": sha256_json([list(item_ids(item)) for item in self.items])}


def prepare_workload(contract: Contract, tokenizer: Any) -> Workload:
    """Draw documents and items; pilot and verdict share none. Raises WorkloadError where there are too few."""
    text, inference = contract.text, contract.inference
    corpus = None
    pilot_documents: list[TokenDocument] = []
    documents: list[TokenDocument] = []
    if contract.has_fidelity:
        corpus = load_corpus(text.corpus)
        draw = partial(
            text_documents,
            corpus,
            tokenizer,
            prompt_tokens=text.prompt_tokens,
            scored_tokens=text.scored_tokens,
            seed=inference.seed,
        )
        documents = draw(documents=text.documents)
        pilot_documents = draw(documents=inference.pilot_documents, exclude={document.id for document in documents})
    items: list[RecallItem] = []
    if recall := contract.task.get("recall"):
        total = inference.pilot_items + recall.items
        items = recall_items(tokenizer, items=total, context_lines=recall.context_lines, seed=inference.seed)
    return Workload(
        corpus=corpus,
        pilot_documents=tuple(pilot_documents),
        documents=tuple(documents),
        pilot_items=tuple(items[: inference.pilot_items]),
        items=tuple(items[inference.pilot_items :]),
    )


def item_ids(item: RecallItem) -> tuple[int, ...]:
    """All tokens of an item: the list, the question and the answer."""
    return item.prompt_ids + item.question_ids + item.answer_ids
