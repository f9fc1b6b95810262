"""Conversations as token documents: rendered as the model reads them, with the role of every token.

The tokenizer's own chat template renders them, as a server would. A tokenizer without one gets `role: content`
paragraphs, and the evidence says that it did (`chat_template` of the corpus record).

Whose turn a token belongs to is found by where the turn's content stands in the rendered text: template text around it
(role names, end marks, a system prompt that the template adds) is nobody's turn and has the role `template`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvassay.errors import WorkloadError
from kvassay.workloads.corpus import Document, Message
from kvassay.workloads.tokenizing import bos_ids

TEMPLATE = "template"
"""Role of tokens that the chat template adds."""
TOKENIZER_TEMPLATE, PLAIN = "tokenizer", "plain: 'role: content' paragraphs, since the tokenizer has none"


class Rendered(NamedTuple):
    """All tokens of a conversation, and for each whose turn it belongs to."""

    token_ids: tuple[int, ...]
    roles: tuple[str, ...]


def plain_conversation(messages: Sequence[Message]) -> str:
    return "\n\n".join(f"{role}: {content}" for role, content in messages)


def template_name(tokenizer: Any) -> str:
    """What renders conversations with this tokenizer."""
    return TOKENIZER_TEMPLATE if getattr(tokenizer, "chat_template", None) else PLAIN


def render(tokenizer: Any, document: Document) -> Rendered:
    """Tokens and roles; raises WorkloadError for a template that refuses or rewrites turns, and without offsets."""
    start: tuple[int, ...] = ()
    if template_name(tokenizer) == PLAIN:
        text, start = plain_conversation(document.messages), bos_ids(tokenizer)
    else:
        turns = [message._asdict() for message in document.messages]
        try:
            text = tokenizer.apply_chat_template(turns, tokenize=False)
        except Exception as error:  # a template is a program of the tokenizer's author and raises what it likes
            raise WorkloadError(
                f"{document.id}: the tokenizer's chat template refuses this conversation ({error}); "
                "most want user and assistant in turn"
            ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise WorkloadError(
            f"{document.id}: {type(tokenizer).__name__} does not tell where its tokens stand in a text, so turns "
            "cannot be told apart; use a model with a fast tokenizer (tokenizer.json)"
        )
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = _spans(document, text)
    roles = [_role(begin, end, spans) for begin, end in encoded["offset_mapping"]]
    return Rendered(start + tuple(encoded["input_ids"]), (TEMPLATE,) * len(start) + tuple(roles))


def _spans(document: Document, text: str) -> list[tuple[int, int, str]]:
    """Begin, end and role of every turn's content in the rendered text, in order."""
    spans: list[tuple[int, int, str]] = []
    cursor = 0
    for role, content in document.messages:
        words = content.strip()  # templates often strip
        begin = text.find(words, cursor)
        if begin < 0:
            raise WorkloadError(
                f"{document.id}: the chat template changes the turn {words[:60]!r}, so its tokens cannot be told; "
                "leave out what it rewrites (for example earlier reasoning)"
            )
        cursor = begin + len(words)
        spans.append((begin, cursor, role))
    return spans


def _role(begin: int, end: int, spans: Sequence[tuple[int, int, str]]) -> str:
    """Of the turn that holds the token's first character; a token may reach across the end of one."""
    for first, last, role in spans:
        if first <= begin < last and end > begin:
            return role
    return TEMPLATE
