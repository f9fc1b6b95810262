"""Names and texts of a stranger's pack are text on the page and nothing else."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.pack.reader import PackContent
from kvassay.report import chart_specs, render_report
from kvassay.report.page_text import data_block, page_environment
from kvassay.report.visible_text import visible, visible_lines
from tests.report.page_parts import Page, parse_page
from tests.report.report_sample import CONTRACT_TOML, example, subject_record, write_sample

HOSTILE = (
    "</script></style></svg><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    '\' onmouseover=\'alert(1)\' fill="red" stroke="url(http://x.example/)"',
    "javascript:alert(1)//<!--",
    "{{ 7 * 7 }}{% raw %}${7*7}",
    "abc\u202egpj.exe\u2066\u200b\u0000\x1b[31m\ud800".encode("utf-8", "ignore").decode() + "\u00a0end",
    "=HYPERLINK(1)" + "x" * 5000,
    "e" + "\u0301" * 40,
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> PackContent:
    subject = subject_record()
    subject["model"] = {key: HOSTILE[index % len(HOSTILE)] for index, key in enumerate(subject["model"])}
    subject["engine"] = {"name": HOSTILE[0], "version": HOSTILE[1], "attention": HOSTILE[5]}
    subject["corpus"]["documents"] = [{"id": text, "sha256": text, "slice": text, "tokens": "<b>"} for text in HOSTILE]
    subject["task"] = {text: {"seed": text} for text in HOSTILE[:4]}
    subject["examples"] = [
        example(text, 3.0, text, before=text, true_next=text, reference_next=text + "!", document=text)
        for text in HOSTILE
    ]
    names = {"int8-token-head": HOSTILE[0], "kivi-4": HOSTILE[2], "int4-g32": HOSTILE[5], "f32 again 1": HOSTILE[1]}
    contract = CONTRACT_TOML.replace('name = "demo"', f"name = {json.dumps(HOSTILE[0])}")
    contract += "\n# " + HOSTILE[1]
    folder: Path = tmp_path_factory.mktemp("hostile") / "pack"
    return write_sample(folder, subject=subject, names=names, contract_toml=contract)


@pytest.fixture(scope="module")
def hostile_page(hostile: PackContent) -> Page:
    return parse_page(render_report(hostile))


def test_hostile_text_adds_no_element_and_no_attribute(hostile_page: Page, page: Page) -> None:
    assert {e.tag for e in hostile_page.elements} <= {e.tag for e in page.elements} | {"p", "article"}
    known = {name for e in page.elements for name in e.attributes}
    assert {name for e in hostile_page.elements for name in e.attributes} <= known
    assert not hostile_page.comments
    assert [s.attributes["type"] for s in hostile_page.all("script")] == ["application/json"] * 3
    assert len(hostile_page.all("style")) == 1


def test_hostile_text_is_shown_as_it_is_written(hostile_page: Page) -> None:
    text = hostile_page.by_id("answer").text + hostile_page.by_id("worst").text
    for shown in (HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[3], HOSTILE[4]):
        assert shown in text
    assert "abc⟨U+202E⟩gpj.exe⟨U+2066⟩⟨U+200B⟩" in text


def test_no_invisible_character_reaches_the_page(hostile_page: Page) -> None:
    hidden = {c for c in hostile_page.html if unicodedata.category(c) in ("Cc", "Cf", "Co", "Cn", "Zl", "Zp")}
    assert hidden <= {"\n", "\t"}
    assert "\u0301" * 4 not in hostile_page.html


def test_long_text_is_cut_and_says_how_much(hostile_page: Page) -> None:
    assert "x" * 2000 not in hostile_page.html
    assert "more characters)" in hostile_page.html


def test_chart_specs_survive_in_their_script_blocks(hostile: PackContent, hostile_page: Page) -> None:
    for name, spec in chart_specs(hostile).items():
        block = hostile_page.by_id(f"spec-{name}")
        assert json.loads(block.text) == spec
        assert "<" not in block.text


@settings(deadline=None)
@given(st.text())
def test_visible_text_holds_no_invisible_character(text: str) -> None:
    shown = visible(text)
    assert not {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")}
    assert {c for c in visible_lines(text) if unicodedata.category(c) == "Cc"} <= {"\n", "\t"}


@settings(deadline=None)
@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_is_left_alone(text: str) -> None:
    assert visible(text) == text


@settings(deadline=None)
@given(st.recursive(st.text() | st.integers(-1000, 1000) | st.none(), lambda inner: st.lists(inner, max_size=3)))
def test_data_block_reads_back_and_cannot_end_its_element(value: object) -> None:
    block = data_block(value)
    assert json.loads(block) == value
    assert not set(block) & set("<>&")
    assert block.isascii()


@settings(deadline=None)
@given(st.text())
def test_templates_escape_every_text(text: str) -> None:
    rendered = page_environment().from_string('<p title="{{ text }}">{{ text }}</p>').render(text=text)
    (element,) = parse_page(rendered).elements
    assert element.text == element.attributes["title"]
    assert set(element.attributes) == {"title"}


def test_a_bare_float_in_a_template_is_our_own_mistake() -> None:
    with pytest.raises(TypeError, match="make it a Figure"):
        page_environment().from_string("{{ x }}").render(x=0.5)
