"""Writing an evidence pack: rows as they are measured, all or nothing in place at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from kvassay.core.contract import Contract
from kvassay.core.records import Arm, Verdicts
from kvassay.errors import PackError
from kvassay.pack import layout
from kvassay.pack.folder import FolderWriter
from kvassay.pack.layout import (
    ABORTED_FILES,
    ABORTED_SCHEMA,
    PACK_SCHEMA,
    REQUIRED_FILES,
    EarlierRun,
    PackManifest,
    chart_file,
)
from kvassay.pack.plain_files import list_files
from kvassay.pack.reader import ArmLedgers, PackContent, plain_tables, read_partial
from kvassay.pack.row_writer import Rows, RowWriter
from kvassay.pack.signals import signals_held
from kvassay.pack.tables import TABLE_COLUMNS, Tables, read_table, rows_per_arm, table_file


class PackWriter:
    """A pack in the making; use it as a context manager, and end with `commit`.

        with PackWriter(out, contract, contract_toml) as pack:
            pack.append("tokens", {"arm": "kivi-4", "document": "d1", "position": positions, ...})
            tables = pack.tables()
            pack.write_verdicts(judge(contract, arms, computed, tables.tokens, tables.items, tensors=tables.tensors))
            ...
            pack.write_report(render(pack.content()))
            manifest = pack.commit()

    Raises PackError at construction when `out` exists (R107) or cannot be written, and later for rows of
    other columns and for want of room. Leaving the block without `commit` leaves nothing at `out`.
    """

    def __init__(self, out: Path, contract: Contract, contract_toml: str, after: Sequence[EarlierRun] = ()) -> None:
        """`contract_toml` is the source text as given, from which `contract` was parsed."""
        self._after = [run.model_dump(mode="json") for run in after]
        self._contract_sha256 = contract.sha256  # before anything is made: it fails for what JSON cannot hold
        self._folder = FolderWriter(out, PACK_SCHEMA, PackManifest)
        self._rows: dict[str, RowWriter] = {}
        self._rows_closed = False
        try:
            self._folder.write_json(layout.CONTRACT_JSON, contract.to_json())
            self._folder.write_text(layout.CONTRACT_TOML, contract_toml)
            for table in TABLE_COLUMNS:
                path = self._folder.file_path(table_file(table))
                self._rows[table] = RowWriter(path, table, self._contract_sha256)
        except BaseException:
            self.discard()
            raise

    @property
    def out(self) -> Path:
        return self._folder.out

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._folder.__exit__(kind, error, traceback)

    def append(self, table: str, rows: Rows) -> None:
        """Rows of one of `TABLE_COLUMNS`."""
        if self._rows_closed:
            raise PackError(f"rows of {table} cannot be appended: the tables were read back already")
        with self._folder.reporting_no_room(table_file(table)):
            self._rows[table].append(rows)

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        self._folder.write_json(layout.PLAN, dict(plan))

    def write_arms(self, arms: Sequence[Arm]) -> None:
        self._folder.write_json(layout.ARMS, [arm.model_dump(mode="json") for arm in arms])

    def write_ledgers(self, ledgers: Mapping[str, ArmLedgers]) -> None:
        self._folder.write_json(layout.LEDGERS, {arm: pair.to_json() for arm, pair in ledgers.items()})

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        self._folder.write_json(layout.ENVIRONMENT, dict(environment))

    def write_subject(self, subject: Mapping[str, Any]) -> None:
        """`subject["geometry"]` must be the CacheGeometry's JSON: the ledgers are recomputed from it."""
        self._folder.write_json(layout.SUBJECT, dict(subject))

    def write_verdicts(self, verdicts: Verdicts) -> None:
        self._folder.write_json(layout.VERDICTS, verdicts.model_dump(mode="json"))

    def write_chart(self, name: str, spec: Mapping[str, Any]) -> None:
        self._folder.write_json(chart_file(name), dict(spec))

    def write_report(self, html: str) -> None:
        self._folder.write_text(layout.REPORT, html)

    def tables(self) -> Tables:
        """The rows, read back from the files as a verifier will read them; no more can be appended."""
        self._close_rows()
        return plain_tables({table: read_table(self._folder.partial, table) for table in TABLE_COLUMNS})

    def content(self) -> PackContent:
        """All that was written, read back, for the report; every required file must be written by now."""
        self._close_rows()
        return read_partial(self._folder.partial)

    def commit(self) -> PackManifest:
        """Put the pack in place. Returns its manifest, whose `root` should be kept outside the pack."""
        try:
            self._close_rows()
            missing = [name for name in REQUIRED_FILES if not (self._folder.partial / name).is_file()]
            if missing:
                raise PackError(f"pack {str(self.out)!r} is incomplete: {', '.join(missing)} was never written")
            return self._put_in_place({table: rows.counts for table, rows in self._rows.items()})
        except BaseException:
            self.discard()
            raise

    def abort(self, record: Mapping[str, Any]) -> PackManifest | None:
        """Put the rows so far in place as an aborted pack, with `record` (`pack.aborted.AbortedRun`) saying why.

        None, and nothing stays, where no row was measured or the rows cannot be written any more. Signals wait, as
        while something half-written is removed.
        """
        if not any(rows.counts for rows in self._rows.values()):
            return None
        with signals_held():
            try:
                # As a verifier will read them: a file that could not be finished is no record, and a signal between
                # a row and its count must not matter.
                counts = {table: rows_per_arm(rows) for table, rows in self.tables()._asdict().items()}
                for name in set(list_files(self._folder.partial).names) - set(ABORTED_FILES):
                    (self._folder.partial / name).unlink()
                self._folder.write_json(layout.ABORTED, dict(record))
                self._folder.schema = ABORTED_SCHEMA
                return self._put_in_place(counts)
            except Exception:  # the error that ended the run is told, not this one
                self.discard()
                return None

    def _put_in_place(self, row_counts: Mapping[str, Mapping[str, int]]) -> PackManifest:
        facts = {
            "contract_sha256": self._contract_sha256,
            "row_counts": row_counts,
            "after": self._after,
        }
        return cast("PackManifest", self._folder.commit(facts))

    def discard(self) -> None:
        """Remove all that was written. Does nothing after `commit`."""
        self._folder.discard()

    def _close_rows(self) -> None:
        if self._rows_closed:
            return
        self._rows_closed = True
        for table, rows in self._rows.items():
            with self._folder.reporting_no_room(table_file(table)):
                rows.close()
