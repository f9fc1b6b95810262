"""The `kvassay` command. One file a command; heavy imports live inside the commands."""

from kvassay.cli.app import main

__all__ = ["main"]
