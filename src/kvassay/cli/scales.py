"""`kvassay scales`: KV scales of checkpoints, shown and written."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import cyclopts
from cyclopts import Parameter

from kvassay.cli.output import print_json, print_table, say
from kvassay.cli.torch_extra import require_torch
from kvassay.cli.whole_numbers import whole_number
from kvassay.core.calibration_policy import parse_policy
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.side_names import side_name
from kvassay.errors import printable

scales = cyclopts.App(name="scales", help="Static KV scales of a checkpoint: show them, or calibrate and write them.")


@scales.command
def show(path: Path, /, *, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Every KV scale that a checkpoint holds, and the formats that take them. Unusable ones are refused by name.

    Parameters
    ----------
    path
        Checkpoint folder, or a .safetensors file in one; the llm-compressor and the ModelOpt layout are known.
    json
        Print one JSON document.
    """
    require_torch("kvassay scales")
    from kvassay.formats.checkpoint_inventory import scale_inventory

    found = scale_inventory(path)
    rows = [
        {
            "layer": each.layer,
            "role": each.role,
            "shape": list(each.tensor.shape),
            "smallest": float(each.tensor.min()),
            "largest": float(each.tensor.max()),
            "name": each.name,
            "file": each.file,
        }
        for each in found.tensors
    ]
    codec = side_name(found.spec)
    formats = [preset.name for preset in PRESETS if found.spec in parse_format(preset.name).specs]
    if json:
        print_json(
            {
                "path": str(path),
                "layout": found.layout.value,
                "codec": codec,
                "formats": formats,
                "all_unit": found.all_unit,
                "sha256": found.sha256,
                "tensors": rows,
            }
        )
        return 0
    layers = len({each.layer for each in found.tensors})
    print(f"{printable(str(path))}: {found.layout.value} layout, scales for {codec} in {layers} layers")
    print_table(
        ["layer", "role", "shape", "smallest", "largest", "tensor"],
        [
            [
                row["layer"],
                row["role"],
                row["shape"],
                f"{row['smallest']:.6g}",
                f"{row['largest']:.6g}",
                printable(row["name"]),
            ]
            for row in rows
        ],
        right=(0, 3, 4),
    )
    print(f"SHA-256 of names and values: {found.sha256}")
    print(f"formats that take them: {', '.join(formats) or f'kv={codec}'}")
    if found.all_unit:
        print("every scale is 1.0: a plain cast; most likely nobody calibrated")
    return 0


@scales.command
def write(
    model: str,
    /,
    *,
    format: str,
    out: Path,
    policy: str = "min-max",
    layout: Literal["llm-compressor", "modelopt"] = "llm-compressor",
    text: str = "hansard",
    documents: Annotated[int, whole_number(1, 4096)] = 16,
    tokens: Annotated[int, whole_number(16, 131072)] = 256,
    seed: Annotated[int, whole_number(0, (1 << 53) - 1)] = 7,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Calibrate a model's static KV scales on texts, and write them as a checkpoint has them.

    Parameters
    ----------
    model
        Built-in name (smollm2-135m, gemma3-270m), transformers folder, .gguf file, or hub id.
    format
        A format with static scales, alike for keys and values, for example fp8-e4m3-tensor.
    out
        Folder for kv_scales.safetensors and the config that names the scheme; made where there is none. In a copy of a
        checkpoint the config's other entries stay, and scales that are there already are refused.
    policy
        min-max, mse (the least squared error), or "percentile 99.9".
    layout
        Whose tensor names and config.
    text
        Corpus: hansard, python-topics, python-source, or path:FOLDER_OR_FILE.
    documents
        How many documents of it.
    tokens
        How many first tokens of each.
    seed
        Of the choice of documents.
    json
        Print one JSON document.
    """
    kv_format, chosen = parse_format(format), parse_policy(policy)
    require_torch("kvassay scales")
    from kvassay.assess.scale_writing import SampleTexts, write_scales
    from kvassay.formats.checkpoint_schemes import ScaleLayout

    whose = {"llm-compressor": ScaleLayout.LLM_COMPRESSOR, "modelopt": ScaleLayout.MODELOPT}[layout]
    texts = SampleTexts(text, documents, tokens, seed)
    written = write_scales(model, kv_format, chosen, whose, out, texts, say)
    if json:
        print_json(
            {
                "file": str(written.file),
                "format": kv_format.name,
                "layout": whose.value,
                "layers": written.layers,
                "source": written.source,
                "corpus": text,
                "documents": written.documents,
            }
        )
        return 0
    print(f"scales of {kv_format.name} for {written.layers} layers: {written.source}, {whose.value} layout")
    print(f"written  {printable(str(written.file))}")
    print(printable(f"look at  kvassay scales show {quote(str(out))}"))
    return 0
