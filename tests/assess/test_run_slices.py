"""The whole road with slices that decide: two corpora, conversations, and a long context."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kvassay.assess.run import run_assessment
from kvassay.core.contract import parse_contract
from kvassay.core.derived_slices import DERIVED
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.errors import ContractError, WorkloadError
from kvassay.pack.reader import read_pack
from kvassay.pack.verify import verify_pack
from tests.pack.tampering import edit, rehash

CONTRACT = """
schema = "kvassay.contract/1"
name = "slices"
[text]
corpus = "{corpus}"
documents = {documents}
prompt_tokens = 40
scored_tokens = {scored_tokens}
{text}
[candidates]
order = ["int8-token-head"]
[inference]
pilot_documents = {pilot}
bootstrap_replicates = 300
[controls]
canary = "int2-g32"
[fidelity.kl_mean]
max = 0.001
slices = {slices}
[fidelity.top1_agreement]
max_disagreement = 0.2
"""


def contract_text(corpus: str, slices: list[str], **fields) -> str:
    options = {"documents": 40, "pilot": 4, "scored_tokens": 60, "text": "", **fields}
    return CONTRACT.format(corpus=corpus, slices=json.dumps(slices), **options)


SLICES = ["python-topics", "python-source", "position=late", "rarity=rare", "confidence=low"]


@pytest.fixture(scope="module")
def two_corpora(tiny_folder, tmp_path_factory):
    toml = contract_text("python-topics+python-source", SLICES)
    result = run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path_factory.mktemp("packs") / "pack")
    return result, read_pack(result.out)


def test_slices_that_decide_run_through_plan_rows_verdict_and_report(two_corpora) -> None:
    result, content = two_corpora
    verdict = content.verdicts.formats[0]
    decisive = {c.slice: c for c in verdict.clauses if c.clause == "fidelity.kl_mean" and not c.details["descriptive"]}
    assert set(decisive) == {"all", *SLICES}
    assert {decisive[name].n for name in SLICES[:2]} == {20}
    assert decisive["all"].n == decisive["position=late"].n == 40
    shown = {clause.slice for clause in verdict.clauses}
    assert shown >= set(DERIVED) - {"confidence=high"}, "a random model is never sure"
    planned = {
        entry["slice"]: entry
        for entry in result.plan["clauses"]
        if entry["arm"] == "int8-token-head" and entry["clause"] == "fidelity.kl_mean"
    }
    expected = dict.fromkeys(("all", *SLICES[2:]), 40) | dict.fromkeys(SLICES[:2], 20)
    assert {name: entry["n_planned"] for name, entry in planned.items()} == expected
    assert planned["position=late"]["power"] is not None
    names = {control.name for control in content.verdicts.controls}
    assert names >= {f"{control}.fidelity.{part}" for control in ("canary", "aa") for part in SLICES}
    page = (result.out / "report.html").read_text()
    assert all(f"canary.fidelity.{part}" in page for part in SLICES)


def test_a_pack_with_slices_is_judged_again_to_the_byte(two_corpora) -> None:
    """From rows alone: the derived slices need no tokenizer, no model and no corpus."""
    result, _ = two_corpora
    verification = verify_pack(result.out, result.manifest.root)
    assert verification.passed, [check for check in verification.checks if not check.passed]


def test_slices_of_files_are_checked_when_they_are_read(tiny_folder, texts, tmp_path) -> None:
    toml = contract_text(f"path:{texts}", ["french"], documents=20)
    with pytest.raises(ContractError, match=r"'french', which no text of 'path:.*its slices: own, position=early"):
        run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def chats(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chats")
    lines = [
        {
            "id": f"chat-{index}",
            "slice": "chat",
            "messages": [
                {"role": "user", "content": f"Which river passes mill {index}?"},
                {"role": "assistant", "content": f"River {index * 7} passes it, by bridge {index + 3}."},
                {"role": "user", "content": f"And how many sacks of grain lie in mill {index}?"},
                {"role": "assistant", "content": f"In mill {index} there lie {index * 131} sacks of grain."},
            ],
        }
        for index in range(24)
    ]
    (folder / "chats.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return folder


def test_r53_conversations_score_the_assistants_turns(tiny_folder, chats, tmp_path) -> None:
    toml = contract_text(f"path:{chats}", ["role=assistant"], documents=20, pilot=2, text='scored = "assistant"')
    result = run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "pack")
    assert verify_pack(result.out, result.manifest.root).passed
    content = read_pack(result.out)
    assert content.subject["corpus"]["chat_template"].startswith("plain")
    cells = content.tables.tokens.column("slice").to_pylist()
    of_assistant = sum(cell == "chat,role=assistant" for cell in cells)
    assert 0 < of_assistant < len(cells)
    clause = next(c for c in content.verdicts.formats[0].clauses if c.slice == "all")
    assert clause.details["tokens"] == of_assistant / len(content.arms)
    # Whose turn a row belongs to is bound to the subject's record.
    edit(result.out, "subject.json", lambda subject: subject["corpus"]["documents"][0].update(roles=[["user", 59]]))
    rehash(result.out)
    assert [check.name for check in verify_pack(result.out).failed] == ["documents"]


def test_texts_are_no_conversations(tiny_folder, texts, tmp_path) -> None:
    toml = contract_text(f"path:{texts}", [], documents=20, pilot=2, text='scored = "assistant"')
    with pytest.raises(WorkloadError, match=r"0 of 30 documents .* tokens of the assistant's scored"):
        run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "out")


LONG = (4096, 128)


def score_long(model, geometry, token_ids: torch.Tensor) -> None:
    """A long history through the decode-faithful path: sound figures, and every query reads nearly all of it."""
    from kvassay.assess.arms import PlannedArm
    from kvassay.assess.document_rows import run_document, token_rows
    from kvassay.core.format_names import parse_format
    from kvassay.core.records import Role

    prompt, scored = LONG
    arms = [
        PlannedArm(name, role, parse_format(name))
        for name, role in (("int8-token-head", Role.CANDIDATE), ("f32", Role.REFERENCE_AGAIN))
    ]
    scorer = DecodeScorer(model, geometry)
    passes = run_document(scorer, token_ids.tolist(), prompt, arms, {}, "f32")
    coded, again = token_rows(scorer, passes, "long", ["own"] * (scored - 1))
    assert coded.columns["position"] == list(range(prompt, prompt + scored - 1))
    assert min(coded.columns["stored_reads"]) >= prompt
    assert bool(torch.isfinite(coded.measures.kl_nats).all())
    assert 0 < float(coded.measures.kl_nats.mean()) < 0.05
    assert float(again.measures.kl_nats.abs().max()) < 1e-4


@pytest.mark.slow
def test_r45_a_long_context_on_a_tiny_model(tmp_path) -> None:
    from kvassay.core.model_source import geometry_of
    from kvassay.engines.transformers.loading import load_model
    from tests.engines.model_folders import llama_config, write_folder

    folder = write_folder(tmp_path / "long", llama_config(head_dim=32, max_position_embeddings=sum(LONG)))
    loaded = load_model(str(folder))
    ids = torch.randint(2, 320, (sum(LONG),), generator=torch.Generator().manual_seed(3))
    score_long(loaded.model, geometry_of(str(folder)), ids)


@pytest.mark.model
@pytest.mark.slow
def test_r45_a_long_context_on_a_real_model() -> None:
    from kvassay.engines.transformers.loading import load_model
    from kvassay.workloads.corpus import load_corpus
    from kvassay.workloads.excerpts import text_documents

    loaded = load_model("smollm2-135m")
    (document,) = text_documents(
        load_corpus("python-source"),
        loaded.tokenizer,
        documents=1,
        prompt_tokens=LONG[0],
        scored_tokens=LONG[1],
        seed=7,
    )
    score_long(loaded.model, loaded.geometry, torch.tensor(document.token_ids))
