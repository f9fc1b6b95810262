"""`kvassay report`: render the report of an existing pack again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvassay.cli.output import print_json
from kvassay.errors import PackError


def report(
    pack: Path,
    /,
    *,
    out: Path,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write the HTML report of a pack to a file, with this version's report code.

    Parameters
    ----------
    pack
        An evidence pack.
    out
        The HTML file to write; an existing file is refused.
    json
        Print one JSON document.
    """
    from kvassay.pack.reader import read_pack
    from kvassay.report import render_report

    html = render_report(read_pack(pack))
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(html)
    except FileExistsError as error:
        raise PackError(f"{str(out)!r} exists; give a path that does not exist yet") from error
    except OSError as error:
        raise PackError(f"{str(out)!r} cannot be written: {error.strerror}") from error
    if json:
        print_json({"report": str(out), "nbytes": len(html.encode())})
    else:
        print(f"report: {out}")
    return 0
