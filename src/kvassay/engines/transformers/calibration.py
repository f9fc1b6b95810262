"""Static scales and means of a model's cache, from keys and values that the model makes of sample texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from kvassay.cache.cohorts import LayerCalibration
from kvassay.cache.key_transform import KeyTransform
from kvassay.cache.model_keys import key_transforms
from kvassay.core.calibration_policy import MIN_MAX, CalibrationPolicy, as_policy
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, geometry_from_config
from kvassay.core.kv_format import HeadGroup, KVFormat, SidePlan, head_groups
from kvassay.core.serving import check_serves
from kvassay.engines.transformers.capture import CaptureCache
from kvassay.engines.transformers.loading_checks import first_line
from kvassay.errors import CalibrationError, ModelError
from kvassay.formats import Calibration, quantizer
from kvassay.formats.base import require_finite

Samples = str | Tensor | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Sequence[Tensor]
"""Texts, or token ids: `[tokens]`, `[samples, tokens]`, or a sequence of either. No padding: a row is one text."""


class RecordedSample(NamedTuple):
    """The exact keys and values of one text, by layer."""

    keys: Sequence[Float[Tensor, "1 kv_heads tokens head_dim"]]
    """After rotary embedding."""
    values: Sequence[Float[Tensor, "1 kv_heads tokens value_dim"]]


@torch.inference_mode()
def calibrate(
    model: PreTrainedModel,
    kv_format: KVFormat | str,
    samples: Samples,
    *,
    policy: str | CalibrationPolicy = MIN_MAX,
    tokenizer: Any = None,
) -> dict[int, LayerCalibration]:
    """What `QuantizedCache(calibration=...)` takes: static scales by `policy` and means, from what the model makes of
    `samples`, each run by itself from position 0.

    `policy` is `min-max`, `mse` (also `least-error`) or `percentile P`. Texts need the model's `tokenizer`. Keys and
    values of all samples are held until the last layer is done. Empty for a format that has nothing static. Raises
    CalibrationError for samples or a policy that cannot be used, FormatError or GeometryError for a format that cannot
    serve the model, ModelError for a model without plain keys and values in every layer.
    """
    parsed = parse_format(kv_format) if isinstance(kv_format, str) else kv_format
    chosen = as_policy(policy)
    geometry = geometry_from_config(model.config.to_dict())
    check_serves(parsed, geometry)
    sequences = _token_ids(samples, tokenizer, model, geometry)
    if not any(spec.needs_calibration for spec in parsed.specs):
        return {}
    transforms = key_transforms(model, parsed)
    recorded = [_recorded(model, ids, geometry) for ids in sequences]
    return calibrate_layers(parsed, geometry, transforms, recorded, chosen)


def calibrate_layers(
    kv_format: KVFormat,
    geometry: CacheGeometry,
    transforms: Mapping[int, KeyTransform],
    samples: Sequence[RecordedSample],
    policy: CalibrationPolicy,
) -> dict[int, LayerCalibration]:
    """Static arrays by layer from recorded keys and values; empty for formats that need none."""
    found: dict[int, LayerCalibration] = {}
    for index, layer in enumerate(geometry.layers):
        groups = head_groups(kv_format, index, layer)
        keys, values = [each.keys[index] for each in samples], [each.values[index] for each in samples]
        transform = transforms.get(index)
        sides = tuple(
            (
                _calibrated(group.keys, group, keys, f"keys of layer {index}", policy, transform),
                _calibrated(group.values, group, values, f"values of layer {index}", policy),
            )
            for group in groups
        )
        if any(side is not None for pair in sides for side in pair):
            found[index] = sides
    return found


def _calibrated(
    plan: SidePlan,
    group: HeadGroup,
    samples: Sequence[Tensor],
    name: str,
    policy: CalibrationPolicy,
    transform: KeyTransform | None = None,
) -> Calibration | None:
    if not plan.spec.needs_calibration:
        return None
    own = [sample[:, list(group.heads)] for sample in samples]
    if transform is not None:  # each sample is a document of its own, from position 0
        heads = transform.for_heads(group.heads)
        own = [heads.forward(sample, 0) for sample in own]
    sample = torch.cat(own, dim=2)
    require_finite(sample, f"{name}: entries")
    return quantizer(plan.spec).calibrate(sample, policy)


def _recorded(model: PreTrainedModel, token_ids: Int[Tensor, " tokens"], geometry: CacheGeometry) -> RecordedSample:
    cache = CaptureCache()
    try:
        model.get_decoder()(token_ids[None].to(model.device), cache=cache, use_cache=True)
        found = RecordedSample(cache.keys, cache.values)
    except Exception as error:  # what a model of another build than expected raises cannot be known
        raise ModelError(
            f"{type(model).__name__} cannot be calibrated: its decoder does not run as token ids over a cache "
            f"({first_line(error)})"
        ) from error
    shapes = [(keys.shape[1], keys.shape[3], values.shape[3]) for keys, values in zip(*found, strict=True)]
    expected = [(layer.kv_heads, layer.head_dim, layer.value_dim) for layer in geometry.layers]
    if shapes != expected:
        raise ModelError(
            f"{type(model).__name__} caches (KV heads, key channels, value channels) {shapes[:1]} in {len(shapes)} "
            f"layers; its config says {expected[:1]} in {len(expected)}"
        )
    return found


def _token_ids(samples: Samples, tokenizer: Any, model: Any, geometry: CacheGeometry) -> list[Tensor]:
    """One tensor of ids a sample, checked against the model's vocabulary and context."""
    rows: list[Any] = [samples] if isinstance(samples, str) else list(samples)
    if rows and all(isinstance(row, int) or (isinstance(row, Tensor) and row.dim() == 0) for row in rows):
        rows = [rows]
    if not rows:
        raise CalibrationError("no samples were given; pass texts or token ids like those that the cache will hold")
    vocabulary, longest = model.get_input_embeddings().weight.shape[0], geometry.max_context
    found: list[Tensor] = []
    for index, row in enumerate(rows):
        if isinstance(row, str):
            if tokenizer is None:
                raise CalibrationError(f"sample {index} is a text; pass tokenizer=, or token ids")
            row = tokenizer(row)["input_ids"]
        try:
            ids = torch.as_tensor(row)
        except (TypeError, ValueError, RuntimeError) as error:
            raise CalibrationError(f"sample {index} is neither a text nor token ids: {first_line(error)}") from error
        if ids.dim() != 1 or not len(ids) or ids.is_floating_point() or ids.dtype == torch.bool:
            raise CalibrationError(
                f"sample {index} is {ids.dtype} of shape {list(ids.shape)}; expected token ids of shape [tokens]"
            )
        if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
            raise CalibrationError(
                f"sample {index} has ids from {int(ids.min())} to {int(ids.max())}, the model has {vocabulary}; "
                "tokenize it with the model's own tokenizer"
            )
        if longest is not None and len(ids) > longest:
            raise CalibrationError(
                f"sample {index} has {len(ids)} tokens, the model a context of {longest}; cut it into several samples"
            )
        found.append(ids.long())
    return found
