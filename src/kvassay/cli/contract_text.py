"""A contract as commented TOML: the keys are those of the models, in their order; the comments say why.

Figures in comments are written from the contract's own values, so that prose and number cannot disagree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from kvassay.cli.contract_draft import DISCORDANCE, EXPECTED_SHARE, PURPOSES, Answers, Draft
from kvassay.core.contract import Contract, parse_contract
from kvassay.errors import ContractError
from kvassay.stats.planning import plan_pairs

WIDTH = 100


def contract_text(answers: Answers, draft: Draft) -> str:
    """The TOML text, which parses as the draft's contract."""
    comments = _comments(answers, draft)
    fields = draft.contract.model_dump(mode="json", by_alias=True, exclude_unset=True)
    text = "\n".join([*_comment(comments[""]), *_table(fields, "", comments)]) + "\n"
    if parse_contract(text).sha256 != draft.contract.sha256:
        raise ContractError(f"the name {draft.contract.name!r} cannot be written in TOML; use plain characters")
    return text


def _table(fields: Mapping[str, Any], path: str, comments: Mapping[str, str]) -> Iterator[str]:
    """Values first, then tables, as TOML wants it."""
    for key, value in fields.items():
        if not isinstance(value, dict):
            where = f"{path}.{key}" if path else key
            yield from _comment(comments.get(where, ""))
            yield f"{key} = {_value(value)}"
    for key, value in fields.items():
        if isinstance(value, dict):
            where = f"{path}.{key}" if path else key
            if any(not isinstance(inner, dict) for inner in value.values()):
                yield ""
                yield from _comment(comments.get(where, ""))
                yield f"[{where}]"
            yield from _table(value, where, comments)


def _value(value: Any) -> str:
    """Text, numbers, truth and lists of text are written in TOML as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def _comment(text: str) -> Iterator[str]:
    for paragraph in text.split("\n") if text else ():
        yield from wrap(paragraph, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _comments(answers: Answers, draft: Draft) -> dict[str, str]:
    """By dotted path of the table or key that follows."""
    contract, why, cost = draft.contract, PURPOSES[answers.purpose], draft.cost
    found = {
        "": f"A quality contract for {why.words}: what a quantized KV cache may lose, fixed and hashed before "
        "the run.\n"
        f"Drafted from: {answers.purpose.value}, {', '.join(answers.losses)}, {answers.grade.value}, contexts of up to "
        f"{answers.context} tokens, at most {answers.minutes:g} minutes. Every bound is yours to change before the "
        "run.\n"
        f"Expected cost: {cost.text_tokens + cost.item_tokens:,} tokens, about {cost.minutes:.0f} minutes at "
        f"{answers.tokens_per_second:g} tokens a second; `kvassay plan MODEL --contract FILE` measures it.\n"
        + "\n".join(f"Note: {note}." for note in draft.notes),
        "candidates": "From most to least conservative: claims stop at the first format that is not met.",
        "inference": f"Each bound errs at most {100 * contract.inference.alpha:g}% of the time to its own side; sizes "
        f"are planned for a chance of {100 * contract.inference.power:g}% that a format at "
        f"{100 * EXPECTED_SHARE:g}% of a limit is met.",
        "controls": "A run that cannot see 2-bit damage, or that finds damage in the reference itself, proves nothing.",
    }
    bounds = contract.fidelity
    if contract.has_fidelity:
        text = contract.text
        found["text"] = (
            f"{why.why_text} {text.documents} documents of {text.prompt_tokens} tokens of history and "
            f"{text.scored_tokens} decode steps."
        )
    if bounds.kl_mean:
        found["fidelity.kl_mean"] = (
            f"At most {bounds.kl_mean.max:g} nats a token on average. {why.why_mean} In practice a mean KL of 0.01 is "
            "good and 0.1 is marginal."
        )
    if bounds.kl_exceed:
        found["fidelity.kl_exceed"] = (
            f"At most {100 * bounds.kl_exceed.max_rate:g}% of the steps may be more than "
            f"{bounds.kl_exceed.tau_nats:g} nats off. {why.why_tail}"
        )
    if bounds.nll_delta:
        found["fidelity.nll_delta"] = (
            f"The text itself may become at most {bounds.nll_delta.max:g} nats a token less likely, which is "
            f"{100 * (math.expm1(bounds.nll_delta.max)):.2g}% of perplexity."
        )
    for name, bound in contract.task.items():
        found[f"task.{name}"] = (
            f"At most {_points(bound.margin)} of accuracy may be lost. {why.why_recall} {bound.items} contexts "
            f"decide that if {100 * DISCORDANCE:g}% of the answers change either way; with none changed "
            f"{_least(contract, bound.margin)} would do. Below a reference accuracy of {100 * bound.ref_floor:g}% the "
            "task shows nothing."
        )
    return found


def _points(share: float) -> str:
    return f"{100 * share:g} point{'' if share == 0.01 else 's'}"


def _least(contract: Contract, margin: float) -> int:
    return plan_pairs(margin, DISCORDANCE, alpha=contract.inference.alpha).undiscordant_exact
