"""Tokenizers for items: one that joins tokens over the boundaries of an item, and one token a character."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ..engines.model_folders import SENTENCES, byte_tokenizer


def greedy_tokenizer() -> PreTrainedTokenizerFast:
    """Tokens of this one straddle both boundaries: it joins line breaks, and a space with up to three digits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n+| ?\d{1,3}|[a-z]+|."), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    numbers = [f"x\n\nThe: {number}" for number in range(1000)]
    trainer = trainers.BpeTrainer(
        vocab_size=2600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*numbers * 3, *SENTENCES], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


class Characters:
    """The least that a tokenizer must be: one token a character."""

    bos_token_id = None

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}


PLAIN = byte_tokenizer()
BOS = byte_tokenizer(bos=True)
GREEDY = greedy_tokenizer()
