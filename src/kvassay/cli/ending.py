"""How a command ends: its own exit code, or one line on stderr and a code that no verdict has.

1 means BREACHED or NOT VERIFIED and 0 means MET, so nothing else may end in them: not a reader that went away
(`| head`), not a full disk behind stdout, and not a fault of this library. Imports nothing that fails or takes time.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn, TextIO

from kvassay.errors import STAYS, KvassayError, printable

FAILED = 2
"""`ExitCode.USAGE`, whose module takes long to import."""
READER_GONE = 128 + signal.SIGPIPE
INTERRUPTED = 128 + signal.SIGINT
TRACEBACK_VARIABLE = "KVASSAY_TRACEBACK"

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """A signal asked the process to end. Not an Exception, so that no library takes it for an error of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def end_process(command: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its code; SIGTERM and SIGHUP unwind it like Ctrl-C, so nothing half-written stays."""
    with suppress(ValueError):  # not the main thread
        for number in _ENDING_SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` has them ignored, and wants it so
                signal.signal(number, _terminate)
    if sys.stdout is not None:
        with suppress(AttributeError, ValueError):
            sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    warnings.showwarning = _warn
    try:
        code = finished(command)
    except KeyboardInterrupt:  # a further one, while the first was being answered
        code = INTERRUPTED
    except Terminated as error:
        code = error.exit_code
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in _ENDING_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
    # The interpreter flushes both once more while it ends, and would replace the code if that failed.
    _send_to_nowhere_if_broken(sys.stdout)
    _send_to_nowhere_if_broken(sys.stderr)
    sys.exit(code)


def finished(command: Callable[[], int]) -> int:
    """Run a command to its exit code; everything that it raises becomes one line and a code other than 0 and 1."""
    try:
        code = command()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KvassayError as error:
        return _fail(f"error: {error}{_kept(error)}")
    except KeyboardInterrupt as error:
        complain(f"interrupted{_kept(error) or '; nothing was written'}")
        return INTERRUPTED
    except Terminated as error:
        complain(f"ended by {error}{_kept(error) or '; nothing was written'}")
        return error.exit_code
    except BrokenPipeError:
        return READER_GONE  # the reader of our output went away, for example `| head`
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            return READER_GONE  # as rich, which prints the help, says the same
        return _fail(_own_fault(error) + _kept(error))
    except OSError as error:
        if error.filename is not None:
            return _fail(f"error: {os.fsdecode(error.filename)!r}: {error.strerror}{_kept(error)}")
        return _fail(f"error: the output cannot be written: {error.strerror or error}{_kept(error)}")
    except MemoryError as error:
        return _fail(f"error: not enough memory{_kept(error)}")
    except BaseException as error:
        return _fail(_own_fault(error) + _kept(error))


def _kept(error: BaseException) -> str:
    """What a run left in place, where it left something."""
    return "".join(f"; {note}" for note in getattr(error, "__notes__", ()) if note.startswith(STAYS))


def complain(text: str) -> None:
    """One line on stderr. A stderr that is gone or full changes nothing."""
    with suppress(OSError, ValueError):
        print(f"kvassay: {printable(' '.join(text.split()))}", file=sys.stderr, flush=True)


def _warn(message: Warning | str, *_where: Any, **_file: Any) -> None:
    """A warning as one line, since the place in the source says nothing to who runs a command."""
    complain(f"warning: {message}")


def _fail(text: str) -> int:
    if os.environ.get(TRACEBACK_VARIABLE) == "1":
        with suppress(OSError, ValueError):
            traceback.print_exc()
    complain(text)
    return FAILED


def _own_fault(error: BaseException) -> str:
    return (
        f"fault: {type(error).__name__}: {str(error)[:500]}; this is a fault of kvassay and no verdict; "
        f"{TRACEBACK_VARIABLE}=1 shows where it happened"
    )


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    for each in (signal.SIGINT, *_ENDING_SIGNALS):
        signal.signal(each, signal.SIG_IGN)  # it is ending already
    raise Terminated(number)


def _send_to_nowhere_if_broken(stream: TextIO | None) -> None:
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    except ValueError:  # closed
        return
