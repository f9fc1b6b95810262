"""Token documents: exact lengths, one a document, seeded, and never cut out of too short texts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.errors import WorkloadError
from kvassay.workloads.corpus import Corpus, Document, build_corpus, load_corpus
from kvassay.workloads.excerpts import text_documents
from kvassay.workloads.tokenizing import bos_ids

from ..engines.model_folders import byte_tokenizer

PLAIN, WITH_BOS = byte_tokenizer(), byte_tokenizer(bos=True)


def corpus(*lengths: int, slices: tuple[str, ...] = ("own",)) -> Corpus:
    """Documents of different letters, about one token a letter."""
    documents = [
        Document(f"d{index}", (chr(0x4E00 + index) + "xyz ") * length, slices[index % len(slices)])
        for index, length in enumerate(lengths)
    ]
    return build_corpus("test", documents, source="s", version="v", licence="l")


def test_excerpts_are_the_beginning_of_the_text_in_exact_length() -> None:
    texts = load_corpus("python-topics")
    chosen = text_documents(texts, PLAIN, documents=10, prompt_tokens=100, scored_tokens=60, seed=3)
    assert len({document.id for document in chosen}) == 10
    by_id = {document.id: document for document in texts.documents}
    for document in chosen:
        assert len(document.token_ids) == 160
        assert document.token_ids == tuple(PLAIN(by_id[document.id].text, add_special_tokens=False).input_ids[:160])


def test_bos_where_the_tokenizer_begins_texts_with_it() -> None:
    assert bos_ids(PLAIN) == ()
    assert bos_ids(WITH_BOS) == (0,)
    texts = load_corpus("python-topics")
    plain, with_bos = (
        text_documents(texts, tokenizer, documents=3, prompt_tokens=40, scored_tokens=10, seed=3)
        for tokenizer in (PLAIN, WITH_BOS)
    )
    for one, other in zip(plain, with_bos, strict=True):
        assert one.id == other.id
        assert other.token_ids == (0, *one.token_ids[:-1])


def test_the_seed_decides_and_other_documents_do_not_disturb() -> None:
    sizes = [60] * 30
    first, again, other = (
        [
            item.id
            for item in text_documents(corpus(*sizes), PLAIN, documents=8, prompt_tokens=8, scored_tokens=8, seed=s)
        ]
        for s in (1, 1, 2)
    )
    assert first == again != other
    grown = text_documents(corpus(*sizes, 60, 60), PLAIN, documents=8, prompt_tokens=8, scored_tokens=8, seed=1)
    assert len(set(first) & {item.id for item in grown}) >= 6


def test_a_pilot_is_not_used_again() -> None:
    texts = corpus(*[60] * 20)
    pilot = text_documents(texts, PLAIN, documents=8, prompt_tokens=8, scored_tokens=8, seed=1)
    used = {item.id for item in pilot}
    rest = text_documents(texts, PLAIN, documents=12, prompt_tokens=8, scored_tokens=8, seed=1, exclude=used)
    assert used.isdisjoint(item.id for item in rest)
    with pytest.raises(WorkloadError, match="12 of 12 documents of 'own' are long enough, 13 are needed"):
        text_documents(texts, PLAIN, documents=13, prompt_tokens=8, scored_tokens=8, seed=1, exclude=used)


def test_slices_get_equal_shares() -> None:
    texts = corpus(*[60] * 30, slices=("a", "b", "c"))
    chosen = text_documents(texts, PLAIN, documents=11, prompt_tokens=8, scored_tokens=8, seed=1)
    assert Counter(item.slice for item in chosen) == {"a": 4, "b": 4, "c": 3}


def test_too_short_documents_are_counted() -> None:
    with pytest.raises(WorkloadError) as caught:
        text_documents(corpus(2, 3, 200, 2), PLAIN, documents=2, prompt_tokens=100, scored_tokens=50, seed=0)
    assert str(caught.value) == (
        "corpus 'test': 1 of 4 documents of 'own' are long enough, 2 are needed (at least 150 tokens: "
        "100 of history and 50 scored); ask for fewer (a verdict needs 20) or shorter documents, or add texts"
    )


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    wanted=st.integers(1, 12),
    prompt=st.integers(0, 80),
    scored=st.integers(2, 80),
    seed=st.integers(0, 5),
)
def test_any_request_is_served_exactly_or_refused_rightly(
    lengths: list[int], wanted: int, prompt: int, scored: int, seed: int
) -> None:
    texts = corpus(*lengths)
    whole = {item.id: tuple(PLAIN(item.text, add_special_tokens=False).input_ids) for item in texts.documents}
    enough = sum(len(ids) >= prompt + scored for ids in whole.values())
    try:
        chosen = text_documents(texts, PLAIN, documents=wanted, prompt_tokens=prompt, scored_tokens=scored, seed=seed)
    except WorkloadError:
        assert enough < wanted
        return
    assert len({item.id for item in chosen}) == len(chosen) == wanted <= enough
    for item in chosen:
        assert item.token_ids == whole[item.id][: prompt + scored]


@pytest.mark.model
def test_the_default_corpus_serves_smollm2(smollm2_tokenizer: Any) -> None:
    """48 documents of 512 + 512 tokens, and 120 of 256 + 256."""
    assert bos_ids(smollm2_tokenizer) == ()
    texts = load_corpus("hansard")
    for documents, tokens in ((48, 512), (120, 256)):
        chosen = text_documents(
            texts, smollm2_tokenizer, documents=documents, prompt_tokens=tokens, scored_tokens=tokens, seed=7
        )
        assert {len(item.token_ids) for item in chosen} == {2 * tokens}
