"""Loaded into the test run with `-p`: substitutes, makes it repeatable, selects and records.

Read from the environment, since a plugin has no arguments before collection: KVASSAY_RECORD (a folder to write to),
KVASSAY_TESTS (the folder with tests/), KVASSAY_FORMAT (empty: leave DynamicCache) and KVASSAY_DTYPE (models' dtype).
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from benchmarks.transformers_tests import checkout

RECORD = Path(os.environ["KVASSAY_RECORD"])
TESTS = Path(os.environ["KVASSAY_TESTS"])
FORMAT = os.environ.get("KVASSAY_FORMAT", "")
DTYPE = getattr(torch, os.environ.get("KVASSAY_DTYPE", "float32"))
LEFT_OUT = {
    "compil": "compiles a static cache; a QuantizedCache is not compileable, and says so",
    "flash_attention": "needs flash attention and a GPU",
    "_fa2": "needs flash attention and a GPU",
    "_fa3": "needs flash attention and a GPU",
    "_fa4": "needs flash attention and a GPU",
    "export": "exports a DynamicCache or a StaticCache with torch.export",
    "static": "makes a StaticCache",
    "quant": "makes a quantized cache of transformers' own",
    "offloaded": "makes transformers' own offloaded cache; a QuantizedCache has an Offload instead",
    "continuous_batching": "continuous batching has a paged cache of its own",
}
"""Parts of a test's name, and why such a test is not run."""
MAX_FORWARDS = 300

sys.path.insert(0, str(TESTS))
checkout.leave_out_mixins()
_missing = checkout.bind_missing_names(TESTS)
if FORMAT:
    from benchmarks.transformers_tests import substitution

    substitution.install(FORMAT)

_forwards: list[dict[str, torch.Tensor]] = []


def _keep_forward(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    logits = getattr(output, "logits", None)
    ids = kwargs.get("input_ids", args[0] if args else None)
    if isinstance(logits, torch.Tensor) and isinstance(ids, torch.Tensor) and len(_forwards) < MAX_FORWARDS:
        _forwards.append({"ids": ids.detach().clone(), "logits": logits.detach().to(torch.float32).clone()})


register_module_forward_hook(_keep_forward, with_kwargs=True)


def pytest_configure(config: pytest.Config) -> None:
    run = {"missing_names": _missing, "unwrapped_tests": _unwrap_flaky_tests()}
    (RECORD / "run.json").write_text(json.dumps(run))
    torch.set_default_dtype(DTYPE)


def _unwrap_flaky_tests() -> list[str]:
    """Put back tests that `@is_flaky`, written without parentheses, turned into functions that run nothing.

    `is_flaky` takes options and returns a decorator, so such a test is the decorator, and "passes" by making a wrapper.
    Prompt lookup is tested by nothing else. Must come before a test module subclasses the mixin.
    """
    mixin = importlib.import_module("tests.generation.test_utils").GenerationTesterMixin
    unwrapped = []
    for name, function in list(vars(mixin).items()):
        if not inspect.isfunction(function) or function.__qualname__ != "is_flaky.<locals>.decorator":
            continue
        test = inspect.getclosurevars(function).nonlocals["max_attempts"]
        if inspect.isfunction(test):
            setattr(mixin, name, test)
            unwrapped.append(name)
    return unwrapped


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of generation and of caches; write down which of those are left out."""
    from tests.generation.test_utils import GenerationTesterMixin  # pyright: ignore[reportMissingImports]

    chosen, left_out, others = [], {}, []
    for item in items:
        in_model_file = "/models/" in item.nodeid
        if in_model_file and not hasattr(GenerationTesterMixin, getattr(item, "originalname", "") or item.name):
            others.append(item)
            continue
        why = next((why for part, why in LEFT_OUT.items() if part in item.nodeid.lower()), None)
        if why is None:
            chosen.append(item)
        else:
            left_out[item.nodeid] = why
            others.append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen
    (RECORD / "left_out.json").write_text(json.dumps(left_out))
    if FORMAT:
        for name in {item.module.__name__ for item in items if isinstance(item, pytest.Function) and item.module}:
            substitution.substitute_layer_classes(sys.modules[name])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """The same random numbers in every run; the generator of transformers' tests is its own."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (transformers' tests draw from the global generator)
    torch.manual_seed(0)
    common = sys.modules.get("tests.test_modeling_common")
    if common is not None:
        common.__dict__["global_rng"].seed(0)
    _forwards.clear()
    if FORMAT:
        substitution.made.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        _write(item.nodeid, report, call)
    return report


def _write(nodeid: str, report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    message = "" if call.excinfo is None else f"{call.excinfo.typename}: {call.excinfo.value}"
    made = dict(substitution.made) if FORMAT else {}
    line = {"test": nodeid, "outcome": report.outcome, "message": message[:1500], "made": made}
    with (RECORD / "tests.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    name = nodeid.replace("/", "+").replace("::", "--")
    torch.save(list(_forwards), RECORD / f"{name}.pt")
