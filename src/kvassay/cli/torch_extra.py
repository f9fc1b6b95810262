"""A clear error where a command needs the torch extra and the base install lacks it."""

from __future__ import annotations

from importlib.util import find_spec

from kvassay.errors import MissingExtraError

_NEEDED = ("torch", "transformers", "jaxtyping")


def require_torch(command: str) -> None:
    """Raise MissingExtraError naming what is not installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"{command} needs {', '.join(missing)}, not installed; install the extra: pip install 'kvassay[torch]'"
        )


def require_extra(command: str, extra: str, *packages: str) -> None:
    """Raise MissingExtraError where a package of an extra is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"{command} needs {', '.join(missing)}, not installed; install the extra: pip install 'kvassay[{extra}]'"
        )
