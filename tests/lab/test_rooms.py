"""The rooms' answers over the real server: 36 rows, packs, rows, other margins, comparison."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from kvassay.lab.server import Lab
from tests.lab.running import ask, post, running
from tests.pack.sample_pack import write_sample
from tests.pack.tampering import edit


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two packs, one of them a level deeper, a broken one, and folders that are none."""
    folder = tmp_path_factory.mktemp("shelf")
    write_sample(folder / "one")
    (folder / "older").mkdir()
    write_sample(folder / "older" / "two")
    (folder / "empty").mkdir()
    (folder / "noise").mkdir()
    (folder / "noise" / "manifest.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def lab(shelf: Path):
    with running(shelf, "no-model") as opened:
        yield opened


def number_of(lab: Lab, name: str) -> int:
    return next(pack["number"] for pack in ask(lab, "api/packs").json()["packs"] if pack["name"] == name)


def test_the_shelf_finds_packs_and_names_them_by_number(lab: Lab) -> None:
    packs = {pack["name"]: pack for pack in ask(lab, "api/packs").json()["packs"]}
    assert set(packs) == {"one", "older/two"}
    assert packs["one"]["contract"] == "sample"
    assert packs["one"]["outcome"] in ("met", "breached", "inconclusive")
    assert ask(lab, f"api/packs/{packs['one']['number']}").json()["root"].startswith(packs["one"]["root"])
    assert ask(lab, "api/packs/99").status == 400


def test_a_pack_whose_files_were_edited_is_not_shown(tmp_path: Path) -> None:
    write_sample(tmp_path / "bad")
    edit(tmp_path / "bad", "verdicts.json", lambda verdicts: verdicts.update(reason="all is well"))
    with running(tmp_path, "no-model") as lab:
        (line,) = ask(lab, "api/packs").json()["packs"]
        assert "is not what its run wrote" in line["error"]
        assert "outcome" not in line
        found = ask(lab, f"api/packs/{line['number']}")
        assert (found.status, "is not what its run wrote" in found.json()["error"]) == (400, True)


def test_b54_a_pack_view_says_what_the_verdicts_say(lab: Lab, shelf: Path) -> None:
    from kvassay.pack.reader import read_pack
    from kvassay.report import headline

    content = read_pack(shelf / "one")
    found = ask(lab, f"api/packs/{number_of(lab, 'one')}").json()
    assert found["headline"] == headline(content)
    clauses = [clause for one in content.verdicts.formats for clause in one.clauses]
    assert [row["estimate"] for row in found["clauses"]] == [clause.estimate for clause in clauses]
    assert [row["limit"] for row in found["clauses"]] == [clause.limit for clause in clauses]
    unmeasured = next(row for row in found["answer"] if row["arm"] == "q4_0")
    assert unmeasured["outcome"] == "NOT MEASURED"
    assert unmeasured["stored_bits"] == "not recorded"
    assert {"path": "fidelity.kl_mean.max", "value": 0.02} in found["bounds"]


def test_rows_are_filtered_sorted_and_paged(lab: Lab, shelf: Path) -> None:
    number = number_of(lab, "one")
    first = ask(lab, f"api/packs/{number}/rows?table=tokens").json()
    kl = first["columns"].index("kl_nats")
    shown = [row[kl] for row in first["rows"]]
    assert shown == sorted(shown, reverse=True)
    assert len(shown) == first["page_rows"]
    second = ask(lab, f"api/packs/{number}/rows?table=tokens&offset={first['page_rows']}").json()
    assert max(row[kl] for row in second["rows"]) <= shown[-1]
    one_arm = ask(lab, f"api/packs/{number}/rows?table=tokens&arm=kivi-4&sort=kl_nats&falling=false").json()
    assert {row[0] for row in one_arm["rows"]} == {"kivi-4"}
    assert 0 < one_arm["total"] < first["total"] == first["of"]
    ordered = [row[kl] for row in one_arm["rows"]]
    assert ordered == sorted(ordered)
    document = one_arm["rows"][0][one_arm["columns"].index("document")]
    found = ask(lab, f"api/packs/{number}/rows?table=tokens&text={quote(document)}").json()
    assert 0 < found["total"] < first["total"]
    assert ask(lab, f"api/packs/{number}/rows?table=tokens&text=%25nothing%25").json()["total"] == 0


def test_wrong_items_lead_the_items(lab: Lab) -> None:
    found = ask(lab, f"api/packs/{number_of(lab, 'one')}/rows?table=items").json()
    correct = [row[found["columns"].index("candidate_correct")] for row in found["rows"]]
    assert correct == sorted(correct)
    assert correct[0] is False


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("table=secrets", "table"),
        ("table=tokens&sort=nothing", "has no column 'nothing'"),
        ("table=tokens&table=items", "table is given twice"),
        ("table=tokens&offset=-1", "offset"),
        ("table=tokens&limit=9", "limit"),
    ],
)
def test_a_query_that_is_none_is_refused_by_name(lab: Lab, query: str, sentence: str) -> None:
    found = ask(lab, f"api/packs/{number_of(lab, 'one')}/rows?{query}")
    assert found.status == 400
    assert sentence in found.json()["error"]


def test_other_margins_are_marked_as_after_the_fact(lab: Lab) -> None:
    number = number_of(lab, "one")
    wide = post(lab, f"api/packs/{number}/judge", {"bounds": {"fidelity.kl_mean.max": 5.0}}).json()
    tight = post(lab, f"api/packs/{number}/judge", {"bounds": {"fidelity.kl_mean.max": 1e-9}}).json()
    for found in (wide, tight):
        assert found["mark"] == "post hoc"
        assert found["outcome"].endswith("post hoc")
        assert "no evidence for a claim" in found["sentence"]
        (changed,) = found["changed"]
        assert (changed["key"], changed["pack"]) == ("fidelity.kl_mean.max", 0.02)
    after = {one["arm"]: one["after"] for one in tight["formats"]}
    assert after["int8-token-head"] == "breached"
    # A canary that the contract cannot see leaves nothing that could be met.
    assert "met" not in {one["after"] for one in wide["formats"] if one["role"] == "candidate"}


@pytest.mark.parametrize(
    ("bounds", "sentence"),
    [
        ({"text.documents": 3}, "is no margin of this contract"),
        ({"fidelity.kl_mean.max": -1}, "fidelity.kl_mean.max"),
        ({"__class__.x": 1}, "is no margin"),
    ],
)
def test_what_is_no_margin_cannot_be_changed(lab: Lab, bounds, sentence) -> None:
    found = post(lab, f"api/packs/{number_of(lab, 'one')}/judge", {"bounds": bounds})
    assert found.status == 400
    assert sentence in found.json()["error"]


def test_two_packs_are_compared_and_paired(lab: Lab) -> None:
    found = ask(lab, f"api/compare?first={number_of(lab, 'one')}&second={number_of(lab, 'older/two')}").json()
    assert found["same_contract"] is True
    paired = [clause["paired"] for one in found["formats"] for clause in one["clauses"] if clause["paired"]]
    assert paired
    assert {each["estimate"] for each in paired} == {0.0}


def test_a_report_of_a_stranger_may_be_looked_at_and_do_nothing(tmp_path: Path) -> None:
    write_sample(tmp_path / "pack")
    (tmp_path / "pack" / "report.html").write_text("<script>alert(1)</script>")
    with running(tmp_path, "no-model") as lab:
        found = ask(lab, "packs/1/report.html")
        assert found.status == 200
        policy = found.headers["content-security-policy"]
        assert policy.startswith("sandbox; default-src 'none'")
        assert "script-src" not in policy


def test_files_that_a_report_links_to_are_those_of_the_pack(lab: Lab, shelf: Path) -> None:
    number = number_of(lab, "one")
    found = ask(lab, f"packs/{number}/verdicts.json")
    assert found.body == (shelf / "one" / "verdicts.json").read_bytes()
    assert found.headers["content-type"].startswith("text/plain")
    for name in (
        "../one/verdicts.json",
        "..%2f..%2fone%2fverdicts.json",
        "notes.txt",
        "rows",
        ".",
        "rows/../plan.json",
    ):
        assert ask(lab, f"packs/{number}/{name}").status == 404


def test_r90_the_experiment_room_gives_all_rows_worst_first(lab: Lab) -> None:
    found = ask(lab, "api/experiment").json()
    errors = [row["output_max_abs"] for row in found["rows"]]
    assert len(errors) == 36
    assert errors == sorted(errors, reverse=True)
    assert errors[0] == pytest.approx(4.136, abs=5e-4)
    worst = found["worst"]
    assert worst["equal_codes_in_row_0"] == worst["width"] == 32
    assert worst["codes"]["row 0"]["tensor"] == worst["codes"]["row 0"]["row"]
    assert worst["codes"]["row 1"]["tensor"] != worst["codes"]["row 1"]["row"]
    assert 17 < worst["fold"] < 19
    assert worst["row_scales"][0] == worst["tensor_scale"] > 5 * worst["row_scales"][1]
    assert found["exercise"][0]["scales_changed"] == 1


def test_r108_the_audit_recomputes_a_fresh_folder(lab: Lab) -> None:
    found = post(lab, "api/experiment/audit", {}).json()
    assert found["passed"] is True
    assert {"codes", "outputs", "inputs-from-seeds"} <= {check["name"] for check in found["checks"]}


def test_r65_the_reference_tests_are_there_to_be_read(lab: Lab) -> None:
    tests = ask(lab, "api/network").json()["tests"]
    root = Path(__file__).parents[2]
    for test in tests:
        assert (root / test["path"]).is_file()
        source = ask(lab, f"reference-tests/{test['number']}")
        assert source.headers["content-type"].startswith("text/plain")
        assert source.body == (root / test["path"]).read_bytes()
    assert ask(lab, f"reference-tests/{len(tests)}").status == 400
    assert ask(lab, "reference-tests/-1").status == 400
