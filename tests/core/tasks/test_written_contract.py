"""What a contract may ask of written answers, and that contracts without them are hashed as before (R49)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvassay.core.clauses.tasks import ANSWER_SLACK_TOKENS
from kvassay.core.contract import load_contract, parse_contract
from kvassay.core.contract_scope import scope
from kvassay.core.tasks.kinds import KINDS, task_draw
from kvassay.errors import ContractError
from tests.engines.model_folders import byte_tokenizer

HEAD = 'schema = "kvassay.contract/1"\nname = "t"\n[candidates]\norder = ["int8-token-head"]\n'
NEW_KEYS = {"answer", "answer_tokens", "parse_margin", "lines"}
EXAMPLE = Path(__file__).parents[3] / "contracts" / "tool-calls.toml"


def test_a_contract_whose_answers_are_given_keeps_the_hash_that_it_had() -> None:
    contract = parse_contract(HEAD + "[task.json]\nmargin = 0.1\n")
    assert not NEW_KEYS & set(contract.to_json()["task"]["json"])
    assert contract.sha256 == "e01946ff32ae0760622768c3aed19106c9661d736a014626159c2314b4e357fc"
    said = parse_contract(HEAD + '[task.json]\nmargin = 0.1\nanswer = "teacher-forced"\n')
    assert said == contract
    assert said.sha256 == contract.sha256


def test_written_answers_are_another_contract_that_states_every_key() -> None:
    given = parse_contract(HEAD + "[task.json]\nmargin = 0.1\n")
    written = parse_contract(HEAD + '[task.json]\nmargin = 0.1\nanswer = "written"\n')
    assert set(written.to_json()["task"]["json"]) >= NEW_KEYS
    assert written.sha256 != given.sha256
    assert type(written).model_validate(written.to_json()) == written
    assert list(written.written_tasks) == ["json"]
    assert not written.teacher_forced_tasks


def test_a_parse_margin_is_a_clause_of_its_own_that_can_be_waived() -> None:
    text = HEAD + '[task.json]\nmargin = 0.1\nanswer = "written"\nparse_margin = 0.05\n'
    waived = parse_contract(
        text + '[[waivers]]\nclause = "task.json.parse"\nreason = "calls are retried"\ngranted = 2026-01-01\n'
    )
    assert waived.clause_names == ("task.json", "task.json.parse")
    sentences = {one.name: one.sentence for one in scope(waived).clauses}
    assert sentences["task.json.parse"] == "margin 0.05; waived since 2026-01-01: calls are retried"


def test_long_generation_is_written_without_saying_so() -> None:
    bound = parse_contract(HEAD + "[task.counting]\nmargin = 0.1\nlines = [4, 16]\n").task["counting"]
    assert bound.is_written
    assert bound.settings.labels == ("lines=4", "lines=16")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[task.counting]\nanswer = "teacher-forced"', "under teacher forcing gives its lines away; write answer = "),
        ("[task.counting]\ncontext_tokens = [512]", "takes no context_tokens; it takes lines"),
        ("[task.counting]\nlines = []", "lines is empty"),
        ("[task.counting]\nlines = [4, 4]", "lines names something twice"),
        ("[task.counting]\nlines = [0]", "greater than or equal to 1"),
        ("[task.json]\nparse_margin = 0.1", "parse_margin is of written answers"),
        ("[task.json]\nanswer_tokens = 9", "answer_tokens is of written answers"),
        ('[task.json]\nanswer = "spoken"', "'teacher-forced' or 'written'"),
        ('[task.json]\nanswer = "written"\nlines = [4]', "takes no lines"),
        ('[task.recall]\nanswer = "written"\nparse_margin = 0.1', "kinds with a form: json, tool-call"),
        ('[inference]\ndesign = "sequential"\n[task.json]\nanswer = "written"', "which a look cannot cut"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_way_out(text, message) -> None:
    with pytest.raises(ContractError) as error:
        parse_contract(HEAD + text + "\nmargin = 0.1\n")
    assert message in str(error.value)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_true_answer_fits_the_default_length_and_its_end_is_seen(kind) -> None:
    bound = parse_contract(
        HEAD + f'[fidelity.kl_mean]\nmax = 0.1\n[task.{kind}]\nanswer = "written"\nmargin = 0.1\n'
    ).task[kind]
    tokenizer, form = byte_tokenizer(), KINDS[kind].form
    for index in range(6):
        draw = task_draw(kind, bound.settings, 7, index)
        most = bound.most_tokens(draw.expected)
        assert len(tokenizer(draw.script.answer + "\n")["input_ids"]) <= most
        assert most == len(draw.expected.encode()) + ANSWER_SLACK_TOKENS
        assert form.ended(draw.expected, draw.script.answer + "\n")
        assert not form.ended(draw.expected, draw.script.answer[:-1])
        assert form.scored(draw.expected, draw.script.answer + "\n").right


def test_the_example_bounds_wrong_calls_and_unread_ones_apart() -> None:
    contract = load_contract(EXAMPLE)
    assert contract.clause_names == ("task.table-copy", "task.tool-call", "task.tool-call.parse")
