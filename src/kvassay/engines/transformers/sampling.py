"""Choosing the next token: the likeliest one, or a draw with noise that several caches share.

Common random numbers. A draw takes the token with the largest logit/temperature + Gumbel noise, one noise value for
each prompt, step and token (the Gumbel-max trick: E. J. Gumbel, Statistical Theory of Extreme Values, 1954). Reference
and every format get the same noise, so two equal distributions give equal tokens, and two that differ by a total
variation of TV give different ones with probability at most 2·TV/(1 + TV), whatever the vocabulary (M. Bavarian et al.,
"Optimality of correlated sampling strategies", Theory of Computing 16 (2020); M. Daliri, C. Musco and A. T. Suresh,
"Coupling without communication and drafter-invariant speculative decoding", 2024). No method does better in which
neither side knows the other's distribution.

Why not one uniform number and the inverse of the cumulative distribution: a small shift of mass among early tokens
moves every later boundary, so tokens change that were not touched at all; with thousands of tokens of small
probability this happens several times as often as the distributions differ. It would also depend on how tokens are
numbered and on sums over the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvassay.core.digest import sha256_bytes


class Seeded(NamedTuple):
    """Draws at a temperature from the likeliest tokens that together have probability `top_p`."""

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0


class Greedy(NamedTuple):
    """The likeliest token; the one of the lowest id where several are."""


Sampling = Greedy | Seeded


def choose(
    sampling: Sampling, logits: Float[Tensor, "prompts vocabulary"], prompts: Sequence[str], step: int
) -> Int[Tensor, " prompts"]:
    """The next token of each prompt; `prompts` are their ids and `step` counts generated tokens from 0."""
    if isinstance(sampling, Greedy):
        return logits.argmax(dim=-1)  # the first of several maxima, as torch documents
    scores = logits.double() / sampling.temperature
    if sampling.top_p < 1:
        scores = scores.masked_fill(~_nucleus(scores, sampling.top_p), -torch.inf)
    noise = np.stack([gumbel_noise(sampling.seed, prompt, step, logits.shape[1]) for prompt in prompts])
    return (scores + torch.from_numpy(noise).to(scores.device)).argmax(dim=-1)


def gumbel_noise(seed: int, prompt: str, step: int, tokens: int) -> np.ndarray:
    """Standard Gumbel noise `[tokens]`, a function of its arguments alone: of no batch, order or machine's state.

    From raw PCG64 words, whose stream NumPy guarantees across versions.
    """
    key = int(sha256_bytes(f"{seed}/{prompt}/{step}".encode()), 16)
    words = np.random.PCG64(key).random_raw(tokens)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    """The fewest likeliest tokens with probability `top_p` together (A. Holtzman et al., "The curious case of neural
    text degeneration", ICLR 2020); of equally likely ones those of lower id."""
    probabilities = torch.softmax(scores, dim=-1)
    ordered, order = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    before = torch.cumsum(ordered, dim=-1) - ordered
    kept = torch.zeros_like(probabilities, dtype=torch.bool)
    return kept.scatter(-1, order, before < top_p)
