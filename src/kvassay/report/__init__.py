"""The report: one offline HTML file that answers first and shows every figure with its interval, bytes and limits."""

from kvassay.report.answer import headline
from kvassay.report.charts import chart_specs
from kvassay.report.html import render_report

__all__ = ["chart_specs", "headline", "render_report"]
