"""The gate certificate: truths are injected as said, and the page holds what the command would write."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from benchmarks.gate_certificate.__main__ import PAGE, certificate
from benchmarks.gate_certificate.injection import injected, kl_cell, recall_cell, sequential_cell
from benchmarks.gate_certificate.vectors import FILE

VECTORS = json.loads(FILE.read_text())
SHARE = re.compile(r"\*\*([\d.]+) \(([\d.]+) to ([\d.]+)\)\*\*")


@pytest.mark.parametrize("delta", [-0.3, -0.1, 0.0, 0.05])
def test_flips_bring_the_truth_where_it_is_said(delta) -> None:
    vector = np.array([-1] * 9 + [1] * 3 + [0] * 52)
    drawn = injected(vector, delta, 2000, 100, np.random.default_rng(1))
    assert set(np.unique(drawn)) <= {-1, 0, 1}
    assert drawn.mean() == pytest.approx(delta, abs=0.004)


def test_a_clear_truth_is_found_and_a_wrong_verdict_is_counted() -> None:
    vector = np.array([-1] * 2 + [1] * 2 + [0] * 60)
    for cell in (recall_cell, sequential_cell):
        good, bad = (cell(vector, delta, 0.1, 300, 60, seed=1) for delta in (0.0, -0.35))
        assert (good.met, good.breached) == (60, 0)
        assert (bad.met, bad.breached) == (0, 60)
    sums = np.random.default_rng(0).gamma(4.0, 1.0, 32)
    assert kl_cell(sums, 10, 0.3, 24, 20, seed=1).met == 20
    assert kl_cell(sums, 10, 3.0, 24, 20, seed=1).breached == 20


def test_the_vectors_are_of_at_least_three_formats_of_a_real_run() -> None:
    assert VECTORS["model"] == "smollm2-135m"
    assert len(VECTORS["weights_sha256"]) == 64
    assert set(VECTORS["kl_nats_sums"]) == set(VECTORS["recall_changes"])
    assert len([sums for sums in VECTORS["kl_nats_sums"].values() if len(set(sums)) > 1]) >= 3
    assert {len(sums) for sums in VECTORS["kl_nats_sums"].values()} == {32}
    assert {len(changes) for changes in VECTORS["recall_changes"].values()} == {64}


def test_the_page_is_written_from_these_vectors() -> None:
    """All but the shares, which take a minute: headings, vectors and injected truths are equal."""
    fresh, page = certificate(VECTORS, 4), PAGE.read_text()

    def without_shares(text: str) -> str:
        return re.sub(r"(\*\*)?[\d.]+ \([\d.]+ to [\d.]+\)(\*\*)?", "share", re.sub(r"of \d+ resamples", "", text))

    assert without_shares(fresh) == without_shares(page)


def test_no_wrong_verdict_of_the_page_is_more_frequent_than_its_level() -> None:
    """At most 6% wrong, or an interval that reaches down to 5%; where mean KL errs more, the page says so."""
    tasks, mean_kl = PAGE.read_text().split("## Mean KL")
    shares, of_means = ([tuple(map(float, found)) for found in SHARE.findall(part)] for part in (tasks, mean_kl))
    assert len(shares) + len(of_means) > 50
    assert [share for share in shares if share[0] > 6 and share[1] > 5] == []
    beyond = [share for share in of_means if share[0] > 6 and share[1] > 5]
    assert len(beyond) <= 2
    assert not beyond or "Where it errs more: on the limit, mean KL" in tasks
