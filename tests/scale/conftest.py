"""Two tiny models, two short workloads and a matrix over them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

TEXT_CONTRACT = """
schema = "kvassay.contract/1"
name = "text"
[text]
corpus = "path:{texts}"
documents = 20
prompt_tokens = 32
scored_tokens = 12
[candidates]
order = ["f16"]
[inference]
pilot_documents = 2
pilot_items = 2
bootstrap_replicates = 300
[controls]
canary = "int2-g32"
[fidelity.kl_mean]
max = 0.001
"""

TASK_CONTRACT = """
schema = "kvassay.contract/1"
name = "task"
[candidates]
order = ["f16"]
[inference]
pilot_items = 2
bootstrap_replicates = 300
[controls]
canary = "int2-g32"
[task.arithmetic]
margin = 0.1
ref_floor = 0.0
items = 4
"""

FORMATS = ("int8-token-head", "int8-tensor")


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second tiny model, of other weights."""
    from tests.engines.model_folders import llama_config, write_folder

    config = llama_config(hidden_size=64, head_dim=32, max_position_embeddings=512, num_hidden_layers=1)
    return write_folder(tmp_path_factory.mktemp("model") / "other", config)


@pytest.fixture
def matrix_file(tmp_path: Path, texts: Path, tiny_folder: Path) -> Callable[..., Path]:
    """Writes a matrix of the tiny model and the text workload, or of what is given."""

    def write(
        models: tuple[str, ...] = (str(tiny_folder),),
        workloads: tuple[str, ...] = ("text.toml",),
        formats: tuple[str, ...] = FORMATS,
        seeds: tuple[int, ...] = (7,),
        extra: str = "",
    ) -> Path:
        (tmp_path / "text.toml").write_text(TEXT_CONTRACT.format(texts=texts))
        (tmp_path / "task.toml").write_text(TASK_CONTRACT)
        path = tmp_path / "matrix.toml"
        asked = {"models": models, "formats": formats, "workloads": workloads, "seeds": seeds}
        lines = [f"{key} = {json.dumps(list(value))}" for key, value in asked.items()]
        path.write_text('schema = "kvassay.matrix/1"\nname = "tiny"\n' + "\n".join(lines) + "\n" + extra)
        return path

    return write
