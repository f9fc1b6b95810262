"""`kvassay contract`: draft a contract from five questions, check one, and print the schema of all."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import cyclopts
from cyclopts import Parameter

from kvassay.cli.output import print_json
from kvassay.cli.whole_numbers import whole_number
from kvassay.errors import ContractError, UsageError, printable

contract = cyclopts.App(name="contract", help="Contract files: draft one from five questions, check one, their schema.")

Answer = TypeVar("Answer")
Choice = TypeVar("Choice", bound=StrEnum)

_QUESTIONS = 5


@contract.command
def init(
    file: Path = Path("contract.toml"),
    /,
    *,
    purpose: Annotated[str | None, Parameter(name="--for")] = None,
    lose: tuple[str, ...] = (),
    loss: str | None = None,
    context: Annotated[int | None, whole_number(128, 1 << 20)] = None,
    minutes: float | None = None,
    margin: float | None = None,
    corpus: str | None = None,
    format: tuple[str, ...] = (),
    name: str | None = None,
    tokens_per_second: float = 240.0,
    yes: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Ask five questions and write a commented contract, its sample sized for the margins. Each question is an option.

    Parameters
    ----------
    file
        The TOML file to write; an existing one is refused.
    purpose
        What the model is for: chat, retrieval (over long documents), or code (and tool calls).
    lose
        Which losses matter, once for each: kl_mean, kl_exceed, nll_delta, recall.
    loss
        How large a loss is acceptable: strict, usual or loose.
    context
        The longest context, in tokens.
    minutes
        How long the run may take. A margin is never widened to fit; what would fit is said.
    margin
        Largest loss of task accuracy as a share, in place of that of --loss (0.02 is two points).
    corpus
        Text for the fidelity clauses: hansard, python-source, or path:FOLDER_OR_FILE.
    format
        A format to judge, once for each, from most to least conservative.
    name
        Name of the contract; names the evidence.
    tokens_per_second
        How fast the model reads on your machine; the default is SmolLM2-135M on two cores.
    yes
        Ask nothing: the defaults of the purpose hold for what is not given.
    json
        Print one JSON document.
    """
    from kvassay.cli.contract_draft import FORMATS, PURPOSES, Grade, Loss, Purpose, answers_for, draft_contract
    from kvassay.cli.contract_text import contract_text
    from kvassay.pack.whole_file import refuse_existing, write_whole_file

    refuse_existing(file)
    ask = _Asking(silent=yes)
    what_for = ask("What is the model for", purpose, Purpose.CHAT, lambda text: _chosen(Purpose, text))
    default = PURPOSES[what_for]
    given = ",".join(lose) or None
    answers = answers_for(
        what_for,
        losses=ask("Which losses matter", given, default.losses, lambda text: _several(Loss, text)),
        grade=ask("How large a loss is acceptable", loss, default.grade, lambda text: _chosen(Grade, text)),
        context=ask("The longest context, in tokens", context, default.context, _whole),
        minutes=ask("How many minutes the run may take", minutes, default.minutes, _minutes),
        corpus=corpus,
        formats=format or FORMATS,
        name=name,
        margin=margin,
        tokens_per_second=_positive("--tokens-per-second", tokens_per_second),
    )
    draft = draft_contract(answers)
    write_whole_file(file, contract_text(answers, draft).encode())
    cost = draft.cost._asdict()
    if json:
        found = {"file": str(file), "contract_sha256": draft.contract.sha256, "clauses": draft.contract.clause_names}
        print_json({**found, "contract": draft.contract.to_json(), "cost": cost, "notes": draft.notes})
        return 0
    print(f"written  {printable(str(file))}\nhash     {draft.contract.sha256}")
    print(f"bounds   {', '.join(draft.contract.clause_names)}")
    print(
        f"cost     {cost['text_tokens']:,} tokens of text and {cost['item_tokens']:,} of task items, about "
        f"{cost['minutes']:.0f} minutes at {tokens_per_second:g} tokens a second"
    )
    for note in draft.notes:
        print(f"note     {printable(note)}")
    print(printable(f"next     kvassay plan MODEL --contract {file}"))
    return 0


@contract.command
def check(file: Path, /, *, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Whether a contract is valid, its hash, what it bounds, and what it does not.

    Parameters
    ----------
    file
        A contract.
    json
        Print one JSON document.
    """
    from kvassay.core.contract import load_contract
    from kvassay.core.contract_scope import scope

    loaded = load_contract(file)
    found = scope(loaded)
    if json:
        print_json(
            {
                "file": str(file),
                "name": loaded.name,
                "contract_sha256": loaded.sha256,
                "clauses": [clause._asdict() for clause in found.clauses],
                "unbounded": found.unbounded,
                "contract": loaded.to_json(),
            }
        )
        return 0
    print(f"valid: {printable(loaded.name)}, contract {loaded.sha256}")
    for clause in found.clauses:
        print(f"bounds {clause.name}: {printable(clause.sentence)}")
    for sentence in _by_level(found.unbounded):
        print(f"does not bound {printable(sentence)}")
    return 0


@contract.command
def schema() -> int:
    """Print the JSON Schema of contract files, made from the models that read them."""
    from kvassay.core.contract_schema import contract_schema

    print_json(contract_schema())
    return 0


def _by_level(unbounded: Sequence[str]) -> list[str]:
    """One sentence for each level of clauses, then those that are sentences already."""
    clauses = [name for name in unbounded if re.fullmatch(r"\w+\.[\w.-]+", name)]
    levels: dict[str, list[str]] = {}
    for level, _, clause in (name.partition(".") for name in clauses):
        levels.setdefault(level, []).append(clause)
    return [
        *(f"{level}: {', '.join(names)}" for level, names in levels.items()),
        *(sentence for sentence in unbounded if sentence not in clauses),
    ]


class _Asking:
    """Asks on a terminal, takes the default where told to, and else says which option answers."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._asked = 0

    def __call__(self, question: str, given: object, default: Answer, read: Callable[[str], Answer]) -> Answer:
        self._asked += 1
        if given is not None:
            return read(str(given))
        if self._silent:
            return default
        if not sys.stdin.isatty():
            raise UsageError(
                f"kvassay contract init has a question and nobody to ask ({question}); answer by options, or take the "
                "defaults with --yes (see kvassay contract init --help)"
            )
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
        while True:
            print(f"{self._asked} of {_QUESTIONS}. {question}? [{shown}] ", end="", file=sys.stderr, flush=True)
            try:
                answer = input().strip()
            except EOFError:
                raise UsageError("the answers ended before the questions; nothing was written") from None
            try:
                return read(answer) if answer else default
            except ContractError as error:
                print(f"   {error}", file=sys.stderr)


def _chosen(kind: type[Choice], text: str) -> Choice:
    """A member of an enumeration by its value."""
    try:
        return kind(text.strip())
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise ContractError(f"found {text.strip()!r}; expected one of {known}") from None


def _several(kind: type[Choice], text: str) -> tuple[Choice, ...]:
    return tuple(dict.fromkeys(_chosen(kind, part) for part in text.split(",") if part.strip()))


def _whole(text: str) -> int:
    try:
        return int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise ContractError(f"found {text!r}; expected a whole number") from None


def _minutes(text: str) -> float:
    try:
        return _positive("minutes", float(text))
    except ValueError:
        raise ContractError(f"found {text!r}; expected a number of minutes") from None


def _positive(what: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise ContractError(f"{what}: found {value:g}; expected a number above 0")
    return value
