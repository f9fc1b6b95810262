"""Chart specs: their data equal the rows of the pack, recomputed here by other means."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.digest import canonical_json
from kvassay.core.geometry import Owner
from kvassay.pack.reader import PackContent
from kvassay.report import chart_specs
from kvassay.report.chart_svg import draw
from kvassay.report.label_places import Point, place_labels
from kvassay.report.ledger_chart import TRANSIENT
from kvassay.report.ledger_tables import OWNER_WORDS


def rows_of(content: PackContent, name: str) -> list[dict]:
    return chart_specs(content)[name]["data"]["values"]


def test_bytes_against_loss_equals_ledgers_and_rows(content: PackContent) -> None:
    kl = defaultdict(list)
    for row in content.tables.tokens.select(["arm", "kl_nats"]).to_pylist():
        kl[row["arm"]].append(row["kl_nats"])
    rows = {row["arm"]: row for row in rows_of(content, "bytes-against-loss")}
    assert set(rows) == {"int8-token-head", "q8_0", "kivi-4", "int4-g32", "kivi-2,recent=32"}
    for arm, row in rows.items():
        ledger = content.ledgers[arm].computed
        values = sum(
            ledger.tokens * layer["kv_heads"] * (layer["head_dim"] + layer["value_dim"])
            for layer in content.subject["geometry"]["layers"]
        )
        nbytes = sum(ledger.keys_nbytes.values()) + sum(ledger.values_nbytes.values())
        assert row["stored_bits"] == pytest.approx(8 * nbytes / values, rel=1e-12)
        assert row["kl_mean_nats"] == pytest.approx(math.fsum(kl[arm]) / len(kl[arm]), rel=1e-12)
        (verdict,) = [v for v in content.verdicts.formats if v.arm == arm]
        (clause,) = [c for c in verdict.clauses if c.clause == "fidelity.kl_mean" and c.slice == "all"]
        assert (row["lower_nats"], row["upper_nats"]) == (clause.lower, clause.upper)
    spec = chart_specs(content)["bytes-against-loss"]
    lines = spec["layer"][0]["data"]["values"]
    assert [line["kl_nats"] for line in lines] == [content.contract.fidelity.kl_mean.max]


def test_bytes_by_owner_sum_to_the_ledger(content: PackContent) -> None:
    persistent, transient = defaultdict(float), {}
    for row in rows_of(content, "bytes-by-owner"):
        if row["owner"] == TRANSIENT:
            transient[row["arm"]] = row["nbytes_per_token"]
        else:
            persistent[row["arm"]] += row["nbytes_per_token"]
    for arm, pair in content.ledgers.items():
        ledger = pair.computed
        assert persistent[arm] == pytest.approx(ledger.persistent_nbytes / ledger.tokens, rel=1e-12)
        assert transient[arm] == pytest.approx((ledger.peak_transient_nbytes or 0) / ledger.tokens, rel=1e-12)
    codes = {r["arm"]: r["nbytes_per_token"] for r in rows_of(content, "bytes-by-owner") if r["owner"] == "codes"}
    assert OWNER_WORDS[Owner.CODES] == "codes"
    assert codes["int8-token-head"] == 2 * 3 * 64 * 12


def test_r93_error_by_layer_is_the_worst_head_of_the_tensor_rows(content: PackContent) -> None:
    heads = defaultdict(list)
    for row in content.tables.tensors.to_pylist():
        if row["arm"] != "f32 again 1":
            heads[row["arm"], row["substituted"], row["layer"]].append((row["output_relative"], row["head"]))
    found = {
        (row["arm"], row["substituted"], row["layer"]): (row["output_relative"], row["head"])
        for row in rows_of(content, "error-by-layer")
    }
    assert found == {key: max(values) for key, values in heads.items()}


def test_kl_by_slice_equals_the_rows(sliced: PackContent) -> None:
    kl = defaultdict(list)
    for row in sliced.tables.tokens.select(["arm", "slice", "kl_nats"]).to_pylist():
        kl[row["arm"], row["slice"]].append(row["kl_nats"])
    rows = rows_of(sliced, "kl-by-slice")
    assert len(rows) == 15
    for row in rows:
        values = kl[row["arm"], row["slice"]]
        assert row["kl_mean_nats"] == pytest.approx(math.fsum(values) / len(values), rel=1e-12)
        assert row["documents"] == 8
        assert row["lower_nats"] is None


def test_specs_are_plain_json_that_can_be_hashed(sliced: PackContent) -> None:
    first, again = chart_specs(sliced), chart_specs(sliced)
    assert {name: canonical_json(spec) for name, spec in first.items()} == {
        name: canonical_json(spec) for name, spec in again.items()
    }
    assert all("url" not in canonical_json(spec).decode() for spec in first.values())


def test_a_spec_that_would_load_data_is_refused() -> None:
    spec = {"data": {"url": "https://x.example/d.json"}, "mark": "point", "encoding": {}}
    with pytest.raises(ValueError, match="not allowed"):
        draw(spec, "x", "t", "d", "wide")


def test_a_label_cannot_change_the_drawing(content: PackContent) -> None:
    spec = chart_specs(content)["bytes-by-owner"]
    spec = {**spec, "data": {**spec["data"]}}
    rows = [{**row, "owner": 'codes fill="red" style="x" <script>'} for row in spec["data"]["values"]]
    text = {
        "data": {"values": rows},
        "mark": {"type": "text", "fill": "#1c2226"},
        "encoding": {"text": {"field": "owner"}, "x": {"field": "end", "type": "quantitative"}},
        "config": {"aria": False, "background": None, "view": {"stroke": None}, "axis": spec["config"]["axis"]},
    }
    svg = draw(text, "x", 'a "title" & <b>', "d", "wide")
    assert "<script" not in svg
    assert "a &quot;title&quot; &amp; &lt;b&gt;" in svg
    assert 'fill="red"' in svg.split(">codes ")[1].split("</text>")[0].replace("&quot;", '"')


boxed = st.floats(20, 580)


@settings(deadline=None)
@given(st.lists(st.tuples(boxed, boxed.map(lambda y: y / 2), st.integers(1, 30)), max_size=12))
def test_labels_stay_in_the_plot(points: list[tuple[float, float, int]]) -> None:
    made = [Point(x, y, y - 5, y + 5, "m" * length) for x, y, length in points]
    for box in place_labels(made, 620, 340):
        assert box.left >= -1e-9
        assert box.right <= 620 + 1e-9
        assert box.top >= -1e-9
        assert box.bottom <= 340 + 1e-9


def test_labels_of_crowded_points_do_not_cover_each_other() -> None:
    made = [Point(300 + 3 * i, 150 + 4 * i, 140 + 4 * i, 160 + 4 * i, "int4-g32") for i in range(6)]
    boxes = place_labels(made, 620, 340)
    for index, box in enumerate(boxes):
        assert all(box.overlap(other) == 0 for other in boxes[index + 1 :])
