"""Drawings are an extra: a report verifies without them, and what is not compared must at least be a drawing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvassay.cli.app import run
from kvassay.pack.checks import Check, Verification
from kvassay.pack.reader import PackContent
from kvassay.report.again import with_report_checks
from kvassay.report.chart_svg import moving_parts
from kvassay.report.html import render_report
from tests.pack.tampering import rehash

WITHOUT_DRAWING = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "vl_convert" else found(name, *more)
sys.modules["vl_convert"] = None  # importing it now fails
"""


@pytest.fixture(scope="module")
def reported(content: PackContent, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with a real report in it."""
    folder = shutil.copytree(content.path, tmp_path_factory.mktemp("reported") / "pack")
    (folder / "report.html").write_text(render_report(content._replace(manifest=None)))
    rehash(folder)
    return folder


def report_check(folder: Path) -> Check:
    found = with_report_checks(folder, Verification("", "", ()))
    return next(check for check in found.checks if check.name == "report")


def test_a_report_is_verified_without_the_package_that_draws(reported: Path) -> None:
    code = (
        WITHOUT_DRAWING
        + """
from pathlib import Path
from kvassay.pack.checks import Verification
from kvassay.report.again import with_report_checks
(check,) = with_report_checks(Path(sys.argv[1]), Verification("", "", ())).checks
print(check.passed, check.sentence)
"""
    )
    ran = subprocess.run([sys.executable, "-c", code, str(reported)], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("True report.html renders again from the pack, but for its ")


def test_a_report_is_not_rendered_without_it(reported: Path, tmp_path: Path) -> None:
    code = (
        WITHOUT_DRAWING
        + """
from kvassay.cli.app import run
sys.exit(run(["report", sys.argv[1], "--out", sys.argv[2]]))
"""
    )
    command = [sys.executable, "-c", code, str(reported), str(tmp_path / "report.html")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "pip install 'kvassay[report]'" in ran.stderr
    assert not (tmp_path / "report.html").exists()
    assert run(["report", str(reported), "--out", str(tmp_path / "report.html")]) == 0


ATTACKS = [
    "<script>alert(1)</script>",
    "<image href='x'/>",
    "<a xlink:href='javascript:1'><text>click</text></a>",
    "<rect onload='alert(1)'/>",
    "<style>@import url(x)</style>",
    "<foreignObject><body/></foreignObject>",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_r108_a_drawing_in_which_something_moves_fails(attack: str, reported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(reported, tmp_path / "pack")
    page = (folder / "report.html").read_text()
    assert report_check(folder).passed
    (folder / "report.html").write_text(page.replace("</svg>", attack + "</svg>", 1))
    check = report_check(folder)
    assert not check.passed
    assert "which no drawing of ours has" in check.sentence
    assert moving_parts(attack)


def test_a_label_may_say_what_an_attack_says() -> None:
    """In a label such text is text; only tags are looked at."""
    assert not moving_parts('<text fill="red">onload=alert(1) url(x) &lt;script&gt; href=</text>')
