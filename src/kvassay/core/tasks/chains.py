"""Answers in several steps: variables that stand for others, and sums written out one step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.script import Entry, Facts, Script, asked_position
from kvassay.core.tasks.settings import TaskSettings
from kvassay.core.tasks.words import NOUNS

EXAMPLES = 2
"""Worked examples before the question, about entries of the same context."""
MOST_OPERAND = 9


def variable_tracking(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Assignments such as `apron = kettle` and `kettle = 4821`; a variable is followed to its number, hop by hop.

    The chains of the context are as long as the asked one, and each is in order: a variable is assigned before it is
    used.
    """
    hops = int(facts["hops"])
    words = draws.shuffled("words", NOUNS)
    chains = [words[start : start + hops + 1] for start in range(0, (EXAMPLES + 1) * (hops + 1), hops + 1)]
    numbers = list(islice(draws.integers("numbers", 1000, 9999), len(chains)))
    entries: list[Entry] = []
    for which, (chain, number) in enumerate(zip(chains, numbers, strict=True)):
        positions = sorted(draws.share(f"position/{which}/{link}") for link in range(hops + 1))
        entries += [
            Entry(position, line) for position, line in zip(positions, _assignments(chain, number), strict=True)
        ]
    asked, *examples = [_trace(chain, number) for chain, number in zip(chains, numbers, strict=True)]
    taken = {word for chain in chains for word in chain}

    def filler(nouns: Sequence[str]) -> Iterator[str]:
        free = iter([noun for noun in nouns if noun not in taken])
        others = draws.integers("others", 1000, 9999, numbers)
        while len(chain := list(islice(free, hops + 1))) == hops + 1:
            yield from _assignments(chain, next(others))

    variable, _, expected = asked.partition(" = ")
    return Script(
        question=variable,
        expected=expected,
        heading="Assignments, one a line.\n\n",
        entries=tuple(entries),
        ask="\nEach variable followed to its number:\n" + "".join(f"{one}\n" for one in examples) + f"{variable} =",
        filler=filler,
    )


def arithmetic(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Named sums of small numbers; one is looked up and worked out, each step written: `3 plus 4 is 7, plus 2 is 9`."""
    steps = int(facts["steps"])
    words = draws.shuffled("words", NOUNS)[: EXAMPLES + 1]
    sums = [_operands(draws, f"sum/{which}", steps) for which in range(len(words))]
    positions = [asked_position(draws, facts), *(draws.share(f"position/{which}") for which in range(EXAMPLES))]

    def filler(nouns: Sequence[str]) -> Iterator[str]:
        for place, noun in enumerate(noun for noun in nouns if noun not in words):
            yield _sum_line(noun, _operands(draws, f"other/{place}", steps))

    worked = [f"{word}: {_worked_out(operands)}" for word, operands in zip(words, sums, strict=True)]
    return Script(
        question=words[0],
        expected=_worked_out(sums[0]),
        heading="A list of sums.\n\n",
        entries=tuple(
            Entry(position, _sum_line(word, operands))
            for position, word, operands in zip(positions, words, sums, strict=True)
        ),
        ask="\nWorked out step by step:\n" + "".join(f"{one}\n" for one in worked[1:]) + f"{words[0]}:",
        filler=filler,
    )


def _assignments(chain: Sequence[str], number: int) -> list[str]:
    return [f"{variable} = {value}\n" for variable, value in zip(chain, [str(number), *chain], strict=False)]


def _trace(chain: Sequence[str], number: int) -> str:
    return " = ".join([*reversed(chain), str(number)])


def _operands(draws: Draws, what: str, steps: int) -> list[int]:
    return [draws.integer(f"{what}/{place}", 1, MOST_OPERAND) for place in range(steps + 1)]


def _sum_line(word: str, operands: Sequence[int]) -> str:
    return f"{word}: {', plus '.join([f'{operands[0]} plus {operands[1]}', *map(str, operands[2:])])}\n"


def _worked_out(operands: Sequence[int]) -> str:
    """`2 plus 4 is 6, plus 9 is 15`."""
    total = operands[0] + operands[1]
    steps = [f"{operands[0]} plus {operands[1]} is {total}"]
    for operand in operands[2:]:
        total += operand
        steps.append(f"plus {operand} is {total}")
    return ", ".join(steps)
