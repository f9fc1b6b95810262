"""Figures of a byte ledger that several sections show, each with its denominator."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.ledger import ByteLedger
from kvassay.core.records import Arm
from kvassay.pack.reader import ArmLedgers

BITS_16 = 16


class LedgerFigures(NamedTuple):
    """Persistent bytes of one arm. Every byte counts: codes, metadata, windows, sinks, skipped layers, padding."""

    arm: str
    basis: str
    tokens: int
    batch: int
    stored_bits: float
    """Persistent bits a cached value."""
    share_of_16_bit: float
    share_of_float32: float
    nbytes_per_token: float
    persistent_nbytes: int
    transient_nbytes: int | None
    transient_basis: str | None


def leading_ledger(pair: ArmLedgers) -> ByteLedger:
    """The ledger of the real cache where one ran, else the computed one."""
    return pair.allocated or pair.computed


def ledger_figures(arm: str, ledger: ByteLedger) -> LedgerFigures:
    num_values = ledger.float16_nbytes / 2
    return LedgerFigures(
        arm=arm,
        basis=ledger.basis.value,
        tokens=ledger.tokens,
        batch=ledger.batch,
        stored_bits=8 * ledger.persistent_nbytes / num_values,
        share_of_16_bit=ledger.ratio_to_float16,
        share_of_float32=ledger.persistent_nbytes / ledger.float32_nbytes,
        nbytes_per_token=ledger.persistent_nbytes_per_token,
        persistent_nbytes=ledger.persistent_nbytes,
        transient_nbytes=ledger.peak_transient_nbytes,
        transient_basis=ledger.transient_basis.value if ledger.transient_basis else None,
    )


class NominalBits(NamedTuple):
    """Bits of the codes alone, as a format's name advertises them."""

    keys: int
    values: int


def nominal_bits(arm: Arm) -> NominalBits | None:
    """None where the arm's format does not say."""
    sides = (arm.format.get("keys"), arm.format.get("values"))
    bits = [side.get("num_bits") for side in sides if isinstance(side, dict)]
    whole = [count for count in bits if isinstance(count, int) and not isinstance(count, bool) and count > 0]
    return NominalBits(*whole) if len(whole) == 2 else None
