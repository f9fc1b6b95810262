"""Contracts as text from a stranger: nothing but a named refusal, or a contract that means what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fuzz.bounded import Outcome

from kvassay.core.contract import MAX_CONTRACT_NBYTES, load_contract, parse_contract
from tests.hostile.odd_files import DATA
from tests.pack.sample_pack import CONTRACT_TOML
from tests.thorough import some

Bounded = Callable[[Callable[[], Any]], Outcome]


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """What a reader imports when it is first used is imported here once, and not in every child."""
    parse_contract(CONTRACT_TOML)


def _with(old: str, new: str) -> str:
    assert old in CONTRACT_TOML
    return CONTRACT_TOML.replace(old, new)


FULL = MAX_CONTRACT_NBYTES - 10

CASES: dict[str, tuple[str, str]] = {
    "arrays without end": ("x = " + "[" * 50_000, "nested too deeply"),
    "tables without end": ("x = " + "{a=" * 40_000, "nested too deeply"),
    "a key of fifty thousand parts": ("a" + ".a" * 50_000 + " = 1", "50,000 dots"),
    "a key of four thousand parts": ("a" + ".a" * 4000 + " = 1", ""),
    "a key of a thousand parts": (CONTRACT_TOML + "[" + ".".join("a" * 1000) + "]\n", "unknown key"),
    "a hundred kilobytes of one text": ('name = "' + "x" * FULL + '"', ""),
    "a hundred kilobytes of tables": ("[a]\n[b]\n" + "".join(f"[t{number}]\n" for number in range(9_000)), ""),
    "a table twice": (CONTRACT_TOML + "[fidelity.kl_mean]\nmax = 9\n", "not valid TOML"),
    "a key twice": (_with("max = 0.02", "max = 0.02\nmax = 9"), "not valid TOML"),
    "a bound of NaN": (_with("max = 0.02", "max = nan"), "fidelity.kl_mean.max"),
    "a bound without end": (_with("max = 0.02", "max = inf"), "fidelity.kl_mean.max"),
    "a bound beyond a double": (_with("max = 0.02", "max = 1e400"), "fidelity.kl_mean.max"),
    "a bound below zero": (_with("max = 0.02", "max = -1"), "fidelity.kl_mean.max"),
    "a number of a hundred thousand digits": (_with("items = 40", "items = " + "9" * 100_000), "not valid TOML"),
    "a number of many hexadecimal digits": (_with("items = 40", "items = 0x" + "f" * 100_000), "task.recall"),
    "documents without end": (_with("documents = 20", "documents = 9007199254740993"), "text.documents"),
    "a seed that is a truth": (_with("documents = 20", "documents = true"), "text.documents"),
    "a task's name that climbs": (_with("[task.recall]", '[task."../../etc"]'), "task"),
    "a task's name of markup": (_with("[task.recall]", '[task."<script>"]'), "task"),
    "a task's name of another script": (_with("[task.recall]", '[task."rec\u0430ll"]'), "task"),
    "a format that turns around": (_with('"kivi-4"', '"kivi-4\u202e"'), "candidates.order"),
    "a format with a null byte": (_with('"kivi-4"', '"kivi-4\\u0000"'), "candidates.order"),
    "a format of many options": (_with('"kivi-4"', '"kivi-4' + ",recent=32" * 10_000 + '"'), "candidates.order"),
    "a format of many layers": (_with('"kivi-4"', '"kivi-4,@0-99999999999=int8:token-head"'), "candidates.order"),
    "a group of exabytes": (_with('"kivi-4"', '"k=int4:group9999999999999999,v=int4:group64"'), "candidates.order"),
    "ten thousand candidates": (_with('["int8', "[" + '"kivi-4",' * 10_000 + '"int8'), "candidates"),
    "an empty name": (_with('name = "sample"', 'name = ""'), "name"),
    "a schema of another version": (_with("contract/1", "contract/2"), "schema"),
    "nothing that is bounded": (CONTRACT_TOML.partition("[fidelity")[0], "bounds nothing"),
    "more than a contract": ("#" * (MAX_CONTRACT_NBYTES + 1), "bytes; is it a contract?"),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_contracts_are_refused_by_name(case: str, inside: Path, bounded: Bounded) -> None:
    text, message = CASES[case]
    path = inside / "contract.toml"
    path.write_text(text)
    outcome = bounded(lambda: load_contract(path).name)
    assert (outcome.status, outcome.error) == ("refused", "ContractError"), outcome
    assert message in outcome.message
    assert len(outcome.message) < 1500, "one line, not the file"


@pytest.mark.parametrize("data", some(list(DATA), 3))
def test_other_bytes_are_refused(data: str, inside: Path, bounded: Bounded) -> None:
    path = inside / "contract.toml"
    path.write_bytes(DATA[data]())
    assert bounded(lambda: load_contract(path).name).error == "ContractError"


def test_an_endless_device_is_read_to_the_limit_and_no_further(inside: Path, bounded: Bounded) -> None:
    (inside / "contract.toml").symlink_to("/dev/zero")
    assert "bytes; is it a contract?" in bounded(lambda: load_contract(inside / "contract.toml").name).message
