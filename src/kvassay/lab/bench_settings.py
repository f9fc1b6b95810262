"""What the sliders of the bytes-and-error room say, and the format string that they amount to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from kvassay.errors import FormatError

Scales = Literal["tensor", "channel", "token-head", "group", "channel-group"]
"""Which values share a scale: all of a side, a channel over all tokens, a token, `group` channels of a token, or a
channel over `group` tokens. The first two are fixed before the first token, so the bench calibrates them on the arrays
themselves."""

Source = Literal["normal", "zeros", "captured"]


def _one_of(*sizes: int) -> Callable[[int], int]:
    """A Literal of integers would not read the text of a query."""

    def check(size: int) -> int:
        if size not in sizes:
            raise ValueError(f"expected one of {', '.join(map(str, sizes))}")
        return size

    return check


Width = Annotated[int, AfterValidator(_one_of(32, 64, 128))]
GroupSize = Annotated[int, AfterValidator(_one_of(8, 16, 32, 64, 128))]


class BenchSettings(BaseModel):
    """One view of the room. `format`, where given, stands in place of bits, scales, group, rotation and windows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Source = "normal"
    seed: int = Field(default=7, ge=0, le=9999)
    tokens: int = Field(default=256, ge=8, le=1024)
    width: Width = 32
    layer: int = Field(default=0, ge=0, le=4095)
    head: int = Field(default=0, ge=0, le=4095)
    outlier: float = Field(default=1.0, ge=1, le=100, allow_inf_nan=False)
    """Element [0, 0] of K and V is multiplied by it; in arrays of zeros it becomes it. 1 leaves them alone."""
    key_bits: int = Field(default=8, ge=1, le=8)
    value_bits: int = Field(default=8, ge=1, le=8)
    key_scales: Scales = "token-head"
    value_scales: Scales = "token-head"
    group: GroupSize = 32
    rotate: bool = False
    sinks: int = Field(default=0, ge=0, le=64)
    recent: int = Field(default=0, ge=0, le=512)
    exact: Literal["f16", "f32"] = "f32"
    format: str = Field(default="", max_length=300)
    side: Literal["keys", "values"] = "keys"
    """Whose codes, scales and histogram are shown."""

    @property
    def format_text(self) -> str:
        """The product's format string; raises FormatError for what no grid has."""
        if self.format.strip():
            return self.format.strip()
        keys = self._side(self.key_bits, self.key_scales)
        values = self._side(self.value_bits, self.value_scales)
        parts = [f"kv={keys}"] if keys == values else [f"k={keys}", f"v={values}"]
        for name, tokens in (("sinks", self.sinks), ("recent", self.recent)):
            if tokens:
                parts.append(f"{name}={tokens}")
        return ",".join([*parts, f"exact={self.exact}"])

    def _side(self, bits: int, scales: Scales) -> str:
        words = {
            "tensor": "tensor",
            "channel": "channel",
            "token-head": "token-head",
            "group": f"group{self.group}",
            "channel-group": f"channel{self.group}",
        }
        if self.rotate and scales == "channel":
            raise FormatError(
                "a rotation mixes the channels that one scale a channel tells apart; choose other scales or no rotation"
            )
        return f"int{bits}:{words[scales]}" + ("/had" if self.rotate else "")
