"""A served request: a real server on a real socket answers what the model gives without one."""

from __future__ import annotations

from http.client import HTTPConnection
from pathlib import Path

import pytest
import torch
from benchmarks.served_request import PLAIN, ask, gates_of, measure, serving
from transformers import DynamicCache

from kvassay.cache import QuantizedCache
from kvassay.pack.reader import read_whole_pack
from tests.pack.sample_pack import write_sample
from tests.tiny_models import tiny_model

PROMPT = list(range(3, 43))


@pytest.fixture(scope="module")
def model():
    found = tiny_model("llama")
    found.set_attn_implementation("kvassay")
    return found


@pytest.fixture(scope="module")
def port(model):
    with serving(model) as found:
        yield found


@pytest.mark.parametrize("name", [PLAIN, "int8-token-head", "kivi-2,recent=8"])
def test_r104_a_served_request_gives_the_tokens_and_bytes_of_the_cache_alone(model, port, name) -> None:
    served = ask(port, name, PROMPT, 12)
    cache = DynamicCache(config=model.config) if name == PLAIN else QuantizedCache(model.config, name)
    ids, alone = torch.tensor([PROMPT]), []
    with torch.inference_mode():
        for _ in range(12):
            ids = model(ids, cache=cache).logits[:, -1:].argmax(-1)
            alone.append(int(ids))
    assert served.token_ids == tuple(alone)
    if isinstance(cache, QuantizedCache):
        assert served.stored_nbytes == cache.ledger().persistent_nbytes
    else:
        tokens, values_a_token = len(PROMPT) + 11, 3 * 2 * 2 * 64  # layers, keys and values, KV heads, head size
        assert served.stored_nbytes == tokens * values_a_token * 8  # float64
    assert 0 < served.first_seconds < served.seconds


def test_a_request_that_the_server_refuses_is_an_error_and_the_next_one_is_served(port) -> None:
    with pytest.raises((RuntimeError, OSError)):
        ask(port, "no such format", PROMPT, 2)
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/generate")
    assert connection.getresponse().status == 405
    connection.close()
    assert len(ask(port, "int8-token-head", PROMPT, 2).token_ids) == 2


def test_r30_r58_times_of_requests_and_verdicts_on_quality_are_apart(model, tmp_path: Path) -> None:
    """A verdict holds no time, a time no verdict: only the name of the gate that lets it be shown."""
    write_sample(tmp_path / "pack")
    names = [PLAIN, "int8-token-head", "q4_0"]
    rows = measure(model, names, gates_of(names, tmp_path / "pack", ungated=False), PROMPT, 3, 1, 2)
    assert [row.gate for row in rows] == ["the reference", "MET in sample", "void: NOT MEASURED"]
    assert [row.first_seconds is None for row in rows] == [False, False, True]
    verdicts = read_whole_pack(tmp_path / "pack").verdicts
    kinds = {clause.clause.partition(".")[0] for found in verdicts.formats for clause in found.clauses}
    assert kinds <= {"fidelity", "numeric", "task", "free_running", "bytes"}
