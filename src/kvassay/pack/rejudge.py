"""Judging a pack again from its raw rows, and saying where two judgements differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import kvassay
from kvassay.core.contract import Contract
from kvassay.core.records import Arm, Verdicts
from kvassay.judge import judge
from kvassay.pack import layout
from kvassay.pack.checks import Check
from kvassay.pack.reader import ArmLedgers, PackContent
from kvassay.pack.strict_json import render_json
from kvassay.pack.tables import Tables

_MAX_BOOTSTRAP_REPLICATES = 1_000_000
"""A stranger's contract must not keep the verifier busy for ever."""


def rejudge_check(pack: PackContent, stored: bytes) -> Check:
    """Whether judging the rows again gives the bytes of verdicts.json."""
    replicates = pack.contract.inference.bootstrap_replicates
    if replicates > _MAX_BOOTSTRAP_REPLICATES:
        return Check(
            "rejudge", False, f"{replicates} bootstrap replicates; at most {_MAX_BOOTSTRAP_REPLICATES} are run"
        )
    try:
        again = judge_tables(pack.contract, pack.arms, pack.ledgers, pack.tables)
        rendered = render_json(again.model_dump(mode="json"))
    except Exception as error:  # rows of a stranger: whatever they cause is a failed check and no crash
        return Check("rejudge", False, f"the rows cannot be judged: {type(error).__name__}: {error}")
    if rendered == stored:
        return Check("rejudge", True, f"judging the rows again gives {layout.VERDICTS}, byte for byte")
    found = list(differences(pack.verdicts.model_dump(mode="json"), again.model_dump(mode="json")))
    if not found:
        return Check("rejudge", False, f"{layout.VERDICTS} says the same as judging again, in other bytes")
    # The most telling one: an outcome if one differs, and the contract's hash only if nothing else does.
    first = min(found, key=lambda one: (not one.path.endswith("outcome"), one.path == "contract_sha256"))
    more = f" ({len(found)} fields differ)" if len(found) > 1 else ""
    version = pack.manifest.kvassay_version if pack.manifest else kvassay.__version__
    if version != kvassay.__version__:
        more += f"; the pack was written by kvassay {version}, judged again by {kvassay.__version__}"
    sentence = f"{first.path} is {first.stored!r}, judged again from the rows: {first.again!r}{more}"
    return Check("rejudge", False, sentence)


def judge_tables(
    contract: Contract, arms: Sequence[Arm], ledgers: Mapping[str, ArmLedgers], tables: Tables
) -> Verdicts:
    """The judgement of every row table that a pack has."""
    return judge(
        contract,
        arms,
        {arm: pair.computed for arm, pair in ledgers.items()},
        tables.tokens,
        tables.items,
        generations=tables.generations,
        answers=tables.answers,
        tensors=tables.tensors,
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
