"""The teacher-forced level: text with a fixed history, and bounds on what each decode position loses."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from kvassay.core.clauses.fields import Count, Positive, Rate, Section, Tokens


class TextWorkload(Section):
    """Documents for the teacher-forced level: `prompt_tokens` of history, then `scored_tokens` decode positions."""

    corpus: str = "hansard"
    documents: Count = Field(default=24, ge=1)
    prompt_tokens: Tokens = Field(default=256, ge=0)
    scored_tokens: Tokens = Field(default=256, ge=5)
    """At least five: with fewer, two documents could have equal tokens by chance and would pass for copies."""

    @field_validator("corpus")
    @classmethod
    def _named_corpus(cls, corpus: str) -> str:
        if not corpus.strip().removeprefix("path:").strip():
            raise ValueError(f"found {corpus!r}; expected a corpus, for example 'hansard' or 'path:FOLDER_OR_FILE'")
        return corpus


class KlMeanBound(Section):
    """Upper bound on the mean KL(reference || candidate) per decode position."""

    max: Positive
    unit: Literal["nats/token"] = "nats/token"
    min_docs: Count = Field(default=20, ge=20)

    @property
    def limit(self) -> float:
        return self.max


class KlExceedBound(Section):
    """Upper bound on the share of decode positions whose KL exceeds `tau_nats`."""

    tau_nats: Positive
    max_rate: Rate
    min_docs: Count = Field(default=20, ge=20)

    @property
    def limit(self) -> float:
        return self.max_rate


class NllDeltaBound(Section):
    """Upper bound on mean NLL(candidate) − NLL(reference) per decode position."""

    max: Positive
    unit: Literal["nats/token"] = "nats/token"
    min_docs: Count = Field(default=20, ge=20)

    @property
    def limit(self) -> float:
        return self.max


class Fidelity(Section):
    kl_mean: KlMeanBound | None = None
    kl_exceed: KlExceedBound | None = None
    nll_delta: NllDeltaBound | None = None

    @property
    def bounds(self) -> dict[str, KlMeanBound | KlExceedBound | NllDeltaBound]:
        """Those that are given, by clause."""
        named = {"kl_mean": self.kl_mean, "kl_exceed": self.kl_exceed, "nll_delta": self.nll_delta}
        return {name: bound for name, bound in named.items() if bound is not None}
