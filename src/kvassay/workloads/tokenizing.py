"""What the workloads need of a tokenizer: ids of a text, and whether texts begin with a special token."""

from __future__ import annotations

from typing import Any, Protocol


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    bos_token_id: int | None

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any: ...


def token_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Token ids of `text` alone, without special tokens around it."""
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def bos_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """`(bos,)` if the tokenizer itself begins texts with it (Gemma, Llama), `()` if not (SmolLM2, Qwen).

    Having a BOS token is not enough: SmolLM2 has one and was trained without it.
    """
    bos = tokenizer.bos_token_id
    begun = tokenizer("a", add_special_tokens=True)["input_ids"]
    return (bos,) if bos is not None and len(begun) > 0 and begun[0] == bos else ()
