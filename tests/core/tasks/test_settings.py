"""Slices of a task: every combination, spread evenly, and counted in advance."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.clauses.tasks import TaskBound
from kvassay.core.contract import parse_contract
from kvassay.core.tasks.kinds import KIND_NAMES, KINDS, length_fits, task_draw
from kvassay.core.tasks.settings import TaskSettings, cell_labels, cell_of, planned_in_slice
from kvassay.errors import ContractError

HEAD = 'schema = "kvassay.contract/1"\nname = "t"\n[candidates]\norder = ["int8-token-head"]\n'

SETTINGS = st.builds(
    lambda tokens, depths, languages: TaskSettings("needle", None, tokens, depths, languages),
    st.sampled_from([(), (512,), (512, 1024), (512, 1024, 2048, 4096)]),
    st.sampled_from([(), ("early",), ("early", "late"), ("early", "middle", "late")]),
    st.sampled_from([(), ("en", "de", "fr", "es")]),
)


@settings(deadline=None)
@given(SETTINGS, st.integers(0, 1000), st.integers(1, 200))
def test_r44_items_spread_evenly_over_every_axis_wherever_the_verdict_begins(cut, first, count) -> None:
    labels = [label for index in range(first, first + count) for label in cell_labels(cell_of(cut, index))]
    found = Counter(labels)
    for label in cut.labels:
        assert found[label] == planned_in_slice(cut, label, first, count)
    for name, values in cut.axes:
        counts = [found[f"{name}={value}"] for value in values]
        assert max(counts) - min(counts) <= 4


@settings(deadline=None)
@given(SETTINGS)
def test_every_combination_comes_once_a_round(cut) -> None:
    cells = 1
    for _, values in cut.axes:
        cells *= len(values)
    assert len({cell_of(cut, index) for index in range(cells)}) == cells
    assert cell_of(cut, 0) == cell_of(cut, cells)


def test_a_pilot_of_a_few_items_already_sees_every_slice() -> None:
    bound = TaskBound.model_validate({"kind": "needle", "margin": 0.1, "context_tokens": (512, 1024, 2048)})
    labels = {label for index in range(3) for label in task_draw("needle", bound.settings, 7, index).labels}
    assert labels == set(bound.settings.labels)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_the_kind_is_by_default_the_name_and_the_hash_holds_its_settings(kind) -> None:
    margin = f'[task.{kind}]\nmargin = 0.05\n[task.arithmetic-too]\nkind = "arithmetic"\nmargin = 0.05\n'
    contract = parse_contract(HEAD + margin)
    bound = contract.task[kind]
    assert bound.kind == kind
    assert parse_contract(HEAD + margin.replace(f"[task.{kind}]\n", f'[task.{kind}]\nkind = "{kind}"\n')) == contract
    stated = contract.to_json()["task"][kind]
    for name, default in KINDS[kind].defaults.items():
        assert stated[name] == (list(default) if isinstance(default, tuple) else default)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[task.chess]\nmargin = 0.1",
            "task: 'chess' is no kind of task; write kind = ... in [task.chess], one of recall",
        ),
        ('[task.x]\nkind = "chess"\nmargin = 0.1', "task.x.kind: Input should be 'recall', 'passkey'"),
        ("[task.Json]\nmargin = 0.1", "task: 'Json' is no kind"),
        ('[task."a/b"]\nkind = "json"\nmargin = 0.1', "task.a/b"),
        ("[task.needle]\nmargin = 0.1", "needles (needle) see gross damage only and cannot be the only evidence"),
        (
            "[task.json]\nmargin = 0.1\nhops = [1]",
            "task.json: kind 'json' takes no hops; it takes context_tokens, depths",
        ),
        ("[task.json]\nmargin = 0.1\ncontext_lines = 4", "task.json: kind 'json' takes no context_lines"),
        ("[task.json]\nmargin = 0.1\ndepths = []", "task.json: depths is empty"),
        ("[task.json]\nmargin = 0.1\ncontext_tokens = []", "expected the length of a context once"),
        ("[task.recall]\nmargin = 0.1\ncontext_tokens = [512]\ncontext_lines = 4", "the length of a context once"),
        ("[task.json]\nmargin = 0.1\ncontext_tokens = [512, 512]", "context_tokens names something twice"),
        ("[task.json]\nmargin = 0.1\ncontext_tokens = [64]", "greater than or equal to 128"),
        (
            '[task.json]\nmargin = 0.1\nslices = ["tokens=1024"]',
            "slices: found 'tokens=1024'; expected each once, of tokens=512, depth=early, depth=middle, depth=late",
        ),
        (
            '[task.recall]\nmargin = 0.1\nslices = ["early"]',
            "slices: found 'early'; expected each once, of depth=early",
        ),
        ('[task.json]\nmargin = 0.1\nslices = ["depth=late", "depth=late"]', "slices: found 'depth=late'"),
        ("[task]\njson = 3", "task.json"),
        ("task = 3", "task"),
    ],
)
def test_what_a_kind_does_not_take_is_refused(text, message) -> None:
    text = text + "\n" + HEAD if text.startswith("task =") else HEAD + text
    with pytest.raises(ContractError) as caught:
        parse_contract(text, "c.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_b20_needles_beside_other_evidence_are_welcome() -> None:
    for other in ("[fidelity.kl_mean]\nmax = 0.01\n", "[task.arithmetic]\nmargin = 0.1\n"):
        assert parse_contract(f"{HEAD}[task.needle]\nmargin = 0.1\n{other}").task["needle"].items == 64


@settings(deadline=None)
@given(st.integers(128, 10_000))
def test_a_context_of_another_planned_length_does_not_fit(asked) -> None:
    assert length_fits(asked - 60, asked) or asked < 120
    assert not length_fits(asked // 2, asked)
    assert not length_fits(2 * asked - 60, asked)
    assert not length_fits(float("nan"), asked)
