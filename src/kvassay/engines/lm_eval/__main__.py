"""lm-eval's own command line with the model `kvassay` known to it:

python -m kvassay.engines.lm_eval run --model kvassay --model_args pretrained=MODEL,kv_format=kivi-4 --tasks TASK
"""

from __future__ import annotations

import sys
from importlib import import_module

from kvassay.errors import KvassayError, MissingExtraError


def main() -> int:
    try:
        import lm_eval  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        error: KvassayError = MissingExtraError(
            "lm-eval is not installed; install the extra: pip install 'kvassay[torch,lm-eval]'"
        )
        print(f"kvassay: error: {error}", file=sys.stderr)
        return 2
    import kvassay.engines.lm_eval.model  # noqa: F401  (registers the model)

    try:
        import_module("lm_eval.__main__").cli_evaluate()
    except KvassayError as error:
        print(f"kvassay: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
