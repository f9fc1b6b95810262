"""The JSON Schema of contract files, made from the models that read them (docs/spec/contract.schema.json)."""

from __future__ import annotations

from typing import Any

from kvassay.core.contract import SCHEMA, Contract

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def contract_schema() -> dict[str, Any]:
    """Draft 2020-12. It describes one TOML file as JSON values.

    What a contract must hold besides its shape (a known format, a canary that is no candidate, at least one clause) is
    said by the models alone: a file that fits the schema may still be refused, one that does not fit is refused always.
    """
    schema = Contract.model_json_schema(by_alias=True)
    # A task's kind is its table's name where the file does not say it, which a schema of the table cannot know.
    schema["$defs"]["TaskBound"]["required"].remove("kind")
    return {
        "$schema": DIALECT,
        "$id": SCHEMA,
        **schema,
        "title": "Quality contract of a quantized KV cache",
    }
