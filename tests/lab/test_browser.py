"""The four rooms in a real browser: both themes, a phone and a desk, no error, no foreign request, axe-core clean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from kvassay.lab.server import Lab
from tests.lab.conftest import HOSTILE_NAME, SCREENSHOTS

IDLE = """() => {
  const busy = /^(Computing|Reading|Comparing|Judging|Writing|At work)/;
  return document.querySelector('#room h1, #room .error') && !document.querySelector('.busy')
    && ![...document.querySelectorAll('[role=status]')].some((place) => busy.test(place.textContent));
}"""
ROOMS = {
    "bytes": "bytes?key_bits=4&value_bits=4&key_scales=channel-group&value_scales=group&recent=32&outlier=40&tour=2",
    "experiment": "experiment",
    "network": "network",
    "packs": "packs",
    "pack": "packs?pack=1&with=2",
}
pytestmark = pytest.mark.slow
VIEWS = ((1440, "light"), (360, "dark"), (1440, "dark"), (360, "light"))


class Opened(NamedTuple):
    page: Any
    faults: list[str]
    """Console errors, uncaught exceptions, failed requests, requests that left the lab."""

    def go(self, lab: Lab, view: str) -> None:
        self.page.goto(f"{lab.address}#{view}")
        self.idle()

    def idle(self) -> None:
        self.page.wait_for_function(IDLE)

    def text(self) -> str:
        return self.page.inner_text("#room")


@pytest.fixture
def opened(chromium, lab: Lab) -> Iterator[Opened]:
    context = chromium.new_context(
        viewport={"width": 1440, "height": 900}, color_scheme="light", reduced_motion="reduce"
    )
    context.set_default_timeout(300_000)
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda message: message.type in ("error", "warning") and faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: request.url.startswith(lab.address) or faults.append(f"left: {request.url}"))
    page.on("requestfailed", lambda request: faults.append(f"failed: {request.url}"))
    yield Opened(page, faults)
    context.close()
    assert faults == []


def axe_faults(page: Any, rules: list[str] | None = None) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = Axe().run(page, options=options)
    return [
        f"{rule['id']}: {node['target']}: {node['failureSummary'][:300]}"
        for rule in found.response["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_in_both_themes_on_a_desk_and_a_phone(opened: Opened, lab: Lab, room: str) -> None:
    page = opened.page
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    opened.go(lab, ROOMS[room])
    assert page.locator("#room .error").count() == 0
    for index, (width, theme) in enumerate(VIEWS):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        page.wait_for_timeout(60)  # charts are drawn again at the new width
        page.screenshot(path=SCREENSHOTS / f"{room}-{width}-{theme}.png", full_page=True)
        beyond = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert beyond <= 0, f"the page is {beyond} px wider than the screen at {width}"
        if index < 2:  # what axe looks at beside colours does not depend on the theme
            assert (
                axe_faults(page, ["color-contrast", "target-size", "scrollable-region-focusable"] if index else None)
                == []
            )
    empty = page.evaluate("() => [...document.querySelectorAll('.plot')].filter((plot) => !plot.firstChild).length")
    assert empty == 0


def test_r59_r64_predict_run_and_compare(opened: Opened, lab: Lab) -> None:
    page = opened.page
    opened.go(lab, "network")
    step, play = page.locator("#do-step"), page.locator("#do-play")
    assert (step.is_disabled(), play.is_disabled()) == (True, True)  # R62: the prediction comes first
    assert "no KV quantization" in opened.text()  # R63
    assert page.locator("#unit-b").input_value() == "−0.5"
    assert page.locator("#unit-b").get_attribute("readonly") is not None
    page.fill("#prediction", "0.7")
    step.click()
    assert "y = 0.6225. You predicted 0.7000, off by 0.0775." in page.inner_text("#told")
    assert step.is_disabled()
    page.fill("#unit-w", "0.95")  # R61: an edit keeps t
    assert page.inner_text("#step") == "1"
    assert step.is_disabled()
    page.fill("#prediction", "0.61")
    step.click()
    assert "y = 0.6106." in page.inner_text("#told")
    assert "y moved by −0.0118" in page.inner_text("#told")  # R64
    assert page.inner_text("#step") == "2"
    assert page.url.endswith("#network?x=1&w=0.95")
    page.fill("#prediction", "0.6106")
    play.click()
    page.wait_for_function("() => document.querySelector('#step').textContent === '7'")
    page.wait_for_function("() => document.querySelector('#do-play').disabled")
    assert "off by 0.0000" in page.inner_text("#told")
    page.click("#do-reset")  # R60
    assert (page.inner_text("#step"), page.input_value("#unit-w"), page.input_value("#unit-x")) == ("0", "1", "1")
    assert "No run yet" in opened.text()
    for wrong in ("", "1.5", "-0.1"):
        page.fill("#prediction", wrong)
        assert step.is_disabled()
    assert page.locator("#room a[href^='reference-tests/']").count() >= 3  # R65


def test_a_slider_moves_the_quantizer_by_keyboard_and_the_address_keeps_the_view(opened: Opened, lab: Lab) -> None:
    page = opened.page
    opened.go(lab, "bytes?tokens=64")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "room"
    page.focus("#key_bits")
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => document.querySelector('.format-line code')?.textContent.includes('k=int3')")
    opened.idle()
    assert "key_bits=3" in page.url
    before = page.inner_text(".figures")
    page.reload()
    opened.idle()
    assert page.input_value("#key_bits") == "3"
    assert page.inner_text(".figures") == before
    assert float(page.get_attribute("#results", "data-latency-ms")) > 0


def test_a_slow_room_that_was_left_changes_nothing_any_more(opened: Opened, lab: Lab) -> None:
    page = opened.page
    held: list[Any] = []
    page.route("**/api/experiment", lambda route: held.append(route))
    page.goto(f"{lab.address}#experiment")
    page.wait_for_selector("#room h1")
    page.click("a[data-room=network]")
    page.wait_for_selector("#do-step")
    with page.expect_response("**/api/experiment"):
        held[0].continue_()
    page.wait_for_timeout(300)
    assert page.url.endswith("#network")
    assert page.locator("#do-step").count() == 1
    assert page.title() == "One unit · kvassay lab"


def test_what_cannot_be_is_said_and_the_way_out_works(opened: Opened, lab: Lab) -> None:
    page = opened.page
    opened.go(lab, "bytes?format=int9")
    assert "int9" in page.inner_text("#results .error")
    opened.faults[:] = [fault for fault in opened.faults if "400" not in fault]  # Chromium logs the status
    page.fill("#format", "kivi-4,recent=32")
    page.press("#format", "Enter")
    page.wait_for_selector(".format-line code:text('kivi-4')")
    opened.idle()
    assert page.locator("#results .error").count() == 0


def test_r98_r99_the_guided_tour(opened: Opened, lab: Lab) -> None:
    page = opened.page
    opened.go(lab, "bytes")
    page.click("#tour-start")
    told = []
    for step in range(1, 9):
        page.wait_for_selector(f".tour h2:text('{step} of 8')")
        opened.idle()
        page.fill("#guess", "1")
        page.press("#guess", "Enter")
        told.append(page.inner_text(".told").rsplit("measured ", 1)[1].rstrip("."))
        if step < 8:
            page.click("#tour-next")
    assert told[:3] == ["1", "1", "1"]
    assert told[4:] == ["1", "4.136", "0.2539", "0.01548"]
    assert int(told[3]) < 30
    assert "tour=8" in page.url


def test_captured_keys_and_values_go_on_the_bench(opened: Opened, lab: Lab) -> None:
    page = opened.page
    opened.go(lab, "bytes")
    page.select_option("#source", "captured")
    page.wait_for_selector("#capture, #layer")
    if page.locator("#capture").count():
        page.click("#capture")
    page.wait_for_selector("#layer")
    page.wait_for_function("() => document.querySelector('.format-line')?.textContent.includes('Captured from')")
    page.focus("#layer")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.format-line')?.textContent.includes('layer 1')")
    opened.idle()
    opened.faults[:] = [fault for fault in opened.faults if "400" not in fault]  # asked before it was captured


def test_a_pack_is_read_filtered_compared_and_judged_with_other_margins(opened: Opened, lab: Lab) -> None:
    page = opened.page
    opened.go(lab, "packs")
    assert HOSTILE_NAME in opened.text()  # text, and no element
    assert page.title() == "Packs · kvassay lab"
    page.click("a:text-is('demo')")
    page.wait_for_selector("#bound-0")
    assert "is the smallest candidate that met" in page.inner_text("h1")
    shown = page.locator("table:has(caption:text-is('Clauses')) tbody tr")
    every = shown.count()
    page.select_option("#clause-verdict", "INCONCLUSIVE")
    assert 0 < shown.count() < every
    page.select_option("#rows-table", "items")
    page.wait_for_function("() => /by candidate_correct/.test(document.querySelector('#room').innerText)")
    page.fill("label:text-is('fidelity.kl_mean.max') + input", "0.0000001")
    page.click("#judge-again")
    page.wait_for_selector(".post-hoc")
    judged = page.inner_text(".post-hoc")
    assert judged.startswith("POST HOC")
    assert "no evidence for a claim" in judged
    assert "fidelity.kl_mean.max" in judged
    assert "BREACHED" in judged
    page.select_option("#compare-with", index=1)
    page.wait_for_selector("#comparison")
    assert re.search(r"with=\d", page.url)
    assert "decides nothing" in page.inner_text("#comparison")


def test_the_report_is_readable_on_a_phone_and_axe_clean(opened: Opened, packs, tmp_path, lab: Lab) -> None:
    from kvassay.pack.reader import read_pack
    from kvassay.report import render_report

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = tmp_path / "report.html"
    path.write_text(render_report(read_pack(packs / "demo")))
    page = opened.page
    page.goto(path.as_uri())
    for width, theme in VIEWS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        page.screenshot(path=SCREENSHOTS / f"report-{width}-{theme}.png", full_page=True)
        assert page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert axe_faults(page) == []
    opened.faults[:] = [fault for fault in opened.faults if not fault.startswith("left: file:///")]
