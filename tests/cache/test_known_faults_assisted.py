"""Draft and target caches of different formats side by side, and what speculation leaves behind."""

from __future__ import annotations

import copy

import pytest
import torch

from kvassay.cache import QuantizedCache
from tests import tiny_models
from tests.cache.cache_states import held

PROMPT = torch.randint(3, 90, (1, 40), generator=torch.Generator().manual_seed(1))
NEW = 40
OPTIONS = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}


def pair():
    """A target, and a draft that is the target with some noise on its weights."""
    target = tiny_models.tiny_model("llama")
    draft = copy.deepcopy(target)
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weights in draft.parameters():
            weights += torch.randn(weights.shape, generator=noise, dtype=weights.dtype) * weights.std() * 0.05
    return target, draft


class Accepted:
    """Counts what a target's forward passes were asked, and so how many drafted tokens they confirmed."""

    def __init__(self, model) -> None:
        self.lengths: list[int] = []
        self._hook = model.register_forward_hook(self._seen, with_kwargs=True)

    def _seen(self, module, args, kwargs, output) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self.lengths.append(ids.shape[1])

    def rate(self) -> float:
        """Accepted of drafted tokens: each pass confirms the accepted ones and adds one of its own."""
        self._hook.remove()
        drafted = sum(self.lengths) - PROMPT.shape[1] - (len(self.lengths) - 1)
        return (NEW - len(self.lengths)) / drafted


def test_b48_a_quantized_target_accepts_about_as_much_as_a_16_bit_one() -> None:
    rates = {}
    for text in ("bf16", "int8-token-head,recent=8", "kivi-4,recent=8"):
        target, draft = pair()
        cache = QuantizedCache(target.config, text)
        counted = Accepted(target)
        out = target.generate(PROMPT, assistant_model=draft, cache=cache, **OPTIONS)
        rates[text] = counted.rate()
        assert out.shape[1] == PROMPT.shape[1] + NEW
    print("accepted share of drafted tokens:", {text: round(rate, 3) for text, rate in rates.items()})
    assert 0.3 < rates["bf16"] <= 1.0
    for text, rate in rates.items():
        assert abs(rate - rates["bf16"]) < 0.2, (text, rates)


def test_b48_a_plain_float_target_is_not_moved_by_speculation() -> None:
    """The full-precision arm is the baseline of every difference: assisted equals unassisted."""
    target, draft = pair()
    plain = target.generate(PROMPT, cache=QuantizedCache(target.config, "f32"), **OPTIONS)
    assert torch.equal(
        plain, target.generate(PROMPT, assistant_model=draft, cache=QuantizedCache(target.config, "f32"), **OPTIONS)
    )


@pytest.mark.parametrize("texts", [("int4-g32,recent=4", "q8_0"), ("kivi-2,recent=8", "fp8-e4m3-token-head,sinks=2")])
def test_b48_caches_of_two_formats_do_not_touch_each_other(texts) -> None:
    """Interleaved draft and verify steps equal each cache run alone."""
    target, draft = pair()
    together = [QuantizedCache(model.config, text) for model, text in zip((target, draft), texts, strict=True)]
    alone = [QuantizedCache(model.config, text) for model, text in zip((target, draft), texts, strict=True)]
    pieces = PROMPT.split(9, dim=1)
    with torch.no_grad():
        for piece in pieces:
            for model, cache in zip((target, draft), together, strict=True):
                model(input_ids=piece, cache=cache)
        for model, cache in zip((target, draft), alone, strict=True):
            for piece in pieces:
                model(input_ids=piece, cache=cache)
    for one, other in zip(together, alone, strict=True):
        assert all(torch.equal(left, right) for left, right in zip(held(one), held(other), strict=True))
    assert together[0].ledger().persistent_nbytes != together[1].ledger().persistent_nbytes


@pytest.mark.parametrize("text", ["kivi-4,recent=8", "int4-g32", "k=int4:channel16,v=int2:group16,recent=20"])
@pytest.mark.parametrize("records", [True, False])
def test_b48_rejected_drafts_leave_no_trace_when_the_past_is_recorded(text, records) -> None:
    """Drafts of up to 7 tokens, some rejected: afterwards the stores equal those that saw the kept tokens alone.

    Without the recording they differ where a format has a window or blocks, which is what it is for.
    """
    target, _ = pair()
    keys, values = torch.randn(2, 1, 2, 200, 64, generator=torch.Generator().manual_seed(3))
    drafted, plain = (QuantizedCache(target.config, text) for _ in range(2))
    if records:
        drafted.activate_past_recording()
    drafted.update(keys[:, :, :50], values[:, :, :50], 0)
    end, noise = 50, torch.Generator().manual_seed(4)
    for length, kept in ((7, 2), (5, 5), (7, 0), (3, 1), (7, 6), (6, 3)):
        wrong = torch.randn(2, 1, 2, length, 64, generator=noise)
        chunk = [
            torch.cat((side[:, :, end : end + kept], other[:, :, kept:]), dim=2)
            for side, other in zip((keys, values), wrong, strict=True)
        ]
        drafted.update(*chunk, 0)
        drafted.quantized_layers[0].crop(kept - length)
        end += kept
    plain.update(keys[:, :, :end], values[:, :, :end], 0)
    same = [
        torch.equal(getattr(drafted.quantized_layers[0], side), getattr(plain.quantized_layers[0], side))
        for side in ("keys", "values")
    ]
    assert all(same) == (records or text == "int4-g32")
