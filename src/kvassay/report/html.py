"""The report as one HTML file: it makes no request, needs no script, and its bytes depend on the pack alone."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup

import kvassay
from kvassay.pack.reader import PackContent
from kvassay.report.answer import answer
from kvassay.report.chart_svg import draw
from kvassay.report.charts import Chart, charts
from kvassay.report.clause_tables import engagement, format_clauses, run_controls
from kvassay.report.figures import NOT_RECORDED, Shown, number
from kvassay.report.findings import Findings, find
from kvassay.report.free_running import free_running_level
from kvassay.report.frontier_chart import noise_floor
from kvassay.report.layer_chart import arms_left_out
from kvassay.report.ledger_tables import ledger_tables
from kvassay.report.numeric_level import MEASURES, numeric_level
from kvassay.report.outcomes import EXPLANATIONS, MARKS
from kvassay.report.page_text import ShownText, page_environment
from kvassay.report.planned import planned
from kvassay.report.provenance import provenance
from kvassay.report.scope_limits import scope_limits
from kvassay.report.slice_tables import slices
from kvassay.report.style_sheet import content_security_policy, style_sheet
from kvassay.report.worst_cases import worst_examples, worst_rows

MAX_REPORT_NBYTES = 3_000_000


class Detail(NamedTuple):
    """How much of the long lists is printed; all of it stays in the pack's files."""

    examples_per_arm: int
    slice_clauses: int
    further_layers: int
    documents: int
    sources: int
    chart_table_rows: int
    with_charts: bool


DETAILS = (
    Detail(3, slice_clauses=300, further_layers=2, documents=200, sources=300, chart_table_rows=400, with_charts=True),
    Detail(1, slice_clauses=60, further_layers=0, documents=20, sources=40, chart_table_rows=60, with_charts=True),
    Detail(0, slice_clauses=20, further_layers=0, documents=0, sources=0, chart_table_rows=0, with_charts=False),
)
"""From full to bare: a pack of hundreds of formats, or of a stranger, must still give a page that opens."""


class Drawing(NamedTuple):
    """A chart as inline SVG for both widths, with its figures as a table."""

    chart: Chart
    wide: Markup
    narrow: Markup
    table: tuple[tuple[Shown, ...], ...]
    rows_left_out: int


def render_report(content: PackContent) -> str:
    """The whole report; under 3 MB, with less detail where a pack is so large that it would not be."""
    findings = find(content)
    drawings = [_drawing(chart) for chart in charts(findings).values()]
    page = ""
    for detail in DETAILS:
        page = _render(findings, drawings if detail.with_charts else [], detail)
        if len(page.encode()) < MAX_REPORT_NBYTES:
            break
    return page


def _render(findings: Findings, drawings: list[Drawing], detail: Detail) -> str:
    content = findings.content
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            version=kvassay.__version__,
            policy=Markup(content_security_policy()),
            css=Markup(style_sheet()),
            content=content,
            contract=content.contract,
            answer=answer(findings),
            charts={drawing.chart.kind.name: _with_table(drawing, detail) for drawing in drawings},
            noise_floor=number(noise_floor(findings)),
            formats=format_clauses(content),
            controls=run_controls(content),
            engagement=engagement(content),
            slices=slices(content, detail.slice_clauses),
            worst=worst_rows(findings),
            examples=worst_examples(content, detail.examples_per_arm),
            free_running=free_running_level(content, findings.outputs),
            numeric=numeric_level(content, findings.layers, detail.further_layers),
            measures=MEASURES,
            chart_arms_left_out=arms_left_out(findings),
            ledgers=ledger_tables(content),
            plan=planned(content),
            limits=scope_limits(content),
            origin=provenance(content, detail.documents, detail.sources),
            marks=[(MARKS[outcome], EXPLANATIONS[outcome]) for outcome in reversed(MARKS)],
            reduced=detail is not DETAILS[0],
            not_recorded=NOT_RECORDED,
            shown=ShownText,
        )
    )


def _drawing(chart: Chart) -> Drawing:
    kind = chart.kind
    return Drawing(
        chart=chart,
        wide=draw(chart.wide, f"{kind.name}-wide", kind.title, kind.description, "wide"),
        narrow=draw(chart.narrow, f"{kind.name}-narrow", kind.title, kind.description, "narrow"),
        table=(),
        rows_left_out=0,
    )


def _with_table(drawing: Drawing, detail: Detail) -> Drawing:
    rows = drawing.chart.rows[: detail.chart_table_rows]
    columns = drawing.chart.kind.columns
    table = tuple(tuple(_cell(row[field]) for field, _ in columns) for row in rows)
    return drawing._replace(table=table, rows_left_out=len(drawing.chart.rows) - len(rows))


def _cell(value: Any) -> Shown:
    return value if isinstance(value, str) else number(value, digits=4)


@cache
def _environment() -> Environment:
    return page_environment()
