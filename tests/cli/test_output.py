"""Tables for people: whole lines in a file or a pipe, and lines that fit on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

from kvassay.cli.output import table_lines, terminal_width

HEADER = ["format", "role", "clause", "estimate", "outcome"]
ROWS = [
    ["int8-token-head", "candidate", "fidelity.kl_mean", 0.0005, "MET"],
    ["", "", "task.recall", 0, "INCONCLUSIVE"],
]
RIGHT = (3,)


def on_terminal(columns: int, *arguments: str) -> list[str]:
    """The lines that a command writes on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen([sys.executable, "-m", "kvassay", *arguments], stdout=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:  # Linux says so that the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return output.decode().splitlines()


def test_a_table_that_fits_is_the_same_with_and_without_a_width() -> None:
    plain = list(table_lines(HEADER, ROWS, RIGHT))
    width = max(map(len, plain))
    assert list(table_lines(HEADER, ROWS, RIGHT, lead=2, width=width)) == plain
    assert plain[2] == "int8-token-head  candidate  fidelity.kl_mean    0.0005  MET"


def test_columns_that_do_not_fit_follow_their_row_and_none_is_lost() -> None:
    assert list(table_lines(HEADER, ROWS, RIGHT, width=44)) == [
        "format           role       clause",
        "---------------  ---------  ----------------",
        "int8-token-head  candidate  fidelity.kl_mean",
        "    estimate: 0.0005; outcome: MET",
        "                            task.recall",
        "    estimate: 0; outcome: INCONCLUSIVE",
    ]


def test_leading_columns_stand_above_a_table_of_the_others() -> None:
    assert list(table_lines(HEADER, ROWS, RIGHT, lead=2, width=44)) == [
        "format  role",
        "  clause            estimate  outcome",
        "  ----------------  --------  ------------",
        "int8-token-head  candidate",
        "  fidelity.kl_mean    0.0005  MET",
        "  task.recall              0  INCONCLUSIVE",
    ]


def test_a_terminal_narrower_than_the_first_column_still_shows_it() -> None:
    lines = list(table_lines(HEADER, ROWS, RIGHT, width=12))
    assert lines[2] == "int8-token-head"
    assert any("INCONCLUSIVE" in line for line in lines)


def test_formats_fit_an_80_column_terminal_and_stay_whole_lines_in_a_pipe(tmp_path) -> None:
    lines = on_terminal(80, "formats")
    table = lines[: lines.index("")]
    assert max(map(len, table)) <= 80
    assert any(line.startswith("    ") and "llama.cpp q8_0" in line for line in table)
    done = subprocess.run([sys.executable, "-m", "kvassay", "formats"], capture_output=True, text=True, check=True)
    row = next(line for line in done.stdout.splitlines() if line.startswith("q8_0 "))
    assert "= llama.cpp q8_0" in row
    assert "float16 scale" in row
    with (tmp_path / "file").open("w") as file:
        assert terminal_width(file) is None
    assert terminal_width(None) is None
