"""Token documents for the teacher-forced level: an excerpt of exact length from each of a seeded choice of texts."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kvassay.core.digest import sha256_bytes
from kvassay.core.slices import ROLE, document_shares, slice_cell, slice_labels
from kvassay.errors import WorkloadError
from kvassay.workloads.conversations import render
from kvassay.workloads.corpus import Corpus, Document
from kvassay.workloads.tokenizing import Tokenizer, bos_ids, token_ids

_GENEROUS_CHARACTERS_PER_TOKEN = 12
MIN_ASSISTANT_TOKENS = 5
"""Of a conversation whose assistant's turns are scored."""


class TokenDocument(NamedTuple):
    """`token_ids` is the history (with BOS, if the tokenizer begins texts so) and then the scored part."""

    id: str
    slice: str
    token_ids: tuple[int, ...]
    roles: tuple[str, ...] = ()
    """Whose turn each token belongs to, in a conversation; empty for other texts."""

    def scored_roles(self, prompt_tokens: int) -> tuple[str, ...]:
        """Of the true next token of each row."""
        return self.roles[prompt_tokens + 1 :]

    def cells(self, prompt_tokens: int) -> list[str]:
        """The `slice` cell of each row."""
        if not self.roles:
            return [self.slice] * (len(self.token_ids) - prompt_tokens - 1)
        return [slice_cell((*slice_labels(self.slice), ROLE + role)) for role in self.scored_roles(prompt_tokens)]


def text_documents(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    documents: int,
    prompt_tokens: int,
    scored_tokens: int,
    seed: int,
    exclude: Collection[str] = (),
    assistant: bool = False,
) -> list[TokenDocument]:
    """Choose `documents` documents at random and take the first `prompt_tokens + scored_tokens` tokens of each.

    One excerpt a document, so that documents are independent clusters. The order of choice depends on seed and document
    id alone; several slices get equal shares. `exclude` holds ids that were used before (a pilot must not be used again
    for the verdict). With `assistant`, only conversations count, with at least five scored tokens of the assistant's.
    Raises WorkloadError saying how many documents were long enough.
    """
    needed = prompt_tokens + scored_tokens
    start = bos_ids(tokenizer)
    shares = document_shares(documents, {document.slice for document in corpus.documents})
    chosen: list[TokenDocument] = []
    shortages: list[str] = []
    for name, share in shares.items():
        candidates = [
            document for document in corpus.documents if document.slice == name and document.id not in exclude
        ]
        found = 0
        for document in sorted(candidates, key=lambda document: _draw(seed, document)):
            if found == share:
                break
            excerpt = _excerpt(tokenizer, document, start, needed)
            if len(excerpt.token_ids) < needed:
                continue
            if assistant and excerpt.scored_roles(prompt_tokens).count("assistant") < MIN_ASSISTANT_TOKENS:
                continue
            chosen.append(excerpt)
            found += 1
        if found < share:
            used = f", {len(exclude)} others are taken by the verdict" if exclude else ""
            what = f" and have {MIN_ASSISTANT_TOKENS} tokens of the assistant's scored" if assistant else ""
            shortages.append(
                f"{found} of {len(candidates)} documents of {name!r} are long enough{what}, {share} are needed{used}"
            )
    if shortages:
        raise WorkloadError(
            f"corpus {corpus.name!r}: {'; '.join(shortages)} (at least {needed} tokens: "
            f"{prompt_tokens} of history and {scored_tokens} scored); "
            "ask for fewer (a verdict needs 20) or shorter documents, or add texts"
        )
    return chosen


def _excerpt(tokenizer: Tokenizer, document: Document, start: tuple[int, ...], needed: int) -> TokenDocument:
    """The first tokens of a document, at most `needed`."""
    if document.messages:
        rendered = render(tokenizer, document)
        return TokenDocument(document.id, document.slice, rendered.token_ids[:needed], rendered.roles[:needed])
    return TokenDocument(document.id, document.slice, start + _first_ids(tokenizer, document.text, needed - len(start)))


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
