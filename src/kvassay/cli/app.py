"""The application: commands, and how errors become one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import cyclopts

import kvassay
from kvassay.cli.assess import assess
from kvassay.cli.bytes import bytes_command
from kvassay.cli.doctor import doctor
from kvassay.cli.experiment import experiment
from kvassay.cli.formats import formats
from kvassay.cli.report import report
from kvassay.cli.verify import verify
from kvassay.core.records import ExitCode
from kvassay.errors import KvassayError

INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""

app = cyclopts.App(
    name="kvassay",
    help="Choose the smallest KV cache that your model can afford, proved on your workload, with every byte counted.",
    version=kvassay.__version__,
    result_action="return_value",
)
app.command(assess)
app.command(bytes_command, name="bytes")
app.command(formats)
app.command(doctor)
app.command(verify)
app.command(report)
app.command(experiment)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 met or done, 1 breached or not verified, 3 inconclusive, 2 usage."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors a user can mend become one line on stderr."""
    try:
        code = app(arguments, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        return _fail(f"{_one_line(str(error))} (see kvassay --help)")
    except KvassayError as error:
        return _fail(_one_line(str(error)))
    except KeyboardInterrupt:
        print("kvassay: interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away, for example `| head`
        return ExitCode.MET
    return int(code or 0)


def _fail(message: str) -> int:
    print(f"kvassay: error: {message}", file=sys.stderr)
    return ExitCode.USAGE


def _one_line(text: str) -> str:
    return " ".join(text.split())
