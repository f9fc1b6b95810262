"""Do rows and ledgers belong to the documents that the subject lists, and have those the contract's length?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError

from kvassay.core.digest import sha256_json
from kvassay.core.slices import ROLE
from kvassay.judge.answer_rows import read_answers
from kvassay.judge.pairing import planned_items
from kvassay.judge.rows import read_items, read_tokens
from kvassay.pack import layout
from kvassay.pack.checks import Check
from kvassay.pack.manifest import first_fault
from kvassay.pack.reader import ArmLedgers, PackContent

MOST_QUESTION_TOKENS = 256
"""More than a question and its answer take in any tokenizer."""


class _Document(BaseModel):
    """A scored document as the subject lists it; further fields are free."""

    id: str
    slice: str
    tokens: int
    scored_sha256: str
    roles: tuple[tuple[str, int], ...] = ()
    """Of a conversation's rows, in order, each with its number of rows."""

    def cells(self, rows: int) -> list[str]:
        """The `slice` cell of each of its rows, which are `rows` if the subject tells the truth."""
        if not self.roles:
            return [self.slice] * rows
        return [f"{self.slice},{ROLE}{role}" for role, count in self.roles for _ in range(min(count, rows + 1))]


_DOCUMENTS = TypeAdapter(tuple[_Document, ...])


def document_checks(pack: PackContent) -> Iterator[Check]:
    """The documents that rows are of are those that the subject lists, of the contract's length, token for token.

    Rows hold the true next tokens of the scored positions and not the history before them, so a document's `sha256`,
    which covers both, is not recomputed.
    """
    if not pack.tables.tokens.num_rows:
        return
    corpus: Any = pack.subject.get("corpus")
    listed: Any = cast("dict[str, Any]", corpus).get("documents") if isinstance(corpus, dict) else None
    try:
        documents = {document.id: document for document in _DOCUMENTS.validate_python(listed, strict=False)}
    except ValidationError as error:
        yield Check("documents", False, f"{layout.SUBJECT}: corpus.documents: {first_fault(error)}")
        return
    fault = _length_fault(pack, documents) or _document_fault(pack, documents)
    well = f"the rows hold the scored tokens of the {len(documents)} documents that {layout.SUBJECT} lists"
    yield Check("documents", fault is None, fault or well)


def _length_fault(pack: PackContent, documents: dict[str, _Document]) -> str | None:
    planned = pack.contract.text.prompt_tokens + pack.contract.text.scored_tokens
    odd = next((document for document in documents.values() if document.tokens != planned), None)
    if odd is None:
        return None
    return f"document {odd.id!r} has {odd.tokens} tokens by {layout.SUBJECT}, the contract plans {planned}"


def _document_fault(pack: PackContent, documents: dict[str, _Document]) -> str | None:
    table = read_tokens(pack.tables.tokens, [arm.name for arm in pack.arms])
    for arm, rows in table.arms.items():
        starts = np.flatnonzero(np.diff(rows.document, prepend=-1))
        ends = [*starts[1:].tolist(), rows.size]
        seen: set[str] = set()
        for begin, end in zip(starts.tolist(), ends, strict=True):
            name = table.documents[int(rows.document[begin])]
            seen.add(name)
            document = documents.get(name)
            if document is None:
                return f"{arm} has rows of document {name!r}, which {layout.SUBJECT} does not list"
            if sha256_json(rows.token_id[begin:end].tolist()) != document.scored_sha256:
                return (
                    f"the tokens of document {name!r} in the rows of {arm} are not those that {layout.SUBJECT} hashes"
                )
            if [table.slices[code] for code in rows.slice[begin:end].tolist()] != document.cells(end - begin):
                return f"{arm} has document {name!r} in another slice than {layout.SUBJECT}"
        if missing := sorted(set(documents) - seen):
            return f"{arm} has no rows of document {missing[0]!r}, which {layout.SUBJECT} lists"
    return None


def measured_length_fault(pack: PackContent, pair: ArmLedgers) -> str | None:
    """Bytes a token depend on the length: windows and part-filled pages weigh less in a long cache."""
    found = {(ledger.tokens, ledger.batch) for ledger in (pair.computed, pair.allocated) if ledger is not None}
    tokens, batch = pair.computed.tokens, pair.computed.batch
    if len(found) > 1 or batch != 1:
        return "computed and allocated ledger must be of one row and of the same number of tokens"
    text = pack.contract.text
    if pack.contract.needs_text:
        planned = text.prompt_tokens + text.scored_tokens
        return None if tokens == planned else f"the ledger is of {tokens} tokens, documents have {planned}"
    arms = [arm.name for arm in pack.arms]
    if not pack.contract.teacher_forced_tasks and pack.contract.written_tasks:
        return _written_length_fault(pack, arms, tokens)
    if pack.contract.has_free_running and not pack.contract.task:
        free = pack.contract.free_running
        planned = free.prompt_tokens + free.generated_tokens
        return None if tokens == planned else f"the ledger is of {tokens} tokens, generation reaches {planned}"
    # The question and the answer stand behind the context, and their length is not in the rows.
    items = read_items(pack.tables.items, arms)
    longest = max((int(np.nan_to_num(rows.context_tokens).max()) for rows in items.arms.values()), default=0)
    if longest < tokens <= longest + MOST_QUESTION_TOKENS:
        return None
    return f"the ledger is of {tokens} tokens, the longest item has {longest} and its question"


def _written_length_fault(pack: PackContent, arms: list[str], tokens: int) -> str | None:
    """The ledger is of the longest prompt with its true answer, of which the rows show no more than the prompt."""
    least = most = 0
    for task, found in read_answers(pack.tables.answers, arms).items():
        bound = pack.contract.written_tasks.get(task)
        if bound is None:
            continue
        contexts = sorted({row.context for rows in found.values() for row in rows})
        planned = planned_items(pack.contract, task, contexts)
        for row in (row for rows in found.values() for row in rows if row.context in planned):
            prompt = len(row.output.prompt_ids)
            least = max(least, prompt + 1)
            most = max(most, prompt + bound.most_tokens(planned[row.context].expected))
    if least <= tokens <= most:
        return None
    return f"the ledger is of {tokens} tokens, written answers reach {least} to {most}"
