"""Verifying a pack: hash everything, recompute what follows from something else, and judge again from the raw
rows.

What this shows, and what an unsigned pack cannot show, is in docs/spec/evidence-pack.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

from kvassay.errors import KvassayError, PackError
from kvassay.pack.aborted import earlier_sentence
from kvassay.pack.agreement import (
    arm_checks,
    contract_checks,
    known_file_checks,
    ledger_checks,
    row_count_checks,
)
from kvassay.pack.answers import answer_checks
from kvassay.pack.captured import captured_checks
from kvassay.pack.checks import Check, Verification, printable_checks
from kvassay.pack.documents import document_checks
from kvassay.pack.files import read_manifest, verify_files
from kvassay.pack.layout import PACK_SCHEMA, VERDICTS, PackManifest
from kvassay.pack.plain_files import read_plain
from kvassay.pack.prompts import prompt_checks
from kvassay.pack.reader import read_pack
from kvassay.pack.rejudge import rejudge_check
from kvassay.pack.strict_json import MAX_JSON_NBYTES


def verify_pack(path: Path, expect_root: str | None = None) -> Verification:
    """All checks of the pack at `path`; needs no torch and writes nothing.

    `expect_root` is the root digest that the run printed at its end. Raises PackError only where no manifest
    can be read; every other fault is a failed check.
    """
    manifest = cast("PackManifest", read_manifest(path, PACK_SCHEMA, PackManifest))
    checks = (*verify_files(path, manifest, expect_root), *_content_checks(path, manifest))
    return Verification(PACK_SCHEMA, manifest.computed_root(), printable_checks(checks))


def _content_checks(path: Path, manifest: PackManifest) -> Iterator[Check]:
    yield from known_file_checks(manifest)
    yield Check("earlier-runs", True, f"the manifest {earlier_sentence(manifest.after)}")
    try:
        pack = read_pack(path)
        verdicts = read_plain(path, VERDICTS, MAX_JSON_NBYTES)
    except PackError as error:
        yield Check("readable", False, str(error))
        return
    yield Check("readable", True, "every file has the form that its name promises")
    yield from _guarded("contract", lambda: contract_checks(pack, manifest))
    yield from _guarded("row-counts", lambda: row_count_checks(pack, manifest))
    yield from _guarded("arms", lambda: arm_checks(pack))
    yield from _guarded("documents", lambda: document_checks(pack))
    yield from _guarded("prompts", lambda: prompt_checks(pack))
    yield from _guarded("answers", lambda: answer_checks(pack))
    yield from _guarded("captured", lambda: captured_checks(pack))
    yield from _guarded("ledgers", lambda: ledger_checks(pack))
    yield rejudge_check(pack, verdicts)


UNFORESEEN = "an error that kvassay did not foresee"


def _guarded(what: str, checks: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """The checks; where a stranger's files make one of them raise, a failed check in place of the rest."""
    try:
        yield from checks()
    except KvassayError as error:
        yield Check(f"checkable: {what}", False, f"the {what} cannot be checked: {error}"[:500])
    except Exception as error:  # none is known; fuzzers look for these words
        kind = type(error).__name__
        yield Check(f"checkable: {what}", False, f"the {what} cannot be checked, {UNFORESEEN}: {kind}: {error}"[:500])
