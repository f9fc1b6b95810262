"""Token documents for the teacher-forced level: an excerpt of exact length from each of a seeded choice of texts."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kvassay.core.digest import sha256_bytes
from kvassay.errors import WorkloadError
from kvassay.workloads.corpus import Corpus, Document
from kvassay.workloads.tokenizing import Tokenizer, bos_ids, token_ids

_GENEROUS_CHARACTERS_PER_TOKEN = 12


class TokenDocument(NamedTuple):
    """`token_ids` is the history (with BOS, if the tokenizer begins texts so) and then the scored part."""

    id: str
    slice: str
    token_ids: tuple[int, ...]


def text_documents(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    documents: int,
    prompt_tokens: int,
    scored_tokens: int,
    seed: int,
    exclude: Collection[str] = (),
) -> list[TokenDocument]:
    """Choose `documents` documents at random and take the first `prompt_tokens + scored_tokens` tokens of each.

    One excerpt a document, so that documents are independent clusters. The order of choice depends on seed and document
    id alone; several slices get equal shares. `exclude` holds ids that were used before (a pilot must not be used again
    for the verdict). Raises WorkloadError saying how many documents were long enough.
    """
    needed = prompt_tokens + scored_tokens
    start = bos_ids(tokenizer)
    slices = sorted({document.slice for document in corpus.documents})
    chosen: list[TokenDocument] = []
    shortages: list[str] = []
    for index, name in enumerate(slices):
        share = documents // len(slices) + (index < documents % len(slices))
        candidates = [
            document for document in corpus.documents if document.slice == name and document.id not in exclude
        ]
        found = 0
        for document in sorted(candidates, key=lambda document: _draw(seed, document)):
            if found == share:
                break
            ids = start + _first_ids(tokenizer, document.text, needed - len(start))
            if len(ids) == needed:
                chosen.append(TokenDocument(document.id, name, ids))
                found += 1
        if found < share:
            used = f", {len(exclude)} others are taken by the verdict" if exclude else ""
            shortages.append(
                f"{found} of {len(candidates)} documents of {name!r} are long enough, {share} are needed{used}"
            )
    if shortages:
        raise WorkloadError(
            f"corpus {corpus.name!r}: {'; '.join(shortages)} (at least {needed} tokens: "
            f"{prompt_tokens} of history and {scored_tokens} scored); "
            "ask for fewer (a verdict needs 20) or shorter documents, or add texts"
        )
    return chosen


def _draw(seed: int, document: Document) -> str:
    """A random place in the order that stays the same when other documents come or go."""
    return sha256_bytes(f"{seed}/{document.id}".encode())


def _first_ids(tokenizer: Tokenizer, text: str, count: int) -> tuple[int, ...]:
    """The first `count` token ids; fewer if the text is shorter. Long texts are not tokenized to their end."""
    part = text[: _GENEROUS_CHARACTERS_PER_TOKEN * count]
    ids = token_ids(tokenizer, part)
    # The cut may fall inside a word, so the last tokens of a part are not the text's own.
    if len(part) < len(text) and len(ids) < count + 16:
        ids = token_ids(tokenizer, text)
    return ids[:count]
