"""Tiny models and texts in a folder, for runs outside of pytest."""

from __future__ import annotations

from pathlib import Path


def write_models(folder: Path) -> tuple[Path, Path]:
    """Two random Llamas of other shapes."""
    from tests.engines.model_folders import llama_config, write_folder

    shapes = {"tiny": (64, 2), "other": (32, 1)}
    one, two = (
        write_folder(
            folder / name,
            llama_config(hidden_size=64, head_dim=head, max_position_embeddings=512, num_hidden_layers=layers),
        )
        for name, (head, layers) in shapes.items()
    )
    return one, two


def write_texts(folder: Path) -> Path:
    folder.mkdir()
    for index in range(30):
        lines = [f"The river {index} passes mill {index * 7 + line} and bridge {line}." for line in range(12)]
        (folder / f"{index:02}.txt").write_text("\n".join(lines))
    return folder
