"""PrefixIdentity: all that must agree before tokens of one cache may be read through another.

Equal tokens alone never authorise it (R20, R21). Each field is in the digest, always, and the digest is the root of the
chain of block keys, so a lookup under another identity cannot even form the key of a stored block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedModel

from kvassay.cache.cache_identity import static_digest, transform_digest
from kvassay.cache.quantized_cache import QuantizedCache
from kvassay.core.digest import sha256_bytes, sha256_json
from kvassay.core.kv_format import KVFormat
from kvassay.core.prefix_blocks import pages_digest
from kvassay.errors import ForeignFormatError

SCHEMA = "kvassay.prefix/1"


class PrefixIdentity(BaseModel):
    """What keys and values of a token depend on, beside the tokens before it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    revision: str = Field(min_length=1)
    """A commit that cannot move, or `weights_digest(model)`; never a branch."""
    tokenizer: str = Field(min_length=1)
    """Digest of the tokenizer, `tokenizer_digest(tokenizer)`."""
    rope: str
    """Digest of the position scheme."""
    first_position: int = Field(default=0, ge=0)
    """Position of the first token."""
    compute_dtype: str = Field(min_length=1)
    """What the model computed in, such as `bfloat16`."""
    format_digest: str
    layout_version: int
    pages_digest: str
    """Layout of every page and of the grid of blocks."""
    geometry_digest: str
    scale_digest: str
    """Static scales and key transforms."""
    on_clip: str
    """`raise` or `count`: a cache that refuses saturated values never begins with codes that saturated."""
    adapter: str = ""
    """Name or digest of what else changes keys and values, such as a LoRA adapter."""
    salt: str = ""
    """Users that must not share, nor learn from a quick answer that another one asked the same, get different salts."""

    @classmethod
    def of(
        cls,
        cache: QuantizedCache,
        *,
        model: str,
        revision: str,
        tokenizer: str,
        rope: str,
        compute_dtype: str,
        first_position: int = 0,
        adapter: str = "",
        salt: str = "",
    ) -> PrefixIdentity:
        """The identity of what `cache` holds or would hold; format, layout, geometry and scales are the cache's."""
        return cls(
            model=model,
            revision=revision,
            tokenizer=tokenizer,
            rope=rope,
            first_position=first_position,
            compute_dtype=compute_dtype,
            adapter=adapter,
            salt=salt,
            **_of_cache(cache),
        )

    @classmethod
    def for_model(
        cls,
        model: PreTrainedModel,
        cache: QuantizedCache,
        *,
        tokenizer: str,
        revision: str | None = None,
        first_position: int = 0,
        adapter: str = "",
        salt: str = "",
    ) -> PrefixIdentity:
        """The identity for a loaded model. Without a `revision` all weights are hashed, which reads them once."""
        config = model.config.get_text_config()
        rope = {
            name: value
            for name, value in config.to_dict().items()
            if "rope" in name or "rotary" in name or name == "max_position_embeddings"
        }
        return cls.of(
            cache,
            model=str(config.name_or_path or type(model).__name__),
            revision=revision or weights_digest(model),
            tokenizer=tokenizer,
            rope=sha256_json(_plain(rope)),
            compute_dtype=str(model.dtype).removeprefix("torch."),
            first_position=first_position,
            adapter=adapter,
            salt=salt,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal in two processes, different when any one field differs."""
        # Not cached: `model_copy(update=...)` would take a cached digest along to other fields.
        return sha256_json({"schema": SCHEMA, **self.model_dump(mode="json")})

    @property
    def public_fields(self) -> dict[str, Any]:
        """The fields as a file tells them: the salt by its digest."""
        return {**self.model_dump(mode="json"), "salt": sha256_bytes(self.salt.encode())}

    def require_fits(self, cache: QuantizedCache) -> None:
        """Raise ForeignFormatError unless a cache's format, layout, geometry and scales are those named here."""
        for name, found in _of_cache(cache).items():
            expected = getattr(self, name)
            if found != expected:
                raise ForeignFormatError(
                    f"the cache ({cache.kv_format.name}, {cache.geometry.model_type}) has {name} {_short(found)}, the "
                    f"identity says {_short(expected)}; make the identity from a cache of this format, calibration and "
                    "model, with PrefixIdentity.of(cache, ...)"
                )


def scale_digest(cache: QuantizedCache) -> str:
    """SHA-256 of a cache's static arrays and key transforms; where they came from does not matter."""
    return sha256_json(
        [
            {
                "static": [[static_digest(side) for side in sides] for sides in layer.calibration],
                "keys": transform_digest(layer.key_transform, layer.geometry),
            }
            for layer in cache.quantized_layers
        ]
    )


def weights_digest(model: PreTrainedModel) -> str:
    """SHA-256 over the name, dtype, shape and bytes of every parameter and buffer that a checkpoint holds."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def tokenizer_digest(tokenizer: Any) -> str:
    """SHA-256 of a tokenizer: its whole pipeline where it has one, else its vocabulary and class."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return sha256_bytes(backend.to_str().encode())
    return sha256_json({"class": type(tokenizer).__name__, "vocabulary": dict(tokenizer.get_vocab())})


def _of_cache(cache: QuantizedCache) -> dict[str, Any]:
    # Made anew: `model_copy(update=...)` of a format takes the old one's digest along.
    kv_format = KVFormat.model_validate(cache.kv_format.model_dump())
    return {
        "format_digest": kv_format.digest,
        "layout_version": cache.kv_format.layout_version,
        "pages_digest": pages_digest(cache.kv_format, cache.geometry),
        "geometry_digest": sha256_json(cache.geometry.model_dump(mode="json")),
        "on_clip": cache.on_clip,
        "scale_digest": scale_digest(cache),
    }


def _plain(value: Any) -> Any:
    """JSON values only; what is none is written as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}…"
