"""Contracts: strict parsing, field paths in errors, and a hash that moves with every bound."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvassay.core import contract
from kvassay.core.contract import load_contract, parse_contract, read_contract_text
from kvassay.core.regular_file import read_once
from kvassay.errors import ContractError

MINIMAL = """
schema = "kvassay.contract/1"
name = "t"
[candidates]
order = ["int8-token-head"]
"""
KL = "[fidelity.kl_mean]\nmax = 0.01\n"
CONTRACTS = sorted((Path(__file__).parents[2] / "contracts").glob("*.toml"))


def test_defaults_are_part_of_the_hash_and_layout_is_not() -> None:
    spelt_out = MINIMAL + KL + '[inference]\nalpha = 0.05\nseed = 7\n\n# a comment\n[text]\ncorpus = "hansard"\n'
    assert parse_contract(MINIMAL + KL).sha256 == parse_contract(spelt_out).sha256


LEVELS = {
    "fidelity.kl_mean": KL,
    "free_running.diverged": "[free_running.diverged]\nmax_rate = 0.2\n",
    "numeric.output_relative": "[numeric.output_relative]\nmax = 0.1\n",
    "task.arithmetic": "[task.arithmetic]\nmargin = 0.1\n",
    "bytes.persistent_per_token_max": "[bytes]\npersistent_per_token_max = 1000\n",
}


def test_each_level_is_a_contract_alone_and_all_are_one_together() -> None:
    for name, clause in LEVELS.items():
        alone = parse_contract(MINIMAL + clause)
        assert alone.clause_names == (name,)
        assert alone.needs_run is (not name.startswith("bytes"))
    assert parse_contract(MINIMAL + "".join(LEVELS.values())).clause_names == tuple(LEVELS)
    with pytest.raises(ContractError) as refused:
        parse_contract(MINIMAL)
    assert all(f"[{name.partition('.')[0]}" in str(refused.value) for name in LEVELS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("max = 0.01", "max = 0.011"),
        ("[fidelity.kl_mean]", "[inference]\nseed = 8\n[fidelity.kl_mean]"),
        ("[fidelity.kl_mean]", "[inference]\nalpha = 0.1\n[fidelity.kl_mean]"),
        ('"int8-token-head"', '"int8-token"'),
        ("[fidelity.kl_mean]", '[inference]\ncalibration = "mse"\n[fidelity.kl_mean]'),
        ("[fidelity.kl_mean]", '[inference]\ncalibration = "percentile 99"\n[fidelity.kl_mean]'),
        ("[fidelity.kl_mean]", "[task.recall]\nmargin = 0.02\n[fidelity.kl_mean]"),
    ],
)
def test_r56_any_edit_of_a_bound_changes_the_hash(before, after) -> None:
    text = MINIMAL + KL
    assert before in text
    assert parse_contract(text).sha256 != parse_contract(text.replace(before, after)).sha256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "schema: Field required"),
        (MINIMAL, "contract: the contract bounds nothing"),
        (
            MINIMAL + "[fidelity.kl_mean]\nmax = -0.01",
            "fidelity.kl_mean.max: Input should be greater than 0, found -0.01",
        ),
        (MINIMAL + "[fidelity.kl_mean]\nmax = nan", "fidelity.kl_mean.max"),
        (MINIMAL + "[fidelity.kl_mean]\nmax = inf", "fidelity.kl_mean.max"),
        (
            MINIMAL + "[task.recall]\nmargin = -0.02",
            "task.recall.margin: Input should be greater than or equal to 0.0001, found -0.02",
        ),
        (MINIMAL + "[task.recal]\nmargin = 0.02", "task.recal"),
        (
            MINIMAL + KL + "[fidelity.kl_men]\nmax = 1",
            "fidelity.kl_men: unknown key; remove it or correct its spelling",
        ),
        (MINIMAL + KL + "[inference]\nalpah = 0.1", "inference.alpah: unknown key"),
        (MINIMAL + KL + "[text]\ndocuments = 12", "text.documents is 12, fidelity.kl_mean needs at least 20"),
        (MINIMAL + KL + '[controls]\ncanary = "int8-token-head"', "is also a candidate"),
        (MINIMAL + KL + '[controls]\ncanary = "kivi-9"', "controls.canary: format 'kivi-9' is unknown"),
        (MINIMAL.replace('"int8-token-head"', '"int8-token-hed"') + KL, "candidates.order: format 'int8-token-hed'"),
        (MINIMAL.replace('["int8-token-head"]', '["kivi-4", "kivi-4,recent=128"]') + KL, "stands twice"),
        (MINIMAL.replace('["int8-token-head"]', "[]") + KL, "candidates.order"),
        (MINIMAL.replace("contract/1", "contract/9") + KL, "schema"),
        (
            MINIMAL + KL + '[[waivers]]\nclause = "task.recall"\nreason = "not needed here"\ngranted = 2026-01-01',
            "waiver of 'task.recall', which is no clause",
        ),
        (
            MINIMAL + KL + '[inference]\ncalibration = "entropy"',
            "inference.calibration: calibration policy 'entropy' is unknown; use min-max, mse",
        ),
        (
            MINIMAL + KL + '[inference]\ncalibration = "percentile 0"',
            "inference.calibration: a percentile lies in (0, 100], found 0.0",
        ),
        (MINIMAL + KL + "[inference]\ncalibration = 3", "inference.calibration: Input should be a valid string"),
        ("schema = [", "not valid TOML"),
        ("a = " + "[" * 20_000, "not valid TOML: nested too deeply"),
        ("a = " + "{b=" * 20_000, "not valid TOML: nested too deeply"),
        ("a" + ".a" * 20_000 + " = 1", ""),
        ("a = " + "9" * 5000, "not valid TOML"),
        (
            MINIMAL + KL + "[inference]\nalpha = 1e-7",
            "inference.alpha: Input should be greater than or equal to 0.000001, f",
        ),
        (MINIMAL + KL + "[inference]\nalpha = 0.5", "inference.alpha: Input should be less than 0.5, found 0.5"),
        (MINIMAL + KL + "[inference]\nalpha = 0", "inference.alpha"),
        (MINIMAL + KL + "[inference]\npower = 1e-300", "inference.power"),
        (MINIMAL + KL + "[inference]\npower = 0.99999999", "inference.power"),
        (
            MINIMAL + "[task.recall]\nmargin = 1e-5",
            "task.recall.margin: Input should be greater than or equal to 0.0001, ",
        ),
        (MINIMAL + "[fidelity.kl_exceed]\ntau_nats = 1\nmax_rate = 1e-9", "fidelity.kl_exceed.max_rate"),
        (MINIMAL + KL + '[text]\ncorpus = "path:"', "text.corpus: found 'path:'; expected a corpus"),
        (MINIMAL + KL + '[text]\ncorpus = " "', "text.corpus: found ' '"),
        (
            MINIMAL + KL + f"[text]\nprompt_tokens = {2**31}",
            "text.prompt_tokens: Input should be less than or equal to",
        ),
    ],
)
def test_bad_contracts_name_the_field_and_the_way_out(text, message) -> None:
    with pytest.raises(ContractError) as caught:
        parse_contract(text, "c.toml")
    assert str(caught.value).startswith("c.toml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


NUMBERS = {
    "text": ("documents", "prompt_tokens", "scored_tokens"),
    "inference": ("pilot_documents", "pilot_items", "bootstrap_replicates", "seed"),
    "controls": ("aa_runs",),
    "task.recall": ("items", "context_lines"),
}


@pytest.mark.parametrize(("table", "field"), [(table, field) for table, names in NUMBERS.items() for field in names])
def test_integers_that_json_cannot_hold_are_refused(table, field) -> None:
    """Beyond 2^53 the contract would have no hash, and the run would fail where it begins to write."""
    margin = "margin = 0.1\n" if table == "task.recall" else ""
    with pytest.raises(ContractError, match=rf"{table}.{field}: Input should be less than or equal to"):
        parse_contract(f"{MINIMAL}{KL}[{table}]\n{margin}{field} = {2**53}\n")


@pytest.mark.parametrize(
    ("one", "other"),
    [("mse", "least-error"), ("percentile 99.9", "percentile=99.90"), ("percentile 99", "percentile 99.0")],
)
def test_two_spellings_of_a_policy_have_one_hash(one, other) -> None:
    first, second = (parse_contract(f'{MINIMAL}{KL}[inference]\ncalibration = "{each}"\n') for each in (one, other))
    assert first.inference.calibration == one
    assert first.sha256 == second.sha256


def test_the_largest_seed_has_a_hash() -> None:
    assert len(parse_contract(f"{MINIMAL}{KL}[inference]\nseed = {2**53 - 1}\n").sha256) == 64


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(ContractError) as caught:
        parse_contract(MINIMAL + KL + f"[text]\ndocuments = {list(range(1000))}\n")
    assert len(str(caught.value)) < 300


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no device without an end")
def test_an_endless_file_is_refused() -> None:
    with pytest.raises(ContractError, match="more than 131072 bytes"):
        load_contract(Path("/dev/zero"))


def test_a_pipe_is_read_to_its_end_and_one_without_a_writer_is_refused(tmp_path, monkeypatch) -> None:
    pipe = tmp_path / "contract.toml"
    os.mkfifo(pipe)
    text = MINIMAL + KL
    with ThreadPoolExecutor() as pool:
        pool.submit(pipe.write_text, text)
        assert read_contract_text(pipe) == text
    monkeypatch.setattr(contract, "read_once", partial(read_once, wait_s=0.05))
    with pytest.raises(ContractError, match="nobody wrote"):
        load_contract(pipe)


def test_missing_and_unreadable_files_are_contract_errors(tmp_path) -> None:
    with pytest.raises(ContractError, match="does not exist"):
        load_contract(tmp_path / "none.toml")
    with pytest.raises(ContractError, match="cannot be read"):
        load_contract(tmp_path)
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ContractError, match="cannot be read"):
        load_contract(tmp_path / "bad.toml")


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.name)
def test_shipped_contracts_are_valid(path) -> None:
    assert load_contract(path).clause_names


@given(st.text(max_size=80))
def test_any_text_is_refused_with_one_line(text) -> None:
    with pytest.raises(ContractError):
        parse_contract(text)
