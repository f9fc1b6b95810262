"""The free-running level: the model goes on from a prompt by itself, and an early difference changes all that follows.

Its figures are no figures of the teacher-forced level (`fidelity`), where every step has the true history.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvassay.core.clauses.fields import Count, Margin, Rate, Section, Tokens

LENGTH_SLICE = "generated="
"""A slice of this name and a number holds the first so many tokens of every output."""

MAX_GENERATED_TOKENS = 65_536
"""Beyond, comparing two outputs token by token would keep a verifier of strangers' packs busy."""

Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class _PromptBound(Section):
    """`slices` must hold by themselves: labels of the prompts, or `generated=N` of `free_running.lengths`."""

    min_prompts: Count = Field(default=20, ge=20)
    slices: tuple[str, ...] = ()


class DivergedBound(_PromptBound):
    """Upper bound on the share of prompts whose output differs from the reference's within `within_tokens` tokens."""

    max_rate: Rate
    within_tokens: Tokens | None = Field(default=None, ge=1)
    """None means all of `generated_tokens`."""

    @property
    def limit(self) -> float:
        return self.max_rate


class EditDistanceBound(_PromptBound):
    """Upper bound on the mean over prompts of the Levenshtein distance, as a share of the longer output."""

    max: Share

    @property
    def limit(self) -> float:
        return self.max


class RepetitionBound(_PromptBound):
    """Paired non-inferiority: the share of degenerate outputs may rise over the reference's by at most `margin`."""

    margin: Margin
    repeated_share: Share = 0.5
    """An output is degenerate if more than this share of its 4-grams occurred in it before."""

    @property
    def limit(self) -> float:
        return -self.margin


class EmptyBound(_PromptBound):
    """Paired non-inferiority: the share of outputs that end at once may rise over the reference's by `margin`."""

    margin: Margin

    @property
    def limit(self) -> float:
        return -self.margin


FreeRunningBound = DivergedBound | EditDistanceBound | RepetitionBound | EmptyBound


class FreeRunning(Section):
    """Prompts, how the model goes on from them, and bounds on how outputs may differ from the reference's."""

    corpus: str | None = None
    """None means that of `[text]`."""
    prompts: Count = Field(default=24, ge=1)
    prompt_tokens: Tokens = Field(default=256, ge=1)
    generated_tokens: int = Field(default=64, ge=2, le=MAX_GENERATED_TOKENS)
    """At most; an output also ends with the model's end token. The first token comes from the prompt's own pass."""
    sampling: Literal["greedy", "seeded"] = "greedy"
    """`seeded` draws with noise of `inference.seed`, prompt, step and token, which reference and formats share."""
    temperature: float = Field(default=1.0, gt=0, le=100, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    batch_prompts: int = Field(default=8, ge=1, le=1024)
    """Prompts that run together, under the reference and under every format alike."""
    pilot_prompts: Count = Field(default=8, ge=2)
    lengths: tuple[Annotated[int, Field(ge=1, le=MAX_GENERATED_TOKENS)], ...] = (16, 64, 256, 1024, 4096)
    """Output lengths that are judged beside the whole; those not below `generated_tokens` are left out."""
    diverged: DivergedBound | None = None
    edit_distance: EditDistanceBound | None = None
    repetition: RepetitionBound | None = None
    empty: EmptyBound | None = None

    @model_validator(mode="after")
    def _consistent(self) -> FreeRunning:
        if self.corpus is not None and not self.corpus.strip().removeprefix("path:").strip():
            raise ValueError(f"corpus is {self.corpus!r}; expected a corpus, for example 'hansard', or none at all")
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError(f"lengths must be distinct and rising, found {list(self.lengths)}")
        if self.sampling == "greedy" and (self.temperature != 1 or self.top_p != 1):
            raise ValueError(
                'temperature and top_p change nothing under greedy sampling; leave them out, or set sampling = "seeded"'
            )
        within = self.diverged.within_tokens if self.diverged else None
        if within is not None and within > self.generated_tokens:
            raise ValueError(f"diverged.within_tokens is {within}, generated_tokens {self.generated_tokens}")
        for name, bound in self.bounds.items():
            if self.prompts < bound.min_prompts:
                raise ValueError(f"prompts is {self.prompts}, free_running.{name} needs at least {bound.min_prompts}")
            for label in bound.slices:
                if label.startswith(LENGTH_SLICE) and label not in map(length_slice, self.judged_lengths(name)):
                    found = list(map(length_slice, self.judged_lengths(name)))
                    raise ValueError(f"free_running.{name} has no slice {label!r}; lengths give {found}")
        return self

    @property
    def bounds(self) -> dict[str, FreeRunningBound]:
        """Those that are given, by clause."""
        named = {
            "diverged": self.diverged,
            "edit_distance": self.edit_distance,
            "repetition": self.repetition,
            "empty": self.empty,
        }
        return {name: bound for name, bound in named.items() if bound is not None}

    @property
    def within_tokens(self) -> int:
        """Tokens within which the clause `diverged` looks."""
        within = self.diverged.within_tokens if self.diverged else None
        return within or self.generated_tokens

    def judged_lengths(self, clause: str) -> tuple[int, ...]:
        """Output lengths that are slices of a clause. An output is empty or not whatever its length."""
        if clause == "empty":
            return ()
        whole = self.within_tokens if clause == "diverged" else self.generated_tokens
        return tuple(length for length in self.lengths if length < whole)


def length_slice(tokens: int) -> str:
    return f"{LENGTH_SLICE}{tokens}"


def slice_length(label: str) -> int | None:
    """Tokens of an output that a slice of lengths holds; None for another slice."""
    return int(label.removeprefix(LENGTH_SLICE)) if label.startswith(LENGTH_SLICE) else None
