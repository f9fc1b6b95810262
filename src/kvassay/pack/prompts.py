"""Do generation rows belong to the prompts and end tokens that the subject lists?"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ValidationError

from kvassay.core.digest import sha256_json
from kvassay.judge.generation_rows import read_generations
from kvassay.pack import layout
from kvassay.pack.checks import Check
from kvassay.pack.manifest import first_fault
from kvassay.pack.reader import PackContent


class _Prompt(BaseModel):
    id: str
    slice: str
    sha256: str


class _FreeRunning(BaseModel):
    """What the subject says of the free-running level; further fields are free."""

    end_ids: tuple[int, ...]
    prompts: tuple[_Prompt, ...]


def prompt_checks(pack: PackContent) -> Iterator[Check]:
    """The prompts that rows are of are those that the subject lists, token for token, with its end tokens."""
    if not pack.tables.generations.num_rows:
        return
    try:
        listed = _FreeRunning.model_validate(pack.subject.get("free_running"), strict=False)
    except ValidationError as error:
        yield Check("prompts", False, f"{layout.SUBJECT}: free_running: {first_fault(error)}")
        return
    fault = _fault(pack, listed)
    well = f"the rows continue the {len(listed.prompts)} prompts that {layout.SUBJECT} lists"
    yield Check("prompts", fault is None, fault or well)


def _fault(pack: PackContent, listed: _FreeRunning) -> str | None:
    prompts = {prompt.id: prompt for prompt in listed.prompts}
    if len(prompts) != len(listed.prompts):
        return f"{layout.SUBJECT} lists a prompt twice"
    for arm, rows in read_generations(pack.tables.generations, [arm.name for arm in pack.arms]).items():
        for row in rows:
            prompt = prompts.get(row.prompt)
            if prompt is None:
                return f"{arm} continues the prompt {row.prompt!r}, which {layout.SUBJECT} does not list"
            if sha256_json(list(row.prompt_ids)) != prompt.sha256:
                return f"the prompt {row.prompt!r} in the rows of {arm} is not that which {layout.SUBJECT} hashes"
            if row.slice != prompt.slice:
                return f"{arm} has the prompt {row.prompt!r} in another slice than {layout.SUBJECT}"
            if row.end_ids != listed.end_ids:
                return f"{arm} has other end tokens than {layout.SUBJECT} for the prompt {row.prompt!r}"
        if missing := sorted(set(prompts) - {row.prompt for row in rows}):
            return f"{arm} has no output of the prompt {missing[0]!r}, which {layout.SUBJECT} lists"
    return None
