"""Packs that someone prepared: every file replaced, every name and size a trap. Verification names it, or refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.fuzz.bounded import Outcome

from kvassay.core.digest import sha256_bytes
from kvassay.pack.manifest import root_digest
from kvassay.pack.parquet_pages import FREE_GROUP_NBYTES
from kvassay.pack.tables import CONTRACT_KEY, TABLE_KEY, arrow_schema
from kvassay.pack.verify import verify_pack
from tests.hostile.odd_files import DATA, LINKS, PLACES
from tests.pack.tampering import edit, load, rehash, store
from tests.thorough import pairs

Bounded = Callable[[Callable[[], Any]], Outcome]
PARTS = ["environment.json", "contract.toml", "arms.json", "rows/items.parquet"]


def failing(pack: Path) -> list[str]:
    """Names of the failed checks, as a verification in a bounded child returns them."""
    return [f"{check.name} | {check.sentence}" for check in verify_pack(pack).failed]


@pytest.fixture(scope="module", autouse=True)
def _warm(sample: Path) -> None:
    """What a reader imports when it is first used is imported here once, and not in every child."""
    verify_pack(sample)


def _list(name: str) -> Callable[[Path], None]:
    """A manifest that lists a further name, hashes made to fit."""

    def apply(pack: Path) -> None:
        manifest = load(pack, "manifest.json")
        manifest["files"][name] = {"sha256": "0" * 64, "nbytes": 6}
        store(pack, "manifest.json", manifest)

    return apply


def _manifest(**fields: Any) -> Callable[[Path], None]:
    return lambda pack: edit(pack, "manifest.json", lambda manifest: manifest.update(fields))


def _size(nbytes: int) -> Callable[[Path], None]:
    return lambda pack: edit(
        pack, "manifest.json", lambda manifest: manifest["files"]["plan.json"].update(nbytes=nbytes)
    )


def _many_files(pack: Path) -> None:
    for number in range(10_100):
        (pack / f"f{number}").touch()


def _deep_folders(pack: Path) -> None:
    (pack / "/".join("d" * 20)).mkdir(parents=True)


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a name that climbs": (_list("../outside/secret.txt"), "is no file name of a pack"),
    "a name that climbs within": (_list("rows/../../outside/secret.txt"), "is no file name of a pack"),
    "an absolute name": (_list("/etc/passwd"), "is no file name of a pack"),
    "a name for another system": (_list("rows\\..\\..\\x"), "is no file name of a pack"),
    "a drive": (_list("C:evil"), "is no file name of a pack"),
    "a letter that looks like another": (_list("rows/t\u043ekens.parquet"), "is no file name of a pack"),
    "a name that turns around": (_list("report\u202elmth"), "is no file name of a pack"),
    "a name of no width": (_list("report\u200b.html"), "is no file name of a pack"),
    "a null byte": (_list("a\x00b"), "is no file name of a pack"),
    "a new line": (_list("a\nb"), "is no file name of a pack"),
    "an option": (_list("--help"), "is no file name of a pack"),
    "a hidden file": (_list(".bashrc"), "is no file name of a pack"),
    "an empty name": (_list(""), "is no file name of a pack"),
    "a long name": (_list("x" * 300), "is no file name of a pack"),
    "names that differ in case": (_list("Contract.json"), "differ in case only"),
    "the manifest itself": (_list("Manifest.json"), "manifest's own name"),
    "the signatures": (_list("signatures.json"), "name of the manifest's signatures"),
    "a size of petabytes": (_size(1 << 52), "files.plan.json.nbytes"),
    "a size below zero": (_size(-1), "files.plan.json.nbytes"),
    "another kind of hash": (_manifest(root="md5:0"), "root"),
    "rows that are no table": (_manifest(row_counts=[]), "row_counts"),
    "another schema": (_manifest(schema="kvassay.pack/2"), "schema is 'kvassay.pack/2'"),
    "no schema": (_manifest(schema=None), "expected an object with a text field 'schema'"),
    "ten thousand files": (_many_files, "holds more than 10000 files"),
    "folders without end": (_deep_folders, "nested more than 8 levels deep"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_r108_a_hostile_manifest_is_refused_by_name(case: str, pack: Path, bounded: Bounded) -> None:
    change, message = REFUSED[case]
    change(pack)
    outcome = bounded(lambda: failing(pack))
    assert (outcome.status, outcome.error) == ("refused", "PackError")
    assert message in outcome.message
    assert outcome.message.isprintable()


@pytest.mark.parametrize("data", DATA)
def test_bytes_that_are_no_manifest_are_refused(data: str, pack: Path, bounded: Bounded) -> None:
    (pack / "manifest.json").write_bytes(DATA[data]())
    outcome = bounded(lambda: failing(pack))
    assert (outcome.status, outcome.error) == ("refused", "PackError")
    assert outcome.message.startswith("manifest.json: ")


@pytest.mark.parametrize(("name", "data"), pairs(PARTS, list(DATA), each=6))
def test_bytes_that_are_no_part_of_a_pack_fail_by_the_files_name(
    name: str, data: str, pack: Path, bounded: Bounded
) -> None:
    """With hashes that fit, so that the file itself is read."""
    (pack / name).write_bytes(DATA[data]())
    rehash(pack)
    outcome = bounded(lambda: failing(pack))
    if name == "environment.json" and data == "text that turns around":
        assert outcome.value == [], "content is free there, and shown escaped"
        return
    assert outcome.status == "accepted"
    assert [each for each in outcome.value if each.startswith((f"readable | {name}", "contract-source"))]


@pytest.mark.parametrize(("name", "place"), pairs(PARTS, [*PLACES, *LINKS], each=3))
def test_r108_what_is_no_plain_file_is_named_and_never_opened(
    name: str, place: str, pack: Path, outside: Path, bounded: Bounded
) -> None:
    (pack / name).unlink()
    {**PLACES, **LINKS}[place](pack / name, outside)
    found = bounded(lambda: failing(pack)).value
    names = [each.partition(" | ")[0] for each in found]
    expected = {"a folder": f"file-missing: {name}", "a sparse terabyte": f"file-size: {name}"}
    assert expected.get(place, f"file-kind: {name}") in names
    assert "readable" in names


def test_a_pipe_for_a_manifest_is_refused(pack: Path, outside: Path, bounded: Bounded) -> None:
    for make in {**PLACES, **LINKS}.values():
        (pack / "manifest.json").unlink() if not (pack / "manifest.json").is_dir() else (pack / "manifest.json").rmdir()
        make(pack / "manifest.json", outside)
        outcome = bounded(lambda: failing(pack))
        assert (outcome.status, outcome.error) == ("refused", "PackError")
        assert "manifest.json" in outcome.message


def test_a_linked_folder_is_not_entered(pack: Path, outside: Path, bounded: Bounded) -> None:
    (pack / "rows").rename(pack.parent / "rows")
    (pack / "rows").symlink_to(outside)
    names = bounded(lambda: failing(pack)).value
    assert any(each.startswith("file-unlisted: rows |") for each in names)
    assert any("reached through a symbolic link" in each for each in names if each.startswith("readable"))


def test_a_hard_link_is_the_bytes_that_it_shares(pack: Path, outside: Path, bounded: Bounded) -> None:
    """It cannot be told from a file, and hides nothing: what is hashed is what is read."""
    (pack / "plan.json").unlink()
    os.link(outside / "secret.txt", pack / "plan.json")
    names = bounded(lambda: failing(pack)).value
    assert any(each.startswith("file-size: plan.json") for each in names)
    assert not any("secret" in each for each in names)


def test_names_in_a_folder_do_not_steer_a_terminal(pack: Path, bounded: Bounded) -> None:
    (pack / "\x1b[2J\u202e<b>").touch()
    found = [each for each in bounded(lambda: failing(pack)).value if each.startswith("file-unlisted")]
    assert found
    assert all(each.isprintable() for each in found)


# Parquet: a few kilobytes that ask for gigabytes.


def _columns(rows: int, **changes: Any) -> pa.Table:
    kinds = {"string": "x", "int32": 0, "double": 0.0, "bool": True}
    schema = arrow_schema("tokens")
    arrays = [
        pa.array([kinds[str(field.type)]] * rows if field.name not in changes else changes[field.name], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _write(path: Path, table: pa.Table, **options: Any) -> None:
    keys = {CONTRACT_KEY: b"0" * 64, TABLE_KEY: b"tokens"}
    options = {"compression": "zstd", "write_statistics": False, **options}
    pq.write_table(table.replace_schema_metadata(keys), path, **options)


def _long_text(path: Path) -> None:
    """One text of 400 MB, which zstd makes some kilobytes of."""
    _write(path, _columns(1, document=["0" * 400_000_000]), use_dictionary=False)


def _long_text_under_a_small_footer(path: Path) -> None:
    """The same, in a file whose footer says that it is short. Numbers in it are varints, which may be padded."""
    _long_text(path)
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[begin:]
    sizes = {pq.read_metadata(path).row_group(0).total_byte_size}
    sizes |= {pq.read_metadata(path).row_group(0).column(2).total_uncompressed_size}
    for size in sizes:
        assert _varint(2 * size) in footer
        footer = footer.replace(_varint(2 * size), _varint(2 * 100, len(_varint(2 * size))))
    path.write_bytes(data[:begin] + footer)
    assert pq.read_metadata(path).row_group(0).column(2).total_uncompressed_size == 100


def _varint(value: int, length: int = 0) -> bytes:
    """LEB128, padded with empty continuations to `length`."""
    out = bytearray()
    while value or not out:
        out.append(value & 127)
        value >>= 7
    out += bytes(max(0, length - len(out)))
    return bytes(byte | 128 for byte in out[:-1]) + bytes(out[-1:])


def _long_text_in_every_row(path: Path) -> None:
    """A dictionary of one text of a megabyte, which 60,000 rows name."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 60_000, pa.int32()), pa.array(["0" * 1_000_000]))
    table = _columns(60_000)
    place = table.schema.get_field_index("document")
    field = pa.field("document", texts.type, nullable=False)
    _write(path, table.set_column(place, field, texts), dictionary_pagesize_limit=4 << 20)


def _large_group(path: Path) -> None:
    _write(path, _columns(70_000), row_group_size=70_000)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _long_footer(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-8] + (0xFFFFFFF0).to_bytes(4, "little") + b"PAR1")


def _other_columns(path: Path) -> None:
    pq.write_table(pa.table({"arm": ["x"], "__proto__": ["y"]}), path)


def _nested(path: Path) -> None:
    kind = pa.string()
    for _ in range(60):
        kind = pa.list_(kind)
    pq.write_table(pa.table({"arm": pa.array([None], kind)}), path)


def _same_column_twice(path: Path) -> None:
    table = _columns(3)
    _write(path, table.append_column("arm", table.column("arm")))


TABLES: dict[str, tuple[Callable[[Path], None], str]] = {
    "one long text": (_long_text, "and decompresses to 400"),
    "one long text under a small footer": (_long_text_under_a_small_footer, "and decompresses to 400"),
    "one long text in every row": (_long_text_in_every_row, "bytes when decoded; refused"),
    "a group of too many rows": (_large_group, "a row group of more than 65536 rows"),
    "a file that is cut": (_cut, "does not end as a Parquet file"),
    "a footer of gigabytes": (_long_footer, "a footer of 4294967280 bytes"),
    "columns of another table": (_other_columns, "column arm (string not null) is missing"),
    "lists of lists": (_nested, "a damaged footer: a histogram of"),
    "a column twice": (_same_column_twice, "column 'arm' twice"),
}


@pytest.mark.parametrize("case", TABLES)
def test_r108_tables_that_ask_for_memory_are_refused_before_they_take_it(
    case: str, pack: Path, bounded: Bounded
) -> None:
    make, message = TABLES[case]
    path = pack / "rows/tokens.parquet"
    make(path)
    rehash_without_reading(pack)
    assert path.stat().st_size < 4 << 20, "a small file"
    outcome = bounded(lambda: failing(pack))
    found = [each for each in outcome.value if each.startswith("readable")]
    assert found, outcome.value
    assert message in found[0]
    assert outcome.grown_nbytes < FREE_GROUP_NBYTES


def rehash_without_reading(pack: Path) -> None:
    counts = load(pack, "manifest.json")["row_counts"]
    contents = (pack / "rows/tokens.parquet").read_bytes()
    (pack / "rows/tokens.parquet").write_bytes(b"")
    rehash(pack)
    (pack / "rows/tokens.parquet").write_bytes(contents)
    manifest = load(pack, "manifest.json")
    manifest["files"]["rows/tokens.parquet"] = {"sha256": sha256_bytes(contents), "nbytes": len(contents)}
    manifest["row_counts"] = counts
    manifest["root"] = root_digest(manifest)
    store(pack, "manifest.json", manifest)


def test_a_table_of_real_rows_is_within_the_bounds(pack: Path, bounded: Bounded) -> None:
    assert bounded(lambda: failing(pack)).value == []
    assert json.loads((pack / "manifest.json").read_text())["row_counts"]["tokens"]
