"""Row tables: typed on the way in, the same bytes for the same rows, and nothing trusted on the way out."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvassay.core.records import ITEM_COLUMNS, TENSOR_COLUMNS, TOKEN_COLUMNS
from kvassay.errors import PackError
from kvassay.pack import row_writer, tables
from kvassay.pack.row_writer import RowWriter
from kvassay.pack.tables import CONTRACT_KEY, TABLE_COLUMNS, TABLE_KEY, arrow_schema, read_table, rows_per_arm

HASH = "ab" * 32


def write_table(folder: Path, table: str, *batches: Any) -> bytes:
    path = folder / "rows" / f"{table}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    writer = RowWriter(path, table, HASH)
    for batch in batches:
        writer.append(batch)
    writer.close()
    return path.read_bytes()


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "float64": st.floats(),
    "bool": st.booleans(),
}


@st.composite
def any_rows(draw: st.DrawFn) -> tuple[str, pa.Table]:
    table = draw(st.sampled_from(sorted(TABLE_COLUMNS)))
    num_rows = draw(st.integers(0, 12))
    columns: list[pa.Array] = []
    for field in arrow_schema(table):
        value = VALUES[TABLE_COLUMNS[table][field.name]]
        value = value | st.none() if field.nullable else value
        columns.append(
            pa.array(draw(st.lists(value, min_size=num_rows, max_size=num_rows)), field.type, from_pandas=False)
        )
    return table, pa.Table.from_arrays(columns, schema=arrow_schema(table))


def bits(table: pa.Table) -> list[Any]:
    """Values with floats as bit patterns, so that NaN equals NaN and 0.0 differs from -0.0."""
    return [
        column.combine_chunks().view(pa.int64()).to_pylist() if column.type == pa.float64() else column.to_pylist()
        for column in table.columns
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(any_rows(), st.lists(st.integers(0, 12), max_size=3), st.integers(1, 5))
def test_rows_come_back_as_they_were_and_bytes_depend_on_rows_alone(
    tmp_path: Path, given_rows: tuple[str, pa.Table], cuts: list[int], group_rows: int
) -> None:
    """Round trip of any rows, NaN and null kept apart; however the rows are streamed, the file is the same."""
    table, rows = given_rows
    edges = [0, *sorted(min(cut, rows.num_rows) for cut in cuts), rows.num_rows]
    pieces = [rows.slice(start, end - start) for start, end in pairwise(edges)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_writer, "ROW_GROUP_ROWS", group_rows)
        whole = write_table(tmp_path, table, rows)
        assert write_table(tmp_path, table, *pieces) == whole
    read = read_table(tmp_path, table)
    assert read.contract_sha256 == HASH
    assert read.rows.schema == arrow_schema(table)
    assert bits(read.rows) == bits(rows)
    assert sum(rows_per_arm(read.rows).values()) == rows.num_rows


def test_rows_of_many_documents_give_the_same_bytes_as_all_at_once(tmp_path: Path) -> None:
    """Large enough for several pages and row groups, with a null now and then."""
    rng = np.random.default_rng(0)
    figures = pa.array(rng.random(140_000), mask=rng.random(140_000) < 0.001)
    texts = [f"document-{row // 700:03}-{rng.integers(1 << 30)}" for row in range(140_000)]
    columns = token_columns(position=np.arange(140_000), kl_nats=figures, document=texts)
    single = {name: value for name, value in columns.items() if not hasattr(value, "__len__") or isinstance(value, str)}
    parts = [
        single | {name: column[start : start + 700] for name, column in columns.items() if name not in single}
        for start in range(0, 140_000, 700)
    ]
    assert write_table(tmp_path, "tokens", *parts) == write_table(tmp_path, "tokens", columns)


def token_columns(**changes: Any) -> dict[str, Any]:
    columns: dict[str, Any] = dict.fromkeys(TOKEN_COLUMNS, 0.5)
    columns.update(arm="a", slice="all", document="d", position=[1, 2], token_id=3, top1_agrees=True, stored_reads=0)
    return columns | changes


def test_types_are_those_of_the_core() -> None:
    kinds = {"string": pa.string(), "int32": pa.int32(), "float64": pa.float64(), "bool": pa.bool_()}
    for table, columns in {"tokens": TOKEN_COLUMNS, "items": ITEM_COLUMNS, "tensors": TENSOR_COLUMNS}.items():
        schema = arrow_schema(table)
        assert {field.name: field.type for field in schema} == {name: kinds[kind] for name, kind in columns.items()}


def test_a_single_value_holds_for_all_rows_and_numpy_is_taken_as_it_is(tmp_path: Path) -> None:
    columns = token_columns(
        position=np.arange(3), kl_nats=np.array([0.5, np.nan, np.inf]), top1_agrees=np.array([True, False, True])
    )
    columns["reverse_kl_nats"] = np.float32([0.25, 0.5, 0.75])
    write_table(tmp_path, "tokens", columns)
    rows = read_table(tmp_path, "tokens").rows
    assert rows.column("arm").to_pylist() == ["a"] * 3
    assert rows.column("position").to_pylist() == [0, 1, 2]
    assert rows.column("reverse_kl_nats").to_pylist() == [0.25, 0.5, 0.75]
    assert np.isnan(rows.column("kl_nats")[1].as_py())
    assert rows.column("kl_nats").null_count == 0


FAULTS = {
    "missing": ({"kl_nats": ...}, r"missing columns \['kl_nats'\]"),
    "unknown": ({"kl_bits": 1.0}, r"unknown or doubled columns \['kl_bits'\]"),
    "text for a number": ({"kl_nats": ["x", "y"]}, "tokens.kl_nats: expected double"),
    "fraction for a count": ({"stored_reads": [1.5, 2.0]}, "tokens.stored_reads: expected int32"),
    "beyond int32": ({"token_id": [2**31, 0]}, "tokens.token_id: expected int32"),
    "number for a text": ({"document": [1, 2]}, "tokens.document: expected string"),
    "unequal lengths": ({"token_id": [1, 2, 3]}, "unequal length"),
    "null arm": ({"arm": None}, "tokens.arm: holds nulls"),
    "one null position": ({"position": [1, None]}, "tokens.position: holds nulls"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_of_another_shape_are_refused_with_the_column_named(tmp_path: Path, fault: str) -> None:
    changes, message = FAULTS[fault]
    columns = {name: value for name, value in token_columns(**changes).items() if value is not ...}
    with pytest.raises(PackError, match=message):
        write_table(tmp_path, "tokens", columns)


def write_raw(folder: Path, rows: pa.Table, metadata: dict[bytes, bytes] | None = None, **options: Any) -> None:
    """A Parquet file as a stranger would write it."""
    (folder / "rows").mkdir(exist_ok=True)
    keys = {CONTRACT_KEY: HASH.encode(), TABLE_KEY: b"tokens"} if metadata is None else metadata
    pq.write_table(rows.replace_schema_metadata(keys), folder / "rows" / "tokens.parquet", **options)


def token_table(num_rows: int = 2, **changes: Any) -> pa.Table:
    columns = token_columns(position=list(range(num_rows)), **changes)
    single = {name: value for name, value in columns.items() if not isinstance(value, list)}
    full = {name: [single[name]] * num_rows if name in single else columns[name] for name in columns}
    return pa.table(full, schema=arrow_schema("tokens"))


def test_a_strangers_file_of_the_right_shape_is_read(tmp_path: Path) -> None:
    write_raw(tmp_path, token_table())
    assert read_table(tmp_path, "tokens").rows.num_rows == 2


def test_other_columns_types_and_metadata_are_refused_by_name(tmp_path: Path) -> None:
    rows = token_table()
    kl = rows.schema.get_field_index("kl_nats")
    cases = {
        "column kl_nats .* is missing or of another type": rows.drop_columns(["kl_nats"]),
        "kl_nats .double. is missing or of another type": rows.set_column(kl, "kl_nats", pa.array([1, 2])),
        "unknown column 'extra'": rows.append_column("extra", pa.array([1, 2])),
        "column arm .string not null. is missing or of another type": pa.table(
            rows.columns, schema=pa.schema([field.with_nullable(True) for field in rows.schema])
        ),
    }
    for message, table in cases.items():
        write_raw(tmp_path, table)
        with pytest.raises(PackError, match=message):
            read_table(tmp_path, "tokens")
    write_raw(tmp_path, rows, metadata={CONTRACT_KEY: HASH.encode(), TABLE_KEY: b"items"})
    with pytest.raises(PackError, match="does not say that it is the table 'tokens'"):
        read_table(tmp_path, "tokens")


def test_columns_twice_or_in_another_order(tmp_path: Path) -> None:
    rows = token_table()
    doubled = pa.Table.from_arrays([*rows.columns, rows.column("arm")], [*rows.schema.names, "arm"])
    write_raw(tmp_path, doubled)
    with pytest.raises(PackError):
        read_table(tmp_path, "tokens")
    write_raw(tmp_path, rows.select(list(reversed(rows.schema.names))))
    with pytest.raises(PackError):
        read_table(tmp_path, "tokens")


def test_a_small_file_that_decodes_to_gigabytes_is_refused(tmp_path: Path) -> None:
    """A few kilobytes hold one text of 100 kB in every of 60,000 rows."""
    rows = token_table(60_000)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 60_000, pa.int32()), pa.array(["x" * 100_000]))
    index = rows.schema.get_field_index("document")
    field = pa.field("document", texts.type, nullable=False)
    write_raw(tmp_path, rows.set_column(index, field, texts), compression="zstd", store_schema=False)
    assert (tmp_path / "rows" / "tokens.parquet").stat().st_size < 1 << 20
    with pytest.raises(PackError, match="bytes when decoded; refused"):
        read_table(tmp_path, "tokens")


def test_absurd_claims_of_the_footer_are_refused_before_any_page_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(tmp_path, token_table(100_000), row_group_size=1 << 20)
    with pytest.raises(PackError, match="a row group of more than 65536 rows"):
        read_table(tmp_path, "tokens")
    write_raw(tmp_path, token_table(50))
    monkeypatch.setattr(tables, "MAX_ROWS", 49)
    with pytest.raises(PackError, match="claims more than 49 rows"):
        read_table(tmp_path, "tokens")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    rows = token_table()
    raw = pa.array([b"\xff\xfe", b"ok"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    index = rows.schema.get_field_index("document")
    write_raw(tmp_path, rows.set_column(index, pa.field("document", pa.string(), nullable=False), text))
    with pytest.raises(PackError, match="not a readable table"):
        read_table(tmp_path, "tokens")


def outcome_of_reading(folder: Path) -> str:
    try:
        return str(read_table(folder, "tokens").rows.schema)
    except PackError as error:
        return str(error).partition(": ")[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 3000))
def test_a_damaged_file_is_an_error_or_a_table_and_never_a_crash(
    tmp_path: Path, edits: list[tuple[int, int]], cut: int
) -> None:
    data = io.BytesIO()
    keys = {CONTRACT_KEY: HASH.encode(), TABLE_KEY: b"tokens"}
    pq.write_table(token_table(20).replace_schema_metadata(keys), data)
    damaged = bytearray(data.getvalue())
    for place, value in edits:
        damaged[place % len(damaged)] = value
    (tmp_path / "rows").mkdir(exist_ok=True)
    (tmp_path / "rows" / "tokens.parquet").write_bytes(damaged[: len(damaged) - max(0, cut - 2500)])
    assert outcome_of_reading(tmp_path) in ("rows/tokens.parquet", str(arrow_schema("tokens")))
