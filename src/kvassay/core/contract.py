"""The quality contract: what degradation is allowed, fixed and hashed before the run.

A contract is a TOML file. Unknown keys are refused, since a misspelt bound that is silently ignored is a false pass.
Its hash is the SHA-256 of the canonical JSON of the *effective* contract, defaults included, so any edit of a bound,
a margin or a seed changes it, and reformatting the file does not.
"""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kvassay.core.calibration_policy import MIN_MAX, parse_policy
from kvassay.core.digest import sha256_json
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import Owner
from kvassay.errors import CalibrationError, ContractError, FormatError

SCHEMA = "kvassay.contract/1"

MAX_CONTRACT_NBYTES = 1 << 20
MAX_WHOLE = (1 << 53) - 1
"""The largest integer that every JSON reader reads as written."""
MAX_POSITION = (1 << 31) - 1
"""Positions are 32-bit in the row tables."""

Probability = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Alpha = Annotated[float, Field(ge=1e-6, lt=0.5, allow_inf_nan=False)]
"""Below, no test of a run's size decides anything; from a half on, a coin decides."""
Power = Annotated[float, Field(ge=0.01, le=0.9999, allow_inf_nan=False)]
Margin = Annotated[float, Field(ge=1e-4, lt=1, allow_inf_nan=False)]
"""A smaller one needs tens of thousands of contexts without a single loss."""
Rate = Annotated[float, Field(ge=1e-6, lt=1, allow_inf_nan=False)]
Whole = Annotated[int, Field(le=MAX_WHOLE)]
Count = Annotated[int, Field(le=1_000_000)]
Tokens = Annotated[int, Field(le=MAX_POSITION // 2)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Subject(_Model):
    """The model under test. A field that is given must be found in the run; one that is left out is recorded only."""

    model: str | None = None
    revision: str | None = None
    tokenizer_sha256: str | None = None
    engine: Literal["transformers"] = "transformers"
    reference_kv: Literal["f32", "f16", "bf16"] = "f32"


class TextWorkload(_Model):
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


class Candidates(_Model):
    """Formats to judge, from most to least conservative.

    With `fixed-sequence` the claims stop at the first format that is not MET, and no correction is needed; `holm`
    judges all of them and corrects.
    """

    order: tuple[str, ...] = Field(min_length=1)
    multiplicity: Literal["fixed-sequence", "holm"] = "fixed-sequence"

    @field_validator("order")
    @classmethod
    def _known_formats(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        digests = [_parsed(text).digest for text in order]
        if len(set(digests)) != len(digests):
            raise ValueError(f"the same format stands twice in {list(order)}; remove one")
        return order


class Inference(_Model):
    alpha: Alpha = 0.05
    power: Power = 0.8
    design: Literal["fixed"] = "fixed"
    cluster: Literal["document"] = "document"
    prefill_reads: Literal["exact", "stored"] = "exact"
    """What prompt tokens read of older prompt tokens: the exact values (as when the prompt runs in one piece), or the
    stored ones (as when every token goes through the cache)."""
    pilot_documents: Count = Field(default=4, ge=2)
    """Documents of the pilot that planning and calibration use; never reused for the verdict."""
    pilot_items: Count = Field(default=8, ge=2)
    calibration: str = MIN_MAX.text
    """How static scales are chosen from the pilot's keys and values: a policy of `core.calibration_policy`."""
    bootstrap_replicates: int = Field(default=10_000, ge=200, le=1_000_000)
    seed: Whole = Field(default=7, ge=0)

    @field_validator("calibration")
    @classmethod
    def _known_policy(cls, calibration: str) -> str:
        """In the one spelling of each policy, so that two of them have one hash."""
        try:
            return parse_policy(calibration).text
        except CalibrationError as error:
            raise ValueError(str(error)) from error


class Controls(_Model):
    aa_runs: int = Field(default=1, ge=0, le=10)
    canary: str | None = "kivi-2,recent=32"
    require_canary_fail: bool = True
    require_engaged: bool = True

    @field_validator("canary")
    @classmethod
    def _known_format(cls, canary: str | None) -> str | None:
        if canary is not None:
            _parsed(canary)
        return canary


class KlMeanBound(_Model):
    """Upper bound on the mean KL(reference || candidate) per decode position."""

    max: Positive
    unit: Literal["nats/token"] = "nats/token"
    min_docs: Count = Field(default=20, ge=20)


class KlExceedBound(_Model):
    """Upper bound on the share of decode positions whose KL exceeds `tau_nats`."""

    tau_nats: Positive
    max_rate: Rate
    min_docs: Count = Field(default=20, ge=20)


class NllDeltaBound(_Model):
    """Upper bound on mean NLL(candidate) − NLL(reference) per decode position."""

    max: Positive
    unit: Literal["nats/token"] = "nats/token"
    min_docs: Count = Field(default=20, ge=20)


class Fidelity(_Model):
    kl_mean: KlMeanBound | None = None
    kl_exceed: KlExceedBound | None = None
    nll_delta: NllDeltaBound | None = None


class TaskBound(_Model):
    """Paired non-inferiority of a task's accuracy: the loss may be at most `margin` (0.02 = two points)."""

    margin: Margin
    ref_floor: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    items: Count = Field(default=64, ge=1)
    context_lines: int = Field(default=24, ge=2, le=1000)
    slices: tuple[str, ...] = ()


class ByteBounds(_Model):
    persistent_per_token_max: Positive | None = None
    peak_transient_max: Positive | None = None
    count: tuple[Owner, ...] = tuple(Owner)
    """Owners that count towards the bound; by default every byte does."""


class Waiver(_Model):
    """A clause that is knowingly not required, with its reason and the date it was granted."""

    clause: str
    reason: str = Field(min_length=10)
    granted: date


class Contract(_Model):
    schema_: Literal["kvassay.contract/1"] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=100)
    subject: Subject = Subject()
    text: TextWorkload = TextWorkload()
    candidates: Candidates
    inference: Inference = Inference()
    controls: Controls = Controls()
    fidelity: Fidelity = Fidelity()
    task: dict[Literal["recall"], TaskBound] = {}
    bytes: ByteBounds = ByteBounds()
    waivers: tuple[Waiver, ...] = ()

    @model_validator(mode="after")
    def _has_clauses(self) -> Contract:
        if not self.clause_names:
            raise ValueError("the contract bounds nothing; give at least one of [fidelity.*], [task.*] or [bytes]")
        for waiver in self.waivers:
            if waiver.clause not in self.clause_names:
                raise ValueError(f"waiver of {waiver.clause!r}, which is no clause; clauses: {list(self.clause_names)}")
        canary = self.controls.canary
        if canary is not None and _parsed(canary).digest in {_parsed(text).digest for text in self.candidates.order}:
            raise ValueError(f"controls.canary {canary!r} is also a candidate; a known-bad format cannot be one")
        for clause, bound in (
            ("kl_mean", self.fidelity.kl_mean),
            ("kl_exceed", self.fidelity.kl_exceed),
            ("nll_delta", self.fidelity.nll_delta),
        ):
            if bound is not None and self.text.documents < bound.min_docs:
                raise ValueError(
                    f"text.documents is {self.text.documents}, fidelity.{clause} needs at least {bound.min_docs}"
                )
        return self

    @property
    def clause_names(self) -> tuple[str, ...]:
        """Dotted names of all clauses, e.g. `fidelity.kl_mean`, `task.recall`, `bytes.persistent_per_token_max`."""
        fidelity = [
            f"fidelity.{name}" for name in ("kl_mean", "kl_exceed", "nll_delta") if getattr(self.fidelity, name)
        ]
        tasks = [f"task.{name}" for name in sorted(self.task)]
        sizes = [
            f"bytes.{name}" for name in ("persistent_per_token_max", "peak_transient_max") if getattr(self.bytes, name)
        ]
        return (*fidelity, *tasks, *sizes)

    @property
    def has_fidelity(self) -> bool:
        """True where some clause needs scored text."""
        return any((self.fidelity.kl_mean, self.fidelity.kl_exceed, self.fidelity.nll_delta))

    @property
    def sha256(self) -> str:
        return sha256_json(self.to_json())

    def to_json(self) -> dict[str, object]:
        """The effective contract, defaults included, as JSON values."""
        return self.model_dump(mode="json", by_alias=True)


def parse_contract(text: str, origin: str = "contract") -> Contract:
    """Read a contract from TOML text; raises ContractError naming the field path."""
    try:
        fields = tomllib.loads(text)
    except RecursionError as error:
        raise ContractError(f"{origin}: not valid TOML: nested too deeply") from error
    except ValueError as error:
        raise ContractError(f"{origin}: not valid TOML: {error}") from error
    try:
        return Contract.model_validate(fields)
    except ValidationError as error:
        raise ContractError(f"{origin}: {_first_error(error)}") from error


def load_contract(path: Path) -> Contract:
    """Read a contract file; raises ContractError naming the file and the fault."""
    return parse_contract(read_contract_text(path), origin=str(path))


def read_contract_text(path: Path) -> str:
    """The text of a contract file, byte for byte; a pipe will do, since it is read once."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONTRACT_NBYTES + 1)
        text = data.decode()
    except FileNotFoundError as error:
        raise ContractError(f"contract {str(path)!r} does not exist") from error
    except OSError as error:
        raise ContractError(f"contract {str(path)!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ContractError(f"contract {str(path)!r} cannot be read: not UTF-8 at byte {error.start}") from error
    if len(data) > MAX_CONTRACT_NBYTES:
        raise ContractError(f"contract {str(path)!r} has more than {MAX_CONTRACT_NBYTES} bytes; is it a contract?")
    return text


def _first_error(error: ValidationError) -> str:
    """One line: field path, what was found, what is expected, and how many further faults there are."""
    errors = error.errors(include_url=False)
    first = errors[0]
    path = ".".join(str(part) for part in first["loc"]) or "contract"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown key; remove it or correct its spelling"
    elif first["type"] not in ("missing", "value_error"):
        found = repr(first["input"])
        message = f"{message}, found {found if len(found) <= 80 else found[:77] + '...'}"
    further = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{path}: {message}{further}"


def _parsed(text: str):
    try:
        return parse_format(text)
    except FormatError as error:
        raise ValueError(str(error)) from error
