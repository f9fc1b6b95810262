"""Tables of the attention-error experiment: typed rows to Parquet and CSV and back, and for the eye."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kvassay.errors import PackError
from kvassay.experiments.attention_error_plan import QUANTIZER_TITLES, VARIANT_TITLES
from kvassay.pack.parquet_pages import check_footer_size, check_pages

Value = str | int | float | None
Row = Mapping[str, Value]
MAX_ROWS = 100
"""No table of this experiment is longer; a file that declares more is refused before it is decoded."""
MAX_NBYTES = 128 << 10
"""No table file is larger. It is written without compression, and a compressed one is refused: a small
file cannot unfold into a large one."""


class Tables(NamedTuple):
    """All tables of one run, in the order of the plan."""

    rows: list[dict[str, Value]]
    variants: list[dict[str, Value]]
    bytes: list[dict[str, Value]]
    exercise: list[dict[str, Value]]


def to_parquet(rows: Sequence[Row], columns: Mapping[str, str]) -> bytes:
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), sink, compression="none")
    return sink.getvalue()


def from_parquet(data: bytes, columns: Mapping[str, str], origin: str) -> list[dict[str, Value]]:
    """Rows of a table with exactly these columns and types; raises PackError naming `origin` otherwise."""
    source = io.BytesIO(data)
    check_footer_size(source, origin)
    try:
        file = pq.ParquetFile(source)
        declared = file.metadata
        if declared.num_rows > MAX_ROWS:
            raise PackError(f"{origin}: declares {declared.num_rows} rows, at most {MAX_ROWS} are expected")
        for group in map(declared.row_group, range(declared.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                if column.compression != "UNCOMPRESSED":
                    raise PackError(f"{origin}: compressed with {column.compression}; written without compression")
        check_pages(source, declared, origin)
        found = {field.name: str(field.type) for field in file.schema_arrow}
        expected = {name: str(pa.type_for_alias(kind)) for name, kind in columns.items()}
        if found != expected:
            odd = sorted(found.items() ^ expected.items())[0][0]
            raise PackError(f"{origin}: column {odd!r} is missing, unknown or of another type than expected")
        return file.read().to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise PackError(f"{origin}: not a readable Parquet table: {' '.join(str(error).split())[:200]}") from error


def to_csv(rows: Sequence[Row], columns: Mapping[str, str]) -> str:
    """The same table as text: shortest digits that read back to the same float64, an empty field for null."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([["" if row[name] is None else row[name] for name in columns] for row in rows])
    return text.getvalue()


def worst_first(rows: Sequence[dict[str, Value]]) -> list[dict[str, Value]]:
    """Rows by falling output error (R93)."""
    return sorted(rows, key=lambda row: -number(row, "output_max_abs"))


def number(row: Row, column: str) -> float:
    """A figure that is never null or text."""
    value = row[column]
    assert isinstance(value, int | float), f"{column} is {value!r}"
    return float(value)


def attention_error_table(rows: Sequence[dict[str, Value]]) -> list[dict[str, Value]]:
    """All 36 rows for display, worst output error first, under the headings of a terminal table."""
    return [
        {
            "seed": row["seed"],
            "N": row["n_tokens"],
            "input": row["input"],
            "quantizer": row["quantizer"],
            "output max abs error": row["output_max_abs"],
            "relative": row["output_relative"],
            "K only": row["output_keys_only_max_abs"],
            "V only": row["output_values_only_max_abs"],
            "output RMSE": row["output_rmse"],
            "K RMSE": row["keys_rmse"],
            "V RMSE": row["values_rmse"],
            "score": row["score_max_abs"],
            "weight": row["weight_max_abs"],
            "clipped": int(number(row, "keys_clipped") + number(row, "values_clipped")),
            "bytes": row["stored_nbytes"],
        }
        for row in worst_first(rows)
    ]


def variant_table(variants: Sequence[dict[str, Value]]) -> list[dict[str, Value]]:
    """The variants for display, grouped by kind, worst first in each."""
    return [
        {
            "variant": VARIANT_TITLES[str(row["variant"])],
            "seed": row["seed"],
            "N": row["n_tokens"],
            "output max abs error": row["output_max_abs"],
            "relative": row["output_relative"],
            "K only": row["output_keys_only_max_abs"],
            "V only": row["output_values_only_max_abs"],
            "clipped": int(number(row, "keys_clipped") + number(row, "values_clipped")),
            "K clipping": row["keys_clipping_max_abs"],
            "K rounding": row["keys_rounding_max_abs"],
            "bytes": row["stored_nbytes"],
            "float32 / stored": row["float32_over_stored"],
        }
        for name in VARIANT_TITLES
        for row in worst_first([row for row in variants if row["variant"] == name])
    ]


def bytes_table(rows: Sequence[dict[str, Value]]) -> list[dict[str, Value]]:
    """The byte table for display: K and V apart, real ratios to both denominators beside the nominal one."""
    return [
        {
            "N": row["n_tokens"],
            "stored as": QUANTIZER_TITLES[str(row["quantizer"])],
            "K codes": row["keys_codes_nbytes"],
            "K scales": row["keys_scales_nbytes"],
            "V codes": row["values_codes_nbytes"],
            "V scales": row["values_scales_nbytes"],
            "stored": row["stored_nbytes"],
            "float32 KV": row["float32_nbytes"],
            "16-bit KV": row["float16_nbytes"],
            "float32 / stored": row["float32_over_stored"],
            "codes alone": row["nominal_float32_over_codes"],
            "saved of float32 %": row["saved_of_float32_percent"],
            "16-bit / stored": row["float16_over_stored"],
            "saved of 16-bit %": row["saved_of_float16_percent"],
        }
        for row in rows
    ]


def markdown(rows: Sequence[Row], digits: int = 4) -> list[str]:
    """Lines of a Markdown table; floats to `digits` significant digits, null as a dash."""
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return lines + ["| " + " | ".join(_cell(row[head], digits) for head in heads) + " |" for row in rows]


def _cell(value: Value, digits: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)
