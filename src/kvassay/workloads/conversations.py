"""Conversations as token documents: rendered as the model reads them, with the role of every token.

The tokenizer's own chat template renders them, as a server would. A tokenizer without one gets `role: content`
paragraphs, and the evidence says that it did (`chat_template` of the corpus record).

Whose turn a token belongs to is found by rendering the conversation a second time with marks in place of contents:
what stands between the marks (role names, end marks, a system prompt that the template adds) is nobody's turn and has
the role `template`. A search for the content alone would find a turn "a" in the word "assistant".
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

    def templated(messages: Sequence[Message]) -> str:
        return tokenizer.apply_chat_template([message._asdict() for message in messages], tokenize=False)

    is_plain = template_name(tokenizer) == PLAIN
    rendering = plain_conversation if is_plain else templated
    start = bos_ids(tokenizer) if is_plain else ()
    try:
        text = rendering(document.messages)
        marked = rendering([turn._replace(content=_mark(index)) for index, turn in enumerate(document.messages)])
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
    spans = _spans(document, text, marked)
    roles = [_role(begin, end, spans) for begin, end in encoded["offset_mapping"]]
    return Rendered(start + tuple(encoded["input_ids"]), (TEMPLATE,) * len(start) + tuple(roles))


def _mark(index: int) -> str:
    """Stands for the content of a turn: characters of private use, which no template trims or changes."""
    return f"\ue000{index}\ue001"


def _spans(document: Document, text: str, marked: str) -> list[tuple[int, int, str]]:
    """Begin, end and role of every turn's content in the rendered text, outer white space excepted."""
    spans: list[tuple[int, int, str]] = []
    before, _, rest = marked.partition(_mark(0))
    cursor = len(before) if text.startswith(before) else len(text)
    for index, (role, content) in enumerate(document.messages):
        following, _, rest = rest.partition(_mark(index + 1))
        for shown in (content, content.strip(), content.lstrip(), content.rstrip()):  # templates often strip
            if text.startswith(shown + following, cursor):
                break
        else:
            raise WorkloadError(
                f"{document.id}: the chat template changes the turn {content.strip()[:60]!r}, so its tokens cannot be "
                "told; leave out what it rewrites (for example earlier reasoning)"
            )
        begin = cursor + len(shown) - len(shown.lstrip())
        spans.append((begin, begin + len(content.strip()), role))
        cursor += len(shown) + len(following)
    return spans


def _role(begin: int, end: int, spans: Sequence[tuple[int, int, str]]) -> str:
    """Of the turn that holds the token's first character; a token may reach across the end of one."""
    for first, last, role in spans:
        if first <= begin < last and end > begin:
            return role
    return TEMPLATE
