"""Answers in several steps, each written out: variables that stand for others, and sums of several numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.keyed import Keyed
from kvassay.core.tasks.prose import sentences
from kvassay.core.tasks.script import Entry, Facts, Script, ascending_positions
from kvassay.core.tasks.settings import TaskSettings

EXAMPLES = 2
"""Worked examples before the question, about sentences of the same context."""
MOST_OPERAND = 9
VARIABLES = tuple("BCDEFGHJKLMNPQRSTUVWXYZ")
"""Capital letters that are no English word."""


def variable_tracking(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Variables that are another variable or a number; the asked one is followed to its number, hop by hop.

    A variable's sentence stands after that of the variable which it names, as an assignment does.
    """
    hops = int(facts["hops"])
    names = draws.shuffled("names", VARIABLES)[: (EXAMPLES + 1) * (hops + 1)]
    chains = [names[start : start + hops + 1] for start in range(0, len(names), hops + 1)]
    numbers = list(islice(draws.integers("numbers", 1000, 9999), len(chains)))
    asked, *examples = [_followed(chain, number) for chain, number in zip(chains, numbers, strict=True)]
    said = f"{chains[0][-1]} ="

    def filler(nouns: Sequence[str]) -> Iterator[str]:
        return sentences(draws, ())

    return Script(
        question=chains[0][-1],
        expected=asked.removeprefix(f"{said} "),
        heading="A text with variables in it.\n\n",
        entries=tuple(
            Entry(position, f"{sentence}. ")
            for which, (chain, number) in enumerate(zip(chains, numbers, strict=True))
            for position, sentence in zip(
                ascending_positions(draws, str(which), hops + 1), _assignments(chain, number), strict=True
            )
        ),
        ask="\n\nEach variable followed to its number:\n" + "".join(f"{one}.\n" for one in examples) + said,
        filler=filler,
    )


def arithmetic(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Named sums of small numbers in prose; one is given again and worked out: `3 + 4 + 2 = 7 + 2 = 9`."""
    steps = int(facts["steps"])
    keyed = Keyed(draws, facts, EXAMPLES + 1)
    sums = [
        [draws.integer(f"sum/{which}/{place}", 1, MOST_OPERAND) for place in range(steps + 1)]
        for which in range(len(keyed.words))
    ]
    worked = [f"The sum of the {word} is {_worked_out(one)}.\n" for word, one in zip(keyed.words, sums, strict=True)]
    return keyed.script(
        "A text with sums in it.",
        [f"The sum of the {word} is {_written(one)}." for word, one in zip(keyed.words, sums, strict=True)],
        f"The sums worked out:\n{''.join(worked[1:])}The sum of the {keyed.words[0]} is",
        _worked_out(sums[0]),
    )


def _assignments(chain: Sequence[str], number: int) -> list[str]:
    return [f"{chain[0]} = {number}", *(f"{later} = {sooner}" for sooner, later in pairwise(chain))]


def _followed(chain: Sequence[str], number: int) -> str:
    """From the last variable of a chain to its number: `M = P. P = 4821`."""
    return ". ".join(reversed(_assignments(chain, number)))


def _written(operands: Sequence[int]) -> str:
    return " + ".join(map(str, operands))


def _worked_out(operands: Sequence[int]) -> str:
    """The sum, then each step with what is left of it."""
    left = list(operands)
    steps = [_written(left)]
    while len(left) > 1:
        left = [left[0] + left[1], *left[2:]]
        steps.append(_written(left))
    return " = ".join(steps)
