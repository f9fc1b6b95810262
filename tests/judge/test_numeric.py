"""Numeric clauses: the worst cell of a document decides, and rows that lack a cell decide nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.clauses.numeric import in_slice
from kvassay.core.contract import Contract
from kvassay.core.records import ITEM_COLUMNS, TENSOR_COLUMNS, TOKEN_COLUMNS, Outcome, Role, Verdicts
from kvassay.errors import ContractError, PackError
from kvassay.judge import judge
from kvassay.stats.cluster import cluster_bound
from tests.judge.runs import CANARY, REFERENCE, ArmRun, clause_of, contract, control_of, table, verdict_of

LAYERS, HEADS, DOCUMENTS, QUERIES = 4, 2, 24, 8
SIDES = ("keys", "values", "both")
FIGURES = [name for name, kind in TENSOR_COLUMNS.items() if kind == "float64"]
TEXT = "[numeric]\nqueries = 8\n[numeric.output_relative]\nmax = 0.05\n"
Rows = dict[str, list[Any]]


def rows(arm: ArmRun, size: float, documents: int = DOCUMENTS, heads: Sequence[int] = (HEADS,) * LAYERS) -> Rows:
    """Cells whose figures lie about `size`; 0 gives an exact arm."""
    columns: Rows = {name: [] for name in TENSOR_COLUMNS}
    reads = 0 if arm.kv_format.is_exact else QUERIES * 60
    for document in range(documents):
        rng = np.random.default_rng([document, *arm.name.encode()])
        for layer, count in enumerate(heads):
            for head in range(count):
                for side in SIDES:
                    cell = size * rng.uniform(0.8, 1.0)
                    columns["arm"].append(arm.name)
                    columns["document"].append(f"doc-{document:02}")
                    columns["layer"].append(layer)
                    columns["head"].append(head)
                    columns["substituted"].append(side)
                    columns["stored_reads"].append(reads)
                    for name in FIGURES:
                        unmoved = side == "values" and name.startswith(("score", "weight"))
                        columns[name].append(0.0 if unmoved else cell)
    return columns


def place(columns: Rows, document: int, layer: int, head: int, side: str) -> int:
    cells = zip(columns["document"], columns["layer"], columns["head"], columns["substituted"], strict=True)
    return list(cells).index((f"doc-{document:02}", layer, head, side))


CANDIDATE_RUN = ArmRun("int8-token-head")
ARMS = {
    "candidate": CANDIDATE_RUN,
    "canary": ArmRun(CANARY, Role.CANARY),
    "again": ArmRun(REFERENCE, Role.REFERENCE_AGAIN, "f32"),
}


def evidence() -> dict[str, Rows]:
    return {
        "candidate": rows(ARMS["candidate"], 0.01),
        "canary": rows(ARMS["canary"], 0.9),
        "again": rows(ARMS["again"], 0),
    }


def judged(found: dict[str, Rows], of: Contract | None = None) -> Verdicts:
    return judge(
        of or contract(TEXT),
        [ARMS[name].record() for name in found],
        {ARMS[name].name: ARMS[name].ledger() for name in found},
        table([], TOKEN_COLUMNS),
        table([], ITEM_COLUMNS),
        tensors=table(found.values(), TENSOR_COLUMNS),
    )


def outcome(verdicts: Verdicts, part: str = "all", name: str = "output_relative") -> Outcome:
    return clause_of(verdicts, "int8-token-head", f"numeric.{name}", part).outcome


def test_small_errors_are_met_the_canary_breached_and_the_reference_not() -> None:
    verdicts = judged(evidence())
    assert outcome(verdicts) is Outcome.MET
    assert verdict_of(verdicts, CANARY).outcome is Outcome.BREACHED
    assert verdict_of(verdicts, REFERENCE).outcome is Outcome.MET
    assert control_of(verdicts, "canary").reason.endswith("breached in numeric")
    assert verdicts.exit_code == 0


def test_r93_one_broken_head_decides_where_the_mean_over_cells_is_mild() -> None:
    found = evidence()
    for document in range(DOCUMENTS):
        found["candidate"]["output_relative"][place(found["candidate"], document, 2, 1, "both")] = 0.2 + document / 1000
    verdicts = judged(found)
    clause = clause_of(verdicts, "int8-token-head", "numeric.output_relative")
    assert clause.outcome is Outcome.BREACHED
    assert clause.estimate == pytest.approx(0.2 + np.mean(np.arange(DOCUMENTS)) / 1000)
    details = clause.details
    assert (details["worst_layer"], details["worst_head"], details["worst_document"]) == (2, 1, "doc-23")
    assert details["worst_cell"] == 0.223
    assert isinstance(details["mean_over_cells"], float)
    assert details["mean_over_cells"] < 0.05  # what a mean over heads would have been judged by
    thirds = {part: outcome(verdicts, f"layers={part}") for part in ("early", "middle", "late")}
    assert thirds == {"early": Outcome.MET, "middle": Outcome.BREACHED, "late": Outcome.MET}


def test_the_estimate_is_the_mean_over_documents_of_each_ones_largest_cell() -> None:
    found = evidence()
    both = [
        (name, value)
        for name, side, value in zip(
            found["candidate"]["document"],
            found["candidate"]["substituted"],
            found["candidate"]["output_relative"],
            strict=True,
        )
        if side == "both"
    ]
    worst = [max(value for name, value in both if name == document) for document in sorted({n for n, _ in both})]
    clause = clause_of(judged(found), "int8-token-head", "numeric.output_relative")
    assert clause.estimate == pytest.approx(np.mean(worst), rel=1e-12)
    assert clause.n == DOCUMENTS


def test_r81_r82_a_side_alone_describes_unless_the_contract_names_it() -> None:
    found = evidence()
    for index, side in enumerate(found["candidate"]["substituted"]):
        if side == "values":
            found["candidate"]["output_relative"][index] *= 20
    free = judged(found)
    assert outcome(free, "substituted=values") is Outcome.BREACHED
    assert outcome(free, "substituted=keys") is Outcome.MET
    assert verdict_of(free, "int8-token-head").outcome is Outcome.MET
    bound = judged(found, contract(TEXT + 'slices = ["substituted=values"]\n'))
    assert verdict_of(bound, "int8-token-head").outcome is Outcome.BREACHED


def remove(columns: Rows, doomed: Callable[[dict[str, Any]], bool]) -> Rows:
    keep = [
        index
        for index in range(len(columns["arm"]))
        if not doomed({name: values[index] for name, values in columns.items()})
    ]
    return {name: [values[index] for index in keep] for name, values in columns.items()}


@pytest.mark.parametrize(
    ("doomed", "reason"),
    [
        (lambda row: (row["document"], row["layer"], row["head"]) == ("doc-05", 3, 1), "'doc-05' lacks 3 of 24 cells"),
        (lambda row: row["layer"] == 1, "lacks 6 of 24 cells, first layer 1, head 0, both replaced"),
        (lambda row: row["head"] == 0 and row["layer"] == 2, "lacks 3 of 24 cells"),
        (lambda row: row["substituted"] == "both" and row["layer"] == 0, "lacks 2 of 24 cells"),
        (lambda row: row["document"] == "doc-07", "not paired: lacks the other arms' documents 'doc-07'"),
    ],
)
def test_r94_an_arm_that_lacks_layers_heads_sides_or_documents_is_refused(doomed, reason) -> None:
    found = evidence()
    found["candidate"] = remove(found["candidate"], doomed)
    clause = clause_of(judged(found), "int8-token-head", "numeric.output_relative")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert reason in clause.reason


@pytest.mark.parametrize(
    ("doomed", "reason"),
    [
        (lambda row: row["layer"] == 2, "no arm has rows of layer 2, though of layer 3"),
        (lambda row: row["layer"] == 2 and row["head"] == 0, "layer 2 has a row of head 1, and of 1 heads only"),
    ],
)
def test_a_hole_in_every_arm_is_refused(doomed, reason) -> None:
    found = {name: remove(columns, doomed) for name, columns in evidence().items()}
    clause = clause_of(judged(found), "int8-token-head", "numeric.output_relative")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert reason in clause.reason


def test_another_number_of_documents_than_planned_is_inconclusive() -> None:
    fewer = {name: remove(columns, lambda row: row["document"] == "doc-23") for name, columns in evidence().items()}
    clause = clause_of(judged(fewer), "int8-token-head", "numeric.output_relative")
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert "plans 24 documents and 23 were scored" in clause.reason


def break_rows(found: dict[str, Rows], case: str) -> None:
    mine = found["candidate"]
    match case:
        case "doubled":
            for values in mine.values():
                values.append(values[-1])
        case "copied":
            first = [i for i, name in enumerate(mine["document"]) if name == "doc-00"]
            second = [i for i, name in enumerate(mine["document"]) if name == "doc-01"]
            for name in FIGURES:
                for a, b in zip(first, second, strict=True):
                    mine[name][b] = mine[name][a]
        case "nan":
            mine["output_relative"][place(mine, 3, 1, 1, "both")] = float("nan")
        case "null":
            mine["output_relative"][place(mine, 3, 1, 1, "both")] = None
        case "negative":
            mine["output_rmse"][7] = -0.1
        case "side":
            mine["substituted"][7] = "neither"
        case "score":
            mine["score_max_abs"][place(mine, 0, 0, 0, "values")] = 0.1


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("doubled", "has layer 3, head 1, both replaced twice"),
        ("copied", "have equal figures in every cell"),
        ("nan", "relative output error is missing or not finite in 1 of 192 cells"),
        ("null", "relative output error is missing or not finite in 1 of 192 cells"),
        ("negative", "output_rmse is negative in 1 of 576 rows"),
        ("side", "replaced sides are"),
        ("score", "a score moved with only values replaced"),
    ],
)
def test_rows_that_cannot_be_right_are_refused(case, reason) -> None:
    found = evidence()
    break_rows(found, case)
    clause = clause_of(judged(found), "int8-token-head", "numeric.output_relative")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert reason in clause.reason


def test_an_arm_that_read_no_codes_or_moved_nothing_is_not_engaged() -> None:
    found = evidence()
    found["candidate"]["stored_reads"] = [0] * len(found["candidate"]["stored_reads"])
    clause = clause_of(judged(found), "int8-token-head", "numeric.output_relative")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "no query read a token from the quantized store" in clause.reason
    still = {**evidence(), "candidate": rows(ARMS["candidate"], 0.0)}
    clause = clause_of(judged(still), "int8-token-head", "numeric.output_relative")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "output error is exactly zero at all 576 cells" in clause.reason


def test_without_canary_or_reference_again_nothing_is_met() -> None:
    for missing in ("canary", "again"):
        found = evidence()
        del found[missing]
        assert outcome(judged(found)) is Outcome.INCONCLUSIVE
    mild = {**evidence(), "canary": rows(ARMS["canary"], 0.01)}
    assert outcome(judged(mild)) is Outcome.INCONCLUSIVE
    noisy = {**evidence(), "again": rows(ARMS["again"], 0.9)}
    assert outcome(judged(noisy)) is Outcome.INVALID_EVIDENCE


def test_tables_that_were_not_given_are_not_measured() -> None:
    verdicts = judge(contract(TEXT), [CANDIDATE_RUN.record()], {}, table([], TOKEN_COLUMNS), table([], ITEM_COLUMNS))
    assert outcome(verdicts) is Outcome.NOT_MEASURED


def test_false_pass_layers_whose_queries_did_not_read_the_store() -> None:
    """Other layers read it, so the level is engaged; the late third never did."""
    of = contract(TEXT + 'slices = ["layers=early", "layers=late"]\n')
    for fault in ("no reads", "no error"):
        found = evidence()
        mine = found["candidate"]
        for index, layer in enumerate(mine["layer"]):
            if layer == LAYERS - 1 and fault == "no reads":
                mine["stored_reads"][index] = 0
            elif layer == LAYERS - 1:
                mine["output_max_abs"][index] = 0.0
        verdicts = judged(found, of)
        assert outcome(verdicts) is outcome(verdicts, "layers=early") is Outcome.MET
        assert outcome(verdicts, "layers=late") is Outcome.INVALID_EVIDENCE
        controls = {control.name: control for control in verdict_of(verdicts, "int8-token-head").controls}
        assert controls["engaged"].passed is controls["engaged.numeric.layers=early"].passed is True
        assert controls["engaged.numeric.layers=late"].passed is False
        assert verdicts.exit_code == 3


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("k=f16,v=int8:token-head", "substituted=keys"),
        ("k=int8:token-head,v=f16", "substituted=values"),
        ("int8-token-head,skip=3", "layers=late"),
    ],
)
def test_a_slice_of_plain_floats_has_no_codes_to_read_and_is_judged_by_its_errors(name: str, part: str) -> None:
    exact = ArmRun(name)
    columns = rows(exact, 0.01)
    for index, layer in enumerate(columns["layer"]):
        if in_slice(part, columns["substituted"][index], layer, LAYERS):
            columns["stored_reads"][index] = 0
            for figure in FIGURES:
                columns[figure][index] = 0.0
    of = contract(f'{TEXT}slices = ["{part}"]\n', order=(name,))
    arms = [exact, ARMS["canary"], ARMS["again"]]
    verdicts = judge(
        of,
        [arm.record() for arm in arms],
        {arm.name: arm.ledger() for arm in arms},
        table([], TOKEN_COLUMNS),
        table([], ITEM_COLUMNS),
        tensors=table([columns, evidence()["canary"], evidence()["again"]], TENSOR_COLUMNS),
    )
    assert clause_of(verdicts, name, "numeric.output_relative", part).outcome is Outcome.MET
    control = next(c for c in verdict_of(verdicts, name).controls if c.name == f"engaged.numeric.{part}")
    assert control.passed is None
    assert "stores plain floats there" in control.reason


def test_layers_with_other_numbers_of_heads_are_whole() -> None:
    heads = (2, 1, 3, 2)
    found = {
        "candidate": rows(ARMS["candidate"], 0.01, heads=heads),
        "canary": rows(ARMS["canary"], 0.9, heads=heads),
        "again": rows(ARMS["again"], 0, heads=heads),
    }
    assert outcome(judged(found)) is Outcome.MET


def test_a_layer_that_stores_nothing_has_no_array_error_and_spoils_none() -> None:
    of = contract(TEXT.replace("output_relative", "reconstruction_relative"))
    found = evidence()
    mine = found["candidate"]
    for index, layer in enumerate(mine["layer"]):
        if layer == 0:
            mine["stored_reads"][index], mine["reconstruction_relative"][index] = 0, None
    assert outcome(judged(found, of), name="reconstruction_relative") is Outcome.MET
    mine["stored_reads"] = [480] * len(mine["stored_reads"])
    assert outcome(judged(found, of), name="reconstruction_relative") is Outcome.INVALID_EVIDENCE


def test_a_hostile_layer_number_is_refused_at_once() -> None:
    found = evidence()
    found["candidate"]["layer"][0] = 2**31 - 1
    with pytest.raises(PackError, match="layers must lie between 0 and 4095"):
        judged(found)


def test_r57_the_bound_on_a_mean_of_worst_cells_errs_as_seldom_as_it_says() -> None:
    """Maxima are skewed: 180 lognormal cells a document, and documents differ. At the limit every MET is wrong."""
    rng = np.random.default_rng(5)

    def worst(documents: int) -> np.ndarray:
        level = np.exp(rng.normal(0, 0.3, documents))
        return level * np.exp(0.5 * rng.normal(size=(documents, 180)).max(axis=1))

    truth = float(np.mean([worst(2000).mean() for _ in range(100)]))
    runs = 400
    wrong = 0
    for _ in range(runs):
        bound = cluster_bound(worst(24), np.ones(24), truth, replicates=1000)
        assert bound.upper is not None
        wrong += bound.upper < truth
    assert wrong / runs <= 0.075  # nominal 5%, plus two binomial deviations


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    found = evidence()
    order = np.random.default_rng(seed).permutation(len(found["candidate"]["arm"]))
    shuffled = {name: [values[i] for i in order] for name, values in found["candidate"].items()}
    assert judged({**found, "candidate": shuffled}) == judged(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[numeric]\ndocuments = 12\n[numeric.output_relative]\nmax = 0.1\n", "output_relative needs at least 20"),
        ('[numeric.output_relative]\nmax = 0.1\nslices = ["layers=third"]\n', "found the slice 'layers=third'"),
        (
            '[numeric.score_max_abs]\nmax = 0.1\nslices = ["substituted=values"]\n',
            "found the slice 'substituted=values'",
        ),
        ("[numeric.output_relative]\nmax = 0\n", "greater than 0"),
        ("[numeric.output]\nmax = 1\n", "unknown key"),
        ("[numeric]\nqueries = 8\n", "bounds nothing"),
    ],
)
def test_contracts_that_say_nothing_or_the_impossible_are_refused(text: str, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        contract(text)


def test_documents_default_to_24_with_a_bound_and_the_hash_reads_back() -> None:
    of = contract(TEXT)
    assert of.numeric.documents == DOCUMENTS
    assert contract("").numeric.documents == 1
    assert Contract.model_validate(of.to_json()).sha256 == of.sha256
    assert of.clause_names == ("numeric.output_relative",)
