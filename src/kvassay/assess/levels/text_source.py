"""The contract's text, from which the teacher-forced and the numeric level draw the same documents."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.workloads.conversations import template_name
from kvassay.workloads.corpus import load_corpus
from kvassay.workloads.excerpts import TokenDocument, text_documents


class TextSource:
    """A corpus, and excerpts of it of the contract's length, in the contract's random order."""

    def __init__(self, contract: Contract, tokenizer: Any) -> None:
        """Raises WorkloadError where the corpus cannot be read."""
        self.corpus = load_corpus(contract.text.corpus)
        self._contract = contract
        self._tokenizer = tokenizer
        self._chat_template: str | None = None
        if any(document.messages for document in self.corpus.documents):
            self._chat_template = template_name(tokenizer)

    def draw(self, documents: int, exclude: Collection[str] = ()) -> list[TokenDocument]:
        """Documents but for those of the ids in `exclude`; raises WorkloadError where there are too few."""
        text = self._contract.text
        return text_documents(
            self.corpus,
            self._tokenizer,
            documents=documents,
            prompt_tokens=text.prompt_tokens,
            scored_tokens=text.scored_tokens,
            seed=self._contract.inference.seed,
            exclude=exclude,
            assistant=text.scored == "assistant",
        )

    def to_json(self, documents: Sequence[TokenDocument]) -> dict[str, Any]:
        """`sha256` is of all token ids, `scored_sha256` of those that token rows hold: the true next token of each.

        `roles` are those of a conversation's rows, in order, each with its number of rows.
        """
        corpus, prompt = self.corpus, self._contract.text.prompt_tokens
        return {
            "corpus": {
                "name": corpus.name,
                "source": corpus.source,
                "version": corpus.version,
                "licence": corpus.licence,
                "sha256": corpus.sha256,
                "chat_template": self._chat_template,
                "documents": [
                    {
                        "id": document.id,
                        "slice": document.slice,
                        "tokens": len(document.token_ids),
                        "sha256": sha256_json(list(document.token_ids)),
                        "scored_sha256": sha256_json(list(document.token_ids[prompt + 1 :])),
                        "roles": _run_lengths(document.scored_roles(prompt)),
                    }
                    for document in documents
                ],
            }
        }


def _run_lengths(roles: Sequence[str]) -> list[tuple[str, int]]:
    return [(role, len(list(group))) for role, group in groupby(roles)]
