"""A parser under atheris, which mutates bytes by what code they reach.

    python -m benchmarks.fuzz.coverage NAME [libFuzzer options]

atheris is in no extra (`pip install atheris`). Mutations are of plain bytes from the parser's valid input; an exception
that is none of kvassay's ends the run, and libFuzzer writes the input beside. It runs in one process, so give libFuzzer
limits, for example `-rss_limit_mb=2000 -max_total_time=600`.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from benchmarks.fuzz.parsers import PARSERS
from kvassay.errors import KvassayError


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in PARSERS:
        print(f"usage: python -m benchmarks.fuzz.coverage NAME; names: {', '.join(PARSERS)}", file=sys.stderr)
        return 2
    if find_spec("atheris") is None:
        print("needs atheris, not installed: pip install atheris", file=sys.stderr)
        return 2
    import atheris

    parser = PARSERS[sys.argv[1]]
    with tempfile.TemporaryDirectory(prefix="kvassay-fuzz-") as name:
        folder = Path(name)
        (folder / "valid").mkdir()
        with atheris.instrument_imports(include=["kvassay"]):
            file = parser.seed(folder / "valid")
            valid = file.read_bytes()
            parser.read(file)
        corpus = folder / "corpus"
        corpus.mkdir()
        (corpus / "valid").write_bytes(valid)

        def one_input(data: bytes) -> None:
            file.write_bytes(data)
            try:
                if parser.refit is not None:
                    parser.refit(file)
            except Exception:  # what is left of the file cannot be made to fit
                file.write_bytes(data)
            with suppress(KvassayError):
                parser.read(file)

        atheris.Setup([sys.argv[0], *sys.argv[2:], str(corpus)], one_input)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
