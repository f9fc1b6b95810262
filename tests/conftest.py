"""A tiny random model and a folder of texts: the whole road of `assess` in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

CONTRACT = """
schema = "kvassay.contract/1"
name = "tiny"
[text]
corpus = "path:{texts}"
documents = 20
prompt_tokens = 48
scored_tokens = 24
[candidates]
order = ["int8-token-head", "int8-tensor", "kivi-4,recent=8"]
[inference]
pilot_documents = 2
pilot_items = 2
bootstrap_replicates = 500
[controls]
canary = "int2-g32"
[fidelity.kl_mean]
max = 0.001
[task.recall]
margin = 0.1
ref_floor = 0.0
items = 6
context_lines = 4
"""


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.engines.model_folders import llama_config, write_folder  # needs torch, which most tests do not

    config = llama_config(hidden_size=64, head_dim=64, max_position_embeddings=512, num_hidden_layers=2)
    return write_folder(tmp_path_factory.mktemp("model") / "tiny", config)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 documents that differ: numbered sentences about rivers, counted in bytes rather than in style."""
    folder = tmp_path_factory.mktemp("texts")
    for index in range(30):
        lines = [f"The river {index} passes mill {index * 7 + line} and bridge {line}." for line in range(12)]
        (folder / f"{index:02}.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture
def contract_toml(texts: Path) -> str:
    return CONTRACT.format(texts=texts)
