"""The contract that is judged: the user's, with the search's sequence as its candidates.

Bounds, margins, seed, text and controls stay as they are. The derived file is TOML again, so that `kvassay assess`
and `kvassay verify` treat it as any other, and its hash is the one that the evidence carries.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from datetime import date
from typing import Any, NamedTuple

from kvassay.core.contract import Contract, parse_contract
from kvassay.errors import ContractError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class DerivedContract(NamedTuple):
    contract: Contract
    toml: str


def derive_contract(text: str, order: Sequence[str]) -> DerivedContract:
    """The contract of TOML `text` with other candidates, in a fixed sequence."""
    fields = tomllib.loads(text)
    original = parse_contract(text)
    fields["candidates"] = {"order": list(order), "multiplicity": "fixed-sequence"}
    toml = (
        f"# Derived by kvassay find from the contract with SHA-256 {original.sha256}:\n"
        "# candidates.order is what the search proposes, from conservative to bold; all else is as it was.\n"
        + to_toml(fields)
    )
    derived = parse_contract(toml, "the derived contract")
    expected = Contract.model_validate(fields)
    if derived.sha256 != expected.sha256:
        raise ContractError("the derived contract does not read back as it was meant; this is a fault of kvassay")
    return DerivedContract(derived, toml)


def to_toml(fields: dict[str, Any]) -> str:
    """TOML of what `tomllib` reads: plain values, then tables. Arrays of tables are written inline."""
    lines: list[str] = []
    _write_table((), fields, lines)
    return "\n".join(lines) + "\n"


def _write_table(path: tuple[str, ...], table: dict[str, Any], lines: list[str]) -> None:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if path and (plain or not table):
        lines += ["", f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            _write_table((*path, key), value, lines)


def _key(text: str) -> str:
    return text if _BARE_KEY.fullmatch(text) else _string(text)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, date):  # a datetime is one too
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {_value(each)}' for key, each in value.items())}}}"
    raise ContractError(f"a contract holds a {type(value).__name__}, which no key of it takes")


def _string(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL, which only TOML escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
