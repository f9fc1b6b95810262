"""The teacher-forced level: text with a fixed history, and bounds on what each decode position loses."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from kvassay.core.clauses.fields import Count, Positive, Rate, Section, Tokens
from kvassay.core.corpus_names import parse_corpus
from kvassay.core.derived_slices import DERIVED, is_derived_cut
from kvassay.core.slices import ALL, slice_cell
from kvassay.errors import WorkloadError


class TextWorkload(Section):
    """Documents for the teacher-forced level: `prompt_tokens` of history, then `scored_tokens` decode positions."""

    corpus: str = "hansard"
    documents: Count = Field(default=24, ge=1)
    prompt_tokens: Tokens = Field(default=256, ge=0)
    scored_tokens: Tokens = Field(default=256, ge=5)
    """At least five: with fewer, two documents could have equal tokens by chance and would pass for copies."""
    scored: Literal["all", "assistant"] = "all"
    """Which decode positions the clauses look at: all, or those of a conversation whose true next token is the
    assistant's."""

    @field_validator("corpus")
    @classmethod
    def _named_corpus(cls, corpus: str) -> str:
        if not corpus.strip().removeprefix("path:").strip():
            raise ValueError(f"found {corpus!r}; expected a corpus, for example 'hansard' or 'path:FOLDER_OR_FILE'")
        try:
            parse_corpus(corpus)
        except WorkloadError as error:
            raise ValueError(str(error)) from error
        return corpus


class FidelityBound(Section):
    """A bound from above on a mean or a share over decode positions."""

    min_docs: Count = Field(default=20, ge=20)
    slices: tuple[str, ...] = ()
    """Slices in which the bound must be MET by itself: a corpus, `language=de`, or a derived slice of tokens."""

    @field_validator("slices")
    @classmethod
    def _named_slices(cls, slices: tuple[str, ...]) -> tuple[str, ...]:
        slice_cell(slices)
        if len(set(slices)) < len(slices):
            raise ValueError(f"the same slice stands twice in {list(slices)}; remove one")
        for label in slices:
            if label == ALL:
                raise ValueError("'all' holds every token and always decides; name parts of it only")
            if is_derived_cut(label) and label not in DERIVED:
                raise ValueError(f"found the slice {label!r}; slices of tokens are {', '.join(DERIVED)}")
        return slices

    @property
    def limit(self) -> float:
        raise NotImplementedError

    @property
    def figure_unit(self) -> str:
        return "share"


class MeanBound(FidelityBound):
    max: Positive
    unit: Literal["nats/token"] = "nats/token"

    @property
    def limit(self) -> float:
        return self.max

    @property
    def figure_unit(self) -> str:
        return self.unit


class KlMeanBound(MeanBound):
    """Upper bound on the mean KL(reference || candidate) per decode position."""


class ReverseKlMeanBound(MeanBound):
    """Upper bound on the mean KL(candidate || reference), which weighs what the candidate says and should not."""


class NllDeltaBound(MeanBound):
    """Upper bound on mean NLL(candidate) − NLL(reference) per decode position."""


class KlExceedBound(FidelityBound):
    """Upper bound on the share of decode positions whose KL exceeds `tau_nats`."""

    tau_nats: Positive
    max_rate: Rate

    @property
    def limit(self) -> float:
        return self.max_rate


class AgreementBound(FidelityBound):
    max_disagreement: Rate

    @property
    def limit(self) -> float:
        return self.max_disagreement


class Top1AgreementBound(AgreementBound):
    """Upper bound on the share of decode positions whose most likely token differs from the reference's.

    Many such flips are near-ties that change nothing, so the figure is no measure of quality by itself; greedy
    decoding departs from the reference where they occur.
    """


class TopkAgreementBound(AgreementBound):
    """Upper bound on the mean share of the reference's ten most likely tokens that the candidate's ten lack."""


class Fidelity(Section):
    kl_mean: KlMeanBound | None = None
    kl_exceed: KlExceedBound | None = None
    reverse_kl_mean: ReverseKlMeanBound | None = None
    nll_delta: NllDeltaBound | None = None
    top1_agreement: Top1AgreementBound | None = None
    topk_agreement: TopkAgreementBound | None = None

    @property
    def bounds(self) -> dict[str, FidelityBound]:
        """Those that are given, by clause."""
        named: dict[str, FidelityBound | None] = {
            "kl_mean": self.kl_mean,
            "kl_exceed": self.kl_exceed,
            "reverse_kl_mean": self.reverse_kl_mean,
            "nll_delta": self.nll_delta,
            "top1_agreement": self.top1_agreement,
            "topk_agreement": self.topk_agreement,
        }
        return {name: bound for name, bound in named.items() if bound is not None}
