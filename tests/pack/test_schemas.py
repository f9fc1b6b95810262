"""The published schemas are those of the types and fit what the writer writes; no other version is read as this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest
from referencing import Registry, Resource

from kvassay.core.contract import parse_contract
from kvassay.core.contract_schema import contract_schema
from kvassay.errors import ContractError, PackError
from kvassay.pack.aborted import verify_aborted
from kvassay.pack.reader import read_pack
from kvassay.pack.schemas import pack_schemas
from kvassay.pack.verify import verify_pack
from tests.golden.make_pack_schemas import COMMAND, SCHEMA, schema_text
from tests.pack.sample_pack import CONTRACT_TOML
from tests.pack.tampering import edit, load


def test_the_published_schema_is_that_of_the_types() -> None:
    assert SCHEMA.read_text() == schema_text(), f"make it anew: {COMMAND}"


def validator(name: str) -> jsonschema.Draft202012Validator:
    schemas = pack_schemas()
    jsonschema.Draft202012Validator.check_schema(schemas)
    contract = contract_schema()
    registry: Any = Registry().with_resource(contract["$id"], Resource.from_contents(contract))
    return jsonschema.Draft202012Validator({"$defs": schemas["$defs"], **schemas["files"][name]}, registry=registry)


def content(pack: Path, name: str) -> Any:
    return pq.read_table(pack / name).to_pylist() if name.endswith(".parquet") else load(pack, name)


FILES = sorted(set(pack_schemas()["files"]) - {"aborted.json"})


@pytest.mark.parametrize("name", FILES)
def test_what_the_writer_writes_fits_its_schema(name: str, pack: Path) -> None:
    value = content(pack, name)
    validator(name).validate(value)
    if name == "rows/generations.parquet":
        assert value == [], "the sample has none"


SPOILT: dict[str, Any] = {
    "manifest.json": lambda value: value.pop("after"),
    "contract.json": lambda value: value["fidelity"].update(kl=1),
    "arms.json": lambda value: value[0].update(encoded_values="many"),
    "verdicts.json": lambda value: value.update(outcome="fine"),
    "ledgers.json": lambda value: value["kivi-4"].pop("allocated"),
    "rows/tokens.parquet": lambda value: value[0].update(position=None),
    "rows/items.parquet": lambda value: value[0].pop("context"),
    "rows/tensors.parquet": lambda value: value[0].update(layer=0.5),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_does_not_fit_is_found(name: str, pack: Path) -> None:
    value = content(pack, name)
    SPOILT[name](value)
    assert not validator(name).is_valid(value)


@pytest.mark.parametrize("version", ["kvassay.pack/0", "kvassay.pack/2", "kvassay.pack", "Kvassay.pack/1"])
def test_another_version_is_refused_by_name_since_none_was_ever_released(version: str, pack: Path) -> None:
    edit(pack, "manifest.json", lambda manifest: manifest.update(schema=version))
    for read in (read_pack, verify_pack, verify_aborted):
        with pytest.raises(PackError, match=rf"schema is '{version}', expected 'kvassay\.[a-z-]+/1'; read it with"):
            read(pack)
    with pytest.raises(ContractError, match=r"schema: .*kvassay\.contract/1.*found 'kvassay\.contract/2'"):
        parse_contract(CONTRACT_TOML.replace("contract/1", "contract/2"))


def test_verdicts_of_another_version_are_no_verdicts_of_this_one(pack: Path) -> None:
    edit(pack, "verdicts.json", lambda verdicts: verdicts.update(schema_version="kvassay.verdicts/2"))
    failed = {check.name for check in verify_pack(pack).failed}
    assert {"rejudge", "file-hash: verdicts.json"} <= failed
    assert json.loads((pack / "verdicts.json").read_text())["schema_version"] == "kvassay.verdicts/2"
