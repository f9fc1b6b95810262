"""The tests that hold the real quantizers, which the network room points at; it tests none of them itself (R65)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple


class ReferenceTest(NamedTuple):
    path: str
    """Within a checkout."""
    shows: str


TESTS: tuple[ReferenceTest, ...] = (
    ReferenceTest(
        "tests/experiments/test_rows.py", "all 36 rows of the attention-error experiment against saved figures"
    ),
    ReferenceTest("tests/experiments/test_quantizer.py", "the int8 formula: scale, rounding, clipping, the zero group"),
    ReferenceTest(
        "tests/experiments/test_tampering.py", "the audit fails for an edited folder, also where it was re-hashed"
    ),
    ReferenceTest("tests/formats/test_error_bounds.py", "each method keeps the error bound that it states"),
    ReferenceTest("tests/measures/test_attention_error.py", "attention errors against a calculation in NumPy"),
)


def reference_tests() -> list[dict[str, Any]]:
    """`available` where this library runs from a checkout, so that the page can show the source."""
    root = checkout()
    return [
        {
            **test._asdict(),
            "command": f"python -m pytest {test.path}",
            "number": number,
            "available": root is not None and (root / test.path).is_file(),
        }
        for number, test in enumerate(TESTS)
    ]


def source_of(number: int) -> str | None:
    """The text of a reference test; None where there is no such test or no checkout."""
    root = checkout()
    if root is None or not 0 <= number < len(TESTS):
        return None
    path = root / TESTS[number].path
    return path.read_text(encoding="utf-8") if path.is_file() else None


def checkout() -> Path | None:
    """The folder of the sources that are running, where they are those of a checkout."""
    root = Path(__file__).parents[3]
    return root if (root / "pyproject.toml").is_file() and (root / "tests").is_dir() else None
