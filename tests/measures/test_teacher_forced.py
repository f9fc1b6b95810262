"""Token measures against a float64 calculation of whole distributions."""

from __future__ import annotations

import pytest
import torch

from kvassay.measures import teacher_forced
from kvassay.measures.teacher_forced import compare_distributions, greedy_tokens

VOCABULARY = 211


def linear_head(seed: int = 0):
    weight = torch.randn(VOCABULARY, 16, generator=torch.Generator().manual_seed(seed))
    return lambda hidden: hidden @ weight.T


def hidden(positions: int, seed: int) -> torch.Tensor:
    return torch.randn(positions, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("positions", [1, 127, 128, 300])
def test_r52_kl_nll_and_agreement_equal_a_float64_calculation(positions) -> None:
    head = linear_head()
    reference, candidate = hidden(positions, 1), hidden(positions, 1) + 0.1 * hidden(positions, 2)
    targets = torch.arange(positions) % VOCABULARY
    found = compare_distributions(head, reference, {"a": candidate}, targets)["a"]

    p = torch.log_softmax(head(reference).double(), -1)
    q = torch.log_softmax(head(candidate).double(), -1)
    torch.testing.assert_close(found.kl_nats.double(), (p.exp() * (p - q)).sum(-1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.reverse_kl_nats.double(), (q.exp() * (q - p)).sum(-1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.nll_reference_nats.double(), -p[range(positions), targets], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.nll_candidate_nats.double(), -q[range(positions), targets], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.reference_top1_nats.double(), -p.max(-1).values, atol=1e-5, rtol=1e-5)
    assert bool((found.reference_top1_nats <= found.nll_reference_nats).all())
    assert torch.equal(found.top1_agrees, p.argmax(-1) == q.argmax(-1))
    tens = [set(row.topk(10).indices.tolist()) for row in p], [set(row.topk(10).indices.tolist()) for row in q]
    shared = [len(mine & theirs) / 10 for mine, theirs in zip(*tens, strict=True)]
    torch.testing.assert_close(found.top10_overlap.double(), torch.tensor(shared).double(), atol=1e-6, rtol=0)
    assert min(shared) < 1


def test_equal_distributions_have_exactly_zero_divergence() -> None:
    found = compare_distributions(linear_head(), hidden(200, 3), {"same": hidden(200, 3)}, torch.zeros(200, dtype=int))
    assert float(found["same"].kl_nats.abs().max()) == 0.0
    assert bool(found["same"].top1_agrees.all())
    assert found["same"].top10_overlap.tolist() == [1.0] * 200


def test_a_vocabulary_of_fewer_than_ten_tokens_overlaps_wholly() -> None:
    def head(part: torch.Tensor) -> torch.Tensor:
        return part[:, :7]

    found = compare_distributions(head, hidden(5, 3), {"other": hidden(5, 4)}, torch.zeros(5, dtype=int))["other"]
    assert found.top10_overlap.tolist() == [1.0] * 5


def test_a_non_finite_arm_stays_visible_and_harms_no_other() -> None:
    """Absent is never zero: NaN is handed on for the judge to count."""
    broken = hidden(10, 4).clone()
    broken[3] = torch.nan
    found = compare_distributions(
        linear_head(), hidden(10, 3), {"broken": broken, "fine": hidden(10, 5)}, torch.zeros(10, dtype=int)
    )
    for values in (found["broken"].kl_nats, found["broken"].top10_overlap):
        assert torch.isnan(values).tolist() == [index == 3 for index in range(10)]
    assert bool(torch.isfinite(found["fine"].kl_nats).all())


def test_logits_exist_for_a_chunk_at_a_time_only() -> None:
    sizes = []
    head = linear_head()

    def watching(part: torch.Tensor) -> torch.Tensor:
        sizes.append(len(part))
        return head(part)

    compare_distributions(
        watching, hidden(500, 1), {"a": hidden(500, 2), "b": hidden(500, 3)}, torch.zeros(500, dtype=int)
    )
    assert max(sizes) == teacher_forced.CHUNK_TOKENS
    assert sum(sizes) == 3 * 500  # the reference once for both arms


def test_greedy_tokens_are_the_most_likely_ones() -> None:
    head = linear_head()
    assert torch.equal(greedy_tokens(head, hidden(20, 1)), head(hidden(20, 1)).argmax(-1))
