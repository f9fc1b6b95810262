"""QJL as a negative control: it is unbiased, and it loses."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch

from kvassay.core.format_names import parse_format
from kvassay.errors import FormatError
from kvassay.formats import quantizer
from kvassay.formats.packing import unpack_codes
from kvassay.formats.qjl import gaussian_sketch


def codec(text):
    return quantizer(parse_format(f"kv={text}").keys)


def round_trip(text: str, x: torch.Tensor) -> torch.Tensor:
    return codec(text).decode(codec(text).encode(x).streams, x.dtype)


def gaussian(tokens: int, dim: int = 128, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 1, tokens, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_sketch_is_gaussian_and_the_same_everywhere() -> None:
    sketch = gaussian_sketch(64)
    first_word = 0x910A2DEC89025CC1  # splitmix64's first of seed 1
    assert float(sketch[0, 0]) == pytest.approx(NormalDist().inv_cdf(first_word / 2**64), abs=1e-12)
    assert sketch[0, :3].tolist() == pytest.approx([0.1676268464, 0.6612741977, 1.8957395497], abs=1e-9)
    assert abs(float(sketch.mean())) < 0.05
    assert float(sketch.var()) == pytest.approx(1, abs=0.07)
    assert float(sketch.pow(4).mean()) == pytest.approx(3, abs=0.5)
    gram = sketch @ sketch.T / 64
    assert float((gram - torch.diag(gram.diagonal())).abs().max()) < 0.7


@pytest.mark.parametrize("num_bits", [2, 3, 4])
def test_at_equal_bits_scores_err_over_twice_as_much_as_lloyd_max(num_bits) -> None:
    """The sketch spends a bit (about a factor 3.4 to 3.6 in squared error) and returns pi/2 times the residual's."""
    keys, queries = gaussian(1500), gaussian(400, seed=1)
    scores = queries @ keys.mT

    def score_error(side: str) -> float:
        return float((queries @ round_trip(side, keys).mT - scores).square().mean().sqrt())

    ratio = score_error(f"lloyd-qjl-{num_bits}:token-head") / score_error(f"lloyd-{num_bits}:token-head")
    assert 2.15 < ratio < 2.45


@pytest.mark.parametrize("num_bits", [2, 3, 4])
def test_it_removes_the_shrinkage(num_bits) -> None:
    """Of queries that look at their own key, where Lloyd-Max shrinks the score by 1 − MSE."""
    keys = gaussian(3000, seed=2)

    def bias(side: str) -> float:
        return float((round_trip(side, keys) * keys).sum() / keys.square().sum()) - 1

    plain, sketched = bias(f"lloyd-{num_bits}:token-head"), bias(f"lloyd-qjl-{num_bits}:token-head")
    assert plain == pytest.approx(-{2: 0.1175, 3: 0.03455, 4: 0.0095}[num_bits], abs=0.003)
    assert abs(sketched) < 0.3 * abs(plain)


def test_decoded_keys_give_the_papers_estimate_of_a_score() -> None:
    """QJL's estimator written as the paper has it, from the stored streams: <q, k'> + rho sqrt(pi/2)/m <Sq, signs>."""
    keys, query = gaussian(20, seed=3), gaussian(1, seed=4)
    side = "lloyd-qjl-3:token-head/scale=f32"
    encoded = codec(side).encode(keys).streams
    coarse = round_trip("lloyd-2:token-head/scale=f32", keys)
    residual, sketch = keys - coarse, gaussian_sketch(128)
    signs = unpack_codes(encoded["signs"].flatten(2, 3), 1).double() * 2 - 1
    assert torch.equal(signs, torch.where(residual @ sketch.T >= 0, 1.0, -1.0).double())
    sketched_query = query @ sketch.T
    estimate = query @ coarse.mT + math.sqrt(math.pi / 2) / 128 * (
        sketched_query @ (signs * residual.norm(dim=-1, keepdim=True)).mT
    )
    assert torch.allclose(query @ codec(side).decode(encoded, torch.float64).mT, estimate, rtol=1e-5, atol=1e-4)


def test_signs_of_the_residual_itself_are_lmdeploys_keys_and_err_less() -> None:
    """`sketch=identity`: n (c + rms(u − c) sign(u − c)) of u = x/n, LMDeploy's formula."""
    keys = gaussian(64, seed=5)
    found = round_trip("lloyd-qjl-4:token-head/sketch=identity/scale=f32", keys)
    norm = keys.norm(dim=-1, keepdim=True)
    levels = round_trip("lloyd-3:token-head/scale=f32", keys) / norm
    rest = keys / norm - levels
    expected = norm * (levels + rest.square().mean(-1, keepdim=True).sqrt() * torch.where(rest >= 0, 1.0, -1.0))
    assert torch.allclose(found, expected, atol=1e-5)
    sketched = round_trip("lloyd-qjl-4:token-head/scale=f32", keys)
    assert float((found - keys).norm()) < 0.6 * float((sketched - keys).norm())
    plain = round_trip("lloyd-4:token-head/scale=f32", keys)
    assert float((plain - keys).norm()) < float((found - keys).norm())


def test_only_rows_of_a_head_are_sketched() -> None:
    with pytest.raises(FormatError, match="does not take granularity"):
        parse_format("kv=lloyd-qjl-4:group32")
    with pytest.raises(FormatError, match="gaussian"):
        parse_format("kv=lloyd-qjl-4:token-head/sketch=sparse")
