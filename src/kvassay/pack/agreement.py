"""Do the parts of a pack agree with each other? Each function yields named checks of one kind.

These catch edits whose author re-hashed the manifest: what one file says of another must still hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from kvassay.core.contract import parse_contract
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat
from kvassay.core.ledger import ByteLedger, predict_ledger
from kvassay.core.records import Arm, FormatVerdict, Outcome, Role
from kvassay.errors import KvassayError
from kvassay.pack import layout
from kvassay.pack.checks import Check
from kvassay.pack.documents import measured_length_fault
from kvassay.pack.layout import PackManifest, is_pack_file
from kvassay.pack.manifest import first_fault
from kvassay.pack.reader import PackContent
from kvassay.pack.tables import TABLE_COLUMNS, clause_table, rows_per_arm, table_file

_NO_EVIDENCE = (Outcome.NOT_MEASURED, Outcome.INVALID_EVIDENCE)


def known_file_checks(manifest: PackManifest) -> Iterator[Check]:
    unknown = [name for name in manifest.files if not is_pack_file(name)]
    missing = [name for name in layout.REQUIRED_FILES if name not in manifest.files]
    whole = not (unknown or missing)
    sentence = "the manifest lists the files of a pack" if whole else "the manifest lists other files than a pack holds"
    yield Check("files-known", whole, sentence)
    for name in unknown:
        yield Check(f"file-unknown: {name}", False, f"{name} is listed and no file of a pack")
    for name in missing:
        yield Check(f"file-required: {name}", False, f"{name} is required and not listed")


def contract_checks(pack: PackContent, manifest: PackManifest) -> Iterator[Check]:
    """One hash in four places: the contract itself, manifest, verdicts and every row file."""
    sha256 = pack.contract.sha256
    yield _same_hash("contract-hash", "manifest.json", manifest.contract_sha256, sha256)
    yield _same_hash(f"contract-hash: {layout.VERDICTS}", layout.VERDICTS, pack.verdicts.contract_sha256, sha256)
    for table, found in pack.table_contracts.items():
        yield _same_hash(f"contract-hash: {table_file(table)}", table_file(table), found, sha256)
    try:
        same = parse_contract(pack.contract_toml, layout.CONTRACT_TOML).sha256 == sha256
        sentence = "contract.toml reads as contract.json" if same else "contract.toml and contract.json differ"
    except KvassayError as error:
        same, sentence = False, str(error)
    yield Check("contract-source", same, sentence)


def row_count_checks(pack: PackContent, manifest: PackManifest) -> Iterator[Check]:
    """Rows of every arm against the manifest, and no rows of an arm that is not declared."""
    counted = {table: rows_per_arm(rows) for table, rows in pack.tables._asdict().items()}
    listed = manifest.row_counts
    known_tables = set(listed) == set(TABLE_COLUMNS)
    arms = dict.fromkeys(arm.name for arm in pack.arms)
    undeclared = sorted({arm for counts in counted.values() for arm in counts if arm not in arms})
    for arm in [*arms, *undeclared]:
        found = {table: counts.get(arm, 0) for table, counts in counted.items()}
        expected = {table: listed.get(table, {}).get(arm, 0) for table in counted}
        same = known_tables and found == expected
        sentence = f"{arm} has {_counted(found)}" + ("" if same else f"; the manifest says {_counted(expected)}")
        yield Check(f"row-count: {arm}", same, sentence)
    for arm in undeclared:
        yield Check(f"arm-undeclared: {arm}", False, f"rows of {arm} exist, which {layout.ARMS} does not declare")
    for arm in sorted({arm for counts in listed.values() for arm in counts} - {*arms, *undeclared}):
        yield Check(f"row-count: {arm}", False, f"the manifest counts rows of {arm}, which has none")


def arm_checks(pack: PackContent) -> Iterator[Check]:
    """Every candidate has rows or is not measured, and every digest follows from its format."""
    for text in pack.contract.candidates.order:
        digest = parse_format(text).digest
        arm = next((arm for arm in pack.arms if arm.role is Role.CANDIDATE and arm.format_digest == digest), None)
        verdict = next((verdict for verdict in pack.verdicts.formats if verdict.format_digest == digest), None)
        fault = _coverage_fault(pack, arm, verdict)
        well = "was not run and counts as not measured" if arm is None else "has rows for every clause that is judged"
        yield Check(f"arm-rows: {text}", fault is None, f"{text} {fault or well}")
    for arm in pack.arms:
        kv_format = format_of(arm)
        if isinstance(kv_format, str):
            yield Check(f"format-digest: {arm.name}", False, f"{arm.name}: its format cannot be read: {kv_format}")
            continue
        same = kv_format.digest == arm.format_digest and kv_format.model_dump(mode="json") == arm.format
        sentence = "follows from" if same else f"should be {kv_format.digest} by"
        yield Check(f"format-digest: {arm.name}", same, f"{arm.format_digest} {sentence} the format {kv_format.name}")


def ledger_checks(pack: PackContent) -> Iterator[Check]:
    """Ledgers computed anew from the subject's geometry equal the pack's, computed and allocated."""
    try:
        geometry = CacheGeometry.model_validate(pack.subject.get("geometry"))
    except ValidationError as error:
        yield Check("geometry", False, f"{layout.SUBJECT}: geometry: {first_fault(error)}")
        return
    for name in sorted(set(pack.ledgers) ^ {arm.name for arm in pack.arms}):
        yield Check(f"ledger: {name}", False, f"{name} stands in one of {layout.ARMS} and {layout.LEDGERS} only")
    for arm in pack.arms:
        kv_format = format_of(arm)
        if arm.name not in pack.ledgers or isinstance(kv_format, str):
            continue
        pair = pack.ledgers[arm.name]
        fault = measured_length_fault(pack, pair)
        well = f"the ledger is of {pair.computed.tokens} tokens, the length that was measured"
        yield Check(f"ledger-tokens: {arm.name}", fault is None, fault or well)
        yield _ledger_check(f"ledger: {arm.name}", geometry, kv_format, pair.computed)
        if pair.allocated:
            yield _ledger_check(f"ledger-allocated: {arm.name}", geometry, kv_format, pair.allocated)


def format_of(arm: Arm) -> KVFormat | str:
    """The format of an arm, or why it cannot be read.

    A format that the grammar cannot write (an unknown method, bits that its codec does not have) is none: nothing can
    be computed from it.
    """
    try:
        kv_format = KVFormat.model_validate(arm.format)
        return (
            kv_format if parse_format(kv_format.name) == kv_format else f"no format string reads as it: {kv_format!r}"
        )
    except ValidationError as error:
        return first_fault(error)
    except KvassayError as error:
        return str(error)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {table}" for table, count in counts.items())


def _same_hash(name: str, where: str, found: str, contract: str) -> Check:
    same = found == contract
    verb = "is that of" if same else f"is {found[:12] or 'missing'}… and not {contract[:12]}…, that of"
    return Check(name, same, f"the contract hash in {where} {verb} {layout.CONTRACT_JSON}")


def _coverage_fault(pack: PackContent, arm: Arm | None, verdict: FormatVerdict | None) -> str | None:
    if verdict is None:
        return "is a candidate and has no verdict"
    if arm is None:
        return None if verdict.outcome is Outcome.NOT_MEASURED else f"was not run and is judged {verdict.outcome.value}"
    for clause in verdict.clauses:
        table = clause_table(pack.contract, clause.clause)
        if table is None or clause.outcome in _NO_EVIDENCE:
            continue
        if arm.name not in rows_per_arm(pack.tables._asdict()[table]):
            return f"has no {table} and its clause {clause.clause} is judged {clause.outcome.value}"
    return None


def _ledger_check(name: str, geometry: CacheGeometry, kv_format: KVFormat, ledger: ByteLedger) -> Check:
    try:
        expected = predict_ledger(geometry, kv_format, ledger.tokens, ledger.batch)
    except Exception as error:  # the geometry is a stranger's: whatever it causes is a failed check and no crash
        return Check(name, False, f"the ledger cannot be computed: {type(error).__name__}: {error}")
    # Assumptions are prose. What a real cache reports has its own basis and transient figure; its stored bytes must
    # be those predicted.
    ignored = {"assumptions"}
    if ledger.basis is not expected.basis:
        ignored |= {"basis", "transient_basis", "peak_transient_nbytes", "transient_phases", "transient_in_torch"}
    found_fields, expected_fields = _fields(ledger, ignored), _fields(expected, ignored)
    wrong = [field for field, value in expected_fields.items() if found_fields[field] != value]
    if not wrong:
        return Check(name, True, f"{ledger.persistent_nbytes} bytes follow from geometry and format")
    field = wrong[0]
    return Check(
        name,
        False,
        f"{field} is {found_fields[field]}, computed from geometry and format: {expected_fields[field]}",
    )


def _fields(ledger: ByteLedger, ignored: set[str]) -> dict[str, Any]:
    return ledger.model_dump(mode="json", exclude=ignored)
