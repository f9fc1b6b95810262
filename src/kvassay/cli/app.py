"""The application: the commands under one name. `cli.ending` says how they end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import cyclopts
from cyclopts import Group, Parameter

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


def _shown_default(value: Any) -> str | None:
    """What `--help` says of a default: nothing of a switch that is off, an empty list, and what may be left out."""
    return None if value is None or value is False or value in ((), []) else str(value)


app = cyclopts.App(
    name="kvassay",
    help="Choose the smallest KV cache that your model can afford, proved on your workload, with every byte counted."
    "\n\nBegin with a model and a contract: kvassay assess MODEL --contract FILE. MODEL is a built-in name, a "
    "transformers folder, a .gguf file or a hub id; kvassay contract init writes a contract.",
    version=kvassay.__version__,
    default_parameter=Parameter(negative_iterable=(), show_default=_shown_default),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
_COMMANDS: dict[str, dict[str, Callable[..., int] | cyclopts.App]] = {
    "Judge a model": {"assess": assess, "find": find, "plan": plan, "contract": contract, "doctor": doctor},
    "Know formats and bytes": {
        "formats": formats,
        "bytes": bytes_command,
        "capacity": capacity_command,
        "scales": scales,
    },
    "Read, check and hand on evidence": {
        "verify": verify,
        "judge": judge,
        "compare": compare,
        "report": report,
        "export": export,
        "keygen": keygen,
        "sign": sign,
        "judge-logs": judge_logs,
    },
    "Judge many models": {"run": run_matrix, "status": status_command, "merge": merge, "query": query},
    "Look closer": {"lab": lab, "experiment": experiment},
}
"""By what a user wants, in the order in which `--help` shows them."""

for _title, _named in _COMMANDS.items():
    _group = Group.create_ordered(_title)
    for _place, (_name, _command) in enumerate(_named.items()):
        if isinstance(_command, cyclopts.App):
            _command.group, _command.sort_key = _group, _place
            app.command(_command)
        else:
            app.command(_command, name=_name, group=_group, sort_key=_place)
app["--help"].group = app["--version"].group = Group.create_ordered("Options")


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
