"""Isolated KL: what the model loses when one unit alone is quantized, and the file that keeps it.

For each unit (one side of a layer, or of one KV head) and each width of a ladder, everything else stays float32 and the
mean KL of decode positions is taken on the pilot's documents. The sum over units predicts the KL of a whole format if
losses add up; whether they do is measured, not assumed (`docs/design/bit-allocation.md`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import kvassay
from kvassay.assess.progress import Progress
from kvassay.core.bounded_json import json_size_fault
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import Side
from kvassay.core.regular_file import read_regular
from kvassay.engines.transformers.loading import ModelHashes
from kvassay.errors import SearchError
from kvassay.find.allocation import Choice
from kvassay.find.ladder import By, Ladder, Unit, isolated_format, unit_nbytes, units_of
from kvassay.find.pilot import SearchPilot
from kvassay.pack.whole_file import write_whole_file

SCHEMA = "kvassay.sensitivities/1"
MOST_FILE_NBYTES = 64 << 20


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MeasuredModel(_Record):
    name: str
    weights_sha256: str
    tokenizer_sha256: str
    config_sha256: str


class MeasuredDocument(_Record):
    id: str
    sha256: str
    """Of its token ids."""


class MeasuredText(_Record):
    corpus: str
    corpus_sha256: str
    prompt_tokens: int
    scored_tokens: int
    seed: int
    documents: tuple[MeasuredDocument, ...]


class Sensitivity(_Record):
    layer: int
    side: Side
    head: int | None
    width: int
    kl_nats: tuple[float, ...] = Field(min_length=1)
    """Mean KL of each document, in nats per token."""

    @property
    def mean(self) -> float:
        return sum(self.kl_nats) / len(self.kl_nats)


class Sensitivities(_Record):
    """Isolated KL of every unit at every width, with what it was measured on."""

    schema_version: Literal["kvassay.sensitivities/1"] = SCHEMA
    kvassay_version: str
    model: MeasuredModel
    reference_kv: str
    prefill_reads: str
    text: MeasuredText
    ladder: str
    by: By
    format_digests: dict[int, str]
    """Of the ladder's uniform format at each width: what the codes mean."""
    seconds: float
    passes: int
    entries: tuple[Sensitivity, ...]

    def mean_kl(self) -> dict[tuple[Unit, int], float]:
        return {(Unit(each.layer, each.side, each.head), each.width): each.mean for each in self.entries}


class Wanted(NamedTuple):
    """What sensitivities must be of to serve a search."""

    model_name: str
    hashes: ModelHashes
    geometry: CacheGeometry
    ladder: Ladder
    by: By
    verdict_documents: Collection[str]


def measure_sensitivities(pilot: SearchPilot, wanted: Wanted, progress: Progress) -> Sensitivities:
    """One candidate pass a unit, width and document. The reference's passes are the pilot's."""
    ladder = wanted.ladder
    units = units_of(wanted.geometry, wanted.by)
    formats = {
        f"{unit} at {width} bit": isolated_format(ladder, unit, width) for unit in units for width in ladder.widths
    }
    documents = len(pilot.text.documents)
    passes = len(formats) * documents
    progress.stage(f"isolated KL of {len(units)} units at {len(ladder.widths)} widths", passes)
    began = time.monotonic()
    found = pilot.figures(formats, progress)
    text = pilot.text.to_json()
    contract = pilot.contract
    return Sensitivities(
        kvassay_version=kvassay.__version__,
        model=MeasuredModel(
            name=wanted.model_name,
            weights_sha256=wanted.hashes.weights,
            tokenizer_sha256=wanted.hashes.tokenizer,
            config_sha256=wanted.hashes.config,
        ),
        reference_kv=contract.subject.reference_kv,
        prefill_reads=contract.inference.prefill_reads,
        text=MeasuredText.model_validate(text),
        ladder=ladder.template,
        by=wanted.by,
        format_digests={width: one.digest for width, one in zip(ladder.widths, ladder.formats, strict=True)},
        seconds=round(time.monotonic() - began, 3),
        passes=passes,
        entries=tuple(
            Sensitivity(
                layer=unit.layer,
                side=unit.side,
                head=unit.head,
                width=width,
                kl_nats=found[f"{unit} at {width} bit"].kl_nats,
            )
            for unit in units
            for width in ladder.widths
        ),
    )


def write_sensitivities(path: Path, found: Sensitivities) -> None:
    """Raises PackError where the file cannot be written or came into being meanwhile."""
    write_whole_file(path, json.dumps(found.model_dump(mode="json"), indent=1, allow_nan=False).encode() + b"\n")


def read_sensitivities(path: Path, pilot: SearchPilot, wanted: Wanted) -> Sensitivities:
    """Raises SearchError where the file is damaged, of another model or ladder, or of documents that will be judged."""
    try:
        data = read_regular(path, MOST_FILE_NBYTES)
    except OSError as error:
        raise SearchError(f"{path}: cannot be read as a file of sensitivities: {error.strerror}") from error
    if fault := json_size_fault(data):
        raise SearchError(f"{path}: {fault}; is it a file of sensitivities?")
    try:
        found = Sensitivities.model_validate_json(data)
    except (ValidationError, UnicodeDecodeError) as error:
        first = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)
        raise SearchError(f"{path}: not a file of {SCHEMA}: {first}; remove it to measure anew") from None
    for what, is_, expected in _facts(found, pilot, wanted):
        if is_ != expected:
            raise SearchError(
                f"{path}: its {what} is {is_!r}, this search needs {expected!r}; give another --sensitivities file, "
                "or remove it to measure anew"
            )
    judged = {document.id for document in found.text.documents} & set(wanted.verdict_documents)
    if judged:
        raise SearchError(
            f"{path}: measured on {sorted(judged)[0]!r}, which this contract judges; a choice must not be made on the "
            "documents of its verdict: remove the file to measure on others"
        )
    pairs = {(unit, width) for unit in units_of(wanted.geometry, wanted.by) for width in wanted.ladder.widths}
    if found.mean_kl().keys() != pairs or len(found.entries) != len(pairs):
        raise SearchError(
            f"{path}: {len(found.entries)} entries; expected one for each of {len(pairs)} unit-width pairs"
        )
    return found


def _facts(found: Sensitivities, pilot: SearchPilot, wanted: Wanted) -> list[tuple[str, Any, Any]]:
    contract, ladder = pilot.contract, wanted.ladder
    digests = {width: one.digest for width, one in zip(ladder.widths, ladder.formats, strict=True)}
    return [
        ("model's weights_sha256", found.model.weights_sha256, wanted.hashes.weights),
        ("model's tokenizer_sha256", found.model.tokenizer_sha256, wanted.hashes.tokenizer),
        ("model's config_sha256", found.model.config_sha256, wanted.hashes.config),
        ("reference_kv", found.reference_kv, contract.subject.reference_kv),
        ("prefill_reads", found.prefill_reads, contract.inference.prefill_reads),
        ("corpus", found.text.corpus, pilot.text.corpus),
        ("corpus_sha256", found.text.corpus_sha256, pilot.text.corpus_sha256),
        ("ladder", found.ladder, ladder.template),
        ("unit", found.by, wanted.by),
        ("format digests", found.format_digests, digests),
    ]


def choices(
    found: Mapping[tuple[Unit, int], float], ladder: Ladder, geometry: CacheGeometry, by: By, tokens: int
) -> list[list[Choice]]:
    """What `allocate` chooses from: bytes of the real ledger at `tokens` tokens, and isolated KL."""
    return [
        [Choice(unit_nbytes(ladder, geometry, unit, width, tokens), found[unit, width]) for width in ladder.widths]
        for unit in units_of(geometry, by)
    ]
