"""Teacher-forced measures: the candidate's next-token distribution against the reference's, on a fixed history.

KL(reference || candidate), its reverse, negative log likelihood of the true next token under both, and agreement of
the most likely token. All in nats, one value a decode position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CHUNK_TOKENS = 128
"""Positions whose logits exist at one time; the vocabulary may be 262,144 wide."""

Head = Callable[[Tensor], Tensor]


class TokenMeasures(NamedTuple):
    """One value a decode position; NaN where logits were not finite, which the judge counts."""

    kl_nats: Float[Tensor, " positions"]
    reverse_kl_nats: Float[Tensor, " positions"]
    nll_reference_nats: Float[Tensor, " positions"]
    nll_candidate_nats: Float[Tensor, " positions"]
    top1_agrees: Bool[Tensor, " positions"]


@torch.inference_mode()
def compare_distributions(
    head: Head,
    reference_hidden: Float[Tensor, "positions hidden"],
    candidate_hidden: Mapping[str, Float[Tensor, "positions hidden"]],
    next_token_ids: Int[Tensor, " positions"],
) -> dict[str, TokenMeasures]:
    """Measures of every candidate, with the reference's logits computed once for all of them."""
    pieces: dict[str, list[TokenMeasures]] = {name: [] for name in candidate_hidden}
    for start in range(0, len(next_token_ids), CHUNK_TOKENS):
        part = slice(start, start + CHUNK_TOKENS)
        reference = torch.log_softmax(head(reference_hidden[part]), dim=-1)
        probabilities = reference.exp()
        targets = next_token_ids[part, None]
        for name, hidden in candidate_hidden.items():
            candidate = torch.log_softmax(head(hidden[part]), dim=-1)
            difference = reference - candidate
            pieces[name].append(
                TokenMeasures(
                    kl_nats=(probabilities * difference).sum(-1),
                    reverse_kl_nats=-(candidate.exp() * difference).sum(-1),
                    nll_reference_nats=-reference.gather(1, targets)[:, 0],
                    nll_candidate_nats=-candidate.gather(1, targets)[:, 0],
                    top1_agrees=reference.argmax(-1) == candidate.argmax(-1),
                )
            )
    return {name: TokenMeasures(*map(torch.cat, zip(*parts, strict=True))) for name, parts in pieces.items()}


@torch.inference_mode()
def greedy_tokens(head: Head, hidden: Float[Tensor, "positions hidden"]) -> Int[Tensor, " positions"]:
    """The most likely next token at each position."""
    return head(hidden).argmax(-1)
