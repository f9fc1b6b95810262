"""`kvassay query`: SQL over the rows of a store or of packs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from kvassay.cli.output import print_json, print_table
from kvassay.cli.torch_extra import require_extra
from kvassay.errors import UsageError, printable


def query(
    store: str,
    sql: str,
    /,
    *,
    pack: tuple[Path, ...] = (),
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run one SQL statement (DuckDB) over the tables tokens, items, tensors, generations, answers, cells, verdicts.

    Parameters
    ----------
    store
        Folder or URL that kvassay run wrote to, or an evidence pack.
    sql
        As in "SELECT model, arm, avg(kl_nats) FROM tokens GROUP BY ALL ORDER BY ALL".
    pack
        A further evidence pack whose rows take part; once for each.
    json
        Print one JSON document.
    """
    require_extra("kvassay query", "scale", "fsspec", "duckdb")
    from kvassay.pack.manifest import MANIFEST_NAME
    from kvassay.scale.plans import read_groups
    from kvassay.scale.query import query as answer_of
    from kvassay.scale.store import Store

    if (Path(store) / MANIFEST_NAME).is_file():
        answer = answer_of(sql, None, [], [Path(store), *pack])
    else:
        opened = Store(store)
        answer = answer_of(sql, opened, read_groups(opened), pack)
    if not answer.columns:
        raise UsageError("the statement gives no rows; expected a SELECT")
    if json:
        if twice := [name for name, count in Counter(answer.columns).items() if count > 1]:
            raise UsageError(f"two columns are called {twice[0]!r}, and JSON would keep one; name them apart by AS")
        print_json([dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows])
        return 0
    numbers = [
        index
        for index in range(len(answer.columns))
        if all(row[index] is None or isinstance(row[index], int | float) for row in answer.rows)
    ]
    header = [printable(name) for name in answer.columns]
    print_table(header, [[_shown(value) for value in row] for row in answer.rows], right=numbers)
    return 0


def _plain(value: Any) -> Any:
    """A value as JSON has it; NaN and infinity, which it has not, as text."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))
