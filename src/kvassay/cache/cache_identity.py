"""What must be equal for stored codes to mean the same: format, model, static arrays, key transforms.

A file names each by a digest, and a cache that differs in one is refused by its name: equal tokens, or bytes of equal
size, never authorise reading one representation through another's decoder (R8, R21).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from kvassay.cache.key_transform import KeyTransform
from kvassay.core.digest import canonical_json, sha256_json
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kv_format import KVFormat
from kvassay.errors import SavedCacheError
from kvassay.formats import Calibration

_PROBED_POSITIONS = (0, 16)
_PASSING_FIELDS = frozenset(
    {
        "_name_or_path",
        "architectures",
        "auto_map",
        "chunk_size_feed_forward",
        "dtype",
        "id2label",
        "initializer_range",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Fields of a config that change no key and no value of a given model, or that a process sets for itself."""


def config_digest(config: Any) -> str:
    """SHA-256 of what a transformers config says of the model's arithmetic.

    Names, versions, token ids, switches of a run and fields that are absent or off are left out, so that saving a model
    again, or a later release with one more option that is off, moves nothing.
    """
    return sha256_json(_telling(json.loads(json.dumps(config.to_dict(), default=str))))


def static_digest(calibration: Calibration | None) -> str | None:
    """SHA-256 of the static arrays of one side; None without any. Where they came from is not part of it."""
    if calibration is None or not calibration.parameters:
        return None
    digest = hashlib.sha256()
    for name, array in sorted(calibration.parameters.items()):
        raw = array.detach().cpu().contiguous()
        digest.update(canonical_json({"name": name, "dtype": str(raw.dtype), "shape": list(raw.shape)}))
        digest.update(raw.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def transform_digest(transform: KeyTransform | None, geometry: LayerGeometry) -> str | None:
    """SHA-256 of what a key transform makes of fixed keys at two positions; None without one.

    Bit for bit: a bias or a rotation that differs in one last digit decodes to other keys.
    """
    if transform is None:
        return None
    shape = (1, geometry.kv_heads, 2, geometry.head_dim)
    keys = ((torch.arange(2 * geometry.kv_heads * geometry.head_dim) % 251 - 125) / 64).reshape(shape)
    digest = hashlib.sha256()
    for position in _PROBED_POSITIONS:
        made = transform.forward(keys, position).detach().to("cpu", torch.float32).contiguous()
        digest.update(made.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def require_same_format(found: KVFormat, expected: KVFormat) -> None:
    """Raise SavedCacheError that names both formats."""
    if found != expected:
        raise SavedCacheError(
            f"the file holds {found.name} (digest {found.digest[:12]}), and {expected.name} ({expected.digest[:12]}) "
            "was asked for; codes of one are not read by the other: load it in its own format"
        )


def require_same_geometry(found: CacheGeometry, expected: CacheGeometry) -> None:
    """Raise SavedCacheError that names the first difference of two models' caches."""
    if found.num_layers != expected.num_layers:
        raise SavedCacheError(
            f"the file holds {found.num_layers} layers of a {found.model_type} model, this model has "
            f"{expected.num_layers}; load it for the model that it was saved from"
        )
    for index, (theirs, ours) in enumerate(zip(found.layers, expected.layers, strict=True)):
        for field in LayerGeometry.model_fields:
            if getattr(theirs, field) != getattr(ours, field):
                raise SavedCacheError(
                    f"layer {index} of the file has {field} {getattr(theirs, field)}, this model "
                    f"{getattr(ours, field)}; load it for the model that it was saved from"
                )
    if found != expected:
        raise SavedCacheError(
            f"the file is of a {found.model_type} model with {found.query_heads} query heads and a context of "
            f"{found.max_context}, this one is {expected.model_type} with {expected.query_heads} and "
            f"{expected.max_context}; load it for the model that it was saved from"
        )


def _telling(value: Any) -> Any:
    """A config without what `config_digest` leaves out, at every depth."""
    if not isinstance(value, dict):
        return value
    kept = {
        key: _telling(each)
        for key, each in value.items()
        if key not in _PASSING_FIELDS and not key.endswith("_token_id") and not key.startswith("_attn_implementation")
    }
    return {key: each for key, each in kept.items() if each is not None and each is not False and each not in ({}, [])}
