"""How a command ends: no accident may look like MET (0) or BREACHED (1), and nothing half-written stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvassay.cli import ending
from kvassay.cli.app import run
from kvassay.core.records import ExitCode
from kvassay.errors import PackError
from tests.pack.sample_pack import write_sample

KVASSAY = [sys.executable, "-m", "kvassay"]
COMMAND = "import sys, time\nfrom pathlib import Path\nfrom kvassay.cli.ending import end_process\n"
WRITING = (
    COMMAND
    + """
from kvassay.pack.folder import FolderWriter
def command():
    with FolderWriter(Path(sys.argv[1]), "kvassay.experiment/1") as folder:
        folder.write_text("note", "half")
        print("writing", flush=True)
        time.sleep(60)
        folder.commit()
    return 0
end_process(command)
"""
)


@pytest.fixture(scope="module")
def bad_pack(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ending") / "bad"
    write_sample(out)
    (out / "plan.json").write_text("{}\n")
    return out


def shell(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run in bash, where `$1` is the first argument; the exit code is that of the pipe's first command."""
    line = f'{command}; exit "${{PIPESTATUS[0]}}"'
    return subprocess.run(["bash", "-c", line, "bash", *map(str, arguments)], capture_output=True, text=True)


def test_the_codes_are_no_verdicts() -> None:
    assert ending.FAILED == ExitCode.USAGE
    assert not {ending.FAILED, ending.READER_GONE, ending.INTERRUPTED} & {ExitCode.MET, ExitCode.BREACHED}


@pytest.mark.parametrize("reader", ["true", "head -c 1"])
@pytest.mark.parametrize("option", ["", "--json"])
def test_a_failed_verdict_stays_failed_when_nobody_reads_it(bad_pack, reader, option) -> None:
    done = shell(f'{sys.executable} -m kvassay verify "$1" {option} | {reader}', bad_pack)
    assert done.returncode in (1, 128 + signal.SIGPIPE)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_output_larger_than_a_pipe_ends_quietly_when_the_reader_leaves() -> None:
    flood = COMMAND + "end_process(lambda: [print('x' * 1000) for _ in range(10_000)] and 0)"
    done = shell(f'{sys.executable} -c "$1" | head -c 1', flood)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("arguments", ["--help", "assess --help"])
def test_help_that_nobody_reads_is_no_fault(arguments) -> None:
    done = shell(f"{sys.executable} -m kvassay {arguments} | true")
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [["verify", "PACK"], ["formats"], ["--help"], ["formats", "--json"]])
def test_a_full_device_behind_stdout_is_one_line(bad_pack, arguments) -> None:
    given = [str(bad_pack) if part == "PACK" else part for part in arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*KVASSAY, *given], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "kvassay: error: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full"])
def test_closed_streams_do_not_change_the_code(bad_pack, streams) -> None:
    assert shell(f'{sys.executable} -m kvassay verify "$1" {streams}', bad_pack).returncode == 1
    assert shell(f"{sys.executable} -m kvassay verify /nowhere {streams}").returncode == 2


@pytest.mark.parametrize(
    "error", ["TypeError('x\\n\\x1b[2J')", "AssertionError()", "RecursionError()", "SystemExit(1)"]
)
def test_a_fault_of_our_own_is_one_line_and_never_breached(error, capsys, monkeypatch) -> None:
    def fault() -> int:
        raise eval(error)

    monkeypatch.delenv(ending.TRACEBACK_VARIABLE, raising=False)
    assert ending.finished(fault) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("kvassay: fault: ")
    assert error.partition("(")[0] in captured.err
    assert "KVASSAY_TRACEBACK=1" in captured.err
    assert captured.err.count("\n") == 1
    assert "\x1b" not in captured.err
    monkeypatch.setenv(ending.TRACEBACK_VARIABLE, "1")
    assert ending.finished(fault) == 2
    assert "raise eval" in capsys.readouterr().err


def test_a_broken_installation_is_no_verdict() -> None:
    """A fault while the packages load comes before any command."""
    code = "import sys; sys.modules['cyclopts'] = None\nfrom kvassay.cli import main\nmain(['formats'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("kvassay: fault: ModuleNotFoundError")
    assert done.stderr.count("\n") == 1


def test_an_error_of_the_system_names_the_file(capsys) -> None:
    def missing() -> int:
        return len(Path("/nowhere/at\nall").read_bytes())

    assert ending.finished(missing) == 2
    assert capsys.readouterr().err == "kvassay: error: '/nowhere/at\\nall': No such file or directory\n"


def test_control_characters_of_a_path_are_escaped(tmp_path, capsys) -> None:
    contract = tmp_path / "a\x1b[2J\nb.toml"
    contract.write_text("[")
    assert run(["assess", "smollm2-135m", "--contract", str(contract)]) == 2
    error = capsys.readouterr().err
    assert "\x1b" not in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("moment", ["imports", "command"])
def test_ctrl_c_is_one_line_from_the_first_moment(moment) -> None:
    finder = (
        "import sys\nclass Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == sys.argv[1]:\n            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from kvassay.cli import main\nmain(['verify', '/nowhere'])"
    )
    name = {"imports": "cyclopts", "command": "kvassay.pack.folder"}[moment]
    done = subprocess.run([sys.executable, "-c", finder, name], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "kvassay: interrupted; nothing was written\n"
    assert done.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_partial_folder(tmp_path, number) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    assert len(os.listdir(tmp_path)) == 1
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert error.startswith("kvassay: ")
    assert error.endswith("nothing was written\n")
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_a_second_signal_does_not_cut_the_clean_up_short(tmp_path) -> None:
    slow = WRITING.replace(
        "def command():",
        "import shutil\nrmtree = shutil.rmtree\n"
        "def slowly(path, **options):\n    print('removing', flush=True)\n"
        "    time.sleep(0.5)\n    rmtree(path, **options)\n"
        "shutil.rmtree = slowly\ndef command():",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow, str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "removing\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode in (130, 143)
    assert os.listdir(tmp_path) == []


def test_a_signal_that_the_caller_has_ignored_stays_ignored(tmp_path) -> None:
    """`nohup` and its kind."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING.replace("sleep(60)", "sleep(0.5)"), str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=30) == 0
    assert os.listdir(tmp_path) == ["out"]


# Output files: whole or absent.


def test_a_report_that_does_not_fit_leaves_no_file(tmp_path, capsys, monkeypatch) -> None:
    pack = tmp_path / "pack"
    write_sample(pack)
    out = tmp_path / "page.html"
    limited = (
        "import resource, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from kvassay.cli import main\nmain(sys.argv[1:])"
    )
    command = [sys.executable, "-c", limited, "report", str(pack), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"kvassay: error: {str(out)!r} cannot be written: File too large\n"
    assert os.listdir(tmp_path) == ["pack"]
    assert run(["report", str(pack), "--out", str(out)]) == 0
    whole = out.read_bytes()
    assert whole.endswith(b"</html>\n") or b"</html>" in whole[-20:]
    assert sorted(os.listdir(tmp_path)) == ["pack", "page.html"]
    assert run(["report", str(pack), "--out", str(out)]) == 2
    assert out.read_bytes() == whole
    assert "exists" in capsys.readouterr().err
    for bad in (tmp_path / "no" / "x.html", tmp_path / ("x" * 300)):
        assert run(["report", str(pack), "--out", str(bad)]) == 2
        assert "cannot be written" in capsys.readouterr().err
    shutil.rmtree(pack)
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_file_that_comes_into_being_meanwhile_is_not_replaced(tmp_path, monkeypatch) -> None:
    from kvassay.pack.whole_file import write_whole_file

    out = tmp_path / "page.html"
    link = os.link

    def race(source, target) -> None:
        out.write_text("first")
        link(source, target)

    monkeypatch.setattr(os, "link", race)
    with pytest.raises(PackError, match="exists"):
        write_whole_file(out, b"second")
    assert out.read_text() == "first"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_warning_is_one_line_without_its_place_in_the_source() -> None:
    code = "import warnings\nfrom kvassay.cli.ending import end_process\n"
    code += "end_process(lambda: warnings.warn('all scales\\nare 1.0', UserWarning) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "kvassay: warning: all scales are 1.0\n"
