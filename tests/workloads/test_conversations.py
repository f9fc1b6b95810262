"""R53: conversations are read in the model's own chat template, and every token knows whose turn it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvassay.errors import WorkloadError
from kvassay.workloads.conversations import PLAIN, TEMPLATE, TOKENIZER_TEMPLATE, render, template_name
from kvassay.workloads.corpus import Document, Message, build_corpus, load_corpus
from kvassay.workloads.excerpts import text_documents

from ..engines.model_folders import byte_tokenizer

CHATML = "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] | trim }}<end>\n{% endfor %}"


def with_template(template: str | None = CHATML, *, bos: bool = False) -> Any:
    tokenizer = byte_tokenizer(bos=bos)
    tokenizer.chat_template = template
    return tokenizer


TEMPLATED = with_template()


def conversation(*contents: str, name: str = "c") -> Document:
    messages = tuple(Message(("user", "assistant")[index % 2], text) for index, text in enumerate(contents))
    return Document(name, " ".join(contents), "chat", messages)


def said_by(tokenizer: Any, document: Document, role: str) -> str:
    rendered = render(tokenizer, document)
    return tokenizer.decode([t for t, r in zip(rendered.token_ids, rendered.roles, strict=True) if r == role])


@settings(max_examples=60, deadline=None)
@example(["a", "a", "a"])  # stands in the name of a role too
@example([" b ", "<|assistant|>\n", "b"])
@given(st.lists(st.text(alphabet="ab é川\n.", min_size=1, max_size=12).filter(str.strip), min_size=1, max_size=6))
def test_r53_every_turn_has_its_tokens_and_the_template_the_rest(contents: list[str]) -> None:
    document = conversation(*contents)
    rendered = render(TEMPLATED, document)
    text = TEMPLATED.apply_chat_template([m._asdict() for m in document.messages], tokenize=False)
    assert TEMPLATED.decode(rendered.token_ids) == text
    for role, first in (("user", 0), ("assistant", 1)):
        expected = "".join(part.strip() for part in contents[first::2])
        assert said_by(TEMPLATED, document, role) == expected
    assert TEMPLATE in rendered.roles


def test_without_a_template_turns_are_paragraphs_and_the_evidence_says_so() -> None:
    tokenizer = with_template(None, bos=True)
    assert (template_name(tokenizer), template_name(TEMPLATED)) == (PLAIN, TOKENIZER_TEMPLATE)
    rendered = render(tokenizer, conversation("Hi.", "Hello."))
    assert rendered.token_ids[0] == 0, "BOS where texts begin with it"
    assert tokenizer.decode(rendered.token_ids[1:]) == "user: Hi.\n\nassistant: Hello."
    assert said_by(tokenizer, conversation("Hi.", "Hello."), "assistant") == "Hello."


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses this conversation"),
        ("{% for m in messages %}{{ m['content'] | upper }}{% endfor %}", "changes the turn 'hello'"),
    ],
)
def test_templates_that_refuse_or_rewrite(template: str, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        render(with_template(template), conversation("hello", "yes"))


def test_only_conversations_with_enough_of_the_assistant_are_drawn() -> None:
    talks = [conversation("Hello there. " * 6, f"Answer number {index}. " * 6, name=f"t{index}") for index in range(4)]
    silent = [conversation(f"Words of person {index} only. " * 20, name=f"s{index}") for index in range(3)]
    options: dict[str, Any] = {"prompt_tokens": 60, "scored_tokens": 40, "seed": 1, "assistant": True}
    corpus = build_corpus("c", talks + silent, source="s", version="v", licence="l")
    chosen = text_documents(corpus, TEMPLATED, documents=4, **options)
    assert {document.id for document in chosen} == {"t0", "t1", "t2", "t3"}
    for document in chosen:
        assert len(document.token_ids) == len(document.roles) == 100
        assert document.scored_roles(60).count("assistant") >= 5
        assert len(document.cells(60)) == 39
        assert set(document.cells(60)) <= {"chat,role=assistant", "chat,role=user", f"chat,role={TEMPLATE}"}
    with pytest.raises(WorkloadError, match=r"4 of 7 .* 5 tokens of the assistant's scored, 5 are needed"):
        text_documents(corpus, TEMPLATED, documents=5, **options)


def write(folder: Path, *lines: object) -> str:
    (folder / "chats.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return f"path:{folder}"


def test_json_lines_of_messages(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi", "name": "x"}]
    corpus = load_corpus(write(tmp_path, {"messages": turns, "id": "one", "slice": "support"}))
    (document,) = corpus.documents
    assert (document.id, document.slice, document.text) == ("one", "support", "system: Be brief.\n\nuser: Hi")
    assert document.messages == (Message("system", "Be brief."), Message("user", "Hi"))


@pytest.mark.parametrize(
    "messages", [[], "text", [1], [{"role": "user"}], [{"role": "User!", "content": "x"}], [{"role": 1, "content": ""}]]
)
def test_malformed_conversations_are_named(messages: object, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"chats\.jsonl:1: .*'role'"):
        load_corpus(write(tmp_path, {"messages": messages}))


@pytest.mark.parametrize("label", ["position=early", "role=user", "all", "a, b", "a,,b"])
def test_slices_that_could_be_taken_for_others_are_refused(label: str, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"chats\.jsonl:1: found the slice .* rename it"):
        load_corpus(write(tmp_path, {"text": "some text", "slice": label}))


@pytest.mark.model
def test_the_real_template(smollm2_tokenizer: Any) -> None:
    document = conversation("What is a cache?", "A place for what is needed again.", "And a KV cache?", "Keys, values.")
    assert template_name(smollm2_tokenizer) == TOKENIZER_TEMPLATE
    assert said_by(smollm2_tokenizer, document, "assistant") == "A place for what is needed again.Keys, values."
    assert "<|im_start|>" in smollm2_tokenizer.decode(render(smollm2_tokenizer, document).token_ids)
