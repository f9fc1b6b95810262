"""The page of the contract file names every key with its real default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from kvassay.core.contract import Contract

PAGE = (Path(__file__).parents[2] / "docs" / "spec" / "contract.md").read_text()


def fields(model: type[BaseModel]) -> list[tuple[str, object]]:
    """Every leaf field of a model and of the models in it, with its default."""
    found: list[tuple[str, object]] = []
    for name, field in model.model_fields.items():
        nested = [
            each for each in nested_types(field.annotation) if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        if nested:
            for each in nested:
                found += fields(each)
        else:
            found.append((field.alias or name, field.default))
    return found


def nested_types(annotation) -> list:
    return [annotation, *(inner for argument in get_args(annotation) for inner in nested_types(argument))]


def test_every_key_of_a_contract_is_on_the_page() -> None:
    names = {name for name, _ in fields(Contract)}
    assert {"max_rate", "context_lines", "canary", "granted"} <= names
    missing = [name for name in sorted(names) if not re.search(rf"[`.]{name}`", PAGE)]
    assert missing == []


def test_defaults_on_the_page_are_the_real_ones() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([^|]+) \|", PAGE, re.MULTILINE)
    checked = 0
    defaults = dict(fields(Contract))
    for key, shown in rows:
        default = defaults.get(key.rsplit(".", 1)[-1], PydanticUndefined)
        text = shown.strip().strip('`"').replace("true", "True")
        if isinstance(default, (int, float, str, bool)):
            assert text == str(default), key
            checked += 1
    assert checked >= 15
