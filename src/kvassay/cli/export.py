"""`kvassay export`: a pack in the forms that other tools read, without torch."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kvassay.cli.output import print_json
from kvassay.errors import PackError, UsageError, printable

if TYPE_CHECKING:
    from kvassay.pack.reader import PackContent


class Form(StrEnum):
    JUNIT = "junit"
    GITHUB = "github"
    MODEL_CARD = "model-card"
    CSV = "csv"
    PARQUET = "parquet"


def export(
    pack: Path,
    /,
    *,
    to: Form,
    out: Path | None = None,
    table: str = "clauses",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write a pack's verdicts or rows in a form that another tool reads. Exit code 0 where it was written.

    The outcome is in what is written and not in the exit code: `kvassay judge` has that.

    Parameters
    ----------
    pack
        An evidence pack; every file must be as its manifest says.
    to
        junit (a test case for each clause), github (workflow annotations), model-card (a Markdown section), csv or
        parquet (one table).
    out
        The file to write; an existing one is refused. Without it the text goes to stdout.
    table
        Of csv and parquet: clauses, tokens, items, tensors, generations or answers.
    json
        Print one JSON document about the file that was written; needs --out.
    """
    from kvassay.pack.reader import read_whole_pack
    from kvassay.pack.whole_file import refuse_existing, write_whole_file
    from kvassay.report.exports.row_tables import EXPORTED_TABLES

    if out is None and (json or to is Form.PARQUET):
        raise UsageError(f"{'--json' if json else '--to parquet'} needs --out FILE")
    if table not in EXPORTED_TABLES:
        raise UsageError(f"--table {table!r} is unknown; expected one of {', '.join(EXPORTED_TABLES)}")
    if out is not None:
        refuse_existing(out)
    content = read_whole_pack(pack)
    try:
        data = _rendered(content, to, table)
    except Exception as error:  # a stranger's pack may hold what no run writes
        raise PackError(
            f"{str(pack)!r} cannot be exported: {type(error).__name__}: {error}; see what kvassay verify says of it"
        ) from error
    if out is None:
        # The bytes that a file would get, in whatever encoding the terminal is said to have.
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return 0
    write_whole_file(out, data)
    if json:
        print_json({"out": str(out), "form": to.value, "nbytes": len(data)})
    else:
        print(f"{to.value}: {printable(str(out))}")
    return 0


def _rendered(content: PackContent, to: Form, table: str) -> bytes:
    from kvassay.report.exports.github import github_annotations
    from kvassay.report.exports.junit import junit_xml
    from kvassay.report.exports.model_card import model_card
    from kvassay.report.exports.row_tables import exported_table, to_csv, to_parquet

    match to:
        case Form.JUNIT:
            return junit_xml(content).encode()
        case Form.GITHUB:
            return github_annotations(content).encode()
        case Form.MODEL_CARD:
            return model_card(content).encode()
        case Form.CSV:
            return to_csv(exported_table(content, table))
        case Form.PARQUET:
            return to_parquet(exported_table(content, table))
