"""Whom a contract is about."""

from __future__ import annotations

from typing import Literal, get_args

from kvassay.core.clauses.fields import Section

Weights = Literal["stored", "hqq-8", "hqq-4"]
"""How the weights run: as the files hold them (in float32), or with the linear layers quantized by hqq."""
WEIGHTS: tuple[str, ...] = get_args(Weights)


class Subject(Section):
    """The model under test. A field that is given must be found in the run; one that is left out is recorded only."""

    model: str | None = None
    revision: str | None = None
    tokenizer_sha256: str | None = None
    weights: Weights = "stored"
    """Precision of weights, which chooses no KV format: the same formats are judged on another model."""
    engine: Literal["transformers"] = "transformers"
    reference_kv: Literal["f32", "f16", "bf16"] = "f32"
