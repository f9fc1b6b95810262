"""`kvassay experiment`: reproductions with saved arrays and an independent audit."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from kvassay.cli.output import print_json, print_table
from kvassay.cli.torch_extra import require_torch
from kvassay.errors import printable

experiment = cyclopts.App(name="experiment", help="Reproduce a measured experiment into a folder that can be verified.")


@experiment.command(name="attention-error")
def attention_error(*, out: Path, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Bytes and attention-output error of int8 keys and values: 36 rows on synthetic arrays, seconds to run.

    Parameters
    ----------
    out
        A folder that does not exist yet; check it with `kvassay verify`.
    json
        Print one JSON document.
    """
    require_torch("kvassay experiment")
    from kvassay.experiments.attention_error import run_attention_error
    from kvassay.experiments.attention_error_tables import attention_error_table, bytes_table, variant_table

    result = run_attention_error(out)
    tables = {
        "rows": attention_error_table(result.tables.rows),
        "variants": variant_table(result.tables.variants),
        "bytes": bytes_table(result.tables.bytes),
    }
    if json:
        print_json({"folder": str(result.folder), "root": result.root, **tables})
        return 0
    for title, rows in tables.items():
        print(f"{title}:" + (" worst first" if title == "rows" else ""))
        header = list(rows[0])
        print_table(header, [[_cell(row[column]) for column in header] for row in rows], right=range(3, len(header)))
        print()
    print(f"folder {printable(str(result.folder))}\nroot {result.root}")
    print(printable(f"verify with: kvassay verify {quote(str(result.folder))} --root {result.root}"))
    return 0


def _cell(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "-" if value is None else str(value)
