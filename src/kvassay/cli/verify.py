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
    public_key: list[Path] | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Check an evidence pack or an experiment folder. Exit code 0 all checks pass, 1 one fails, 3 an aborted run.

    Parameters
    ----------
    folder
        What `kvassay assess` or `kvassay experiment` wrote.
    root
        The root digest that the run printed at its end; without it, a pack that was rewritten as a whole is not caught.
    public_key
        A PEM file of `kvassay keygen` (FILE.pub); its owner must have signed this very folder. Repeatable.
    json
        Print one JSON document.
    """
    from kvassay.pack.signing import signature_checks
    from kvassay.pack.signing_keys import read_public_key

    keys = [read_public_key(path) for path in public_key or ()]
    verification = _verification(folder, root)
    signatures = signature_checks(folder, verification.root, keys)
    # Last of an aborted pack comes the check that says so; `_exit_code` and the last line look for it by name.
    verification = verification._replace(checks=(*signatures, *verification.checks))
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
    bound = "" if root or keys else " (neither root nor public key given, so nothing outside the folder binds it)"
    print(f"verified: {len(verification.checks)} checks passed{bound}")
    return 0


def _verification(folder: Path, root: str | None) -> Verification:
    from kvassay.pack.folder import EXPERIMENT_SCHEMA, read_schema
    from kvassay.pack.layout import ABORTED_SCHEMA, PACK_SCHEMA

    schema = read_schema(folder)
    if schema == PACK_SCHEMA:
        from kvassay.pack.verify import verify_pack
        from kvassay.report.again import with_report_checks

        return with_report_checks(folder, verify_pack(folder, root))
    if schema == EXPERIMENT_SCHEMA:
        from kvassay.experiments.audit import audit_attention_error

        return audit_attention_error(folder, root)
    if schema == ABORTED_SCHEMA:
        from kvassay.pack.aborted import verify_aborted

        return verify_aborted(folder, root)
    raise PackError(f"{str(folder)!r} has schema {schema!r}; expected {PACK_SCHEMA!r} or {EXPERIMENT_SCHEMA!r}")


def _exit_code(verification: Verification) -> int:
    """An aborted pack that is whole has one failed check, which says so: no evidence, and no tampering either."""
    failed = [check.name for check in verification.failed]
    return ExitCode.INCONCLUSIVE if failed == ["aborted"] else int(bool(failed))
