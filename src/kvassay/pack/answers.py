"""Do rows of written answers belong to the items and end tokens that the subject lists?"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ValidationError

from kvassay.core.digest import sha256_json
from kvassay.judge.answer_rows import read_answers
from kvassay.pack import layout
from kvassay.pack.checks import Check
from kvassay.pack.manifest import first_fault
from kvassay.pack.reader import PackContent


class _Item(BaseModel):
    id: str
    sha256: str


class _Written(BaseModel):
    """What the subject says of written answers; further fields are free."""

    end_ids: tuple[int, ...]
    items: tuple[_Item, ...]


def answer_checks(pack: PackContent) -> Iterator[Check]:
    """The items that rows are of are those that the subject lists, with their prompts and end tokens."""
    if not pack.tables.answers.num_rows:
        return
    try:
        listed = _Written.model_validate(pack.subject.get("written"), strict=False)
    except ValidationError as error:
        yield Check("answers", False, f"{layout.SUBJECT}: written: {first_fault(error)}")
        return
    fault = _fault(pack, listed)
    well = f"the rows answer the {len(listed.items)} items that {layout.SUBJECT} lists"
    yield Check("answers", fault is None, fault or well)


def _fault(pack: PackContent, listed: _Written) -> str | None:
    digests = {item.id: item.sha256 for item in listed.items}
    if len(digests) != len(listed.items):
        return f"{layout.SUBJECT} lists a written item twice"
    known: dict[tuple[int, ...], str] = {}
    seen: dict[str, set[str]] = {}
    for found in read_answers(pack.tables.answers, [arm.name for arm in pack.arms]).values():
        for arm, rows in found.items():
            seen.setdefault(arm, set()).update(row.context for row in rows)
            for row in rows:
                if row.context not in digests:
                    return f"{arm} answers the item {row.context!r}, which {layout.SUBJECT} does not list"
                # Every arm repeats the prompt, which is hashed once.
                prompt = row.output.prompt_ids
                if prompt not in known:
                    known[prompt] = sha256_json(list(prompt))
                if known[prompt] != digests[row.context]:
                    return f"the rows of {arm} have another prompt of {row.context!r} than {layout.SUBJECT} hashes"
                if row.output.end_ids != listed.end_ids:
                    return f"{arm} has other end tokens than {layout.SUBJECT} for the item {row.context!r}"
    for arm, contexts in seen.items():
        if missing := sorted(set(digests) - contexts):
            return f"{arm} has no answer to the item {missing[0]!r}, which {layout.SUBJECT} lists"
    return None
