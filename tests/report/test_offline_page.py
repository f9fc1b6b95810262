"""The page makes no request, runs nothing, and is the same bytes each time (R111)."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys

import pytest

from kvassay.pack.layout import is_pack_file
from kvassay.pack.reader import PackContent
from kvassay.report import chart_specs, render_report
from kvassay.report import html as html_module
from tests.report.page_parts import Page, parse_page

LOADING_TAGS = {
    *("img", "link", "iframe", "frame", "object", "embed", "base", "form", "video", "audio", "source", "track"),
    *("picture", "image", "use", "a:href", "foreignobject", "input", "button", "portal", "applet"),
}
LOADING_ATTRIBUTES = {"src", "srcset", "action", "formaction", "background", "poster", "data", "ping", "xlink:href"}


def test_no_element_or_attribute_can_load_or_run(page: Page) -> None:
    for element in page.elements:
        assert element.tag not in LOADING_TAGS
        assert not LOADING_ATTRIBUTES & set(element.attributes)
        assert not [name for name in element.attributes if name.startswith("on") or name == "style"]
    assert {script.attributes["type"] for script in page.all("script")} == {"application/json"}
    assert not page.comments


def test_links_stay_in_the_page_or_the_pack(page: Page) -> None:
    ids = {element.attributes["id"] for element in page.elements if "id" in element.attributes}
    targets = {link.attributes["href"] for link in page.all("a")}
    assert len(targets) > 10
    for target in targets:
        assert is_pack_file(target) if not target.startswith("#") else target[1:] in ids


def test_style_loads_nothing_and_policy_allows_it_by_its_hash(page: Page) -> None:
    (style,) = page.all("style")
    assert "url(" not in style.text
    assert "@import" not in style.text
    assert "@font-face" not in style.text
    (policy,) = [m.attributes["content"] for m in page.all("meta") if m.attributes.get("http-equiv")]
    digest = base64.b64encode(hashlib.sha256(style.text.encode()).digest()).decode()
    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert rules == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest}'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_charts_are_painted_with_variables_that_both_themes_define(page: Page) -> None:
    (style,) = page.all("style")
    light = re.search(r":root\{color-scheme:light dark;(.*?)\}", style.text)
    dark = re.search(r"prefers-color-scheme:dark\)\{:root\{(.*?)\}", style.text)
    assert light
    assert dark
    paints = {
        element.attributes[name]
        for element in page.elements
        for name in ("fill", "stroke")
        if "svg" in element.path and name in element.attributes
    }
    used = {paint[4:-1] for paint in paints if paint.startswith("var(")}
    assert paints <= {"none", "transparent", *(f"var({name})" for name in used)}
    assert len(used) > 8
    for theme in (light, dark):
        assert used <= set(re.findall(r"(--[a-z0-9-]+):#", theme.group(1)))


def test_specs_stand_beside_the_charts_and_equal_those_of_the_pack(content: PackContent, page: Page) -> None:
    specs = chart_specs(content)
    assert set(specs) == {"bytes-against-loss", "error-by-layer", "bytes-by-owner"}
    assert all(is_pack_file(f"charts/{name}.json") for name in specs)
    for name, spec in specs.items():
        assert json.loads(page.by_id(f"spec-{name}").text) == spec


def test_same_bytes_in_another_process_with_another_hash_seed(content: PackContent, page: Page) -> None:
    code = (
        "import sys, pathlib, hashlib; from kvassay.pack.reader import read_pack; from kvassay.report import *;"
        "print(hashlib.sha256(render_report(read_pack(pathlib.Path(sys.argv[1]))).encode()).hexdigest())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(content.path)],
        env={**os.environ, "PYTHONHASHSEED": "12345", "TZ": "Asia/Tokyo"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == hashlib.sha256(page.html.encode()).hexdigest()


def test_small_and_without_torch(content: PackContent, page: Page) -> None:
    assert len(page.html.encode()) < 700_000
    code = "import sys, kvassay.report; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_pack_too_large_for_the_page_is_shortened_and_says_so(
    content: PackContent, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "shortened" not in page.html
    sizes = []
    for limit in (len(page.html.encode()), 1):
        monkeypatch.setattr(html_module, "MAX_REPORT_NBYTES", limit)
        shorter = parse_page(render_report(content))
        sizes.append(len(shorter.html))
        assert "long lists were shortened" in shorter.html
        assert content.verdicts.formats[0].clauses[0].reason in shorter.by_id("clauses").text
    assert len(page.html) > sizes[0] > sizes[1]


def test_the_way_to_every_section_stands_at_the_top(content) -> None:
    page = render_report(content)
    sections = re.findall(r'<section id="([^"]+)"', page)
    named = re.findall(
        r'<li><a href="#([^"]+)">', page[page.index('<nav aria-label="Sections">') : page.index("</nav>")]
    )
    assert named == [section for section in sections if section != sections[0]]
