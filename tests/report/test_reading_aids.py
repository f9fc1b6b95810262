"""Readable by people and by machines: headings, text alternatives, contrast, rounding."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.geometry import Owner
from kvassay.report.figures import NOT_RECORDED, Figure, as_given, number, percent, significant, size, times_smaller
from kvassay.report.palette import HEAT, INK, LIMIT, LINK, MUTED, OUTCOMES, OWNERS, PAGE, PANEL, Colour, css_variables
from tests.report.page_parts import Page


def test_language_title_one_h1_and_no_skipped_heading(page: Page) -> None:
    assert page.all("html")[0].attributes["lang"] == "en"
    assert page.all("title")[0].text == "kvassay: demo"
    levels = [int(e.tag[1]) for e in page.elements if re.fullmatch(r"h[1-6]", e.tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(e.text.strip() for e in page.elements if re.fullmatch(r"h[1-6]", e.tag))


def test_ids_are_unique_and_references_resolve(page: Page) -> None:
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(set(ids)) == len(ids)
    for element in page.elements:
        for target in element.attributes.get("aria-labelledby", "").split():
            assert target in ids


def test_every_chart_has_a_text_alternative_and_its_figures_as_a_table(page: Page) -> None:
    drawings = page.all("svg")
    assert len(drawings) == 6
    for drawing in drawings:
        assert drawing.attributes["role"] == "img"
        title, description = (page.by_id(i).text for i in drawing.attributes["aria-labelledby"].split())
        assert len(title) > 5
        assert len(description) > 80
    for figure in page.all("figure"):
        name = figure.attributes["id"].removeprefix("chart-")
        assert f"spec-{name}" in page.html
        assert "The figures of this chart as a table" in figure.text


def test_a_chart_is_one_image_whose_marks_have_no_role_of_their_own(page: Page) -> None:
    """A mark with a role and without a name is announced as an image that nobody described."""
    inside = [element for element in page.elements if "svg" in element.path]
    assert inside
    roles = {name for element in inside for name in element.attributes if name == "role" or name.startswith("aria-")}
    assert roles == set()


def test_tables_name_their_rows_and_columns_and_can_be_scrolled_by_keyboard(page: Page) -> None:
    for header in page.all("th"):
        assert header.attributes["scope"] in ("col", "row", "colgroup")
    for region in (e for e in page.elements if e.attributes.get("class") == "scroll"):
        assert region.attributes["tabindex"] == "0"
        assert region.attributes["role"] == "region"
        assert region.attributes["aria-label"].strip()
    assert len(page.all("table")) > 15


def luminance(colour: str) -> float:
    """Relative luminance of sRGB (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_in_both_themes(theme: str) -> None:
    def shade(colour: Colour) -> str:
        return getattr(colour, theme)

    for ground in (PAGE, PANEL):
        for colour in (INK, MUTED, LINK, LIMIT, *OUTCOMES.values()):
            assert contrast(shade(colour), shade(ground)) >= 4.5
    for owner in Owner:
        assert contrast(shade(OWNERS[owner]), shade(PAGE)) >= 3
    steps = [contrast(shade(colour), shade(PAGE)) for colour in HEAT]
    assert steps == sorted(steps)
    assert all(after / before > 1.25 for before, after in pairwise(steps))


def test_light_colours_are_distinct_since_charts_are_painted_by_them() -> None:
    assert len({colour.light for colour in css_variables().values()}) == len(css_variables())


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_rounded_text_reads_back_to_within_half_a_digit(value: float) -> None:
    text = significant(value).replace("−", "-").replace(",", "")
    text = re.sub(
        r"×10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: "e" + m[1].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")), text
    )
    assert math.isclose(float(text), value, rel_tol=0.0051)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_exact_value_reads_back_to_the_same_float(value: float) -> None:
    found = number(value)
    assert isinstance(found, Figure)
    assert float(found.exact) == value


def test_absent_is_never_zero() -> None:
    for shown in (number(None), percent(None), size(None)):
        assert shown == NOT_RECORDED
    assert number(0) == Figure("0", "0")
    assert number(math.nan) == "not a number"


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (number(0.004123), "0.00412"),
        (number(0.99999), "1.00"),
        (number(12345), "12,345"),
        (number(3.2e-7), "3.20×10⁻⁷"),
        (number(-0.5), "−0.500"),
        (percent(0.2656), "26.6%"),
        (size(2880.0), "2,880 B"),
        (size(10239), "10,239 B"),
        (size(4_718_592), "4.500 MiB"),
    ],
)
def test_rounding_and_units(shown: Figure, text: str) -> None:
    assert shown.text == text


def test_ratios_in_words_and_chosen_values_as_they_were_given() -> None:
    assert times_smaller(0.25) == "4.00 times smaller"
    assert times_smaller(2.0) == "2.00 times larger"
    assert times_smaller(1.0) == "as large"
    assert as_given(0.02) == "0.02"
