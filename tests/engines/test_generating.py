"""Free-running generation over real caches, on tiny models in float64 so that no near-tie flips by rounding."""

from __future__ import annotations

import pytest
import torch

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import geometry_from_config
from kvassay.core.kv_format import KVFormat
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.generating import (
    CacheFormat,
    Generation,
    GenerationPlan,
    Generator,
    Prompt,
    end_token_ids,
    logit_drift,
)
from kvassay.engines.transformers.output_head import OutputHead
from kvassay.engines.transformers.sampling import Greedy, Seeded
from kvassay.errors import WorkloadError
from kvassay.judge.engagement import expected_reads
from tests import tiny_models

PROMPT_TOKENS, TOKENS = 40, 16
GREEDY, SEEDED = Greedy(), Seeded(7, temperature=1.2, top_p=0.95)


def prompts(count: int = 4) -> tuple[Prompt, ...]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, tiny_models.VOCABULARY, (count, PROMPT_TOKENS), generator=generator)
    return tuple(Prompt(f"p{index}", tuple(row)) for index, row in enumerate(ids.tolist()))


@pytest.fixture(scope="module")
def model():
    return tiny_models.tiny_model("llama")


@pytest.fixture(scope="module")
def generator(model) -> Generator:
    return Generator(model, OutputHead(model))


def generate(generator: Generator, kv_format: str, sampling=GREEDY, **plan) -> Generation:
    fields = {"prompts": prompts(), "tokens": TOKENS, "end_ids": frozenset(), "sampling": sampling, **plan}
    return generator.run(GenerationPlan(**fields), CacheFormat(parse_format(kv_format)))


def ids(generation: Generation) -> list[tuple[int, ...]]:
    return [output.token_ids for output in generation.outputs]


def test_greedy_over_a_full_precision_cache_is_transformers_own_generation(model, generator) -> None:
    given = torch.tensor([prompt.token_ids for prompt in prompts()])
    expected = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None
    )
    assert ids(generate(generator, "f32")) == [tuple(row[PROMPT_TOKENS:]) for row in expected.tolist()]


@pytest.mark.parametrize(
    ("sampling", "prefill_reads"), [(GREEDY, "exact"), (SEEDED, "exact"), (GREEDY, "stored")], ids=str
)
def test_r53_the_same_cache_again_never_diverges_and_a_coarse_one_does(generator, sampling, prefill_reads) -> None:
    reference = generate(generator, "f32", sampling, prefill_reads=prefill_reads)
    assert ids(generate(generator, "f32", sampling, prefill_reads=prefill_reads)) == ids(reference)
    coarse = generate(generator, "int2-g32", sampling, prefill_reads=prefill_reads)
    assert ids(coarse) != ids(reference)
    if prefill_reads == "exact":
        # The prompt's own pass reads nothing back, so the first token is the reference's whatever the format.
        assert [one[0] for one in ids(coarse)] == [one[0] for one in ids(reference)]


def test_common_noise_makes_a_run_repeat_exactly_and_another_seed_another_text(generator) -> None:
    first = generate(generator, "int4-g32", SEEDED)
    assert ids(generate(generator, "int4-g32", SEEDED)) == ids(first)
    assert ids(generate(generator, "int4-g32", SEEDED._replace(seed=8))) != ids(first)


@pytest.mark.parametrize(("sampling", "kv_format"), [(GREEDY, "f32"), (SEEDED, "int4-g32")], ids=str)
def test_how_prompts_are_batched_changes_nothing(generator, sampling, kv_format) -> None:
    """In float64. In float32 products of another shape round otherwise, which a run shares by equal batches."""
    together = ids(generate(generator, kv_format, sampling))
    apart = [ids(generate(generator, kv_format, sampling, prompts=(one,)))[0] for one in prompts()]
    assert apart == together


def test_an_output_ends_with_its_first_end_token_and_others_go_on(generator) -> None:
    whole = ids(generate(generator, "f32", SEEDED))
    end = whole[1][5]
    ended = ids(generate(generator, "f32", SEEDED, end_ids=frozenset({end})))
    for before, after in zip(whole, ended, strict=True):
        expected = before[: before.index(end) + 1] if end in before else before
        assert after == expected
    assert len(ended[1]) <= 6


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("kv_format", ["int8-token-head", "kivi-4,recent=8", "int4-g32,recent=5,sinks=3"])
def test_b02_stored_reads_are_what_the_scorer_and_the_format_say(name, kv_format) -> None:
    """Counted from the real cache, against the one-pass scorer's views of the very tokens that were generated."""
    model = tiny_models.tiny_model(name)
    generator = Generator(model, OutputHead(model))
    output = generate(generator, kv_format, prompts=prompts(1)).outputs[0]
    scorer = DecodeScorer(model, geometry_from_config(model.config.to_dict()))
    tokens = torch.tensor((*prompts(1)[0].token_ids, *output.token_ids))
    found = scorer.candidate(tokens[:-1], PROMPT_TOKENS, scorer.reference(tokens[:-1]), parse_format(kv_format))
    assert list(output.stored_reads) == found.stored_reads.tolist()
    if name == "llama":
        # The judge's least for a query that has so many older tokens; with its own token a block more may be full.
        older = torch.arange(PROMPT_TOKENS, PROMPT_TOKENS + TOKENS - 1).numpy()
        least, most = (expected_reads(parse_format(kv_format), held).tolist() for held in (older, older + 1))
        assert all(low <= reads <= high for low, reads, high in zip(least, output.stored_reads, most, strict=True))


def test_plain_floats_have_no_codes_to_read_and_no_value_is_counted_as_encoded(generator) -> None:
    found = generate(generator, "f32")
    assert found.counts.encoded_values == 0
    assert {reads for output in found.outputs for reads in output.stored_reads} == {0}
    coded = generate(generator, "int8-token-head")
    layers, heads, dim = 3, 2, 64
    assert coded.counts.encoded_values == 2 * layers * heads * dim * len(prompts()) * (PROMPT_TOKENS + TOKENS - 1)


def test_the_steps_of_generation_are_the_scorers_decode_steps(model, generator) -> None:
    """The level runs the real cache; on the text it wrote, the teacher-forced scorer finds its highest logits."""
    kv_format = parse_format("int4-g32")
    output = generate(generator, "int4-g32").outputs[0]
    scorer = DecodeScorer(model, geometry_from_config(model.config.to_dict()))
    tokens = torch.tensor((*prompts()[0].token_ids, *output.token_ids[:-1]))
    hidden = scorer.candidate(tokens, PROMPT_TOKENS, scorer.reference(tokens), kv_format).hidden
    logits = scorer.output_head(hidden)
    assert tuple(logits.argmax(-1).tolist()) == output.token_ids[1:]
    assert torch.allclose(logits.max(-1).values.double(), output.top_logits[1:], atol=1e-4)


def test_drift_is_zero_for_the_same_cache_only(generator) -> None:
    reference, again, coarse = (generate(generator, name) for name in ("f32", "f32", "int4-g32"))
    for one, same, other in zip(reference.outputs, again.outputs, coarse.outputs, strict=True):
        assert logit_drift(one, same) == 0
        drift = logit_drift(one, other)
        assert drift is None or drift > 0
    assert any(logit_drift(*both) for both in zip(reference.outputs, coarse.outputs, strict=True))


def test_prompts_of_unequal_length_are_refused(generator) -> None:
    uneven = (*prompts(1), Prompt("short", (5, 6)))
    with pytest.raises(WorkloadError, match=r"equal length and a token at least, found \[2, 40\]"):
        generate(generator, "f32", prompts=uneven)


def test_end_tokens_are_the_generation_configs(model) -> None:
    assert end_token_ids(model) == {2}
    model.generation_config.eos_token_id = [2, 5]
    try:
        assert end_token_ids(model) == {2, 5}
    finally:
        model.generation_config.eos_token_id = 2


def test_key_transforms_reach_the_cache() -> None:
    model = tiny_models.tiny_model("qwen2")
    kv_format: KVFormat = parse_format("int8-token-head,keybias=removed")
    generator = Generator(model, OutputHead(model))
    scorer = DecodeScorer(model, geometry_from_config(model.config.to_dict()))
    plan = GenerationPlan(prompts(2), 6, frozenset(), GREEDY)
    found = generator.run(plan, CacheFormat(kv_format, None, scorer.key_transforms(kv_format)))
    assert all(len(output.token_ids) == 6 for output in found.outputs)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_prompt_in_two_pieces_reads_the_stored_first_one_and_says_the_same_over_exact_values(name) -> None:
    model = tiny_models.tiny_model(name)
    generator = Generator(model, OutputHead(model))
    whole = generate(generator, "f32")
    cut = generate(generator, "f32", context_tokens=PROMPT_TOKENS - 6)
    assert ids(cut) == ids(whole)
    pairs = zip(whole.outputs, cut.outputs, strict=True)
    # A float32 cache rounds what the second piece reads of the first; the model runs in float64.
    assert max(logit_drift(one, other, first_step=0) for one, other in pairs) < 1e-5
    coarse = generate(generator, "int2-g32", context_tokens=PROMPT_TOKENS - 6)
    moved = [logit_drift(one, other, first_step=0) for one, other in zip(cut.outputs, coarse.outputs, strict=True)]
    assert all(drift is not None and drift > 1e-3 for drift in moved)
    assert [one[0] for one in ids(coarse)] != [one[0] for one in ids(cut)], "already the first token read codes"


def test_an_output_ends_where_its_own_rule_says_and_the_others_go_on(generator) -> None:
    whole = ids(generate(generator, "f32"))
    asked: list[int] = []

    def ended(row: int, found) -> bool:
        asked.append(row)
        return len(found) == (3, 1, TOKENS + 1, 5)[row]

    cut = ids(generate(generator, "f32", ended=ended))
    assert [len(one) for one in cut] == [3, 1, TOKENS, 5]
    assert all(after == before[: len(after)] for before, after in zip(whole, cut, strict=True))
    assert asked.count(1) == 1, "an output that is over is not asked again"


@pytest.mark.parametrize("context_tokens", [0, PROMPT_TOKENS, PROMPT_TOKENS + 1])
def test_a_prompt_is_cut_inside(generator, context_tokens) -> None:
    with pytest.raises(WorkloadError, match=f"prompts of {PROMPT_TOKENS} tokens cannot be cut after {context_tokens}"):
        generate(generator, "f32", context_tokens=context_tokens)
