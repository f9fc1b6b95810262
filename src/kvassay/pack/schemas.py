"""JSON Schemas of what a pack holds, made from the types that read it (docs/spec/evidence-pack.schema.json).

Draft 2020-12. They say the shape of each file and not how files agree: what fits may still be refused, what does not
fit is refused always. Rows are described as JSON values of their columns, since Parquet has a schema of its own.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from kvassay.core.contract_schema import DIALECT, contract_schema
from kvassay.core.ledger import ByteLedger
from kvassay.core.records import Arm, Verdicts
from kvassay.pack import layout
from kvassay.pack.aborted import AbortedRun
from kvassay.pack.layout import ABORTED_SCHEMA, PACK_SCHEMA, PackManifest
from kvassay.pack.manifest import MANIFEST_NAME
from kvassay.pack.tables import TABLE_COLUMNS, is_identifying, table_file

_DERIVED_LEDGER_FIELDS = ("persistent_nbytes", "persistent_nbytes_per_token", "ratio_to_float16")
_ROW_TYPES = {"string": "string", "int32": "integer", "float64": "number", "bool": "boolean"}


def pack_schemas() -> dict[str, Any]:
    """One document: `$defs` of the records, and in `files` the schema of each file by its name."""
    models = (PackManifest, Arm, Verdicts, ByteLedger, AbortedRun)
    found, definitions = models_json_schema([(model, "serialization") for model in models], by_alias=True)
    of = {model: {"$ref": reference["$ref"]} for (model, _), reference in found.items()}
    defs: dict[str, Any] = definitions["$defs"]
    _add_derived(defs["ByteLedger"])
    defs["PackManifest"]["properties"]["schema"] = {"enum": [PACK_SCHEMA, ABORTED_SCHEMA]}
    ledgers = {
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "properties": {"computed": of[ByteLedger], "allocated": {"anyOf": [of[ByteLedger], {"type": "null"}]}},
            "required": ["computed", "allocated"],
            "additionalProperties": False,
        },
    }
    free = TypeAdapter(dict[str, Any]).json_schema()
    return {
        "$schema": DIALECT,
        "$id": PACK_SCHEMA,
        "title": "Files of an evidence pack",
        "$defs": {**defs, **{f"{table}_row": _row(table) for table in TABLE_COLUMNS}},
        "files": {
            MANIFEST_NAME: of[PackManifest],
            layout.CONTRACT_JSON: {"$ref": contract_schema()["$id"]},
            layout.ARMS: {"type": "array", "items": of[Arm]},
            layout.VERDICTS: of[Verdicts],
            layout.LEDGERS: ledgers,
            layout.ABORTED: of[AbortedRun],
            **dict.fromkeys((layout.PLAN, layout.ENVIRONMENT, layout.SUBJECT), free),
            **{
                table_file(table): {"type": "array", "items": {"$ref": f"#/$defs/{table}_row"}}
                for table in TABLE_COLUMNS
            },
        },
    }


def _add_derived(ledger: dict[str, Any]) -> None:
    """Figures that follow from a ledger's fields and stand beside them in the file."""
    for name in _DERIVED_LEDGER_FIELDS:
        ledger["properties"][name] = {"type": "integer" if name == "persistent_nbytes" else "number"}
    ledger["required"] = sorted({*ledger["required"], *_DERIVED_LEDGER_FIELDS})


def _row(table: str) -> dict[str, Any]:
    """A row as a JSON object; null in a figure means not measured, and an identifying column has none."""
    types = {name: _ROW_TYPES[kind] for name, kind in TABLE_COLUMNS[table].items()}
    return {
        "type": "object",
        "properties": {
            name: {"type": kind if is_identifying(name) else [kind, "null"]} for name, kind in types.items()
        },
        "required": list(types),
        "additionalProperties": False,
    }
