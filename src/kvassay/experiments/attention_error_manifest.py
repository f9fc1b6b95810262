"""The manifest of an attention-error folder and the names of its files."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvassay.experiments.attention_error_plan import (
    EXCLUSIONS,
    EXPERIMENT,
    EXPERIMENT_VERSION,
    INPUTS,
    LENGTHS,
    NOT_PROVEN,
    OUTLIER_FACTOR,
    QUANTIZERS,
    QUERY_ROWS,
    SEEDS,
    SYNTHETIC_LABEL,
    VARIANTS,
    WIDTH,
)
from kvassay.pack.manifest import Manifest, Sha256

PLAN_FILE = "experiment.json"
ARRAYS_FILE = "arrays.json"
SUMMARY_FILE = "summary.md"


class AttentionErrorManifest(Manifest):
    """Binds the run to its source: commit, hash of each source file that was loaded, environment."""

    experiment: Literal["attention-error"]
    experiment_version: Literal[1]
    git_commit: str | None
    git_clean: bool | None
    sources: dict[str, Sha256] = Field(min_length=1, max_length=1000)
    environment: dict[str, str]


def plan_json() -> dict[str, object]:
    """What was run, as `experiment.json` states it."""
    return {
        "experiment": EXPERIMENT,
        "experiment_version": EXPERIMENT_VERSION,
        "data": SYNTHETIC_LABEL,
        "seeds": list(SEEDS),
        "lengths": list(LENGTHS),
        "width": WIDTH,
        "query_rows": QUERY_ROWS,
        "inputs": list(INPUTS),
        "outlier_factor": OUTLIER_FACTOR,
        "quantizers": list(QUANTIZERS),
        "variants": list(VARIANTS),
        "draws": "one numpy.random.default_rng(seed) a seed; standard_normal for Q, K, V of each length",
        "attention": "float64, non-causal, scores q.k/sqrt(width)",
        "output_max_abs": "max |attention(Q, K_hat, V_hat) - attention(Q, K, V)|",
        "exclusions": list(EXCLUSIONS),
        "not_proven": list(NOT_PROVEN),
    }
