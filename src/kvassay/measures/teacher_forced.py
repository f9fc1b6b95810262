"""Teacher-forced measures: the candidate's next-token distribution against the reference's, on a fixed history.

KL(reference || candidate), its reverse, negative log likelihood of the true next token under both, how sure the
reference is, and agreement of the most likely token and of the ten most likely ones. All in nats or shares, one value
a decode position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CHUNK_TOKENS = 128
"""Positions whose logits exist at one time; the vocabulary may be 262,144 wide."""

TOP = 10
"""Tokens whose overlap is measured: what common settings of top-k sampling and of logprobs in serving show."""

Head = Callable[[Tensor], Tensor]


class TokenMeasures(NamedTuple):
    """One value a decode position; NaN where logits were not finite, which the judge counts."""

    kl_nats: Float[Tensor, " positions"]
    reverse_kl_nats: Float[Tensor, " positions"]
    nll_reference_nats: Float[Tensor, " positions"]
    nll_candidate_nats: Float[Tensor, " positions"]
    reference_top1_nats: Float[Tensor, " positions"]
    """Minus log probability of the reference's most likely token: 0 where it is certain."""
    top1_agrees: Bool[Tensor, " positions"]
    top10_overlap: Float[Tensor, " positions"]
    """Share of the reference's ten most likely tokens (of all, in a smaller vocabulary) among the candidate's ten."""


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
        top = reference.topk(min(TOP, reference.shape[-1]), dim=-1)
        for name, hidden in candidate_hidden.items():
            candidate = torch.log_softmax(head(hidden[part]), dim=-1)
            difference = reference - candidate
            kl = (probabilities * difference).sum(-1)
            shared = (top.indices[:, :, None] == candidate.topk(top.indices.shape[-1]).indices[:, None, :]).any(-1)
            overlap = shared.to(kl.dtype).mean(-1)
            pieces[name].append(
                TokenMeasures(
                    kl_nats=kl,
                    reverse_kl_nats=-(candidate.exp() * difference).sum(-1),
                    nll_reference_nats=-reference.gather(1, targets)[:, 0],
                    nll_candidate_nats=-candidate.gather(1, targets)[:, 0],
                    reference_top1_nats=-top.values[:, 0],
                    top1_agrees=reference.argmax(-1) == candidate.argmax(-1),
                    top10_overlap=torch.where(torch.isfinite(kl), overlap, torch.nan),
                )
            )
    return {name: TokenMeasures(*map(torch.cat, zip(*parts, strict=True))) for name, parts in pieces.items()}


@torch.inference_mode()
def greedy_tokens(head: Head, hidden: Float[Tensor, "positions hidden"]) -> Int[Tensor, " positions"]:
    """The most likely next token at each position."""
    return head(hidden).argmax(-1)
