"""What a matrix file may say, and what names a cell."""

from __future__ import annotations

import pytest

from kvassay.errors import MatrixError
from kvassay.scale.cell import items_of
from kvassay.scale.matrix import is_matrix, load_matrix, parse_matrix
from kvassay.scale.planning import plan_matrix

MATRIX = 'schema = "kvassay.matrix/1"\nname = "m"\nmodels = ["a"]\nformats = ["f16"]\nworkloads = ["w.toml"]\n'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (MATRIX.replace("matrix/1", "contract/1"), "is it a contract"),
        (MATRIX + 'formts = ["f16"]\n', "formts"),
        (MATRIX.replace('["f16"]', '["f16", "f16"]'), "stands twice"),
        (MATRIX.replace('["f16"]', '["int9"]'), "int9"),
        (MATRIX.replace('["a"]', "[]"), "models"),
        (MATRIX + "seeds = [7, 7]\n", "stands twice"),
        ("schema = ", "not valid TOML"),
    ],
)
def test_a_wrong_matrix_is_refused_by_name(text, found) -> None:
    with pytest.raises(MatrixError, match=found):
        parse_matrix(text)


def test_matrices_and_contracts_are_told_apart_by_content(contract_toml) -> None:
    assert is_matrix(MATRIX)
    assert not is_matrix(contract_toml)
    assert not is_matrix("no = [toml")


def test_a_sequential_workload_is_refused_since_cells_do_not_see_each_other(matrix_file, tmp_path) -> None:
    path = matrix_file(workloads=("task.toml",))
    text = (tmp_path / "task.toml").read_text().replace("[inference]", '[inference]\ndesign = "sequential"')
    (tmp_path / "task.toml").write_text(text)
    with pytest.raises(MatrixError, match="looking at all formats"):
        load_matrix(path)


def planned(path):
    return plan_matrix(load_matrix(path), lambda _line: None)


def test_a_cell_is_named_by_content_and_not_by_what_stands_beside_it(matrix_file, tmp_path) -> None:
    """Another format, another error rate, another name of a folder: the same cell. Another bound or seed: another."""
    (group,) = planned(matrix_file()).groups
    cells = {cell.arm: cell.id for cell in group.cells}
    (wider,) = planned(matrix_file(formats=("f16", "int8-tensor"))).groups
    assert {cell.arm: cell.id for cell in wider.cells}["int8-tensor"] == cells["int8-tensor"]
    assert wider.reference == group.reference
    path = matrix_file()
    text = (tmp_path / "text.toml").read_text()
    (tmp_path / "text.toml").write_text(text.replace("[inference]", "[inference]\nalpha = 0.01"))
    (judged,) = planned(path).groups
    assert [cell.id for cell in judged.cells] == [cell.id for cell in group.cells]
    (tmp_path / "text.toml").write_text(text.replace("max = 0.001", "max = 0.002"))
    (bounded,) = planned(path).groups
    assert not {cell.id for cell in bounded.cells} & {cell.id for cell in group.cells}
    (seeded,) = planned(matrix_file(seeds=(8,))).groups
    assert not {cell.id for cell in seeded.cells} & {cell.id for cell in group.cells}


def test_texts_count_by_what_they_say(matrix_file, tmp_path, texts) -> None:
    """A changed file under an unchanged path is another workload."""
    import shutil

    own = shutil.copytree(texts, tmp_path / "own")
    path = matrix_file()
    contract = (tmp_path / "text.toml").read_text().replace(str(texts), str(own))
    (tmp_path / "text.toml").write_text(contract)
    (before,) = planned(path).groups
    (own / "00.txt").write_text("Another river, with no mill and no bridge, and a longer way to the sea. " * 20)
    (after,) = planned(path).groups
    assert before.contract_sha256 == after.contract_sha256
    assert before.reference != after.reference


def test_repetitions_of_the_reference_are_cells_of_their_own(matrix_file, tmp_path) -> None:
    path = matrix_file()
    text = (tmp_path / "text.toml").read_text().replace("[controls]", "[controls]\naa_runs = 3")
    (tmp_path / "text.toml").write_text(text)
    (group,) = planned(path).groups
    again = [cell for cell in group.cells if cell.again]
    assert [cell.again for cell in again] == [1, 2, 3]
    assert len({cell.format_digest for cell in again}) == 1
    assert len({cell.id for cell in group.cells}) == len(group.cells) == 6


def test_references_come_before_the_cells_that_need_them(matrix_file, other_folder, tiny_folder) -> None:
    items = items_of(planned(matrix_file(models=(str(tiny_folder), str(other_folder)))), parts=2)
    seen: set[str] = set()
    for item in items:
        if item.cell is None:
            seen.add(item.group.reference)
        else:
            assert item.group.reference in seen
    assert len({item.id for item in items}) == len(items) == 2 * 2 * 5
