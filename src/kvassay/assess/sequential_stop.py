"""When a sequential run stops: the judge's own rule, asked during the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from kvassay.assess.arms import PlannedArm
from kvassay.assess.levels.base import Columns
from kvassay.core.contract import Contract
from kvassay.core.records import Role
from kvassay.core.slices import ALL, slice_labels
from kvassay.judge.sequential import Paired, arms_that_matter, deciding_slices, stopping_look


class SequentialStop:
    """Watches the rows of one level. With a fixed design it never stops anything."""

    def __init__(self, contract: Contract, arms: Sequence[PlannedArm]) -> None:
        self._contract = contract
        self._roles: dict[str, Role] = dict(
            arms_that_matter(contract, [(arm.name, arm.role, arm.kv_format.digest) for arm in arms])
        )
        self._differences: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._cells: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))

    def see(self, table: str, columns: Columns) -> None:
        """Take the rows of a unit as they are written."""
        if table != "items" or self._contract.inference.design != "sequential":
            return
        for task, arm, cell, before, after in zip(
            columns["task"],
            columns["arm"],
            columns["slice"],
            columns["reference_correct"],
            columns["candidate_correct"],
            strict=True,
        ):
            if arm in self._roles:
                self._differences[task][arm].append(int(after) - int(before))
                self._cells[task][arm].append(cell)

    @property
    def reached(self) -> bool:
        """Whether every task seen here is settled at a look that has just been reached."""
        return bool(self._differences) and all(self._settled(task) for task in self._differences)

    def _settled(self, task: str) -> bool:
        found = self._differences[task]
        scored = max(map(len, found.values()))
        if scored % self._contract.inference.look_every:
            return False
        arms = {name: (self._roles[name], self._paired(task, name)) for name in found}
        return stopping_look(self._contract, task, arms, scored) == scored

    def _paired(self, task: str, arm: str) -> Paired:
        cells = self._cells[task][arm]
        return Paired(
            np.array(self._differences[task][arm], dtype=np.int64),
            {
                name: np.array([name == ALL or name in slice_labels(cell) for cell in cells], dtype=np.bool_)
                for name in deciding_slices(self._contract, task)
            },
        )
