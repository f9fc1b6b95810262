"""The harness that runs transformers' own tests: what it substitutes, and that its verdicts can be failures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.transformers_tests import checkout
from benchmarks.transformers_tests.verdict import Outcome, Run, Verdict, compare, judge, table

ROOT = Path(__file__).parents[2]
EXACT = Run("exact", "kv=f32", "float32", 0.0)
INT4 = Run("int4", "kv=int4:token-head", "float32", 0.1)
TEST = "tests/models/llama/test_modeling_llama.py::LlamaModelTest::test_greedy_generate"

SUBSTITUTED = """
import json
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM
from kvassay.cache import QuantizedCache

def model():
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=99, eos_token_id=None, pad_token_id=0)
    return LlamaForCausalLM(config).eval()

def run():
    ids = torch.arange(1, 9).reshape(2, 4)
    return model().generate(ids, max_new_tokens=8, do_sample=False, return_dict_in_generate=True, output_logits=True)

before = run()
from benchmarks.transformers_tests import substitution
substitution.install("kv=f32")
after = run()
made = dict(substitution.made)
substitution.made.clear()
bare = transformers.DynamicCache()
odd = transformers.DynamicCache(config=LlamaConfig(hidden_size=64), offloading=True)
cache = after.cache
print(json.dumps({
    "was": type(before.cache).__name__,
    "is": type(cache) is QuantizedCache,
    "isinstance": isinstance(cache, transformers.DynamicCache),
    "static": isinstance(cache, transformers.StaticCache),
    "bits": all(map(torch.equal, before.logits, after.logits)) and torch.equal(before.sequences, after.sequences),
    "keys": torch.equal(before.cache.layers[1].keys, cache.layers[1].keys),
    "made": made,
    "bare": [type(bare).__name__, type(odd).__name__, sorted(substitution.made)],
}))
"""


def test_a_cache_that_generate_makes_becomes_an_unchanged_quantized_cache() -> None:
    """In a process of its own, since the substitution is for good."""
    done = subprocess.run(
        [sys.executable, "-c", SUBSTITUTED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["was"] == "DynamicCache"
    assert (seen["is"], seen["isinstance"], seen["static"]) == (True, True, False)
    assert (seen["bits"], seen["keys"]) == (True, True)
    assert seen["made"] == {"QuantizedCache": 1}
    assert seen["bare"] == ["DynamicCache", "DynamicCache", ["made with offloading", "made without a config"]]


def forwards(*logits: float, ids: int = 1) -> list[dict[str, torch.Tensor]]:
    return [{"ids": torch.tensor([[ids]]), "logits": torch.tensor([[value, 1.0]])} for value in logits]


def test_logits_are_compared_until_the_inputs_differ() -> None:
    same = forwards(1.0, 2.0)
    assert compare(same, forwards(1.0, 2.0)) == (0.0, 2, True)
    error, count, alike = compare(same, forwards(1.0, 2.1))
    assert error == pytest.approx(0.1 / 5**0.5, rel=1e-5)
    assert (count, alike) == (2, False)
    # The second forward has another input: its logits say nothing.
    assert compare(same, [*forwards(1.0), *forwards(9.0, ids=2)]) == (0.0, 1, False)
    assert compare(same, forwards(1.0)) == (0.0, 1, False)


def line(outcome: str = "passed", message: str = "", made: int = 1) -> dict[str, object]:
    return {"test": TEST, "outcome": outcome, "message": message, "made": {"QuantizedCache": made} if made else {}}


@pytest.mark.parametrize(
    ("run", "plain", "seen", "logits", "verdict"),
    [
        (EXACT, line(), line(), 1.0, Verdict.PASSED),
        (EXACT, line(), line(), 1.0 + 1e-6, Verdict.FAILED),
        (EXACT, line(), line("failed", "NotImplementedError: no"), 1.0, Verdict.FAILED),
        (EXACT, line(), line("failed", "AssertionError: Tensor-likes are not close!"), 1.0, Verdict.FAILED),
        (EXACT, line(), line("skipped", "Skipped: no"), 1.0, Verdict.FAILED),
        (EXACT, line(), None, 1.0, Verdict.FAILED),
        (EXACT, line(), line(made=0), 1.0, Verdict.NOT_APPLICABLE),
        (EXACT, line("skipped", "Skipped: test is slow"), line(), 1.0, Verdict.NOT_APPLICABLE),
        (
            EXACT,
            line("failed", "OSError: couldn't connect to 'https://huggingface.co'"),
            line(),
            1.0,
            Verdict.NOT_APPLICABLE,
        ),
        (INT4, line(), line(), 1.05, Verdict.PASSED),
        (INT4, line(), line(), 2.0, Verdict.FAILED),
        (INT4, line(), line("failed", "AssertionError: Tensor-likes are not close!"), 1.05, Verdict.LOSSY),
        (INT4, line(), line("failed", "AssertionError: Tensor-likes are not close!"), 2.0, Verdict.FAILED),
        (INT4, line(), line("failed", "AttributeError: crop"), 1.05, Verdict.FAILED),
    ],
)
def test_each_way_to_fail_is_told_from_what_does_not_apply(run, plain, seen, logits, verdict, tmp_path: Path) -> None:
    for name, kept in ((run.plain, forwards(1.0)), (run.name, forwards(logits))):
        (tmp_path / name).mkdir()
        torch.save(kept, tmp_path / name / (TEST.replace("/", "+").replace("::", "--") + ".pt"))
    outcome = judge(TEST, run, plain, seen, tmp_path)
    assert outcome.verdict is verdict
    assert outcome.why or verdict is Verdict.PASSED


def test_a_lossy_format_that_is_held_to_stored_bits_does_not_apply(tmp_path: Path) -> None:
    seen = line("failed", "AssertionError: tensor(False) is not true")
    assert judge(TEST, INT4, line(), seen, tmp_path).verdict is Verdict.NOT_APPLICABLE
    assert judge(TEST, EXACT, line(), seen, tmp_path).verdict is Verdict.FAILED


def test_the_table_shows_failures_and_every_test_left_out() -> None:
    failed = Outcome(Verdict.FAILED, "no crop", 0.0, 3)
    absent = Outcome(Verdict.NOT_APPLICABLE, "needs a model from the hub", 0.0, 0)
    text = table(
        {TEST: {"exact": failed}, "t.py::A::test_hub": {"exact": absent}}, [EXACT], {"t.py::A::test_s": "static"}
    )
    assert "| `test_greedy_generate` | 1 | **1 failed**: no crop |" in text
    assert "| needs a model from the hub | `test_hub` |" in text
    assert "| not run: static | `test_s` |" in text


def test_a_folder_of_an_older_version_is_renamed_by_whole_words(tmp_path: Path) -> None:
    tests = tmp_path / "tests" / "generation"
    tests.mkdir(parents=True)
    (tests / "test_utils.py").write_text("out.past_key_values\ndef test_past_key_values_format(): ...\n")
    assert checkout.needs_renaming(tmp_path)
    checkout.copy_tests(tmp_path, tmp_path / "copy", [], rename=True)
    copied = tmp_path / "copy" / "tests" / "generation" / "test_utils.py"
    assert copied.read_text() == "out.cache\ndef test_past_key_values_format(): ...\n"
    assert not checkout.needs_renaming(tmp_path / "copy")


def test_a_name_that_transformers_lost_skips_the_tests_that_use_it(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "from transformers.testing_utils import require_torch, kvassay_gone, KVASSAY_LITERAL\n"
    )
    source = tmp_path / "src" / "transformers"
    source.mkdir(parents=True)
    (source / "testing_utils.py").write_text("KVASSAY_LITERAL = {'a': 1}\n")
    missing = checkout.bind_missing_names(tmp_path)
    assert missing == ["transformers.testing_utils.KVASSAY_LITERAL", "transformers.testing_utils.kvassay_gone"]
    from transformers import testing_utils

    assert testing_utils.KVASSAY_LITERAL == {"a": 1}  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(pytest.skip.Exception, match="kvassay_gone"):
        testing_utils.kvassay_gone("an argument")  # pyright: ignore[reportAttributeAccessIssue]
