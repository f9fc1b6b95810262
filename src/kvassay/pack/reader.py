"""Reading a pack: every file parsed strictly into the types of the core, or a PackError that names the file.

Reading checks shape and types. It does not check that figures agree with each other; `verify_pack` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from kvassay.core.contract import MAX_CONTRACT_NBYTES, Contract
from kvassay.core.ledger import ByteLedger
from kvassay.core.records import Arm, Verdicts
from kvassay.errors import KvassayError, PackError
from kvassay.pack import layout
from kvassay.pack.files import read_manifest, read_schema, verify_files
from kvassay.pack.layout import ABORTED_SCHEMA, PACK_SCHEMA, PackManifest
from kvassay.pack.manifest import first_fault
from kvassay.pack.plain_files import list_files, read_plain
from kvassay.pack.strict_json import MAX_JSON_NBYTES, parse_json, render_json
from kvassay.pack.tables import TABLE_COLUMNS, ReadTable, Tables, read_table

Record = TypeVar("Record", bound=BaseModel)

_ARMS = TypeAdapter(tuple[Arm, ...])


class ArmLedgers(NamedTuple):
    """Byte ledgers of one arm: predicted from geometry and format, and that of a real cache where one ran."""

    computed: ByteLedger
    allocated: ByteLedger | None

    def to_json(self) -> dict[str, object]:
        return {
            "computed": self.computed.to_json(),
            "allocated": self.allocated.to_json() if self.allocated else None,
        }


class PackContent(NamedTuple):
    """A pack's content. `manifest` is None while the pack is still being written (for the report)."""

    path: Path
    manifest: PackManifest | None
    contract: Contract
    contract_toml: str
    arms: tuple[Arm, ...]
    plan: dict[str, Any]
    verdicts: Verdicts
    ledgers: dict[str, ArmLedgers]
    environment: dict[str, Any]
    subject: dict[str, Any]
    tables: Tables
    table_contracts: dict[str, str]
    """The contract hash that each row file's metadata holds, by table."""


def read_pack(path: Path) -> PackContent:
    """Read the pack at `path`; raises PackError naming the file and the fault."""
    if read_schema(path) == ABORTED_SCHEMA:
        raise PackError(
            f"{str(path)!r} is an aborted run, which was not judged; kvassay verify says why it ended, and kvassay "
            "assess --after names it in a new one"
        )
    return _read(path, cast("PackManifest", read_manifest(path, PACK_SCHEMA, PackManifest)))


def read_whole_pack(path: Path) -> PackContent:
    """Read a pack whose every file is as its manifest says; raises PackError naming the first that is not."""
    pack = read_pack(path)
    assert pack.manifest is not None, "read_pack reads it"
    check_whole(path, pack.manifest)
    return pack


def check_whole(path: Path, manifest: PackManifest) -> None:
    """Raises PackError naming the first file that is not as the manifest says."""
    if failed := [check for check in verify_files(path, manifest) if not check.passed]:
        raise PackError(f"{str(path)!r} is not what its run wrote: {failed[0].sentence}; see kvassay verify")


def recorded_model_name(subject: dict[str, Any]) -> str | None:
    """What a pack's subject calls its model; None where it says nothing."""
    found: Any = subject.get("model")
    name = cast("dict[str, Any]", found).get("name") if isinstance(found, dict) else found
    return name if isinstance(name, str) else None


def read_partial(path: Path) -> PackContent:
    """Read a pack that is still being written, before its manifest exists; `manifest` is None then.

    All other required files must be there. `PackWriter.content` calls this; a finished pack is refused.
    """
    if list_files(path).has_manifest:
        raise PackError(f"{str(path)!r} is a finished pack; use read_pack")
    return _read(path, None)


def _read(path: Path, manifest: PackManifest | None) -> PackContent:
    tables = {table: read_table(path, table) for table in TABLE_COLUMNS}
    return PackContent(
        path=path,
        manifest=manifest,
        contract=read_record(path, layout.CONTRACT_JSON, Contract),
        contract_toml=read_contract_toml(path),
        arms=read_arms(path),
        plan=read_object(path, layout.PLAN),
        verdicts=read_record(path, layout.VERDICTS, Verdicts),
        ledgers=read_ledgers(path),
        environment=read_object(path, layout.ENVIRONMENT),
        subject=read_object(path, layout.SUBJECT),
        tables=plain_tables(tables),
        table_contracts={table: read.contract_sha256 for table, read in tables.items()},
    )


def plain_tables(tables: dict[str, ReadTable]) -> Tables:
    return Tables(**{table: read.rows for table, read in tables.items()})


def read_object(path: Path, name: str) -> dict[str, Any]:
    """A file that holds one JSON object of free content."""
    value = parse_json(read_plain(path, name, MAX_JSON_NBYTES), name)
    if not isinstance(value, dict):
        raise PackError(f"{name}: expected a JSON object, found {type(value).__name__}")
    return cast("dict[str, Any]", value)


def read_record(path: Path, name: str, record: type[Record]) -> Record:
    """A file that holds one record, complete: a field that is left to a default is refused."""
    value = read_object(path, name)
    try:
        found = record.model_validate_json(render_json(value), strict=True)
    except (ValidationError, KvassayError) as error:
        raise PackError(f"{name}: {_fault(error)}") from error
    if found.model_dump(mode="json", by_alias=True) != value:
        raise PackError(f"{name}: incomplete or not in the form that kvassay writes; all fields must be given")
    return found


def read_contract_toml(path: Path) -> str:
    try:
        return read_plain(path, layout.CONTRACT_TOML, MAX_CONTRACT_NBYTES).decode()
    except UnicodeDecodeError as error:
        raise PackError(f"{layout.CONTRACT_TOML}: not UTF-8 text") from error


def read_arms(path: Path) -> tuple[Arm, ...]:
    value = parse_json(read_plain(path, layout.ARMS, MAX_JSON_NBYTES), layout.ARMS)
    try:
        arms = _ARMS.validate_json(render_json(value), strict=True)
    except ValidationError as error:
        raise PackError(f"{layout.ARMS}: {first_fault(error)}") from error
    names = [arm.name for arm in arms]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PackError(f"{layout.ARMS}: arm {twice[0]!r} stands twice")
    return arms


def read_ledgers(path: Path) -> dict[str, ArmLedgers]:
    ledgers: dict[str, ArmLedgers] = {}
    for arm, pair in read_object(path, layout.LEDGERS).items():
        ledgers[arm] = read_ledger_pair(arm, pair)
    return ledgers


def read_ledger_pair(arm: str, pair: Any) -> ArmLedgers:
    """Both ledgers of an arm, from the JSON of `ArmLedgers.to_json`; raises PackError naming the arm."""
    if not isinstance(pair, dict) or set(cast("dict[str, Any]", pair)) != {"computed", "allocated"}:
        raise PackError(f"{layout.LEDGERS}: {arm}: expected an object with 'computed' and 'allocated'")
    both = cast("dict[str, Any]", pair)
    computed = _ledger(f"{arm}.computed", both["computed"])
    allocated = None if both["allocated"] is None else _ledger(f"{arm}.allocated", both["allocated"])
    return ArmLedgers(computed, allocated)


def _ledger(where: str, value: Any) -> ByteLedger:
    """A ledger from the JSON of `ByteLedger.to_json`, whose derived figures must agree with its fields."""
    if not isinstance(value, dict):
        raise PackError(f"{layout.LEDGERS}: {where}: expected an object, found {type(value).__name__}")
    given = cast("dict[str, Any]", value)
    fields = {name: field for name, field in given.items() if name in ByteLedger.model_fields}
    try:
        ledger = ByteLedger.model_validate_json(render_json(fields), strict=True)
        written = ledger.to_json()
    except ValidationError as error:
        raise PackError(f"{layout.LEDGERS}: {where}: {first_fault(error)}") from error
    except ArithmeticError as error:
        raise PackError(f"{layout.LEDGERS}: {where}: no tokens or no bytes to divide by") from error
    if written != given:
        raise PackError(f"{layout.LEDGERS}: {where}: derived figures do not follow from its fields")
    return ledger


def _fault(error: ValidationError | KvassayError) -> str:
    return first_fault(error) if isinstance(error, ValidationError) else str(error)
