"""A model whose linear layers hold quantized weights: weight-only, through hqq (R12).

Half-quadratic quantization (Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023,
https://mobiusml.github.io/hqq_blog/) fits scale and zero point of each group of 64 weights of an output channel by a
proximal solver and needs no data. Weights are decoded to float32 before each product, so activations, keys and values
stay in the model's own precision: the KV cache is that of any other model of this shape.

Embeddings, norms and the output head keep their stored precision.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import nn

from kvassay.core.clauses.subject import WEIGHTS, Weights
from kvassay.engines.transformers.loading_checks import first_line
from kvassay.errors import MissingExtraError, ModelError

GROUP_SIZE = 64

_BITS: dict[str, int] = {"hqq-8": 8, "hqq-4": 4}


class QuantizedWeights(NamedTuple):
    """What was put in the place of a model's stored weights."""

    precision: Weights
    package: str
    """Name and version of what quantized them."""
    bits: int
    group_size: int
    linear_layers: int
    parameters: int
    """Of the linear layers that are quantized."""
    nbytes: int
    """Of their codes, scales and zero points."""
    stored_bits: float
    """Bits per quantized parameter."""
    sha256: str
    """Of codes, scales and zero points, in the order of the modules' names."""


def require_weights(weights: str) -> None:
    """Raise ModelError for a precision that does not exist, MissingExtraError without the package that it needs."""
    if weights not in WEIGHTS:
        raise ModelError(f"found weights {weights!r}; expected one of {', '.join(WEIGHTS)}")
    if weights != "stored" and find_spec("hqq") is None:
        raise MissingExtraError(
            f"weights {weights!r} need hqq, not installed; install the extra: pip install 'kvassay[weights]', or take "
            "'stored' weights"
        )


def quantize_weights(model: Any, weights: Weights, name: str) -> QuantizedWeights:
    """Replace every linear layer of the decoder; `name` is the model's, for errors."""
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear  # only such models need the package

    bits = _BITS[weights]
    decoder = model.get_decoder()
    linear = [(path, module) for path, module in decoder.named_modules() if type(module) is nn.Linear]
    if not linear:
        raise ModelError(f"{name}: its decoder has no plain linear layers whose weights could be quantized")
    digest, parameters, nbytes = hashlib.sha256(), 0, 0
    for path, module in linear:
        parameters += module.weight.numel()
        try:
            held: Any = HQQLinear(
                module,
                BaseQuantizeConfig(nbits=bits, group_size=GROUP_SIZE, axis=1),
                compute_dtype=torch.float32,
                device="cpu",
            )
        except Exception as error:  # hqq refuses by assertions
            raise ModelError(
                f"{name}: the weights of {path} {tuple(module.weight.shape)} cannot be quantized to {weights} "
                f"({first_line(error)}); groups have {GROUP_SIZE} values"
            ) from error
        for tensor in (held.W_q.data, held.meta["scale"], held.meta["zero"]):
            nbytes += tensor.nbytes
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        parent, _, own = path.rpartition(".")
        setattr(decoder.get_submodule(parent), own, held)
    return QuantizedWeights(
        precision=weights,
        package=f"hqq {version('hqq')}",
        bits=bits,
        group_size=GROUP_SIZE,
        linear_layers=len(linear),
        parameters=parameters,
        nbytes=nbytes,
        stored_bits=8 * nbytes / parameters,
        sha256=digest.hexdigest(),
    )
