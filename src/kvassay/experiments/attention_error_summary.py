"""summary.md: the worst case first, then every row, the bytes, the variants, and what none of it proves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvassay.experiments.attention_error_manifest import ARRAYS_FILE, PLAN_FILE
from kvassay.experiments.attention_error_plan import (
    CHANNEL_KEYS,
    EXACT_OUTLIER_ROW,
    EXCLUSIONS,
    NORMAL,
    NOT_PROVEN,
    QUANTIZER_TITLES,
    ROW,
    SIDES,
    STALE_SCALE,
    SYNTHETIC_LABEL,
    TENSOR,
    VARIANT_TITLES,
)
from kvassay.experiments.attention_error_tables import (
    Row,
    Tables,
    attention_error_table,
    bytes_table,
    markdown,
    number,
    variant_table,
    worst_first,
)


def render_summary(tables: Tables, environment: Mapping[str, str]) -> str:
    """Markdown; every figure comes from `tables`, which must hold all rows of the plan."""
    sections = (
        ["# attention-error: int8 keys and values, how many bytes and at what error"],
        [f"**{SYNTHETIC_LABEL}**"],
        _worst(tables),
        _rows(tables),
        _bytes(tables),
        _split(tables),
        _variants(tables),
        _exercise(tables),
        ["## Excluded from the bytes", "", *(f"- {line}" for line in EXCLUSIONS)],
        ["## What this does not prove", "", *(f"- {line}" for line in NOT_PROVEN)],
        _records(environment),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _worst(tables: Tables) -> list[str]:
    worst = worst_first(tables.rows)[0]
    cell = {key: worst[key] for key in ("seed", "n_tokens", "input")}
    row = _first_like(tables.rows, {**cell, "quantizer": ROW})
    tensor = _first_like(tables.rows, {**cell, "quantizer": TENSOR})
    channel = _first_like(tables.variants, {**cell, "variant": CHANNEL_KEYS})
    exact = _first_like(tables.variants, {**cell, "variant": EXACT_OUTLIER_ROW})
    fold = number(tensor, "keys_rmse") / number(row, "keys_rmse")
    normal = [number(r, "output_max_abs") for r in tables.rows if r["input"] == NORMAL]
    return [
        f"**Worst of the {len(tables.rows)} rows: an output error of {_figure(worst, 'output_max_abs')}** "
        f"(seed {worst['seed']}, N = {worst['n_tokens']}, {worst['input']}, "
        f"{QUANTIZER_TITLES[str(worst['quantizer'])]}), "
        f"where the largest reference output is {_figure(worst, 'reference_max_abs')}. "
        f"K alone causes {_figure(worst, 'output_keys_only_max_abs')}, "
        f"V alone {_figure(worst, 'output_values_only_max_abs')}.",
        "",
        f"In this cell a scale a row cuts the RMSE of K {fold:.0f}-fold "
        f"({_figure(tensor, 'keys_rmse')} to {_figure(row, 'keys_rmse')}), and the output error goes from "
        f"{_figure(tensor, 'output_max_abs')} to {_figure(row, 'output_max_abs')}: "
        "the outlier sets the scale of its own row as it set the scale of the tensor, so that row keeps the "
        "same codes and the same error. "
        f"K with one scale a channel brings the output error to {_figure(channel, 'output_max_abs')}, "
        f"rows with the outlier's row kept exact to {_figure(exact, 'output_max_abs')}.",
        "",
        f"Without the enlarged element the errors lie between {min(normal):.4g} and {max(normal):.4g}.",
    ]


def _rows(tables: Tables) -> list[str]:
    return [
        f"## All {len(tables.rows)} rows, worst output error first",
        "",
        "Absolute errors are against float64 attention on the exact arrays; `relative` is the Frobenius norm",
        "of the error over that of the reference. `K only` and `V only` replace one side alone.",
        "",
        *markdown(attention_error_table(tables.rows)),
    ]


def _bytes(tables: Tables) -> list[str]:
    row = _first_like(tables.bytes, {"quantizer": ROW})
    return [
        "## Bytes, summed from the stored arrays",
        "",
        f"Codes alone are {_figure(row, 'nominal_float32_over_codes')} times smaller than float32. With one "
        f"float32 scale a row it is {_figure(row, 'float32_over_stored')} times "
        f"({number(row, 'saved_of_float32_percent'):.5g}% saved), and against 16 bit "
        f"{_figure(row, 'float16_over_stored')} times "
        f"({number(row, 'saved_of_float16_percent'):.5g}% saved).",
        "",
        *markdown(bytes_table(tables.bytes), digits=5),
    ]


def _split(tables: Tables) -> list[str]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in tables.rows:
        groups.setdefault((str(row["input"]), str(row["quantizer"])), []).append(row)
    split = [
        {
            "input": kind,
            "quantizer": quantizer,
            "side": side,
            "largest error, steps": _largest(rows, [f"{side}_error_steps"]),
            "rounding": _largest(rows, [f"{side}_rounding_max_abs"]),
            "scale precision": _largest(rows, [f"{side}_scale_precision_max_abs"]),
            "clipped values": _total(rows, [f"{side}_clipped"]),
        }
        for (kind, quantizer), rows in groups.items()
        for side in SIDES
    ]
    return [
        "## Where the array error comes from",
        "",
        "Largest over seeds and lengths. Rounding is bounded by half a step. The float32 precision of the",
        "scale adds a second term, largest at the value that set the scale. Clipping is counted apart; it",
        "does not occur while a scale comes from the array itself.",
        "",
        *markdown(split),
    ]


def _variants(tables: Tables) -> list[str]:
    stale = [row for row in tables.variants if row["variant"] == STALE_SCALE]
    clipping = _largest(stale, [f"{side}_clipping_max_abs" for side in SIDES])
    rounding = _largest(stale, [f"{side}_rounding_max_abs" for side in SIDES])
    return [
        f"## Variants, beside the {len(tables.rows)} rows",
        "",
        "All on the 40x input.",
        "",
        *(f"- `{name}`: {title}" for name, title in VARIANT_TITLES.items()),
        "",
        f"A scale calibrated before the outlier came clips {_total(stale, [f'{s}_clipped' for s in SIDES])} "
        f"values in {len(stale)} cells: the largest clipping error is {clipping:.4g}, the largest rounding "
        f"error of the values inside the range {rounding:.4g}.",
        "",
        *markdown(variant_table(tables.variants)),
    ]


def _exercise(tables: Tables) -> list[str]:
    return [
        "## Exercise: enlarge one element, and see which scales change",
        "",
        "K of 64 rows; element [0, 0] becomes 40 (from zeros), or 40 times itself (from those of seed 7).",
        "",
        *markdown([{name.replace("_", " "): value for name, value in row.items()} for row in tables.exercise]),
    ]


def _records(environment: Mapping[str, str]) -> list[str]:
    system, machine = environment.get("system"), environment.get("machine")
    versions = ", ".join(f"{name} {environment.get(name)}" for name in ("python", "numpy", "torch"))
    return [
        "## Records",
        "",
        "- Tables in full: `rows`, `variants`, `bytes` and `exercise`, each as `.csv` and `.parquet`.",
        f"- The plan: `{PLAN_FILE}`.",
        f"- Arrays: `arrays/*.safetensors`, the hash of each in `{ARRAYS_FILE}`; hashes of files and of the",
        "  source that ran in `manifest.json`.",
        f"- Platform of this run: {system} {machine}, {versions}. No other platform is claimed.",
        "- `kvassay verify FOLDER` recomputes all of it from the arrays, and the arrays from the seeds,",
        "  without torch.",
    ]


def _first_like(rows: Sequence[Row], wanted: Row) -> Row:
    """The first row with the wanted values; LookupError where a table is not whole."""
    for row in rows:
        if wanted.items() <= row.items():
            return row
    raise LookupError(f"no row has {dict(wanted)}")


def _figure(row: Row, column: str) -> str:
    return f"{number(row, column):.4g}"


def _largest(rows: Sequence[Row], columns: Sequence[str]) -> float:
    return max(number(row, column) for row in rows for column in columns)


def _total(rows: Sequence[Row], columns: Sequence[str]) -> int:
    return sum(int(number(row, column)) for row in rows for column in columns)
