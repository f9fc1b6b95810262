"""The section [free_running]: what is refused, and what its hash covers."""

from __future__ import annotations

import pytest

from kvassay.core.contract import parse_contract
from kvassay.errors import ContractError

HEAD = 'schema = "kvassay.contract/1"\nname = "t"\n[candidates]\norder = ["int8-token-head"]\n[free_running]\n'
CLAUSE = "[free_running.diverged]\nmax_rate = 0.2\n"


def contract(fields: str = "", clauses: str = CLAUSE):
    return parse_contract(f"{HEAD}{fields}\n{clauses}")


def test_a_free_running_bound_is_a_clause_of_its_own_level() -> None:
    found = contract(clauses=CLAUSE + "[free_running.edit_distance]\nmax = 0.3\n[fidelity.kl_mean]\nmax = 0.01\n")
    assert found.clause_names == ("fidelity.kl_mean", "free_running.diverged", "free_running.edit_distance")
    assert found.has_free_running
    assert not contract(clauses="[bytes]\npersistent_per_token_max = 1\n").has_free_running


@pytest.mark.parametrize(
    "fields",
    ["generated_tokens = 32", 'sampling = "seeded"', 'sampling = "seeded"\ntemperature = 0.7', "lengths = [8]"],
)
def test_every_setting_of_generation_is_in_the_hash(fields: str) -> None:
    assert contract(fields).sha256 != contract().sha256


@pytest.mark.parametrize(
    ("fields", "clauses", "message"),
    [
        ("temperature = 0.7", CLAUSE, "temperature and top_p change nothing under greedy"),
        ("top_p = 0.9", CLAUSE, "change nothing under greedy"),
        ("prompts = 19", CLAUSE, "prompts is 19, free_running.diverged needs at least 20"),
        ("lengths = [16, 8]", CLAUSE, "distinct and rising"),
        ("generated_tokens = 1", CLAUSE, "generated_tokens"),
        ("generated_tokens = 16", CLAUSE + "within_tokens = 17\n", "within_tokens is 17, generated_tokens 16"),
        ("", CLAUSE + 'slices = ["generated=17"]\n', r"no slice 'generated=17'; lengths give \['generated=16'\]"),
        ("", "[free_running.empty]\nmargin = 0.1\nslices = ['generated=16']\n", "no slice 'generated=16'"),
        ("", "[free_running.diverged]\nmax_rate = 0.2\nmin_prompts = 5\n", "min_prompts"),
        ("sampling = 'beam'", CLAUSE, "sampling"),
        ("corpus = ' '", CLAUSE, "corpus is ' '"),
        ("", "[free_running.divergence]\nmax_rate = 0.2\n", "unknown key"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: str, clauses: str, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        contract(fields, clauses)


def test_a_length_that_is_judged_may_decide() -> None:
    found = contract("", CLAUSE + 'slices = ["generated=16", "prose"]\n')
    assert found.free_running.bounds["diverged"].slices == ("generated=16", "prose")
