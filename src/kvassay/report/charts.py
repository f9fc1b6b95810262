"""All charts of a report: their specs, their texts, and the table of figures that stands in for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvassay.pack.reader import PackContent
from kvassay.report.chart_frame import NARROW, WIDE, Spec
from kvassay.report.findings import Findings, find
from kvassay.report.frontier_chart import frontier_chart
from kvassay.report.layer_chart import layer_chart
from kvassay.report.ledger_chart import ledger_chart
from kvassay.report.slice_chart import slice_chart
from kvassay.report.survival_chart import survival_chart


class ChartKind(NamedTuple):
    name: str
    title: str
    description: str
    """The text alternative: what the axes are and how to read it."""
    columns: tuple[tuple[str, str], ...]
    """Fields of the spec's rows that the table beside the chart shows, with their headings."""
    build: Callable[[Findings, int], Spec | None]


class Chart(NamedTuple):
    kind: ChartKind
    wide: Spec
    narrow: Spec

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.wide["data"]["values"]


KINDS: tuple[ChartKind, ...] = (
    ChartKind(
        "bytes-against-loss",
        "Bytes against loss",
        "Horizontal: stored bits per cached value, with scales, windows, sinks and padding. Vertical, "
        "logarithmic: mean KL "
        "divergence from the full-precision cache in nats per token, with its confidence interval. Lower "
        "and further left "
        "is better. A dashed line marks the most that the contract allows.",
        (
            ("arm", "format"),
            ("role", "role"),
            ("outcome", "verdict"),
            ("stored_bits", "stored bits per value"),
            ("kl_mean_nats", "mean KL (nats)"),
            ("lower_nats", "lower bound"),
            ("upper_nats", "upper bound"),
        ),
        frontier_chart,
    ),
    ChartKind(
        "kl-by-slice",
        "Mean KL by slice",
        "For each format, one line a slice: the mean KL divergence in nats per token on a logarithmic "
        "scale, with its "
        "confidence interval where the slice has enough documents.",
        (
            ("arm", "format"),
            ("slice", "slice"),
            ("documents", "documents"),
            ("kl_mean_nats", "mean KL (nats)"),
            ("lower_nats", "lower bound"),
            ("upper_nats", "upper bound"),
        ),
        slice_chart,
    ),
    ChartKind(
        "agreement-survival",
        "Survival of agreement, free-running",
        "For each format one strip. Horizontal: generated tokens. Vertical, 0 to 100%: share of prompts whose output "
        "is still equal to the reference's, with its pointwise confidence band. A dashed line is the reference run "
        "again, the noise floor.",
        (
            ("arm", "format"),
            ("tokens", "tokens"),
            ("prompts", "prompts"),
            ("equal", "still equal"),
            ("share", "share"),
            ("low", "lower bound"),
            ("high", "upper bound"),
        ),
        survival_chart,
    ),
    ChartKind(
        "error-by-layer",
        "Relative output error by layer",
        "A heat map. Horizontal: layers of the model. For each format three rows: only the keys replaced "
        "by their decoded "
        "codes, only the values, or both. A stronger colour is a larger relative error of the attention "
        "output; the largest "
        "over the KV heads of the layer and the captured documents.",
        (
            ("arm", "format"),
            ("substituted", "replaced"),
            ("layer", "layer"),
            ("head", "worst KV head"),
            ("document", "document"),
            ("output_relative", "relative output error"),
        ),
        layer_chart,
    ),
    ChartKind(
        "bytes-by-owner",
        "Bytes per token by owner",
        "For each format two bars: persistent bytes per token of context, stacked by what they are for, "
        "and the transient "
        "peak of the buffers that decoding needs. A dashed line marks the same tokens in 16 bits.",
        (
            ("arm", "format"),
            ("part", "part"),
            ("owner", "owner"),
            ("nbytes_per_token", "bytes per token"),
        ),
        ledger_chart,
    ),
)


def charts(findings: Findings) -> dict[str, Chart]:
    """The charts that the pack's rows allow, by name. Their data are a function of the pack alone."""
    found: dict[str, Chart] = {}
    for kind in KINDS:
        wide, narrow = kind.build(findings, WIDE), kind.build(findings, NARROW)
        if wide is not None and narrow is not None:
            found[kind.name] = Chart(kind, wide, narrow)
    return found


def chart_specs(content: PackContent) -> dict[str, Spec]:
    """Vega-Lite specs of the report's charts by name, each with its rows as inline data; JSON values only."""
    return {name: chart.wide for name, chart in charts(find(content)).items()}
