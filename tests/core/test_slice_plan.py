"""Slices in a contract: those that cannot be decided are refused at once, with the number that would do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvassay.core.clauses.slice_plan import planned_documents
from kvassay.core.contract import load_contract, parse_contract
from kvassay.core.corpus_names import FASTAPI_LANGUAGES, corpus_cells, parse_corpus
from kvassay.core.slices import document_shares
from kvassay.errors import ContractError, WorkloadError

LANGUAGES = "fastapi-docs?languages=de,ja,ru,zh"


def contract(slices: str, text: str = "", more: str = "", clause: str = "kl_mean]\nmax = 0.01"):
    return parse_contract(
        f'schema = "kvassay.contract/1"\nname = "n"\n[candidates]\norder = ["int8-token"]\n[text]\n{text}\n{more}\n'
        f"[fidelity.{clause}\nslices = {slices}\n"
    )


@pytest.mark.parametrize(
    ("slices", "text", "words"),
    [
        ('["french"]', "", r"no text of 'hansard' has; its slices: hansard, position=early"),
        ('["python-source"]', 'corpus = "hansard+python-source"', r"gets 12 of the 24 .* text.documents = 40"),
        ('["language=zh"]', f'corpus = "{LANGUAGES}"\ndocuments = 79', r"gets 19 of the 79 .* text.documents = 80"),
        ('["language=ja"]', f'corpus = "{LANGUAGES}"\ndocuments = 96', r"the pilot needs 2 documents.* = 8"),
        ('["rarity=rare"]', "scored_tokens = 64", r"rare among 2,000 scored ones, the text plans 1,512"),
        ('["position=first"]', "", r"position=early, position=middle, position=late, rarity=rare"),
        ('["all"]', "", r"always decides"),
        ('["hansard", "hansard"]', "", r"stands twice"),
        ('["a,b"]', "", r"without commas"),
        ('["role=user"]', 'corpus = "path:x"\nscored = "assistant"', r"leaves no other turn"),
    ],
)
def test_slices_that_cannot_be_decided_are_refused(slices, text, words) -> None:
    with pytest.raises(ContractError, match=words):
        contract(slices, text)


@pytest.mark.parametrize("clause", ["reverse_kl_mean]\nmax = 0.01", "nll_delta]\nmax = 0.01",
                                    "kl_exceed]\ntau_nats = 0.1\nmax_rate = 0.01",
                                    "top1_agreement]\nmax_disagreement = 0.05",
                                    "topk_agreement]\nmax_disagreement = 0.05"])  # fmt: skip
def test_every_fidelity_bound_takes_slices(clause) -> None:
    found = contract('["hansard", "position=late", "rarity=rare", "confidence=low"]', clause=clause)
    (bound,) = found.fidelity.bounds.values()
    assert len(bound.slices) == 4
    assert found.clause_names == (f"fidelity.{clause.partition(']')[0]}",)
    assert contract("[]", clause=clause).sha256 != found.sha256


def test_slices_of_files_are_not_known_from_the_contract() -> None:
    """They are refused once the files are read (tests/assess/test_run_slices.py)."""
    assert contract('["anything"]', 'corpus = "path:texts"').fidelity.kl_mean is not None
    assert corpus_cells("path:texts") is None


def test_r48_eight_languages_can_decide_by_themselves() -> None:
    labels = [f'"language={language}"' for language in FASTAPI_LANGUAGES]
    text = 'corpus = "fastapi-docs"\ndocuments = 160'
    found = contract(f"[{', '.join(labels)}]", text, "[inference]\npilot_documents = 16")
    assert len(FASTAPI_LANGUAGES) == 8
    cells = corpus_cells(found.text.corpus)
    assert cells is not None
    assert {planned_documents(160, cells, f"language={language}") for language in FASTAPI_LANGUAGES} == {20}


@given(st.integers(0, 500), st.sets(st.sampled_from("abcdefgh"), min_size=1))
def test_shares_are_equal_and_complete(documents, cells) -> None:
    shares = document_shares(documents, cells)
    assert sum(shares.values()) == documents
    assert max(shares.values()) - min(shares.values()) <= 1
    assert document_shares(documents, sorted(cells, reverse=True)) == shares


def test_corpus_names() -> None:
    path, languages = parse_corpus("fastapi-docs:some/folder?languages=ja,de"), parse_corpus("hansard+fastapi-docs")
    assert (path[0].path, path[0].languages) == ("some/folder", ("ja", "de"))
    assert [part.name for part in languages] == ["hansard", "fastapi-docs"]
    assert parse_corpus("path:a+b?c")[0].path == "a+b?c", "a path is taken as it stands"
    assert [part.path for part in parse_corpus("hansard+path:own?")] == [None, "own?"]
    assert corpus_cells("hansard+path:own") is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fastapi-docs?languages=xx", "too few translated pages"),
        ("fastapi-docs?languages=de,de", "twice"),
        ("fastapi-docs?language=de", "expected languages=de,ja"),
        ("fastapi-docs?languages=", "expected languages=de,ja"),
        ("fastapi-docs:?languages=de", "names no path"),
        ("hansard?languages=de", "only fastapi-docs takes"),
    ],
)
def test_corpus_names_that_are_none(name, words) -> None:
    with pytest.raises(WorkloadError, match=words):
        parse_corpus(name)
    with pytest.raises(ContractError, match=words):
        contract("[]", f'corpus = "{name}"')


def test_r48_the_example_contract_decides_each_of_eight_languages() -> None:
    found = load_contract(Path(__file__).parents[2] / "contracts" / "languages.toml")
    assert found.fidelity.kl_mean is not None
    assert {f"language={language}" for language in FASTAPI_LANGUAGES} < set(found.fidelity.kl_mean.slices)
