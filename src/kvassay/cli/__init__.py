"""The `kvassay` command. One file a command; heavy imports live inside the commands."""

from __future__ import annotations

from collections.abc import Sequence

from kvassay.cli.ending import end_process


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 met or done, 1 breached or not verified, 3 inconclusive, 2 anything else."""
    end_process(lambda: _command(arguments))


def _command(arguments: Sequence[str] | None) -> int:
    # Imported here, so that a Ctrl-C or a fault while packages load also ends in one line.
    from kvassay.cli.app import command

    return command(arguments)
