"""What decodes: a transformers model with a cache, or llama.cpp with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.cache.arms import parse_arm
from benchmarks.cache.measure import Statistics
from benchmarks.cache.storages import storage_nbytes
from benchmarks.decode.attention_time import AttentionTime
from benchmarks.decode.shape import Shape

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
DEFAULT_ARMS = (
    "f32/kvassay:int4-g64",
    "f32/kvassay:int8-token-head",
    "f32/dynamic",
    "f32/transformers:quanto-4",
    "f32/transformers:hqq-4",
    "f32/transformers:hqq-8",
    "bf16/kvassay:int4-g64",
    "bf16/kvassay:int8-token-head",
    "bf16/dynamic",
    "bf16/transformers:quanto-4",
    "bf16/transformers:hqq-4",
    "llama.cpp-f32/q4_0",
    "llama.cpp-f32/q8_0",
    "llama.cpp-stored/q4_0",
    "llama.cpp-stored/q8_0",
)
"""WEIGHTS/CACHE; `f32/kvassay:FORMAT` with any format. llama.cpp's `stored` weights are those of the GGUF file."""


class Decoder(Protocol):
    cache_nbytes: int
    """Of the cache as it was filled."""

    def step(self) -> None:
        """One token for every row."""
        ...

    def attention_share(self) -> float | None:
        """Of one step's time, what attention and cache take; None where nothing can tell."""
        ...


class TransformersDecoder:
    """A transformers model over a cache that was filled layer by layer with Gaussian keys and values."""

    def __init__(self, model: Any, arm: str, shape: Shape, statistics: list[Statistics]) -> None:
        self._model = model
        _, _, cache = arm.partition("/")
        self._cache = parse_arm("dynamic-f32" if cache == "dynamic" else cache).new_cache(model)
        generator = torch.Generator().manual_seed(31)
        for layer, (key_mean, key_std, value_mean, value_std) in enumerate(statistics):
            keys, values = (
                _drawn(mean, std, shape, generator, model.dtype)
                for mean, std in ((key_mean, key_std), (value_mean, value_std))
            )
            self._cache.update(keys, values, layer)
        self.cache_nbytes = storage_nbytes(self._cache)
        self._last = torch.full((shape.batch, 1), 100)

    @torch.inference_mode()
    def step(self) -> None:
        logits = self._model(self._last, cache=self._cache, use_cache=True).logits
        self._last = logits[:, -1:].argmax(-1)

    def attention_share(self) -> float:
        with AttentionTime(self._model) as timed:
            self.step()
        return timed.share


def _drawn(mean: Tensor, std: Tensor, shape: Shape, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """One row, in as many copies: each has its own pages."""
    noise = torch.randn(1, mean.shape[1], shape.context, mean.shape[3], generator=generator)
    return noise.mul_(std.float()).add_(mean.float()).to(dtype).repeat(shape.batch, 1, 1, 1)


class Models:
    """The same weights in each dtype that arms ask for, and as a GGUF file."""

    def __init__(self, model: Any, gguf: Path | None, folder: Path) -> None:
        self._float32 = model
        self._by_dtype = {torch.float32: model}
        self._gguf = gguf
        self._folder = folder

    def of_dtype(self, dtype: torch.dtype) -> Any:
        if dtype not in self._by_dtype:
            config = self._float32.config
            with torch.device("meta"):
                empty = type(self._float32)(config)
            state = {name: tensor.to(dtype) for name, tensor in self._float32.state_dict().items()}
            empty.load_state_dict(state, assign=True)
            empty.tie_weights()
            # Buffers that are no part of the state: rotary frequencies, which stay float32.
            for name, buffer in self._float32.named_buffers():
                parent, _, leaf = name.rpartition(".")
                empty.get_submodule(parent).register_buffer(leaf, buffer.clone(), persistent=False)
            self._by_dtype[dtype] = empty.eval().requires_grad_(False)
        return self._by_dtype[dtype]

    def gguf(self, weights: str) -> Path:
        """The GGUF file itself (`stored`), or with its weights as `f32`; raises ValueError where there is none."""
        if self._gguf is None:
            raise ValueError("the model did not come from a GGUF file, which llama.cpp reads")
        if weights == "stored":
            return self._gguf
        from benchmarks.decode.llama_cpp import float32_gguf

        return float32_gguf(self._gguf, self._folder / "float32.gguf")


def new_decoder(arm: str, shape: Shape, models: Models, statistics: list[Statistics]) -> Decoder:
    """Raises ValueError for a name that is unknown, ModuleNotFoundError where a package is missing."""
    weights, _, cache = arm.partition("/")
    if weights in _DTYPES:
        return TransformersDecoder(models.of_dtype(_DTYPES[weights]), arm, shape, statistics)
    engine, _, weights = weights.partition("-")
    if engine != "llama.cpp" or weights not in ("f32", "stored"):
        raise ValueError(f"arm {arm!r} is unknown; use for example {', '.join(DEFAULT_ARMS)}")
    from benchmarks.decode.llama_cpp import LlamaCppDecoder

    return LlamaCppDecoder(models.gguf(weights), cache, shape, torch.get_num_threads())
