from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvassay.pack.layout import PackManifest
from tests.pack.sample_pack import write_sample


@pytest.fixture(scope="session")
def whole_pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PackManifest]:
    """One sample pack for all tests; not to be changed."""
    out = tmp_path_factory.mktemp("packs") / "sample"
    return out, write_sample(out)


@pytest.fixture
def pack(whole_pack: tuple[Path, PackManifest], tmp_path: Path) -> Path:
    """A copy of the sample pack to do as one likes with."""
    return shutil.copytree(whole_pack[0], tmp_path / "pack")


@pytest.fixture
def root(whole_pack: tuple[Path, PackManifest]) -> str:
    """The root digest that the run printed."""
    return whole_pack[1].root
