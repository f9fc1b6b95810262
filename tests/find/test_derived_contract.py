"""The judged contract is the user's with other candidates, and nothing else."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvassay.core.contract import parse_contract
from kvassay.errors import ContractError
from kvassay.find.derived_contract import derive_contract, to_toml

DEMO = (Path(__file__).parents[2] / "contracts" / "demo.toml").read_text()

keys = st.text(max_size=6)
scalars = (
    st.text(max_size=12) | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.floats(allow_nan=False) | st.dates()
)
tables = st.recursive(
    st.dictionaries(keys, scalars | st.lists(scalars, max_size=3), max_size=4),
    lambda inner: st.dictionaries(keys, scalars | inner | st.lists(inner, min_size=1, max_size=2), max_size=4),
    max_leaves=12,
)


@given(tables)
def test_toml_that_is_written_reads_back(table) -> None:
    assert tomllib.loads(to_toml(table)) == table


def test_what_toml_does_not_hold_is_refused() -> None:
    with pytest.raises(ContractError, match="holds a NoneType"):
        to_toml({"a": None})


def test_only_the_candidates_change() -> None:
    text = DEMO + (
        '\n[[waivers]]\nclause = "task.recall"\nreason = "no recall is done in production"\ngranted = 2026-01-02\n'
        '\n[bytes]\npersistent_per_token_max = 9000.5\ncount = ["codes", "scales"]\n'
    )
    derived = derive_contract(text, ["exl3-8", "exl3-5,@0+3.k=exl3-6"])
    before, after = parse_contract(text), derived.contract
    assert after.candidates.order == ("exl3-8", "exl3-5,@0+3.k=exl3-6")
    assert after.candidates.multiplicity == "fixed-sequence"
    assert after.model_copy(update={"candidates": before.candidates}) == before
    assert after.sha256 != before.sha256
    assert before.sha256 in derived.toml
    assert parse_contract(derived.toml).sha256 == after.sha256
    assert after.waivers[0].granted == date(2026, 1, 2)


def test_a_holm_contract_becomes_a_fixed_sequence() -> None:
    text = DEMO.replace('multiplicity = "fixed-sequence"', 'multiplicity = "holm"')
    assert derive_contract(text, ["q8_0"]).contract.candidates.multiplicity == "fixed-sequence"
