"""lm-eval over our cache: likelihoods are those of decode steps on a real cache, and what reads no code is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvassay import QuantizedCache
from kvassay.cli.app import run
from kvassay.core.format_names import parse_format
from kvassay.errors import CalibrationError, FormatError
from tests.engines.model_folders import llama_config, write_folder
from tests.golden.make_suite_logs import evaluate, save, write_tasks

needs_lm_eval = pytest.mark.usefixtures("lm_eval")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lm_eval():
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    return pytest.importorskip("lm_eval", reason="lm-eval is not installed (the extra lm-eval)")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    config = llama_config(hidden_size=64, head_dim=64, max_position_embeddings=512)
    return write_folder(tmp_path_factory.mktemp("model") / "tiny", config)


def our_model(model: Path, kv_format: str, **options):
    from kvassay.engines.lm_eval.model import KvassayLM

    return KvassayLM(str(model), kv_format, **options)


def plain_model(model: Path):
    from lm_eval.models.huggingface import HFLM

    return HFLM(str(model), device="cpu", dtype="float32", batch_size=1)


def request(kind: str, *arguments):
    from lm_eval.api.instance import Instance

    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


CONTEXT = "The clerk counted sacks of grain at the mill, and wrote 1234 in the book by the river. " * 2
REQUESTS = [(CONTEXT, " stone"), (CONTEXT, " the bridge to the sea"), ("apple: 48", "21")]


@needs_lm_eval
def test_the_reference_equals_lm_evals_own_model(model) -> None:
    requests = [request("loglikelihood", *each) for each in REQUESTS]
    ours, theirs = our_model(model, "f32").loglikelihood(requests), plain_model(model).loglikelihood(requests)
    for (mine, my_greedy), (other, other_greedy) in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, abs=1e-4)
        assert my_greedy == other_greedy
    rolling = [request("loglikelihood_rolling", CONTEXT)]
    assert our_model(model, "f32").loglikelihood_rolling(rolling) == pytest.approx(
        plain_model(model).loglikelihood_rolling(rolling), abs=1e-3
    )


def stepwise(lm, text: str, continuation: str, kv_format: str) -> float:
    """The same likelihood on a real cache: the prompt in one piece, then token by token."""
    context, tokens = lm._encode_pair(text, continuation)
    ids = torch.tensor([context + tokens])
    cache = QuantizedCache(lm.model.config, kv_format)
    total = 0.0
    with torch.inference_mode():
        lm.model(ids[:, : len(context) - 1], cache=cache)
        for place in range(len(context) - 1, ids.shape[1] - 1):
            logits = lm.model(ids[:, place : place + 1], cache=cache).logits[0, -1]
            total += float(torch.log_softmax(logits.float(), -1)[ids[0, place + 1]])
    return total


@needs_lm_eval
@pytest.mark.parametrize("kv_format", ["int8-token-head", "kivi-2,recent=32", "int4-g32"])
def test_likelihoods_are_those_of_decode_steps_on_a_real_cache(model, kv_format) -> None:
    """One forward pass over context and continuation, lm-eval's way, would read no stored code at all."""
    lm = our_model(model, kv_format.replace(",", ";"))
    found = lm.loglikelihood([request("loglikelihood", *each) for each in REQUESTS[:2]])
    exact = our_model(model, "f32").loglikelihood([request("loglikelihood", *each) for each in REQUESTS[:2]])
    for (text, continuation), (likelihood, _), (reference, _) in zip(REQUESTS[:2], found, exact, strict=True):
        assert likelihood == pytest.approx(stepwise(lm, text, continuation, kv_format), abs=1e-3)
        assert likelihood != reference
    info = lm.get_model_info()
    assert info["queries_that_read_codes"] == info["queries"] > 0
    assert info["kv_format_digest"] == parse_format(kv_format).digest


@needs_lm_eval
def test_generation_runs_on_a_real_cache(model) -> None:
    wanted = {"until": ["\n"], "max_gen_toks": 12}
    requests = [request("generate_until", CONTEXT, wanted), request("generate_until", CONTEXT[:90], wanted)]
    plain = plain_model(model).generate_until(requests)
    assert our_model(model, "f32").generate_until(requests) == plain
    lm = our_model(model, "kivi-2;recent=32", batch_size=2)
    batched = lm.generate_until(requests)
    assert batched == our_model(model, "kivi-2;recent=32").generate_until(requests)
    assert batched != plain
    assert lm.get_model_info()["queries_that_read_codes"] == 2


@needs_lm_eval
@pytest.mark.parametrize("kind", ["loglikelihood", "generate_until"])
def test_a_task_that_never_leaves_the_window_is_refused(model, kind) -> None:
    """It would look perfect: every query reads full precision."""
    lm = our_model(model, "kivi-4")
    second = " mill" if kind == "loglikelihood" else {"until": ["\n"], "max_gen_toks": 2}
    with pytest.raises(FormatError, match=r"0 of \d+ queries read a stored code; at least half must"):
        getattr(lm, kind)([request(kind, "A short text about the", second)])


@needs_lm_eval
def test_static_scales_are_refused(model) -> None:
    with pytest.raises(CalibrationError, match="static scales, which lm-eval has no text to calibrate on"):
        our_model(model, "int8-tensor")


@needs_lm_eval
def test_local_tasks_run_and_their_logs_are_judged(model, tmp_path, capsys) -> None:
    tasks = write_tasks(tmp_path / "tasks", items=6)
    for name, kv_format in (("reference", "f32"), ("candidate", "kivi-2;recent=32")):
        result = evaluate(model, kv_format, tasks)
        assert result["config"]["kv_format"] == parse_format(kv_format.replace(";", ",")).name
        save(result, tmp_path / name)
    capsys.readouterr()
    for task, metric in (("words_choice", "acc"), ("words_say", "exact_match")):
        logs = [str(tmp_path / name) for name in ("reference", "candidate")]
        options = ["--task", task, "--metric", metric, "--margin", "0.05", "--ref-floor", "0", "--json"]
        assert run(["judge-logs", *logs, *options]) == 3
        found = json.loads(capsys.readouterr().out)
        assert (found["suite"], found["n"]) == ("lm-eval", 6)
        drift = next(control for control in found["controls"] if control["name"] == "drift")
        assert drift["passed"] is True


def test_without_the_extra_its_command_says_how_to_install_it() -> None:
    code = (
        "import runpy, sys\nsys.modules['lm_eval'] = None\n"
        "runpy.run_module('kvassay.engines.lm_eval', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "pip install 'kvassay[torch,lm-eval]'" in done.stderr
    assert "Traceback" not in done.stderr
