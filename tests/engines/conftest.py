from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of this test's own, through the variable that users have."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KVASSAY_CACHE", str(folder))
    return folder
