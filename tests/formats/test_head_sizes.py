"""B27 to B32 over the whole method table: every head size and length gives a right result or a refusal beforehand."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
import torch

from kvassay import testing
from kvassay.cache.side_store import SideStore
from kvassay.core.geometry import LayerGeometry
from kvassay.core.kv_format import KVFormat, head_groups
from kvassay.core.layout import stored_bits_per_value, streams
from kvassay.core.methods import methods
from kvassay.core.side_names import parse_side
from kvassay.core.spec import QuantSpec, Rotation
from kvassay.errors import FormatError, GeometryError
from kvassay.formats import Calibration, quantizer

HEAD_SIZES = (64, 72, 80, 96, 112, 128, 192, 256)
LENGTHS = (1, 31, 33, 127, 129)
HEADS = 2
SIDES = [example for method in methods().values() for example in method.examples]


def values(dim: int, tokens: int) -> torch.Tensor:
    return torch.randn(2, HEADS, tokens, dim, generator=torch.Generator().manual_seed(dim))


def store(spec: QuantSpec, dim: int, calibration: Calibration | None) -> SideStore:
    geometry = LayerGeometry(kv_heads=HEADS, head_dim=dim, value_dim=dim)
    plan = head_groups(KVFormat(keys=spec, values=spec, exact_dtype="float32"), 0, geometry)[0].keys
    return SideStore(plan, HEADS, dim, "float32", calibration=calibration, on_clip="count")


def refusal(spec: QuantSpec, dim: int) -> str | None:
    """Why a head size is not served, known before any token."""
    try:
        streams(spec, HEADS, dim)
    except GeometryError as error:
        return str(error)
    return None


def ways_out(spec: QuantSpec, message: str) -> list[QuantSpec]:
    """The specs that a refusal proposes: `use group 24 or 72`, `use had=8`, `use int4:group16 or int4:token-head`."""
    found = []
    for text in re.split(" or |, ", message.partition("; use ")[2]):
        if size := re.fullmatch("(?:group )?([0-9]+)", text):
            found.append(spec.model_copy(update={"group_size": int(size[1])}))
        elif block := re.fullmatch("had=([0-9]+)", text):
            found.append(spec.model_copy(update={"rotation": Rotation(block=int(block[1]))}))
        else:
            with suppress(FormatError):  # a way out that is no codec text, such as a sentence
                found.append(parse_side(text))
    return found


def served(spec: QuantSpec, dim: int) -> bool:
    """False where the head size is refused; then the refusal names it, and each way out that it names is one."""
    message = refusal(spec, dim)
    if message is None:
        return True
    assert str(dim) in message
    for proposed in ways_out(spec, message):
        assert refusal(proposed, dim) != message
    with pytest.raises(GeometryError):
        store(spec, dim, None)
    return False


@pytest.mark.parametrize("side", SIDES)
def test_b32_b24_every_head_size_and_length_is_right_or_refused(side) -> None:
    """What is refused depends on the head size alone; what is served errs no more than the method may."""
    spec = parse_side(side)
    codec = quantizer(spec)
    sizes = [dim for dim in HEAD_SIZES if served(spec, dim)]
    assert sizes
    for dim in sizes:
        x = values(dim, max(LENGTHS))
        calibration = testing.calibrated(codec, x)
        for tokens in LENGTHS:
            kept = store(spec, dim, calibration)
            kept.append(x[:, :, :tokens])
            found = kept.read()
            assert found.shape == x[:, :, :tokens].shape
            committed = tokens // spec.tokens_per_block * spec.tokens_per_block
            assert kept.stored_tokens == committed
            assert torch.equal(found[:, :, committed:], x[:, :, committed:tokens])
            if committed:
                error = (found - x[:, :, :tokens])[:, :, :committed].norm() / x[:, :, :committed].norm()
                assert float(error) <= testing.largest_relative_error(spec), (dim, tokens)
            nbytes = sum(kept.owner_nbytes(skipped_layer=False).values())
            assert nbytes >= committed * 2 * HEADS * dim * stored_bits_per_value(spec, HEADS, dim) / 8


@pytest.mark.parametrize("side", SIDES)
def test_b27_b29_pages_full_of_garbage_show_nowhere(side, monkeypatch) -> None:
    """Fresh memory is 0xAB; what is read, and the bytes of it, equal those from fresh memory of zeros."""
    spec = parse_side(side)
    x = values(64, 70)
    calibration = testing.calibrated(quantizer(spec), x)
    plain_empty = torch.empty
    reads = []
    for garbage in (0xAB, 0x00):

        def empty(*args, byte=garbage, **kwargs) -> torch.Tensor:
            fresh = plain_empty(*args, **kwargs)
            fresh.view(torch.uint8).fill_(byte)
            return fresh

        monkeypatch.setattr(torch, "empty", empty)
        kept = store(spec, 64, calibration)
        for chunk in x.split(17, dim=2):
            kept.append(chunk)
        reads.append(kept.read())
        monkeypatch.undo()
    assert bool(torch.isfinite(reads[0]).all())
    assert torch.equal(*reads)


@pytest.mark.parametrize("side", SIDES)
def test_b27_what_is_called_small_is_small(side) -> None:
    """No method below 16 bit stores more than 0.8 of float16, metadata included, at any head size it serves."""
    spec = parse_side(side)
    if spec.num_bits < 16:
        for dim in HEAD_SIZES:
            if served(spec, dim):
                assert stored_bits_per_value(spec, HEADS, dim) < 0.8 * 16
    else:
        assert stored_bits_per_value(spec, HEADS, 64) == spec.num_bits
