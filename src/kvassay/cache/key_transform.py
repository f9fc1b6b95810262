"""What a format does to keys before they are encoded, and undoes after they are decoded, that depends on the position.

A key is k = RoPE_p(Wx + b) = RoPE_p(Wx) + RoPE_p(b). Both RoPE_p and b are known from weights and position, so

    keybias=removed                encode k − RoPE_p(b)        (the key that the same projection without bias gives)
    rope=removed                   encode RoPE_p⁻¹(k)          (the key before rotary embedding, as KVQuant stores it)
    keybias=removed,rope=removed   encode RoPE_p⁻¹(k) − b

and what was taken away is put back after decoding, without a stored byte. A large bias (Qwen2 and Qwen2.5 have norms of
several hundred) otherwise sets the step of every code of its token. RoPE: Su et al. 2021, arXiv:2104.09864, section
3.2; pre-RoPE keys: KVQuant (Hooper et al. 2024, arXiv:2401.18079, section 3.2).

The position of a token is its index in the cache, counted from 0. With left padding that differs from the position the
model used, by a constant a row. Encoding and decoding then still undo each other, so nothing becomes wrong; but the
bias is taken away under another rotation than it was added under, and the gain is lost: pad right, or run rows apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from kvassay.errors import ModelError
from kvassay.formats.base import Calibration, Quantizer, Streams, cast_within, computing_dtype

Pairing = Literal["halves", "interleaved"]
"""Which two channels turn together: c and c + half (Llama, Qwen, GPT-NeoX), or 2c and 2c + 1 (Cohere, GLM, GPT-J)."""

TABLE_POSITIONS = 1024
"""Cosines are computed for whole blocks of this many positions, so that they do not depend on who asks for which."""


@runtime_checkable
class KeyTransform(Protocol):
    """An invertible change of the keys of one layer that knows their positions."""

    def forward(self, keys: Float[Tensor, "batch kv_heads tokens dim"], first_position: int) -> Tensor:
        """What is encoded in place of `keys`, whose first token stands at `first_position`; float32 or float64."""
        ...

    def inverse(self, keys: Float[Tensor, "batch kv_heads tokens dim"], first_position: int) -> Tensor:
        """Undoes `forward`."""
        ...

    def for_heads(self, heads: Sequence[int]) -> KeyTransform:
        """The transform of some KV heads of the layer, in this order."""
        ...


class PositionTables:
    """Cosine and sine of every position and channel pair, from the model's own rotary module.

    `compute(first, count)` gives both, `[count, pairs]`. Positions from `max_positions` on are refused: there the
    model's frequencies depend on the length of the text.
    """

    def __init__(self, compute: Callable[[int, int], tuple[Tensor, Tensor]], max_positions: int | None = None) -> None:
        self._compute = compute
        self._max_positions = max_positions
        self._blocks: list[tuple[Tensor, Tensor]] = []

    def rows(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions `first` to `first + count - 1`."""
        end = first + count
        if self._max_positions is not None and end > self._max_positions:
            raise ModelError(
                f"position {end - 1} is beyond the model's original context of {self._max_positions} tokens, where the "
                "frequencies of longrope change with the length of the text; shorten the text, or use the format "
                "without keybias=removed and rope=removed"
            )
        while len(self._blocks) * TABLE_POSITIONS < end:
            start = len(self._blocks) * TABLE_POSITIONS
            left = TABLE_POSITIONS if self._max_positions is None else self._max_positions - start
            self._blocks.append(self._compute(start, min(TABLE_POSITIONS, left)))
        begin_block, end_block = first // TABLE_POSITIONS, -(-end // TABLE_POSITIONS)
        skip = first - begin_block * TABLE_POSITIONS
        cosines, sines = zip(*self._blocks[begin_block:end_block], strict=True)
        return torch.cat(cosines)[skip : skip + count], torch.cat(sines)[skip : skip + count]


class Rotation(NamedTuple):
    """Rotary position embedding of the first `2 * pairs` channels; the others pass (partial rotary factor).

    Where the model scales cosine and sine (yarn, longrope), so does this; the inverse divides by the square.
    """

    tables: PositionTables
    pairing: Pairing

    def apply(self, keys: Float[Tensor, "*rows tokens dim"], first_position: int) -> Tensor:
        cos, sin = (table.to(keys) for table in self.tables.rows(first_position, keys.shape[-2]))
        return self._turn(keys, cos, sin)

    def undo(self, keys: Float[Tensor, "*rows tokens dim"], first_position: int) -> Tensor:
        cos, sin = (table.to(keys) for table in self.tables.rows(first_position, keys.shape[-2]))
        energy = cos * cos + sin * sin
        return self._turn(keys, cos / energy, -sin / energy)

    def _turn(self, keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        pairs = cos.shape[-1]
        turning, passing = keys[..., : 2 * pairs], keys[..., 2 * pairs :]
        if self.pairing == "halves":
            one, other = turning[..., :pairs], turning[..., pairs:]
            return torch.cat((one * cos - other * sin, other * cos + one * sin, passing), dim=-1)
        one, other = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack((one * cos - other * sin, other * cos + one * sin), dim=-1).flatten(-2)
        return torch.cat((turned, passing), dim=-1)


def decode_keys(
    codec: Quantizer,
    streams: Streams,
    dtype: torch.dtype,
    calibration: Calibration | None,
    transform: KeyTransform,
    first_position: int,
) -> Float[Tensor, "batch kv_heads tokens dim"]:
    """`decode_as` for codes of transformed keys: what was taken away is put back before the one cast to `dtype`."""
    computing = torch.float64 if dtype == torch.float64 else torch.float32
    return cast_within(transform.inverse(codec.decode(streams, computing, calibration), first_position), dtype)


class RotaryKeyTransform:
    """Takes away the bias of one layer's keys, or their rotary embedding, or both.

    `rotation` is None in a layer without position embedding. `bias` is None where it stays, or where there is none.
    """

    def __init__(
        self, rotation: Rotation | None, bias: Float[Tensor, "kv_heads dim"] | None, *, removes_rope: bool
    ) -> None:
        self._rotation = rotation
        self._bias = bias
        self._removes_rope = removes_rope

    def forward(self, keys: Tensor, first_position: int) -> Tensor:
        keys = keys.to(computing_dtype(keys))
        if self._removes_rope and self._rotation is not None:
            keys = self._rotation.undo(keys, first_position)
        return keys if self._bias is None else keys - self._bias_at(keys, first_position)

    def inverse(self, keys: Tensor, first_position: int) -> Tensor:
        keys = keys.to(computing_dtype(keys))
        if self._bias is not None:
            keys = keys + self._bias_at(keys, first_position)
        if self._removes_rope and self._rotation is not None:
            keys = self._rotation.apply(keys, first_position)
        return keys

    def for_heads(self, heads: Sequence[int]) -> RotaryKeyTransform:
        bias = None if self._bias is None else self._bias[list(heads)]
        return RotaryKeyTransform(self._rotation, bias, removes_rope=self._removes_rope)

    def _bias_at(self, keys: Tensor, first_position: int) -> Tensor:
        """`[kv_heads, tokens, dim]` as it stands in these keys: turned by each position unless that was undone."""
        assert self._bias is not None, "the caller checks that there is a bias"
        bias = self._bias.to(keys)[:, None]
        if self._rotation is None or self._removes_rope:
            return bias
        return self._rotation.apply(bias.expand(-1, keys.shape[2], -1), first_position)
