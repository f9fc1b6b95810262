"""What callers pass to a cache, checked where it enters: nothing is rounded or taken for a default in silence."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, get_args

import torch
from transformers import PreTrainedModel

from kvassay.core.format_names import parse_format
from kvassay.core.kv_format import KVFormat
from kvassay.errors import CacheStateError, FormatError, GeometryError


def whole_number(value: Any, what: str, least: int | None = None) -> int:
    """An integer of any kind that Python counts as one. Raises CacheStateError for others, and for smaller ones."""
    try:
        number = operator.index(value)
    except TypeError:
        raise CacheStateError(f"{what} got {value!r}; expected a whole number") from None
    if least is not None and number < least:
        raise CacheStateError(f"{what} got {number}; expected a whole number from {least}")
    return number


def padding_counts(given: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    """`left_padding` as a list. Raises GeometryError unless it is one whole number, from 0, for each row."""
    if given is None:
        return None
    try:
        counts = [operator.index(count) for count in given]
    except TypeError:
        counts = []
    if not counts or min(counts) < 0:
        raise GeometryError(
            f"left_padding is {given!r}; expected a sequence of one count of columns, from 0, for each row, as "
            "(mask == 0).sum(1) of an attention mask is"
        )
    return counts


def parsed_format(given: Any) -> KVFormat:
    """A format or its name. Raises FormatError for what is neither."""
    if isinstance(given, KVFormat):
        return given
    if isinstance(given, str):
        return parse_format(given)
    raise FormatError(f"a {type(given).__name__} was given as format; expected a name such as 'kivi-4', or a KVFormat")


def config_fields(config: Any) -> dict[str, Any]:
    """The fields of a model's config. Raises GeometryError for what is no config."""
    if isinstance(config, PreTrainedModel):
        raise GeometryError(
            f"a {type(config).__name__} was given as config; pass model.config, or use "
            "QuantizedCache.for_model(model, format)"
        )
    if not hasattr(config, "to_dict"):
        raise GeometryError(f"a {type(config).__name__} was given as config; expected model.config")
    return config.to_dict()


def require_choice(value: Any, choices: Any, what: str) -> None:
    """Raise CacheStateError unless `value` is one of the strings of the Literal type `choices`."""
    if value not in get_args(choices):
        expected = ", ".join(map(repr, get_args(choices)))
        raise CacheStateError(f"{what} is {value!r}; expected one of {expected}")


def require_nothing_set(value: Any, what: str) -> None:
    """Raise CacheStateError for anything but None, which transformers sets when it makes a layer."""
    if value is not None:
        raise CacheStateError(
            f"{what} of a layer were set to a {type(value).__name__}; they are stored as codes, so append them with "
            "cache.update(keys, values, layer_idx), in an empty cache to replace what is held"
        )
