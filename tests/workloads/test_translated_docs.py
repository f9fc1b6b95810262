"""R48: eight languages in five scripts from one archive that is downloaded, never installed, and known by its hash."""

from __future__ import annotations

import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvassay.core.corpus_names import FASTAPI_LANGUAGES, parse_corpus
from kvassay.errors import WorkloadError
from kvassay.workloads import translated_docs
from kvassay.workloads.corpus import load_corpus
from kvassay.workloads.excerpts import text_documents
from kvassay.workloads.translated_docs import ARCHIVE, default_folder, prose

has_archive = pytest.mark.skipif(
    not (default_folder() / ARCHIVE).exists(), reason=f"{ARCHIVE} is not in {default_folder()}; `make` puts it there"
)
SCRIPTS = {"ja": "HIRAGANA", "ko": "HANGUL", "ru": "CYRILLIC", "zh": "CJK"}
"""All others are written in Latin letters."""


@has_archive
def test_r48_eight_languages_in_five_scripts() -> None:
    corpus = load_corpus("fastapi-docs")
    assert corpus.sha256 == "e9183332b5f3ae261e9c5325efde1cb7de5974615a69bb9bf846f18bcaa61df2"
    assert corpus.licence.startswith("MIT")
    assert translated_docs.VERSION in corpus.version
    by_language = dict.fromkeys(FASTAPI_LANGUAGES, "")
    for document in corpus.documents:
        kind, language = document.slice.split(",")
        assert kind == "fastapi-docs"
        by_language[language.removeprefix("language=")] += document.text
    for language, text in by_language.items():
        scripts = Counter(unicodedata.name(letter, "?").split(" ")[0] for letter in text if letter.isalpha())
        assert scripts[SCRIPTS.get(language, "LATIN")] > 5000, (language, scripts.most_common(3))
        assert "```" not in text
        assert "</" not in text
    assert len(corpus.documents) == len({document.text for document in corpus.documents})


@has_archive
@pytest.mark.model
def test_r48_each_language_has_documents_for_a_verdict_and_a_pilot(smollm2_tokenizer: Any) -> None:
    """20 documents of 512 tokens for the verdict and 2 for the pilot, which share none."""
    corpus, count = load_corpus("fastapi-docs"), len(FASTAPI_LANGUAGES)
    options = {"prompt_tokens": 256, "scored_tokens": 256, "seed": 7}
    chosen = text_documents(corpus, smollm2_tokenizer, documents=20 * count, **options)
    taken = {document.id for document in chosen}
    pilot = text_documents(corpus, smollm2_tokenizer, documents=2 * count, exclude=taken, **options)
    assert set(Counter(document.slice for document in chosen).values()) == {20}
    assert set(Counter(document.slice for document in pilot).values()) == {2}


@has_archive
def test_chosen_languages_and_a_named_place() -> None:
    place = default_folder() / ARCHIVE
    by_file, by_folder = (load_corpus(f"fastapi-docs:{path}?languages=ko,ru") for path in (place, place.parent))
    assert {document.slice for document in by_file.documents} == {
        "fastapi-docs,language=ko",
        "fastapi-docs,language=ru",
    }
    assert by_file.sha256 == by_folder.sha256 == load_corpus("fastapi-docs?languages=ru,ko").sha256


@pytest.mark.parametrize("fault", ["gone", "no folder", "other content", "huge"])
def test_an_archive_that_cannot_be_used_says_how_to_get_it(fault: str, tmp_path: Path) -> None:
    place = tmp_path / "corpora"
    if fault != "no folder":
        place.mkdir()
    if fault in ("other content", "huge"):
        with (place / ARCHIVE).open("wb") as file:
            file.truncate((1 << 26) if fault == "huge" else 100)
    words = {"other content": "has SHA-256", "huge": "is not the known archive"}.get(fault, "is not in")
    with pytest.raises(WorkloadError, match=words) as caught:
        translated_docs.load(*parse_corpus(f"fastapi-docs:{place / ARCHIVE if fault == 'no folder' else place}"))
    command = f"pip download --no-deps --no-binary :all: --dest {place} fastapi==0.110.2"
    assert command in str(caught.value)


def test_prose_is_what_stands_outside_of_code_and_tags() -> None:
    page = "# A\n\n<b>x</b> y\n\n\n\n````md\n```py\ncode\n```\nmore\n````\n\n~~~\nb\n~~~\nz `inline`\n   \n\nend\n"
    assert prose(page) == "# A\n\nx y\n\nz `inline`\n\nend"
    assert prose("```\nnever closed") == ""


@given(st.text(alphabet="ab`~<>\n /", max_size=80))
def test_prose_is_stable(text: str) -> None:
    found = prose(text)
    assert "\n\n\n" not in found
    assert found == found.strip()
