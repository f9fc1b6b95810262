"""The byte ledger of every arm: keys and values apart, by owner, computed beside allocated, every denominator named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvassay.core.geometry import Owner
from kvassay.core.ledger import ByteLedger
from kvassay.core.records import Arm
from kvassay.core.transient_peak import PATH_WORDS
from kvassay.pack.reader import ArmLedgers, PackContent
from kvassay.report.figures import NOT_RECORDED, Shown, number, percent, size, times_smaller
from kvassay.report.ledger_figures import BITS_16, LedgerFigures, leading_ledger, ledger_figures, nominal_bits
from kvassay.report.outcomes import ROLE_WORDS

NOT_ALLOCATED = "no real cache ran"

OWNER_WORDS: dict[Owner, str] = {
    Owner.CODES: "codes",
    Owner.SCALES: "scales",
    Owner.ZERO_POINTS: "zero points (group minimums)",
    Owner.WINDOW: "full-precision window",
    Owner.SINKS: "full-precision sinks",
    Owner.SKIPPED_LAYERS: "full-precision layers",
    Owner.PADDING: "padding (allocated, not filled)",
    Owner.BLOCK_TABLE: "block tables",
    Owner.WORKSPACE: "workspace",
}


class OwnerRow(NamedTuple):
    owner: str
    keys_computed: Shown
    keys_allocated: Shown
    values_computed: Shown
    values_allocated: Shown
    both: Shown
    share: Shown


class ArmLedger(NamedTuple):
    arm: str
    role: str
    tokens: Shown
    batch: Shown
    owners: tuple[OwnerRow, ...]
    total: OwnerRow
    without_bytes: str
    """Owners that hold no byte of this ledger."""
    agreement: str
    stored_bits: Shown
    nominal: str
    share_of_16_bit: Shown
    nbytes_16_bit: Shown
    share_of_float32: Shown
    nbytes_float32: Shown
    nbytes_per_token: Shown
    persistent: Shown
    persistent_basis: str
    transient: Shown
    transient_basis: str
    peak: Shown


class Ledgers(NamedTuple):
    arms: tuple[ArmLedger, ...]
    assumptions: tuple[str, ...]


def ledger_tables(content: PackContent) -> Ledgers:
    """Largest share of 16 bit first. `assumptions` holds the exclusions and assumptions of all ledgers, each once."""
    arms = {arm.name: arm for arm in content.arms}
    ordered = sorted(content.ledgers.items(), key=lambda item: -leading_ledger(item[1]).ratio_to_float16)
    return Ledgers(
        arms=tuple(_arm(name, pair, arms.get(name)) for name, pair in ordered),
        assumptions=tuple(
            dict.fromkeys(
                sentence
                for pair in content.ledgers.values()
                for ledger in pair
                if ledger is not None
                for sentence in ledger.assumptions
            )
        ),
    )


def owners_of(ledgers: Iterable[ByteLedger | None]) -> list[Owner]:
    """Owners with bytes in any of the ledgers, in the order of `Owner`."""
    present = [ledger for ledger in ledgers if ledger is not None]
    return [owner for owner in Owner if any(ledger.owner_nbytes(owner) for ledger in present)]


def _arm(name: str, pair: ArmLedgers, arm: Arm | None) -> ArmLedger:
    leading = leading_ledger(pair)
    figures = ledger_figures(name, leading)
    owners = owners_of(pair)
    without = [OWNER_WORDS[owner] for owner in Owner if owner not in owners and owner is not Owner.WORKSPACE]
    transient = leading if leading.peak_transient_nbytes is not None else pair.computed
    return ArmLedger(
        arm=name,
        role=ROLE_WORDS[arm.role] if arm else NOT_RECORDED,
        tokens=number(leading.tokens),
        batch=number(leading.batch),
        owners=tuple(_owner(owner, pair, leading) for owner in owners),
        total=_total(pair, leading),
        without_bytes=", ".join(without),
        agreement=_agreement(pair),
        stored_bits=number(figures.stored_bits, digits=4),
        nominal=_nominal(arm, figures),
        share_of_16_bit=percent(figures.share_of_16_bit, digits=4),
        nbytes_16_bit=size(leading.float16_nbytes),
        share_of_float32=percent(figures.share_of_float32, digits=4),
        nbytes_float32=size(leading.float32_nbytes),
        nbytes_per_token=size(figures.nbytes_per_token),
        persistent=size(leading.persistent_nbytes),
        persistent_basis=_words(leading.basis),
        transient=size(transient.peak_transient_nbytes),
        transient_basis=_transient_words(transient),
        peak=_peak(leading, transient),
    )


def _owner(owner: Owner, pair: ArmLedgers, leading: ByteLedger) -> OwnerRow:
    computed, allocated = pair
    return OwnerRow(
        owner=OWNER_WORDS[owner],
        keys_computed=size(computed.keys_nbytes.get(owner, 0)),
        keys_allocated=size(allocated.keys_nbytes.get(owner, 0)) if allocated else NOT_ALLOCATED,
        values_computed=size(computed.values_nbytes.get(owner, 0)),
        values_allocated=size(allocated.values_nbytes.get(owner, 0)) if allocated else NOT_ALLOCATED,
        both=size(leading.owner_nbytes(owner)),
        share=_share(leading.owner_nbytes(owner), leading),
    )


def _total(pair: ArmLedgers, leading: ByteLedger) -> OwnerRow:
    computed, allocated = pair
    return OwnerRow(
        owner="persistent, all owners",
        keys_computed=size(sum(computed.keys_nbytes.values())),
        keys_allocated=size(sum(allocated.keys_nbytes.values())) if allocated else NOT_ALLOCATED,
        values_computed=size(sum(computed.values_nbytes.values())),
        values_allocated=size(sum(allocated.values_nbytes.values())) if allocated else NOT_ALLOCATED,
        both=size(leading.persistent_nbytes),
        share=_share(leading.persistent_nbytes, leading),
    )


def _share(nbytes: int, ledger: ByteLedger) -> Shown:
    return percent(nbytes / ledger.persistent_nbytes) if ledger.persistent_nbytes else NOT_RECORDED


def _agreement(pair: ArmLedgers) -> str:
    computed, allocated = pair
    if allocated is None:
        return "Computed from geometry and format only; no real cache of this arm was summed."
    if (computed.tokens, computed.batch) != (allocated.tokens, allocated.batch):
        return "Computed and allocated are of different lengths, so they are not compared."
    if computed.keys_nbytes == allocated.keys_nbytes and computed.values_nbytes == allocated.values_nbytes:
        return "Computed and allocated agree in every owner, to the byte."
    difference = allocated.persistent_nbytes - computed.persistent_nbytes
    return f"Computed and allocated DIFFER; allocated minus computed is {difference:,} B in sum."


def _nominal(arm: Arm | None, figures: LedgerFigures) -> str:
    """The ratio that the codes alone would give, beside the real one (R22, R66)."""
    bits = nominal_bits(arm) if arm else None
    real = f"with every byte {times_smaller(figures.share_of_16_bit)}"
    if bits is None:
        return f"nominal bits {NOT_RECORDED}; {real}"
    if bits.keys == bits.values:
        return f"{bits.keys} bit a value: nominally {_against_16(bits.keys)}; {real}"
    sides = (f"{side} {count} bit, nominally {_against_16(count)}" for side, count in bits._asdict().items())
    return f"{'; '.join(sides)}; {real}"


def _against_16(num_bits: int) -> str:
    return "as large as 16 bit" if num_bits == BITS_16 else f"{times_smaller(num_bits / BITS_16)} than 16 bit"


def _peak(persistent: ByteLedger, transient: ByteLedger) -> Shown:
    if transient.peak_transient_nbytes is None:
        return NOT_RECORDED
    return size(persistent.persistent_nbytes + transient.peak_transient_nbytes)


def _transient_words(ledger: ByteLedger) -> str:
    """How the figure was found; of a computed one, whether it is a prediction or an upper bound, and of which path."""
    if ledger.transient_basis is None:
        return NOT_RECORDED
    phases = ledger.transient_phases
    said = [] if phases is None else [phases.basis.value, PATH_WORDS[phases.path]]
    return ", ".join([_words(ledger.transient_basis), *said])


def _words(basis: str) -> str:
    return basis.replace("_", "-")
