"""The frontier over packs of one store: seeds count together, other settings of the same workload do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvassay.core.records import FormatVerdict, Outcome, Role, Verdicts
from kvassay.scale.cell import Group, ModelIdentity, distinct_labels
from kvassay.scale.frontier import ambiguous_workloads, frontier
from kvassay.scale.merge import Merged
from tests.pack.sample_pack import CONTRACT_TOML

FORMAT = "int8-token-head"


def group(seed: int = 7, toml: str = CONTRACT_TOML, **fields: Any) -> Group:
    model = ModelIdentity(
        name="m", weights_sha256=fields.pop("weights", "w"), tokenizer_sha256="t", config_sha256="c", revision=None
    )
    given = {
        "model": model,
        "workload": "sample",
        "workload_sha256": "x",
        "seed": seed,
        "engine": "e",
        "device": "d",
        "threads": 1,
        "device_given": False,
        "contract_toml": toml.replace("[inference]", f"[inference]\nseed = {seed}"),
        "contract_sha256": f"{seed} {toml} {fields} {model}",
        "reference": "r",
        "cells": (),
    }
    return Group(**{**given, **fields})


def merged(of: Group, outcome: Outcome) -> Merged:
    verdict = FormatVerdict(
        arm=FORMAT,
        role=Role.CANDIDATE,
        format_digest="f",
        outcome=outcome,
        reason="",
        clauses=(),
        controls=(),
    )
    verdicts = Verdicts(contract_sha256="", outcome=outcome, exit_code=0, reason="", controls=(), formats=(verdict,))
    return Merged(of, Path("out"), None, verdicts, "", {FORMAT: 8.5})  # pyright: ignore[reportArgumentType]


OTHERS = {
    "bound": {"toml": CONTRACT_TOML.replace("max = 0.02", "max = 0.5")},
    "format": {"toml": CONTRACT_TOML.replace(', "q4_0"', ', "q4_0", "q8_0"')},
    "weights": {"weights": "v"},
    "engine": {"engine": "another version"},
    "device": {"device": "another machine"},
}


def test_seeds_of_one_setting_count_together() -> None:
    points = frontier([merged(group(7), Outcome.MET), merged(group(8), Outcome.BREACHED)])
    assert [(point.seeds, point.met, point.on_frontier) for point in points] == [(2, 1, False)]
    assert not ambiguous_workloads(points)


@pytest.mark.parametrize("other", OTHERS)
def test_what_was_met_under_another_setting_is_no_seed_of_this_one(other) -> None:
    """A store keeps what was asked before: an edited bound must neither make nor unmake what was met before it."""
    again = group(**OTHERS[other])
    points = frontier([merged(group(), Outcome.MET), merged(again, Outcome.BREACHED)])
    assert {(point.seeds, point.met, point.on_frontier) for point in points} == {(1, 1, True), (1, 0, False)}
    assert ambiguous_workloads(points) == {("m", "sample")}
    labels = distinct_labels([group(), again, group(8)])
    assert len(set(labels.values())) == 3
    assert labels[group(8).id] == "m, sample, seed 8"
