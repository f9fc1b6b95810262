"""Runs that ended before their verdict: what they leave, and how that is checked.

A run that is interrupted or fails once rows were measured leaves an aborted pack in place of nothing: contract, plan,
the rows so far, and `aborted.json`. It has a schema of its own and no verdicts, so it is never judged. A later run
under the same contract may name it (`kvassay assess --after`), and its manifest then says so for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from pydantic import BaseModel, ConfigDict, Field

from kvassay.core.contract import Contract, parse_contract
from kvassay.errors import KvassayError, PackError
from kvassay.pack import layout
from kvassay.pack.checks import Check, Verification, printable_checks
from kvassay.pack.files import read_manifest, read_schema, verify_files
from kvassay.pack.layout import ABORTED_FILES, ABORTED_SCHEMA, PACK_SCHEMA, EarlierRun, PackManifest
from kvassay.pack.manifest import UtcTime
from kvassay.pack.reader import read_contract_toml, read_object, read_record
from kvassay.pack.tables import TABLE_COLUMNS, read_table, rows_per_arm, table_file


class AbortedRun(BaseModel):
    """Why a run ended, and how far it had come."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    weights_sha256: str | None
    last_stage: str
    """The stage that ran, or had just ended."""
    units_done: dict[str, int]
    """By level."""
    units_planned: dict[str, int]
    reason: str = Field(max_length=1000)
    """Kind and text of the error."""
    started_utc: UtcTime
    ended_utc: UtcTime

    @property
    def sentence(self) -> str:
        done = ", ".join(
            f"{count} of {self.units_planned.get(level, 0)} {level}" for level, count in self.units_done.items()
        )
        return f"the run was aborted in stage {self.last_stage} after {done or 'no unit'}: {self.reason}"


def verify_aborted(path: Path, expect_root: str | None = None) -> Verification:
    """All checks of an aborted pack. The last one, `aborted`, never passes: there is no verdict to verify."""
    manifest = cast("PackManifest", read_manifest(path, ABORTED_SCHEMA, PackManifest))
    checks = (*verify_files(path, manifest, expect_root), *_content_checks(path, manifest))
    return Verification(ABORTED_SCHEMA, manifest.computed_root(), printable_checks(checks))


def read_earlier(paths: Iterable[Path], contract_sha256: str) -> tuple[EarlierRun, ...]:
    """Runs that went before, whole or aborted, each after those that it names itself.

    Raises PackError for a folder that is no pack, is not as its manifest says, or is of another contract.
    """
    found: dict[str, EarlierRun] = {}
    for path in paths:
        schema = read_schema(path)
        if schema not in (PACK_SCHEMA, ABORTED_SCHEMA):
            raise PackError(f"{str(path)!r} has schema {schema!r}; expected an evidence pack or an aborted one")
        manifest = cast("PackManifest", read_manifest(path, schema, PackManifest))
        if failed := [check for check in verify_files(path, manifest) if not check.passed]:
            raise PackError(f"{str(path)!r} is not what its run wrote: {failed[0].sentence}; see kvassay verify")
        if manifest.contract_sha256 != contract_sha256:
            raise PackError(
                f"{str(path)!r} is a run under contract {manifest.contract_sha256[:12]}, this one is under "
                f"{contract_sha256[:12]}; name earlier runs of the same contract"
            )
        own = EarlierRun(root=manifest.root, aborted=schema == ABORTED_SCHEMA, created_utc=manifest.created_utc)
        found |= {run.root: run for run in (*manifest.after, own)}
    return tuple(found.values())


def earlier_sentence(after: Iterable[EarlierRun]) -> str:
    runs = list(after)
    if not runs:
        return "names no earlier run under its contract"
    aborted = sum(run.aborted for run in runs)
    return (
        f"names {len(runs)} earlier run{'' if len(runs) == 1 else 's'} under its contract, {aborted} of them aborted: "
        + ", ".join(run.root[:12] for run in runs)
    )


def _content_checks(path: Path, manifest: PackManifest) -> Iterator[Check]:
    odd = sorted(set(manifest.files) ^ set(ABORTED_FILES))
    sentence = f"the manifest lists {'other files than' if odd else 'the files of'} an aborted pack"
    yield Check("files-known", not odd, sentence + (f", first {odd[0]}" if odd else ""))
    try:
        contract = read_record(path, layout.CONTRACT_JSON, Contract)
        toml = read_contract_toml(path)
        record = read_record(path, layout.ABORTED, AbortedRun)
        read_object(path, layout.PLAN)
        tables = {table: read_table(path, table) for table in TABLE_COLUMNS}
    except PackError as error:
        yield Check("readable", False, str(error))
        return
    yield Check("readable", True, "every file has the form that its name promises")
    named = {"manifest.json": manifest.contract_sha256}
    named |= {table_file(table): read.contract_sha256 for table, read in tables.items()}
    wrong = [where for where, found in named.items() if found != contract.sha256]
    sentence = f"{wrong[0]} names another contract" if wrong else "manifest and rows name the hash of the contract"
    yield Check("contract-hash", not wrong, sentence)
    try:
        same = parse_contract(toml, layout.CONTRACT_TOML).sha256 == contract.sha256
    except KvassayError:
        same = False
    yield Check("contract-source", same, f"contract.toml {'reads' if same else 'does not read'} as contract.json")
    counted = {table: rows_per_arm(read.rows) for table, read in tables.items()}
    same = counted == manifest.row_counts
    yield Check("row-counts", same, f"the tables hold {'as many' if same else 'other numbers of'} rows as listed")
    yield Check("earlier-runs", True, f"the manifest {earlier_sentence(manifest.after)}")
    yield Check("aborted", False, record.sentence)
