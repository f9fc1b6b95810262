"""Draws with shared noise: they follow the distribution, and differ no more often than the coupling allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kvassay.engines.transformers.sampling import Greedy, Seeded, choose, gumbel_noise

VOCABULARY = 400
PROMPTS = [f"p{index}" for index in range(2000)]


def distribution(seed: int) -> torch.Tensor:
    """Logits of a long-tailed distribution."""
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 2, VOCABULARY)).float()


def nearby(logits: torch.Tensor, size: float) -> torch.Tensor:
    return logits + size * torch.from_numpy(np.random.default_rng(9).normal(0, 1, VOCABULARY)).float()


def draws(logits: torch.Tensor, sampling: Seeded, step: int = 0) -> torch.Tensor:
    return choose(sampling, logits.expand(len(PROMPTS), -1), PROMPTS, step)


def test_draws_follow_the_softmax_at_the_temperature() -> None:
    logits = distribution(0)
    found = torch.bincount(draws(logits, Seeded(7, temperature=0.8)), minlength=VOCABULARY) / len(PROMPTS)
    expected = torch.softmax(logits.double() / 0.8, dim=-1)
    deviation = (expected * (1 - expected) / len(PROMPTS)).sqrt()
    assert float(((found - expected).abs() - 5 * deviation).max()) < 1e-9


def test_equal_distributions_give_equal_tokens_and_the_noise_is_of_seed_prompt_and_step() -> None:
    logits = distribution(0)
    first = draws(logits, Seeded(7))
    assert torch.equal(first, draws(logits.clone(), Seeded(7)))
    assert not torch.equal(first, draws(logits, Seeded(8)))
    assert not torch.equal(first, draws(logits, Seeded(7), step=1))
    some = choose(Seeded(7), logits.expand(3, -1), [PROMPTS[5], PROMPTS[2], PROMPTS[9]], 0)
    assert some.tolist() == [int(first[5]), int(first[2]), int(first[9])], "a draw is of no batch and no order"


@pytest.mark.parametrize("size", [0.01, 0.1, 0.5])
def test_two_distributions_differ_no_more_often_than_the_coupling_allows(size: float) -> None:
    """2·TV/(1 + TV), and five deviations of a share of 2,000 draws."""
    logits = distribution(0)
    other = nearby(logits, size)
    apart = 0.5 * float((torch.softmax(logits.double(), -1) - torch.softmax(other.double(), -1)).abs().sum())
    bound = 2 * apart / (1 + apart)
    found = float((draws(logits, Seeded(7)) != draws(other, Seeded(7))).double().mean())
    assert found <= bound + 5 * math.sqrt(bound / len(PROMPTS))


def test_one_uniform_number_through_the_cumulative_distribution_would_differ_more_often() -> None:
    """Why the noise is a token's own: boundaries that move with all tokens before them change tokens at random."""
    logits = distribution(0)
    other = nearby(logits, 0.1)
    uniform = torch.from_numpy(np.random.default_rng(3).random(len(PROMPTS)))
    inverse = [torch.searchsorted(torch.softmax(one.double(), -1).cumsum(-1), uniform) for one in (logits, other)]
    by_inverse = float((inverse[0] != inverse[1]).double().mean())
    by_gumbel = float((draws(logits, Seeded(7)) != draws(other, Seeded(7))).double().mean())
    assert by_gumbel < 0.7 * by_inverse


def test_top_p_draws_from_the_fewest_likeliest_tokens() -> None:
    logits = torch.log(torch.tensor([0.1, 0.4, 0.3, 0.2]))
    kept = {int(token) for token in choose(Seeded(7, top_p=0.65), logits.expand(500, -1), PROMPTS[:500], 0)}
    assert kept == {1, 2}
    assert set(choose(Seeded(7, top_p=0.4), logits.expand(50, -1), PROMPTS[:50], 0).tolist()) == {1}


def test_of_equally_likely_tokens_the_lowest_is_taken() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 3.0]])
    assert choose(Greedy(), logits, ["p"], 0).tolist() == [1]
    assert choose(Seeded(7, top_p=0.1), logits, ["p"], 0).tolist() == [1]


def test_noise_is_finite_and_standard_gumbel() -> None:
    noise = gumbel_noise(7, "p", 0, 200_000)
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.015)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.03)
