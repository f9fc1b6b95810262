"""Judging a pack again from its raw rows, and saying where two judgements differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from kvassay.pack import layout
from kvassay.pack.checks import Check
from kvassay.pack.reader import PackContent
from kvassay.pack.strict_json import render_json


def rejudge_check(pack: PackContent, stored: bytes) -> Check:
    """Whether judging the rows again gives the bytes of verdicts.json."""
    from kvassay.judge import judge

    try:
        again = judge(pack.contract, pack.arms, pack.ledgers, pack.tables.tokens, pack.tables.items)
        rendered = render_json(again.model_dump(mode="json"))
    except Exception as error:  # rows of a stranger: whatever they cause is a failed check and no crash
        return Check("rejudge", False, f"the rows cannot be judged: {type(error).__name__}: {error}")
    if rendered == stored:
        return Check("rejudge", True, f"judging the rows again gives {layout.VERDICTS}, byte for byte")
    found = list(differences(pack.verdicts.model_dump(mode="json"), again.model_dump(mode="json")))
    if not found:
        return Check("rejudge", False, f"{layout.VERDICTS} says the same as judging again, in other bytes")
    first = found[0]
    more = f" ({len(found)} fields differ)" if len(found) > 1 else ""
    return Check(
        "rejudge",
        False,
        f"{first.path} is {first.stored!r}, judged again from the rows: {first.again!r}{more}",
    )


class Difference(NamedTuple):
    path: str
    stored: Any
    again: Any


def differences(stored: Any, again: Any, path: str = "") -> Iterator[Difference]:
    """The leaves at which two JSON values differ, in order."""
    left, right = _members(stored), _members(again)
    if left is None or right is None or isinstance(stored, list) != isinstance(again, list):
        if stored != again or type(stored) is not type(again):
            yield Difference(path, stored, again)
        return
    for key in dict.fromkeys([*left, *right]):
        step = f"[{key}]" if isinstance(stored, list) else f".{key}" if path else key
        yield from differences(left.get(key), right.get(key), path + step)


def _members(value: Any) -> dict[str, Any] | None:
    """Members of an object or array by key; None for a leaf."""
    if isinstance(value, list):
        return {str(index): member for index, member in enumerate(cast("list[Any]", value))}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
