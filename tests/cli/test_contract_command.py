"""`kvassay contract`: drafts that parse, say their cost and never widen a margin; the schema; three examples."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kvassay.cli.app import run
from kvassay.cli.contract_draft import (
    CORPUS_TOKENS,
    FORMATS,
    LIMITS,
    Answers,
    Grade,
    Loss,
    Purpose,
    answers_for,
    draft_contract,
)
from kvassay.cli.contract_text import contract_text
from kvassay.core.contract import load_contract, parse_contract
from kvassay.core.contract_schema import contract_schema
from kvassay.core.contract_scope import known_clauses
from kvassay.errors import ContractError, WorkloadError
from kvassay.stats.planning import documents_power, pairs_power, plan_pairs
from kvassay.workloads.corpus import load_corpus

ROOT = Path(__file__).parents[2]
EXAMPLES = {purpose: ROOT / "contracts" / f"{purpose.value}.toml" for purpose in Purpose}
SCHEMA = ROOT / "docs" / "spec" / "contract.schema.json"


def validator():
    jsonschema = pytest.importorskip("jsonschema", reason="the schema is tried with the package jsonschema")
    return jsonschema.Draft202012Validator(contract_schema())


def fits(fields) -> None:
    """Raise where a contract does not fit the schema."""
    validator().validate(fields)


def is_valid(fields) -> bool:
    return validator().is_valid(fields)


def init(path: Path, *options: str) -> int:
    return run(["contract", "init", str(path), *options])


# The draft.


def test_a_draft_is_valid_and_says_its_hash_bounds_and_cost(tmp_path, capsys) -> None:
    assert init(tmp_path / "c.toml", "--yes") == 0
    printed = capsys.readouterr().out
    contract = load_contract(tmp_path / "c.toml")
    assert contract.sha256 in printed
    assert "fidelity.kl_mean, fidelity.kl_exceed, task.recall" in printed
    assert re.search(r"[0-9,]+ tokens of text and [0-9,]+ of task items, about \d+ minutes", printed)


def test_every_question_has_an_option(tmp_path, capsys) -> None:
    options = ["--for", "code", "--lose", "nll_delta", "--lose", "recall", "--loss", "loose", "--context", "256"]
    options += ["--minutes", "500", "--format", "q8_0", "--format", "q4_0", "--corpus", "hansard", "--name", "ours"]
    assert init(tmp_path / "c.toml", *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    contract = load_contract(tmp_path / "c.toml")
    assert found["contract_sha256"] == contract.sha256
    assert found["contract"] == contract.to_json()
    assert contract.clause_names == ("fidelity.nll_delta", "task.recall")
    assert contract.task["recall"].margin == LIMITS[Grade.LOOSE].margin
    assert contract.text.prompt_tokens + contract.text.scored_tokens == 256
    assert contract.candidates.order == ("q8_0", "q4_0")
    assert (contract.name, contract.text.corpus) == ("ours", "hansard")


def test_the_questions_are_asked_on_a_terminal_and_asked_again_where_misunderstood(
    tmp_path, capsys, monkeypatch
) -> None:
    answers = iter(["poetry", "retrieval", "recall", "", "512", "90"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda: next(answers))
    assert init(tmp_path / "c.toml") == 0
    asked = capsys.readouterr().err
    assert asked.count("1 of 5. What is the model for? [chat] ") == 2
    assert "found 'poetry'; expected one of chat, retrieval, code" in asked
    assert "5 of 5. How many minutes the run may take? [150] " in asked
    contract = load_contract(tmp_path / "c.toml")
    assert contract.clause_names == ("task.recall",)
    assert contract.task["recall"].margin == 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "a question and nobody to ask (What is the model for); answer by options, or take the defaults"),
        (["--yes", "--for", "poetry"], "found 'poetry'; expected one of chat, retrieval, code"),
        (["--yes", "--lose", "speed"], "found 'speed'; expected one of kl_mean, kl_exceed, nll_delta, recall"),
        (["--yes", "--loss", "tiny"], "found 'tiny'; expected one of strict, usual, loose"),
        (["--yes", "--context", "64"], "--context"),
        (["--yes", "--minutes", "-1"], "expected a number above 0"),
        (["--yes", "--format", "kivi-5"], "format 'kivi-5' is unknown"),
        (["--yes", "--margin", "0"], "margin"),
        (["--yes", "--tokens-per-second", "nan"], "expected a number above 0"),
        (["--yes", "--corpus", ""], "corpus"),
    ],
)
def test_bad_answers_are_one_line_and_write_nothing(options, message, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert init(tmp_path / "c.toml", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_refused_before_a_question(tmp_path, capsys) -> None:
    (tmp_path / "c.toml").write_text("mine")
    assert init(tmp_path / "c.toml") == 2
    assert "exists" in capsys.readouterr().err
    assert (tmp_path / "c.toml").read_text() == "mine"


def test_a_margin_is_never_widened_to_fit_the_time(tmp_path, capsys) -> None:
    """What may be lost is the user's to say: the draft is refused, and says what would fit; which then fits."""
    assert init(tmp_path / "c.toml", "--yes", "--for", "code", "--minutes", "20") == 2
    error = capsys.readouterr().err
    assert "more than the 20 allowed" in error
    wider = re.search(r"--margin ([0-9.]+)", error)
    assert wider is not None
    assert init(tmp_path / "c.toml", "--yes", "--for", "code", "--minutes", "20", "--margin", wider[1]) == 0
    assert load_contract(tmp_path / "c.toml").task["recall"].margin == float(wider[1]) > LIMITS[Grade.STRICT].margin


def test_a_corpus_without_long_texts_is_said_and_not_hidden(tmp_path, capsys) -> None:
    assert init(tmp_path / "c.toml", "--yes", "--for", "retrieval") == 0
    note = f"hansard has too few texts of 2,048 tokens, so fidelity is judged to {CORPUS_TOKENS['hansard']:,}"
    assert note in capsys.readouterr().out
    text = re.sub(r"\s*\n# ", " ", (tmp_path / "c.toml").read_text())
    assert note in text


answers = st.builds(
    answers_for,
    st.sampled_from(Purpose),
    losses=st.lists(st.sampled_from(Loss), min_size=1, unique=True).map(tuple),
    grade=st.sampled_from(Grade),
    context=st.integers(128, 20_000),
    minutes=st.just(1e9),
    name=st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_characters="\x7f"), min_size=1),
    corpus=st.sampled_from(["hansard", "python-source", 'path:a "b" \\c']),
)


@settings(max_examples=60, deadline=None)
@given(answers)
def test_every_draft_parses_and_has_the_power_that_it_promises(given_answers: Answers) -> None:
    given_answers = given_answers._replace(name=(given_answers.name or "x")[:100])
    try:
        draft = draft_contract(given_answers)
        text = contract_text(given_answers, draft)
    except ContractError as error:
        assert "cannot be written in TOML" in str(error) or "canary" in str(error)  # noqa: PT017
        return
    contract = parse_contract(text)
    assert contract == draft.contract
    assert set(contract.clause_names) == {
        f"task.{loss.value}" if loss is Loss.RECALL else f"fidelity.{loss.value}" for loss in given_answers.losses
    }
    fits(plain(tomllib.loads(text)))
    assert all(len(line) <= 200 for line in text.splitlines() if line.startswith("#"))


@pytest.mark.parametrize("purpose", Purpose)
def test_sizes_are_those_of_the_power_plan(purpose) -> None:
    contract = draft_contract(answers_for(purpose)).contract
    recall, power = contract.task["recall"], contract.inference.power
    assert pairs_power(recall.items, recall.margin, 0.05) >= power
    assert pairs_power(recall.items // 2, recall.margin, 0.05) < power
    limit = contract.fidelity.kl_mean.max  # pyright: ignore[reportOptionalMemberAccess]
    assert documents_power(contract.text.documents, limit / 2, 0.5, limit) >= power


# The examples.


@pytest.mark.parametrize("purpose", Purpose)
def test_the_examples_are_what_the_command_writes(purpose, tmp_path) -> None:
    """Made anew by: kvassay contract init contracts/NAME.toml --for NAME --yes."""
    assert init(tmp_path / "c.toml", "--for", purpose.value, "--yes") == 0
    assert (tmp_path / "c.toml").read_text() == EXAMPLES[purpose].read_text()


PROSE = {
    r"At most ([0-9.]+) nats a token on average": ("fidelity", "kl_mean", "max", 1),
    r"At most ([0-9.]+)% of the steps may be": ("fidelity", "kl_exceed", "max_rate", 100),
    r"of the steps may be more than ([0-9.]+) nats off": ("fidelity", "kl_exceed", "tau_nats", 1),
    r"At most ([0-9.]+) points? of accuracy may be lost": ("task", "recall", "margin", 100),
    r"([0-9]+) contexts decide that": ("task", "recall", "items", 1),
    r"Below a reference accuracy of ([0-9.]+)%": ("task", "recall", "ref_floor", 100),
    r"([0-9]+) documents of [0-9]+ tokens of history": ("text", "documents", None, 1),
    r"documents of ([0-9]+) tokens of history": ("text", "prompt_tokens", None, 1),
    r"history and ([0-9]+) decode steps": ("text", "scored_tokens", None, 1),
    r"Each bound errs at most ([0-9.]+)%": ("inference", "alpha", None, 100),
}


@pytest.mark.parametrize("purpose", Purpose)
def test_the_prose_of_an_example_states_its_own_numbers(purpose) -> None:
    text = EXAMPLES[purpose].read_text()
    prose = re.sub(r"\s*\n# ", " ", text)
    fields = tomllib.loads(text)
    stated = 0
    for pattern, (section, key, leaf, factor) in PROSE.items():
        value = fields.get(section, {}).get(key)
        value = value if leaf is None or value is None else value[leaf]
        match = re.search(pattern, prose)
        assert (match is None) == (value is None), pattern
        if match is not None:
            assert float(match[1]) == pytest.approx(factor * value), pattern
            stated += 1
    assert stated >= 8


@pytest.mark.parametrize("purpose", Purpose)
def test_every_example_plans_on_a_tiny_model(purpose, tmp_path_factory, tmp_path, capsys) -> None:
    """The pilot alone is shrunk: a byte tokenizer makes long items, and two of them show that all is there."""
    from tests.engines.model_folders import llama_config, write_folder

    try:
        load_corpus(load_contract(EXAMPLES[purpose]).text.corpus)
    except WorkloadError as error:
        pytest.skip(f"the corpus of the example is not there: {error}")
    config = llama_config(hidden_size=64, head_dim=64, max_position_embeddings=16_384)
    model = write_folder(tmp_path_factory.mktemp("model") / "tiny", config)
    text = EXAMPLES[purpose].read_text().replace("seed = 7", "seed = 7\npilot_documents = 2\npilot_items = 2")
    text = re.sub(r"\nitems = \d+", "\nitems = 3", text)
    (tmp_path / "c.toml").write_text(text)
    assert run(["plan", str(model), "--contract", str(tmp_path / "c.toml"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    contract = load_contract(tmp_path / "c.toml")
    assert plan["contract_sha256"] == contract.sha256
    assert {entry["clause"] for entry in plan["clauses"]} == set(contract.clause_names)


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "howto" / "contract.md").read_text()
    rows = {cells[0].strip(): [float(cell) for cell in cells[1:]] for cells in tables(page) if is_numbers(cells[1:])}
    limits = [LIMITS[grade] for grade in Grade]
    assert rows["mean KL, nats a token"] == [each.kl_mean_nats for each in limits]
    assert rows["at most 1% of steps with KL above, nats"] == [each.tau_nats for each in limits]
    assert {each.max_rate for each in limits} == {0.01}
    assert rows["rise of the text's negative log likelihood, nats a token"] == [each.nll_nats for each in limits]
    assert rows["task accuracy lost, points"] == pytest.approx([100 * each.margin for each in limits])
    assert rows["contexts"] == [plan_pairs(points / 100, 0.05).pairs for points in rows["margin, points"]]


def tables(page: str) -> list[list[str]]:
    return [line.strip("| ").split("|") for line in page.splitlines() if line.startswith("| ")]


def is_numbers(cells: list[str]) -> bool:
    return bool(cells) and all(re.fullmatch(r" *[0-9.]+ *", cell) for cell in cells)


# Check and schema.


def test_check_says_hash_bounds_and_what_stays_open(capsys) -> None:
    assert run(["contract", "check", str(EXAMPLES[Purpose.RETRIEVAL])]) == 0
    printed = capsys.readouterr().out
    assert load_contract(EXAMPLES[Purpose.RETRIEVAL]).sha256 in printed
    assert "bounds task.recall: kind recall, margin 0.02" in printed
    levels = dict(re.findall(r"^does not bound (\w+): ([\w, -]+)$", printed, re.MULTILINE))
    assert "diverged" in levels["free_running"].split(", ")
    assert "json" in levels["task"].split(", ")
    assert "recall" not in levels["task"].split(", ")
    assert "kl_exceed" in levels["fidelity"].split(", ")
    assert "depths early middle late" in printed
    assert "does not bound texts longer than 1024 tokens" in printed
    assert run(["contract", "check", str(EXAMPLES[Purpose.RETRIEVAL]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    clauses = {clause["name"] for clause in found["clauses"]}
    assert clauses | set(found["unbounded"]) >= set(known_clauses())
    assert not clauses & set(found["unbounded"])


def test_check_names_the_field_of_a_fault_and_shows_waivers(tmp_path, capsys) -> None:
    path = tmp_path / "c.toml"
    text = EXAMPLES[Purpose.CODE].read_text()
    path.write_text(text.replace("margin = 0.01", "margn = 0.01"))
    assert run(["contract", "check", str(path)]) == 2
    assert "task.recall.margin: Field required" in capsys.readouterr().err
    path.write_text(
        text + '\n[[waivers]]\nclause = "task.recall"\nreason = "no recall in this product"\ngranted = 2026-01-31\n'
    )
    assert run(["contract", "check", str(path)]) == 0
    assert "waived since 2026-01-31: no recall in this product" in capsys.readouterr().out


def test_the_schema_on_disk_is_that_of_the_models(capsys) -> None:
    """Made anew by: kvassay contract schema > docs/spec/contract.schema.json."""
    assert run(["contract", "schema"]) == 0
    assert capsys.readouterr().out == SCHEMA.read_text()
    validator().check_schema(json.loads(SCHEMA.read_text()))


def plain(value):
    """TOML's dates as the text that JSON has for them."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool) else str(value)


@pytest.mark.parametrize("path", [*EXAMPLES.values(), ROOT / "contracts" / "demo.toml"], ids=lambda path: path.name)
def test_the_schema_takes_what_the_models_take(path) -> None:
    fits(plain(tomllib.loads(path.read_text())))
    fits(load_contract(path).to_json())  # the effective one, defaults included


junk = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=5), st.just([])
)


@settings(deadline=None)
@given(st.data())
def test_what_the_schema_refuses_the_models_refuse(data) -> None:
    """One value of a valid contract replaced by anything: a file that does not fit the schema is never read."""
    from kvassay.core.contract import Contract

    fields = load_contract(EXAMPLES[Purpose.CODE]).to_json()
    node, path = fields, []
    while isinstance(node, dict) and node:
        key = data.draw(st.sampled_from(sorted(node)))
        path.append((node, key))
        node = node[key]
    holder, key = path[-1]
    holder[key] = data.draw(junk)
    if not is_valid(fields):
        with pytest.raises(ValidationError):
            Contract.model_validate_json(json.dumps(fields), strict=True)


def test_formats_of_a_draft_are_known_and_engaged() -> None:
    """A window longer than the shortest context would leave nothing to read from codes."""
    from kvassay.assess.arms import planned_arms
    from kvassay.assess.engagement_check import check_engagement

    contract = draft_contract(answers_for(Purpose.CHAT, context=128, minutes=1e9)).contract
    assert contract.candidates.order == FORMATS
    check_engagement(contract, planned_arms(contract))
