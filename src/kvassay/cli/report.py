"""`kvassay report`: render the report of an existing pack again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvassay.cli.output import print_json
from kvassay.errors import MissingExtraError, PackError, printable


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
    from kvassay.pack.whole_file import refuse_existing, write_whole_file
    from kvassay.report import render_report
    from kvassay.report.chart_svg import can_draw

    if not can_draw():
        raise MissingExtraError(
            "report draws charts with vl-convert-python, not installed; install the extra: "
            "pip install 'kvassay[report]'"
        )
    refuse_existing(out)
    content = read_pack(pack)
    try:
        html = render_report(content).encode()
    except Exception as error:  # a stranger's pack may hold what no run writes
        raise PackError(
            f"the report of {str(pack)!r} cannot be rendered: {type(error).__name__}: {error}; "
            "see what kvassay verify says of it"
        ) from error
    write_whole_file(out, html)
    if json:
        print_json({"report": str(out), "nbytes": len(html)})
    else:
        print(f"report: {printable(str(out))}")
    return 0
