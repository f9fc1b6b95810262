"""Calibrate a model on texts and leave its scales where engines look for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from kvassay.core.calibration_policy import CalibrationPolicy
from kvassay.core.kv_format import KVFormat
from kvassay.core.model_source import geometry_of
from kvassay.core.serving import check_serves
from kvassay.engines.transformers.calibration import calibrate
from kvassay.engines.transformers.loading import load_model
from kvassay.errors import CalibrationError, FormatError, WorkloadError
from kvassay.formats.checkpoint_files import SCALE_FILE
from kvassay.formats.checkpoint_scales import check_writable, write_checkpoint_scales
from kvassay.formats.checkpoint_schemes import ScaleLayout
from kvassay.workloads.corpus import load_corpus
from kvassay.workloads.excerpts import text_documents


class SampleTexts(NamedTuple):
    """Which texts a model is calibrated on: the first `tokens` of each of `documents` documents."""

    corpus: str
    documents: int
    tokens: int
    seed: int


class WrittenScales(NamedTuple):
    file: Path
    layers: int
    source: str
    """What `Calibration.source` says: policy and tokens."""
    documents: tuple[str, ...]
    """Ids of the documents that the scales were calibrated on."""


def write_scales(
    model: str,
    kv_format: KVFormat,
    policy: CalibrationPolicy,
    layout: ScaleLayout,
    out: Path,
    texts: SampleTexts,
    say: Callable[[str], None],
) -> WrittenScales:
    """Write the static scales of `kv_format` for `model` into the folder `out`, which is made where there is none.

    What can be refused is refused before the model is read: a format without static scales or without a name in the
    layout, a folder that has scales, a text longer than the context.
    """
    if not any(spec.needs_calibration for spec in kv_format.specs):
        raise FormatError(f"{kv_format.name} has no static scales to write; use for example fp8-e4m3-tensor")
    if kv_format.transforms_keys:
        raise FormatError(
            f"{kv_format.name} changes keys before it quantizes them, which no checkpoint layout can say; drop "
            "keybias=removed and rope=removed"
        )
    check_writable(out, kv_format, layout)
    if out.exists() and not out.is_dir():
        raise CalibrationError(f"{str(out)!r} is no folder; name a folder, or one that does not exist yet")
    geometry = geometry_of(model)
    check_serves(kv_format, geometry)
    if geometry.max_context is not None and texts.tokens > geometry.max_context:
        raise WorkloadError(f"{texts.tokens} tokens do not fit the model's context of {geometry.max_context}")
    loaded = load_model(model, announce=say)
    documents = text_documents(
        load_corpus(texts.corpus),
        loaded.tokenizer,
        documents=texts.documents,
        prompt_tokens=1,
        scored_tokens=texts.tokens - 1,
        seed=texts.seed,
    )
    samples = [torch.tensor(document.token_ids) for document in documents]
    say(f"calibrating {kv_format.name} by {policy.text} on {len(samples)} documents of {texts.tokens} tokens")
    scales = calibrate(loaded.model, kv_format, samples, policy=policy)
    first = next(side for sides in next(iter(scales.values())) for side in sides if side is not None)
    out.mkdir(parents=True, exist_ok=True)
    write_checkpoint_scales(out, scales, kv_format, layout)
    return WrittenScales(out / SCALE_FILE, len(scales), first.source, tuple(document.id for document in documents))
