"""One K or V array through the product's codecs: real codes and scales, decoded in float64."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float32, Float64, Int8
from torch import Tensor

from kvassay.core.format_names import parse_format
from kvassay.core.spec import Granularity, QuantSpec, exact_spec
from kvassay.formats.registry import quantizer

Rows = Float64[Tensor, "tokens width"]


class StoredSide(NamedTuple):
    """What the product stores of one side, the batch and head axes removed, and what it decodes to."""

    codes: Int8[Tensor, "coded_tokens width"]
    scales: Float32[Tensor, "scale_tokens scale_width"]
    """`[1, 1]` for a tensor, `[tokens, 1]` for rows, `[1, width]` for channels."""
    exact: Float32[Tensor, "sinks width"]
    """First tokens kept in float32; none in the 36 rows."""
    decoded: Rows
    ideal_scales: Float64[Tensor, "scale_tokens scale_width"]
    """max|x| / 127 before it was rounded to float32, for the split of the error."""
    clipped_values: int

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays: codes, scales and rows kept exact."""
        return self.codes.nbytes + self.scales.nbytes + self.exact.nbytes


class StoredPair(NamedTuple):
    keys: StoredSide
    values: StoredSide


def encode_pair(
    format_text: str, keys: Rows, values: Rows, calibrated_on: tuple[Rows, Rows] | None = None
) -> StoredPair:
    """Encode K and V in the product's format `format_text`, with its first `sinks` tokens kept in float32.

    A static scale is calibrated on the arrays themselves, or on the pair `calibrated_on`.
    """
    kv_format = parse_format(format_text)
    samples = calibrated_on or (keys, values)
    return StoredPair(
        encode_side(kv_format.keys, keys, samples[0], kv_format.sinks),
        encode_side(kv_format.values, values, samples[1], kv_format.sinks),
    )


def encode_side(spec: QuantSpec, x: Rows, sample: Rows | None = None, sinks: int = 0) -> StoredSide:
    """One side; `sample` is what a static scale is calibrated on, by default `x` itself."""
    codec = quantizer(spec)
    kept, coded = x[:sinks], x[sinks:]
    sample = coded if sample is None else sample[sinks:]
    calibration = codec.calibrate(_as_cache(sample)) if spec.is_static else None
    encoded = codec.encode(_as_cache(coded), calibration)
    scales = encoded.streams["scales"] if calibration is None else calibration.parameters["scale"]
    rest = codec.decode(encoded.streams, torch.float64, calibration)[0, 0]
    exact, exact_decoded = _keep_float32(kept)
    ideal_scales = _ideal_scales(sample, spec)
    return StoredSide(
        codes=encoded.streams["codes"].reshape(coded.shape),
        scales=scales.reshape(ideal_scales.shape),
        exact=exact,
        decoded=torch.cat([exact_decoded, rest]),
        ideal_scales=ideal_scales,
        clipped_values=encoded.clipped_values,
    )


def _keep_float32(kept: Rows) -> tuple[Tensor, Rows]:
    codec = quantizer(exact_spec("float32"))
    streams = codec.encode(_as_cache(kept)).streams
    return streams["codes"].reshape(kept.shape), codec.decode(streams, torch.float64)[0, 0]


def _ideal_scales(x: Rows, spec: QuantSpec) -> Tensor:
    match spec.granularity:
        case Granularity.TENSOR:
            largest = x.abs().amax((0, 1), keepdim=True)
        case Granularity.TOKEN_HEAD:
            largest = x.abs().amax(1, keepdim=True)
        case Granularity.CHANNEL:
            largest = x.abs().amax(0, keepdim=True)
        case _:
            raise AssertionError(f"the experiment runs no {spec.granularity} scales")
    return largest / 127


def _as_cache(rows: Rows) -> Tensor:
    """One batch row, one KV head: `[1, 1, tokens, width]`."""
    return rows[None, None]
