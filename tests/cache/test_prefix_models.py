"""Shared prefixes under a model: one text, one answer; and a long session costs no more with reuse than without."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from kvassay.cache import PrefixIdentity, PrefixStore, QuantizedCache
from kvassay.cache.prefix_results import PrefixSource
from tests import tiny_models
from tests.thorough import times

HOW_TO = Path(__file__).parents[2] / "docs" / "howto" / "cache.md"
REQUESTS = times(60, 200)
ARMS = ["f16", "int8-token-head", "kivi-4,recent=16", "kivi-2,recent=16"]
"""The 16-bit cache first: what it does too is no fault of a format (B58)."""


def tiny_model(seed: int = 0, name: str = "llama") -> PreTrainedModel:
    return tiny_models.tiny_model(name, seed=seed)


def prompt_ids(seed: int, tokens: int) -> list[int]:
    return torch.randint(3, 97, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def run(model: PreTrainedModel, ids: list[int], cache) -> torch.Tensor:
    """Logits `[tokens, vocabulary]` of more tokens."""
    return model(torch.tensor([ids]), cache=cache).logits[0]


def greedy(model: PreTrainedModel, logits: torch.Tensor, cache, count: int) -> tuple[int, ...]:
    answer = []
    for _ in range(count):
        answer.append(int(logits[-1].argmax()))
        logits = run(model, answer[-1:], cache)
    return tuple(answer)


def prefilled(model, store, identity, name, prompt) -> tuple[torch.Tensor, QuantizedCache, int]:
    """The last logits and the cache after a prompt, from shared blocks where there are some.

    A prompt that is new is run once to be stored, and its end once more from what was stored, so that all requests are
    answered from the same state, the first one too.
    """
    found = store.lookup(prompt, identity, QuantizedCache(model.config, name))
    logits = run(model, prompt[found.tokens :], found.cache)
    if store.put(found.cache, prompt, identity).new_blocks:
        found = store.lookup(prompt, identity, QuantizedCache(model.config, name))
        logits = run(model, prompt[found.tokens :], found.cache)
    return logits, found.cache, found.tokens


@pytest.mark.slow
def test_b57_b58_equal_requests_have_one_answer() -> None:
    model, prompt = tiny_model(), prompt_ids(0, 150)
    distinct, first_prefill = {}, {}
    arms = [ARMS[0], *ARMS[2:]]
    for name in arms:
        store = PrefixStore()
        identity = PrefixIdentity.for_model(model, QuantizedCache(model.config, name), tokenizer="none", revision="0")
        answers = set()
        for _ in range(REQUESTS):
            logits, cache, reused = prefilled(model, store, identity, name, prompt)
            answers.add((greedy(model, logits, cache, 3), logits[-1].sum().item(), reused))
        distinct[name] = len(answers)
        assert store.statistics.hits == REQUESTS
        cold = QuantizedCache(model.config, name)
        first_prefill[name] = float((run(model, prompt, cold)[-1] - logits[-1]).abs().max())
    print(distinct, first_prefill)
    assert distinct == dict.fromkeys(arms, 1)
    # What reading the prefix from its codes changes, compared with a prefill that reads it exactly.
    assert first_prefill["f16"] < 0.02
    assert first_prefill["f16"] < first_prefill["kivi-2,recent=16"]


def kl_nats(reference: torch.Tensor, logits: torch.Tensor) -> float:
    """Mean KL of next tokens from the reference's."""
    p, q = reference.double().log_softmax(-1), logits.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


def session(model: PreTrainedModel, name: str, seed: int, how: str) -> list[float]:
    """KL of each of six turns: `whole` prefills all anew, `blocks` and `snapshot` reuse, `kept` keeps its cache."""
    turns = [prompt_ids(seed * 10 + turn, 34) for turn in range(6)]
    store, kept = PrefixStore(), QuantizedCache(model.config, name)
    identity = PrefixIdentity.for_model(model, kept, tokenizer="none", revision="0")
    text: list[int] = []
    found: list[float] = []
    for turn in turns:
        text = text + turn
        reference = run(model, text, DynamicCache())[-len(turn) :]
        cache, reused = QuantizedCache(model.config, name), 0
        if how == "kept":
            cache, reused = kept, len(text) - len(turn)
        elif how != "whole":
            lookup = store.lookup(text, identity, cache)
            cache, reused = lookup.cache, lookup.tokens
            if how == "snapshot" and len(text) > len(turn):
                assert (lookup.source, reused) == (PrefixSource.SNAPSHOT, len(text) - len(turn))
        logits = run(model, text[reused:], cache)
        found.append(kl_nats(reference, logits[-len(turn) :] if len(logits) >= len(turn) else logits))
        if how in ("blocks", "snapshot"):
            store.put(cache, text, identity, snapshot=how == "snapshot")
    return found


@pytest.mark.parametrize("name", ARMS)
def test_b07_reuse_over_six_turns_is_no_worse_than_its_own_decoding(name) -> None:
    """Snapshots are the uninterrupted session, bit for bit, at every turn; blocks stay within its error.

    Both read older turns from their codes, which is what decoding reads; a whole prefill reads them exactly.
    """
    by_how: dict[str, list[float]] = {}
    for seed in range(4):
        model = tiny_model(seed)
        for how in ("whole", "kept", "snapshot", "blocks"):
            by_how.setdefault(how, []).extend(session(model, name, seed, how))
    means = {how: math.fsum(one) / len(one) for how, one in by_how.items()}
    print(name, means)
    assert by_how["snapshot"] == by_how["kept"]
    assert means["blocks"] <= 1.5 * means["kept"] + 1e-6


def test_a_hybrid_goes_on_from_snapshots() -> None:
    model = tiny_model(name="gemma3")
    for name in ("f16", "kivi-4,recent=16"):
        assert session(model, name, 0, "snapshot") == session(model, name, 0, "kept")


def test_the_how_to_runs(tmp_path, monkeypatch, capsys) -> None:
    section = HOW_TO.read_text().split("## Shared prefixes")[1].split("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)), {})
    assert "% of all tokens were not run" in capsys.readouterr().out
