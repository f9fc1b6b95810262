"""The application: the commands under one name. `cli.ending` says how they end."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import cyclopts

import kvassay
from kvassay.cli.assess import assess
from kvassay.cli.bytes import bytes_command
from kvassay.cli.capacity import capacity_command
from kvassay.cli.compare import compare
from kvassay.cli.contract import contract
from kvassay.cli.doctor import doctor
from kvassay.cli.ending import finished
from kvassay.cli.experiment import experiment
from kvassay.cli.export import export
from kvassay.cli.find import find
from kvassay.cli.formats import formats
from kvassay.cli.judge import judge
from kvassay.cli.judge_logs import judge_logs
from kvassay.cli.lab import lab
from kvassay.cli.merge import merge
from kvassay.cli.plan import plan
from kvassay.cli.query import query
from kvassay.cli.report import report
from kvassay.cli.run import run_matrix
from kvassay.cli.scales import scales
from kvassay.cli.sign import keygen, sign
from kvassay.cli.status import status_command
from kvassay.cli.verify import verify
from kvassay.errors import UsageError

app = cyclopts.App(
    name="kvassay",
    help="Choose the smallest KV cache that your model can afford, proved on your workload, with every byte counted.",
    version=kvassay.__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
app.command(assess)
app.command(find)
app.command(plan)
app.command(run_matrix, name="run")
app.command(status_command, name="status")
app.command(merge)
app.command(query)
app.command(contract)
app.command(bytes_command, name="bytes")
app.command(capacity_command, name="capacity")
app.command(formats)
app.command(doctor)
app.command(scales)
app.command(verify)
app.command(sign)
app.command(keygen)
app.command(judge_logs, name="judge-logs")
app.command(compare)
app.command(judge)
app.command(report)
app.command(export)
app.command(experiment)
app.command(lab)


def command(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; raises what the command raises, UsageError for a bad command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(app(given, exit_on_error=False, print_error=False) or 0)
    except cyclopts.CycloptsError as error:
        raise UsageError(_usage(error)) from error


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; an error becomes one line on stderr."""
    return finished(lambda: command(arguments))


def _usage(error: cyclopts.CycloptsError) -> str:
    """What is wrong with a command line, and whose help to read."""
    command = " ".join(["kvassay", *(error.command_chain or ())])
    if isinstance(error, cyclopts.UnusedCliTokensError) and error.unused_tokens:
        found = f"{command} takes no {' '.join(error.unused_tokens)!r}"
    elif isinstance(error, cyclopts.MissingArgumentError) and error.argument is not None and not error.argument.tokens:
        found = f"{command} needs {f'a value for {error.keyword}' if error.keyword else error.argument.name}"
    else:
        found = str(error)
    return f"{found} (see {command} --help)"
