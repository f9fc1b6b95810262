"""One arm in this process: fill a cache, decode, and say what it held, what it peaked at and how long a step took."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from benchmarks.cache.arms import Arm, parse_arm
from benchmarks.cache.storages import storage_nbytes
from kvassay.core.format_names import parse_format
from kvassay.core.ledger import predict_ledger
from kvassay.engines.transformers.loading import load_model
from kvassay.measures.memory_peak import watch_memory
from kvassay.measures.process_memory import reset_high_water, resident_memory

SEED = 31
_SAMPLE_TOKENS = 256


class Task(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str
    model: str
    context: int
    batch: int
    tokens: int
    chunk: int
    prefill: Literal["model", "synthetic"]


class Measured(BaseModel):
    """Bytes are at the end, of `held_tokens` tokens a row. `resident_` figures are growth over the loaded model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str
    held_tokens: int
    persistent_nbytes: int
    """Distinct storages that the cache reaches."""
    ledger_nbytes: int | None
    """What the cache's own ledger says; this library's arms."""
    predicted_nbytes: int | None
    """What the formula says without a cache."""
    float16_nbytes: int
    """The same tokens in 16 bits."""
    prefill_peak_nbytes: int
    """Most tensor bytes at once while filling: what the cache held before a part, and the recorded peak of the part.

    An upper bound, since what a part frees of the cache's earlier arrays is not set off.
    """
    prefill_resident_high_water_nbytes: int
    prefill_s: float
    """With memory recorded, so not a speed."""
    decode_transient_nbytes: int
    """Recorded peak of one whole decode step of the model, over what was alive when it began."""
    decode_resident_high_water_nbytes: int
    """Over all timed steps."""
    resident_after_nbytes: int
    step_s: list[float]
    threads: int

    @property
    def ratio_to_float16(self) -> float:
        return self.persistent_nbytes / self.float16_nbytes


@torch.inference_mode()
def measure(task: Task) -> Measured:
    """Load, fill, decode `task.tokens` timed steps, and two more whose memory is recorded."""
    arm = parse_arm(task.arm)
    loaded = load_model(task.model)
    model = loaded.model.to(arm.model_dtype)
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(SEED)
    token_ids = torch.randint(0, vocabulary, (task.batch, task.context), generator=generator)
    statistics = kv_statistics(model, token_ids[:1, :_SAMPLE_TOKENS]) if task.prefill == "synthetic" else []
    model(token_ids[:, :1], use_cache=False)  # lazily made buffers belong to the model
    gc.collect()
    before = resident_memory().now_nbytes
    reset_high_water()
    cache = arm.new_cache(model)
    began = time.perf_counter()
    peak = 0
    parts = _synthetic_parts if task.prefill == "synthetic" else _model_parts
    for held, part_peak in parts(model, cache, token_ids, statistics, task):
        peak = max(peak, held + part_peak)
    prefill_s = time.perf_counter() - began
    prefill_high_water = resident_memory().high_water_nbytes - before

    reset_high_water()
    step_s = []
    last = token_ids[:, -1:]
    for _ in range(task.tokens):
        began = time.perf_counter()
        last = _step(model, cache, last)
        step_s.append(time.perf_counter() - began)
    after = resident_memory()
    with watch_memory() as watch:
        last = _step(model, cache, last)  # so that the release of its copies is seen in the next
        watch.count_from_here()
        last = _step(model, cache, last)
    return Measured(
        arm=task.arm,
        held_tokens=int(cache.get_seq_length()),
        persistent_nbytes=storage_nbytes(cache),
        **_ledger_figures(arm, cache, loaded.geometry, task),
        prefill_peak_nbytes=peak,
        prefill_resident_high_water_nbytes=prefill_high_water,
        prefill_s=prefill_s,
        decode_transient_nbytes=watch.peak.peak_nbytes,
        decode_resident_high_water_nbytes=after.high_water_nbytes - before,
        resident_after_nbytes=after.now_nbytes - before,
        step_s=step_s,
        threads=torch.get_num_threads(),
    )


def _step(model: Any, cache: Any, last: Tensor) -> Tensor:
    logits = model(last, cache=cache, use_cache=True).logits
    return logits[:, -1:].argmax(-1)


def _ledger_figures(arm: Arm, cache: Any, geometry: Any, task: Task) -> dict[str, int | None]:
    tokens = int(cache.get_seq_length())
    plain = predict_ledger(geometry, parse_format("f16"), tokens, task.batch)
    figures: dict[str, int | None] = {"float16_nbytes": plain.float16_nbytes}
    if arm.format_name is None:
        return {**figures, "ledger_nbytes": None, "predicted_nbytes": None}
    predicted = predict_ledger(geometry, parse_format(arm.format_name), tokens, task.batch)
    return {
        **figures,
        "ledger_nbytes": cache.ledger().persistent_nbytes,
        "predicted_nbytes": predicted.persistent_nbytes,
    }


Statistics = tuple[Tensor, Tensor, Tensor, Tensor]
"""Mean and standard deviation of keys, then of values, each `[1, kv_heads, 1, dim]`."""


def kv_statistics(model: Any, token_ids: Tensor) -> list[Statistics]:
    """Of each layer, from what the model itself puts into a plain cache for some tokens."""
    layers = model(token_ids, use_cache=True).cache.layers
    return [
        (
            layer.keys.mean((0, 2), keepdim=True),
            layer.keys.std((0, 2), keepdim=True),
            layer.values.mean((0, 2), keepdim=True),
            layer.values.std((0, 2), keepdim=True),
        )
        for layer in layers
    ]


def _synthetic_parts(
    model: Any, cache: Any, token_ids: Tensor, statistics: list[Statistics], task: Task
) -> Iterator[tuple[int, int]]:
    """Gaussian keys and values of the model's own mean and spread a channel; bytes held before, and peak of a part."""
    generator = torch.Generator().manual_seed(SEED)
    for start in range(0, task.context, task.chunk):
        tokens = min(task.chunk, task.context - start)
        for layer, (key_mean, key_std, value_mean, value_std) in enumerate(statistics):
            shape = (task.batch, key_mean.shape[1], tokens)
            noise = torch.randn(*shape, key_mean.shape[3], generator=generator)
            keys = (noise * key_std + key_mean).to(key_mean.dtype)
            noise = torch.randn(*shape, value_mean.shape[3], generator=generator)
            values = (noise * value_std + value_mean).to(value_mean.dtype)
            held = storage_nbytes(cache)
            with watch_memory() as watch:
                cache.update(keys, values, layer)
            yield held, watch.peak.peak_nbytes


def _model_parts(
    model: Any, cache: Any, token_ids: Tensor, statistics: list[Statistics], task: Task
) -> Iterator[tuple[int, int]]:
    """The model runs the prompt in chunks, without logits."""
    decoder = model.get_decoder()
    for start in range(0, task.context, task.chunk):
        held = storage_nbytes(cache)
        with watch_memory() as watch:
            decoder(token_ids[:, start : start + task.chunk], cache=cache, use_cache=True)
        yield held, watch.peak.peak_nbytes
