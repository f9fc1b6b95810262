"""What the page must show: every figure of every verdict, intervals, bytes, the worst first, and what is missing."""

from __future__ import annotations

import math
import re

import pyarrow as pa

from kvassay.core.geometry import Owner
from kvassay.core.records import Outcome
from kvassay.judge import judge
from kvassay.pack.reader import PackContent
from kvassay.report import render_report
from kvassay.report.ledger_tables import OWNER_WORDS
from tests.report.page_parts import Page, parse_page

SECTIONS = [
    *("answer", "frontier", "clauses", "slices", "free-running", "worst"),
    *("numeric", "ledger", "plan", "limits", "origin"),
]


def joined(text: str) -> str:
    return " ".join(text.split())


def test_answer_comes_first_and_names_the_smallest_that_is_met(content: PackContent, page: Page) -> None:
    assert [element.attributes["id"] for element in page.all("section")] == SECTIONS
    (headline,) = [e for e in page.elements if e.attributes.get("class") == "headline"]
    pattern = r"(\S+) is the smallest candidate that met the contract “demo”: ([\d.]+) stored bits"
    named = re.match(pattern, headline.text)
    assert named
    # The sample's bounds let int8-token-head, q8_0 and kivi-4 pass.
    passing = ("int8-token-head", "q8_0", "kivi-4")
    bits = {name: 16 * content.ledgers[name].computed.ratio_to_float16 for name in passing}
    assert (named[1], named[2]) == (min(bits, key=bits.__getitem__), f"{min(bits.values()):.3f}")
    assert "90% interval" in headline.text
    (chosen,) = [e for e in page.elements if e.attributes.get("class") == "chosen"]
    assert "✓ MET" in joined(chosen.text)


def test_verdict_words_and_symbols_stand_beside_the_colour(page: Page) -> None:
    chips = [e for e in page.elements if e.attributes.get("class", "").startswith("verdict ")]
    words = {e.attributes["class"].split()[1]: joined(e.text) for e in chips if "answer" not in e.path}
    assert words["met"] in ("✓ MET", "✓ PASSED")
    assert words["breached"] == "✕ BREACHED"
    assert words["inconclusive"] == "? INCONCLUSIVE"
    assert all(len(joined(e.text)) > 2 for e in chips)


def test_every_figure_of_every_clause_is_on_the_page_exactly(content: PackContent, page: Page) -> None:
    """R54, R55, R57: n, estimate, bounds, limit, method and reason of each clause, none left to an aggregate."""
    shown, text = page.data_values(), joined(page.by_id("clauses").text)
    slices = joined(page.by_id("slices").text)
    outcomes = {clause.outcome for verdict in content.verdicts.formats for clause in verdict.clauses}
    assert outcomes >= {Outcome.MET, Outcome.BREACHED, Outcome.INCONCLUSIVE, Outcome.NOT_MEASURED}
    for verdict in content.verdicts.formats:
        assert joined(verdict.reason) in text
        for control in verdict.controls:
            assert joined(control.reason) in text
        for clause in verdict.clauses:
            for figure in (clause.estimate, clause.lower, clause.upper, clause.limit):
                assert figure is None or repr(figure) in shown
            assert str(clause.n) in shown
            if clause.slice != "all" and clause.details["descriptive"]:
                assert joined(clause.slice) in slices
                continue
            assert joined(clause.reason) in text
            assert clause.method in text
            for name, value in clause.details.items():
                assert not isinstance(value, float) or repr(value) in shown, name
    for control in content.verdicts.controls:
        assert joined(control.reason) in text


def test_task_loss_turns_the_sign_and_the_bounds(content: PackContent, page: Page) -> None:
    (verdict,) = [v for v in content.verdicts.formats if v.arm == "int4-g32"]
    (clause,) = [c for c in verdict.clauses if c.clause == "task.recall" and c.slice == "all"]
    assert clause.estimate is not None
    assert clause.lower is not None
    assert clause.upper is not None
    assert clause.estimate < 0
    (cell,) = [
        joined(e.text)
        for e in page.all("td")
        if e.attributes.get("data-label", "").startswith("Loss on task") and f"{-100 * clause.estimate:.2f}" in e.text
    ]
    bounds = f"({-100 * clause.upper:.2f} to {-100 * clause.lower:.1f})".replace("-", "−")
    assert cell == f"{-100 * clause.estimate:.2f} {bounds} allowed 10"


def test_ledger_shows_keys_and_values_apart_by_owner_with_denominators(content: PackContent, page: Page) -> None:
    """R13 to R18, R22, R28, R29, R66, R86, R88, R89."""
    text, shown = joined(page.by_id("ledger").text), page.data_values()
    for pair in content.ledgers.values():
        for side in (pair.computed.keys_nbytes, pair.computed.values_nbytes):
            for owner, nbytes in side.items():
                assert OWNER_WORDS[owner] in text
                assert str(nbytes) in shown
        for nbytes in (
            pair.computed.persistent_nbytes,
            pair.computed.peak_transient_nbytes,
            pair.computed.persistent_nbytes + (pair.computed.peak_transient_nbytes or 0),
            pair.computed.float16_nbytes,
            pair.computed.float32_nbytes,
        ):
            assert str(nbytes) in shown
        for assumption in pair.computed.assumptions:
            assert joined(assumption) in text
    assert "Computed and allocated agree in every owner, to the byte." in text
    times = 1 / content.ledgers["kivi-4"].computed.ratio_to_float16
    assert f"4 bit a value: nominally 4.00 times smaller than 16 bit; with every byte {times:.2f} times smaller" in text
    assert "Neither is the numerical reference that quality was compared with, which is a f32 cache" in text
    assert set(OWNER_WORDS) == set(Owner)


def test_a_ledger_that_differs_from_the_real_cache_says_so(content: PackContent) -> None:
    pair = content.ledgers["kivi-4"]
    assert pair.allocated is not None
    keys = {**pair.allocated.keys_nbytes, Owner.PADDING: 1_000_000}
    ledgers = {
        **content.ledgers,
        "kivi-4": pair._replace(allocated=pair.allocated.model_copy(update={"keys_nbytes": keys})),
    }
    found = parse_page(render_report(content._replace(ledgers=ledgers)))
    difference = 1_000_000 - pair.computed.keys_nbytes.get(Owner.PADDING, 0)
    text = f"Computed and allocated DIFFER; allocated minus computed is {difference:,} B in sum."
    assert text in joined(found.by_id("ledger").text)


def test_the_worst_leads(content: PackContent, page: Page) -> None:
    """R93: worst document, worst position, worst layer and worst example stand first."""
    kl = content.tables.tokens.to_pydict()
    sums: dict[tuple[str, str], list[float]] = {}
    for arm, document, value in zip(kl["arm"], kl["document"], kl["kl_nats"], strict=True):
        sums.setdefault((arm, document), []).append(value)
    (arm, document), values = max(sums.items(), key=lambda item: sum(item[1]) / len(item[1]))
    worst = page.by_id("worst")
    first = next(e for e in page.all("tr") if arm in e.text and document in e.text and "canary" in e.text)
    assert repr(max(kl["kl_nats"])) in page.data_values()
    assert joined(worst.text).index(arm) < joined(worst.text).index("int4-g32")
    assert f"{sum(values) / len(values):.2f}" in first.text
    kls = [joined(e.text) for e in page.elements if e.attributes.get("class") == "where"]
    assert [text.split(" nats")[0] for text in kls] == ["KL 7.25", "KL 5.50", "KL 0.400"]
    heading = next(e.text for e in page.all("h3") if e.text in content.ledgers and "section" in e.path)
    assert heading == arm
    largest = max(
        (row for row in content.tables.tensors.to_pylist() if row["arm"] == arm and row["substituted"] == "both"),
        key=lambda row: row["output_relative"],
    )
    first = next(row for row in page.table_rows() if row[0] == "keys and values")
    assert first[1:4] == [str(largest["layer"]), str(largest["head"]), largest["document"]]
    assert first[4] == f"{largest['output_relative']:.2f}"


def test_the_diverging_token_is_marked_and_an_equal_one_is_not(page: Page) -> None:
    marked = [joined(e.text) for e in page.all("mark") if e.attributes.get("class") != "cursor"]
    assert marked == ["␣,", "␣the"]
    text = joined(page.by_id("worst").text)
    assert text.count("diverges") == 2
    assert "␣Paris same token" in text
    assert "The capital of France⏎\nis⇥\tnamed" in page.by_id("worst").text


def test_the_reference_against_itself_gives_a_noise_floor_and_no_examples(page: Page) -> None:
    assert "Without any error: f32 again 1." in joined(page.by_id("numeric").text)
    assert "reference run against itself: 0 nats per token" in joined(page.by_id("frontier").text)
    assert all("f32 again 1" not in e.text for e in page.all("h4"))


def test_slices_are_shown_with_bounds_or_the_reason_why_not(sliced: PackContent) -> None:
    """R94: results by cell."""
    found = parse_page(render_report(sliced))
    text = joined(found.by_id("slices").text)
    clauses = [c for v in sliced.verdicts.formats for c in v.clauses if c.slice != "all"]
    assert len(clauses) > 10
    shown = found.data_values()
    for clause in clauses:
        assert clause.slice in text
        assert clause.estimate is None or repr(clause.estimate) in shown
    assert "no bound" in text
    assert found.by_id("chart-kl-by-slice")


def test_plan_and_cost_stand_side_by_side(page: Page) -> None:
    facts = dict(page.facts())
    assert facts["measuring, expected"] == "3 min 20 s"
    assert facts["measuring, real"] == "4 min 0 s"
    assert facts["whole run"] == "4 min 11 s"
    text = joined(page.by_id("plan").text)
    assert "Measuring took 120% of the expected time." in text
    assert "None of the 4 pilot documents is among those that were judged." in text
    assert "The plan names this contract." in text


def test_a_pilot_that_was_judged_again_is_reported(content: PackContent) -> None:
    plan = {**content.plan, "pilot": {**content.plan["pilot"], "document_ids": ["doc-00", "pilot-01"]}}
    found = parse_page(render_report(content._replace(plan=plan)))
    assert "1 of 2 pilot documents were judged again" in joined(found.by_id("plan").text)


def test_what_is_not_proved_follows_from_the_pack(content: PackContent, page: Page, empty: PackContent) -> None:
    """R9, R30, R34, R97, R110: scope of engine, release, model, corpus, length, platform; what was not measured."""
    text = joined(page.by_id("limits").text)
    for words in (
        "Measured with transformers, version 5.24.0",
        "no proof that an engine's kernel",
        "No figure is taken over from a paper",
        "One model, sample-135m (revision r1)",
        "One corpus, python-topics, 24 documents. No query had more than 268 tokens of history of the 8,192",
        "Free-running generation",
        "Capacity, latency and throughput were not measured",
        "Tried: Linux-6.1-x86_64",
        "no bound on the mean of the reverse KL, the change of log likelihood of the text, agreement of",
    ):
        assert words in text
    without = joined(parse_page(render_report(empty)).by_id("limits").text)
    for words in ("fidelity was not measured", "no task was measured", "No tensor rows exist", "No worst examples"):
        assert words in without
        assert words not in text


def test_absent_fields_say_so_and_never_zero(bare: PackContent) -> None:
    found = parse_page(render_report(bare))
    facts = found.facts()
    names = dict(facts)
    for name in (
        *("revision", "parameters", "weights SHA-256", "tokenizer SHA-256", "config SHA-256", "version", "attention"),
        *("licence", "platform", "CPU", "cores", "threads", "memory", "peak resident memory", "started (UTC)"),
        *("commit", "uncommitted changes", "Python", "measuring, expected", "measuring, real", "whole run"),
        *("planned tokens through the reference", "planned tokens through the candidates"),
    ):
        assert names[name] == "not recorded", name
    text = joined(found.by_id("plan").text)
    assert "Pilot: not recorded documents, not recorded items, not recorded prompts." in text
    assert "Planned sample sizes and power: not recorded." in text
    assert "Worst examples: not recorded." in joined(found.by_id("worst").text)
    assert "May this model use a smaller KV cache?" in joined(found.by_id("answer").text)


def test_a_pack_without_rows_has_no_charts_of_quality_and_no_figures(empty: PackContent) -> None:
    found = parse_page(render_report(empty))
    assert {e.attributes["id"] for e in found.all("figure")} == {"chart-bytes-by-owner"}
    assert "No candidate is shown to meet the contract" in joined(found.by_id("answer").text)
    assert joined(found.by_id("answer").text).count("not measured") >= 10


def judged_again(content: PackContent, tokens: pa.Table) -> PackContent:
    """The pack with other token rows and the real judge's verdicts on them."""
    ledgers = {name: pair.computed for name, pair in content.ledgers.items()}
    verdicts = judge(content.contract, content.arms, ledgers, tokens, content.tables.items)
    return content._replace(tables=content.tables._replace(tokens=tokens), verdicts=verdicts)


def test_rows_that_are_no_numbers_give_no_figure_and_are_counted(content: PackContent) -> None:
    rows = content.tables.tokens.to_pylist()
    for row in [row for row in rows if row["arm"] == "kivi-4"][:3]:
        row["kl_nats"] = math.nan
    found = parse_page(render_report(judged_again(content, pa.Table.from_pylist(rows, content.tables.tokens.schema))))
    (row,) = [joined(e.text) for e in found.all("tr") if "no usable figure" in e.text]
    assert row.startswith("kivi-4")
    assert "! INVALID" in row
    headline = next(e.text for e in found.elements if e.attributes.get("class") == "headline")
    assert "kivi-4" not in headline
    (worst,) = [row for row in found.table_rows() if row[0] == "kivi-4 candidate"]
    assert worst[-1] == "3", "the last column counts rows without a finite KL"


def test_a_control_that_failed_stands_beside_the_answer(content: PackContent, page: Page) -> None:
    """A canary that looks healthy takes every MET away, and the reader must see why at once."""
    rows = content.tables.tokens.to_pylist()
    for row in rows:
        row["kl_nats"] = row["kl_nats"] / 1000 if row["arm"].startswith("kivi-2") else row["kl_nats"]
    found = parse_page(render_report(judged_again(content, pa.Table.from_pylist(rows, content.tables.tokens.schema))))
    text = joined(found.by_id("answer").text)
    assert "Control canary ✕ FAILED: " in text
    assert "No candidate is shown to meet the contract" in text
    assert "Control" not in joined(page.by_id("answer").text)


def test_environment_hashes_contract_and_the_way_to_verify(content: PackContent, page: Page) -> None:
    """R106, R112, R114."""
    text = joined(page.by_id("origin").text)
    for words in ("kvassay verify PACK", content.contract.sha256, "da5bbe1f" * 5, "12" * 32, "ab" * 32, "2.13.0"):
        assert words in text
    assert "uncommitted changes when this was run" in text
    assert content.contract_toml.strip() in page.by_id("origin").text
    assert content.manifest is not None
    assert content.manifest.files["rows/tokens.parquet"].sha256 in text
