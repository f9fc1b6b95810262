"""`kvassay verify`: hash, recompute and judge a result folder again, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kvassay.cli.output import print_json
from kvassay.core.records import ExitCode
from kvassay.errors import PackError

if TYPE_CHECKING:
    from kvassay.pack.checks import Verification


def verify(
    folder: Path,
    /,
    *,
    root: str | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Check an evidence pack or an experiment folder. Exit code 0 all checks pass, 1 one fails, 3 an aborted run.

    Parameters
    ----------
    folder
        What `kvassay assess` or `kvassay experiment` wrote.
    root
        The root digest that the run printed at its end; without it, a pack that was rewritten as a whole is not caught.
    json
        Print one JSON document.
    """
    from kvassay.pack.folder import EXPERIMENT_SCHEMA, read_schema
    from kvassay.pack.layout import ABORTED_SCHEMA, PACK_SCHEMA

    schema = read_schema(folder)
    if schema == PACK_SCHEMA:
        from kvassay.pack.verify import verify_pack
        from kvassay.report.again import with_report_checks

        verification = with_report_checks(folder, verify_pack(folder, root))
    elif schema == EXPERIMENT_SCHEMA:
        from kvassay.experiments.audit import audit_attention_error

        verification = audit_attention_error(folder, root)
    elif schema == ABORTED_SCHEMA:
        from kvassay.pack.aborted import verify_aborted

        verification = verify_aborted(folder, root)
    else:
        raise PackError(f"{str(folder)!r} has schema {schema!r}; expected {PACK_SCHEMA!r} or {EXPERIMENT_SCHEMA!r}")
    code = _exit_code(verification)
    if json:
        print_json(verification.to_json())
        return code
    for check in verification.checks:
        print(f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.sentence}")
    print(f"root {verification.root}")
    if code == ExitCode.INCONCLUSIVE:
        print(f"ABORTED, and nothing was judged: {verification.failed[-1].sentence}")
        return code
    if failed := verification.failed:
        print(f"NOT VERIFIED: {len(failed)} of {len(verification.checks)} checks failed, first {failed[0].name}")
        return 1
    print(
        f"verified: {len(verification.checks)} checks passed" + ("" if root else " (root not given, so not compared)")
    )
    return 0


def _exit_code(verification: Verification) -> int:
    """An aborted pack that is whole has one failed check, which says so: no evidence, and no tampering either."""
    failed = [check.name for check in verification.failed]
    return ExitCode.INCONCLUSIVE if failed == ["aborted"] else int(bool(failed))
