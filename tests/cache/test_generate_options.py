"""`generate` with every option that touches a cache: a cache of plain floats gives the answer of transformers' own."""

from __future__ import annotations

import pytest
import torch
from transformers import MptConfig, MptForCausalLM
from transformers.cache_utils import DynamicCache

from kvassay.cache import QuantizedCache
from tests.tiny_models import tiny_model

OPTIONS = {
    "beams": {"num_beams": 3},
    "several answers of beams": {"num_beams": 4, "num_return_sequences": 4},
    "sampled beams": {"num_beams": 2, "do_sample": True},
    "several samples": {"do_sample": True, "num_return_sequences": 3},
    "a prompt in chunks": {"prefill_chunk_size": 7},
    "guidance": {"guidance_scale": 1.5},
    "a prompt that is continued": {},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_generate_answers_as_with_a_plain_cache(case) -> None:
    model = tiny_model("llama")
    tokens = torch.randint(3, 90, (2, 30), generator=torch.Generator().manual_seed(3))
    options = {"max_new_tokens": 6, "do_sample": False, **OPTIONS[case]}
    cache = QuantizedCache(model.config, "kv=f32")
    if case == "a prompt that is continued":
        begun = model.generate(tokens, cache=cache, max_new_tokens=2, do_sample=False)
        found = model.generate(begun, cache=cache, max_new_tokens=4, do_sample=False)
    else:
        torch.manual_seed(1)
        found = model.generate(tokens, cache=cache, **options)
    torch.manual_seed(1)
    assert torch.equal(found, model.generate(tokens, **options))


def test_a_model_whose_config_uses_no_cache_takes_one_with_use_cache() -> None:
    """MPT. Without `use_cache=True` every step is given the whole text again, and any cache holds it many times."""
    config = MptConfig(d_model=64, n_heads=2, n_layers=2, vocab_size=100, max_seq_len=64)
    assert not config.use_cache
    torch.manual_seed(0)
    model = MptForCausalLM(config).eval()
    for matrix in (each for each in model.parameters() if each.dim() > 1):
        matrix.data.normal_(0, 0.3)
    tokens = torch.randint(1, 99, (2, 40))
    plain = model.generate(tokens, max_new_tokens=8, do_sample=False)
    for cache in (DynamicCache(config=config), QuantizedCache(config, "kv=f32")):
        found = model.generate(tokens, cache=cache, use_cache=True, max_new_tokens=8, do_sample=False)
        assert torch.equal(found, plain)
    for cache in (DynamicCache(config=config), QuantizedCache(config, "kv=f32")):
        with pytest.raises(RuntimeError, match="must match the size"):
            model.generate(tokens, cache=cache, max_new_tokens=8, do_sample=False)
