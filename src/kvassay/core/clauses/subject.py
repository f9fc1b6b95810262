"""Whom a contract is about."""

from __future__ import annotations

from typing import Literal

from kvassay.core.clauses.fields import Section


class Subject(Section):
    """The model under test. A field that is given must be found in the run; one that is left out is recorded only."""

    model: str | None = None
    revision: str | None = None
    tokenizer_sha256: str | None = None
    engine: Literal["transformers"] = "transformers"
    reference_kv: Literal["f32", "f16", "bf16"] = "f32"
