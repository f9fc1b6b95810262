"""`kvassay doctor`: layers at risk and formats to avoid, from config, weights and a short text, before any run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from kvassay.cli.output import print_json, print_table, say
from kvassay.cli.torch_extra import require_torch
from kvassay.cli.whole_numbers import whole_number
from kvassay.core.records import ExitCode
from kvassay.kernels import kernels_text


def doctor(
    model: str,
    /,
    *,
    text: str = "hansard",
    tokens: Annotated[int, whole_number(16, 4096)] = 256,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Name layers at risk and formats to avoid, before any run. Exit code 0 none at risk, 1 some, 2 no answer.

    Parameters
    ----------
    model
        Built-in name (smollm2-135m, gemma3-270m), transformers folder, .gguf file, or hub id.
    text
        Corpus whose first tokens are run once: hansard, python-topics, python-source, path:FOLDER_OR_FILE, or none to
        read config and weights only.
    tokens
        Length of the text.
    json
        Print one JSON document.
    """
    require_torch("kvassay doctor")
    from kvassay.assess.doctor import Diagnosis, Severity, diagnose

    found: Diagnosis = diagnose(model, None if text == "none" else text, tokens, say)
    code = ExitCode.BREACHED if found.at_risk else ExitCode.MET
    if json:
        print_json(found.to_json())
        return code
    shape = found.geometry
    first = shape.layers[0]
    print(
        f"{model}: {shape.model_type}, {shape.num_layers} layers, {shape.query_heads} query heads, {first.kv_heads} KV "
        f"heads of {first.head_dim} channels"
        + ("" if len(set(shape.layers)) == 1 else " (layers differ)")
        + (f", context {shape.max_context}" if shape.max_context else "")
    )
    header = ["layer", "window", "bias norm", "bias/key", "key max", "key ch.", "value max", "value ch.", "sinks"]
    rows = []
    for index, (layer, weights) in enumerate(zip(shape.layers, found.weights, strict=True)):
        row = [index, layer.sliding_window or "-", _figure(weights.bias_norm), _figure(weights.bias_ratio)]
        if found.channels is not None:
            on_text = found.channels[index]
            row += [_figure(on_text.key_max_abs), _figure(on_text.key_outlier_ratio)]
            row += [_figure(on_text.value_max_abs), _figure(on_text.value_outlier_ratio), f"{on_text.sink_share:.2f}"]
        rows.append(row)
    print_table(header[: len(rows[0])], rows, right=range(len(rows[0])))
    print("bias/key: norm of a head's key bias over its typical key, from weights alone")
    if found.text is not None:
        print(
            f"max and ch.: largest magnitude, and largest over median channel, of {found.text['tokens']} tokens of "
            f"{found.text['document']}; sinks: attention share of the first tokens"
        )
    print()
    for finding in found.findings:
        where = f" in {_layers(finding.layers, shape.num_layers)}" if finding.layers else ""
        print(f"{'AT RISK' if finding.severity is Severity.RISK else 'note'} ({finding.basis}): {finding.what}{where}")
        print(f"  {finding.measured}: {finding.reason}")
        if finding.avoid:
            print(f"  avoid:  {'  '.join(finding.avoid)}")
        if finding.prefer:
            print(f"  prefer: {'  '.join(finding.prefer)}")
    print(kernels_line())
    if not found.at_risk:
        print("no layer at risk by what was read")
    print("Nothing was scored: kvassay assess measures what a format keeps of the model.")
    return code


def kernels_line() -> str:
    """Which kernels can run here, or how to get them."""
    return f"kernels: {kernels_text()}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _layers(layers: Sequence[int], count: int) -> str:
    if len(layers) == count:
        return "all layers"
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"
