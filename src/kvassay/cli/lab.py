"""`kvassay lab`: four rooms in a local page."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvassay.cli.output import print_json, say
from kvassay.cli.whole_numbers import whole_number
from kvassay.errors import MissingExtraError, PackError, printable


def lab(
    *,
    packs: Path = Path("."),
    model: str = "smollm2-135m",
    port: Annotated[int, whole_number(0, 65535)] = 0,
    view: str = "",
    browser: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Serve the lab on 127.0.0.1 until interrupted: a bench for quantizers, two experiments, and a shelf of packs.

    The address that is printed holds a random token; without it nothing is answered.

    Parameters
    ----------
    packs
        The folder whose evidence packs are shown, two levels deep.
    model
        The model whose keys and values can be captured; nothing is loaded before the page asks.
    port
        A port of 127.0.0.1; 0 takes a free one.
    view
        A view that another page shared: what stands after # in its address.
    browser
        Open the page in the browser.
    json
        Print the address as one JSON document.
    """
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"kvassay lab needs {', '.join(missing)}, not installed; install the extra: pip install 'kvassay[lab]'"
        )
    if not packs.is_dir():
        raise PackError(f"{str(packs)!r} is no folder; --packs names the folder that holds evidence packs")
    from kvassay.lab.server import open_lab

    opened = open_lab(packs, model, port)
    address = opened.address + (f"#{view.removeprefix('#')}" if view else "")
    if json:
        print_json({"address": address, "packs": str(packs), "model": model})
        sys.stdout.flush()  # the command goes on, and who reads this waits for it
    else:
        print(f"lab {printable(address)}", flush=True)
        say("this machine alone is answered, and only under this address; Ctrl-C ends it")
    if browser:
        import webbrowser

        webbrowser.open(address)
    try:
        opened.serve()
    except KeyboardInterrupt:
        say("ended")
    return 0
