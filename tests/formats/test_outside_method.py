"""A method from another package: the one of docs/howto/add-a-format.md, built from the page and run as it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvassay.core import methods as method_module
from kvassay.core.methods import Family, Method, Word
from kvassay.errors import FormatError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "add-a-format.md").read_text()


def page_files() -> dict[str, str]:
    """The code blocks that begin with a comment which names their file."""
    return dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as an installer leaves it: the package, and a dist-info with the entry points of its pyproject.toml."""
    folder = tmp_path_factory.mktemp("site")
    for name, text in page_files().items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in points.items())
             for group, points in project["entry-points"].items()]  # fmt: skip
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_hidden_layers": 3,
        "max_position_embeddings": 8192,
        "vocab_size": 100,
    }
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(config))
    return folder


def run_python(site: Path, *arguments: str) -> str:
    paths = [str(site), str(ROOT / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False, cwd=site
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run_kvassay(site: Path, command: str) -> str:
    arguments = [str(site / "model") if word == "path/to/model" else word for word in shlex.split(command)[1:]]
    return run_python(site, "-c", "from kvassay.cli import main; main()", *arguments)


def test_row_codec_and_entry_point_take_fewer_than_60_lines() -> None:
    files = page_files()
    names = ["pyproject.toml", "kvassay_sign/__init__.py", "kvassay_sign/codec.py"]
    lines = [line for name in names for line in files[name].splitlines() if line.strip()]
    assert len(lines) < 60


def test_the_commands_of_the_page_know_the_method(site) -> None:
    """`kvassay formats` lists it, `kvassay bytes` prices it."""
    block = re.search(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert block is not None
    formats, nbytes = (run_kvassay(site, line) for line in block[1].splitlines())
    assert re.search(r"sign1:group32 +1\.5 +integer groups +sign of each value", formats)
    # 1 bit and one float16 for 16 tokens: 2 bits a key of the body, 1.5 a value; see the ledger for the window.
    assert "k=sign1:channel16,v=sign1:group32,recent=64" in nbytes
    assert re.search(r"scales +\S+ +\S+", nbytes)


def test_the_checks_and_the_cache_take_the_method(site) -> None:
    code = "import runpy; runpy.run_path('check.py'); runpy.run_path('use.py')"  # one process: torch loads slowly
    found = int(run_python(site, "-c", code).split()[0])
    # 27 tokens of 2 layers, 2 heads, 32 channels: one tail page of 16 exact tokens for a window of 8 (two at other
    # lengths), and a page of 64 tokens of 1.5 bits a value; 16 bytes beside each of three page numbers.
    sides, numbers = 2 * 2, 3
    assert found == sides * 2 * (16 * 32 * 2 + 64 * 32 * 1.5 / 8) + sides * numbers * 16


def test_names_read_back_and_have_a_digest_of_their_own(site) -> None:
    code = (
        "from kvassay import parse_format\n"
        "one = parse_format('k=sign1:channel16,v=sign1:group32,recent=64')\n"
        "assert parse_format(one.name) == one\n"
        "assert one.digest != parse_format('k=int1:channel16,v=int1:group32,recent=64').digest\n"
        "import sys; assert 'torch' not in sys.modules\n"
    )
    run_python(site, "-c", code)


class Point:
    """What importlib.metadata gives for an entry point."""

    name = "mine"
    value = "elsewhere:METHOD"

    def __init__(self, loaded: object) -> None:
        self._loaded = loaded

    def load(self) -> object:
        return self._loaded


def row(name: str, word: str) -> Method:
    return Method(name, Family.GROUPED, "", "", "elsewhere:Codec", (Word(word, 4),), ())


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (dict, "entry point mine of elsewhere is a type; expected a kvassay.core.methods.Method"),
        (row("int", "mine4"), "names its method 'int', which exists; rename it"),
        (row("mine", "int4"), "takes the codec name 'int4', which kvassay's int has; rename it, or"),
    ],
)
def test_an_entry_point_that_is_no_new_method_is_refused_by_name(loaded, message, monkeypatch) -> None:
    """R8: a foreign package cannot take over a name that packs already use."""
    monkeypatch.setattr(method_module, "entry_points", lambda group: [Point(loaded)])
    with pytest.raises(FormatError) as caught:
        method_module.methods.__wrapped__()
    assert message in str(caught.value)


@pytest.mark.parametrize("words", [("mine4", "mine4"), ("mine4", "mine5", "mine4")])
def test_r8_two_foreign_packages_cannot_take_one_word(words, monkeypatch) -> None:
    """Which of them a format meant would depend on the order of their installation."""
    rows = [row(f"mine{index}", word) for index, word in enumerate(words)]
    monkeypatch.setattr(method_module, "entry_points", lambda group: [Point(each) for each in rows])
    last = len(words) - 1
    expected = "takes the codec name 'mine4', which mine0 of entry point mine of elsewhere has; rename it"
    with pytest.raises(FormatError, match=expected):
        method_module.methods.__wrapped__()
    rows[last] = row(f"mine{last}", "other4")
    assert {"mine0", f"mine{last}"} <= set(method_module.methods.__wrapped__())


def test_r8_one_package_cannot_take_a_word_twice(monkeypatch) -> None:
    twice = row("mine", "mine4")._replace(words=(Word("mine4", 4), Word("mine4", 3)))
    monkeypatch.setattr(method_module, "entry_points", lambda group: [Point(twice)])
    with pytest.raises(FormatError, match="takes the codec name 'mine4', which mine of entry point"):
        method_module.methods.__wrapped__()
