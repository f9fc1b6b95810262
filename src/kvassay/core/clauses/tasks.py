"""The task level: what the model must still get right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer, model_validator

from kvassay.core.clauses.fields import Count, Margin, Section
from kvassay.core.tasks.kinds import KIND_NAMES, KINDS, NEEDLE_KINDS, TaskKind
from kvassay.core.tasks.settings import TaskSettings, planned_in_slice

TaskName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
ContextTokens = Annotated[int, Field(ge=128, le=1 << 24)]
_SETTINGS = tuple(name for name in TaskSettings._fields if name != "kind")

TEACHER_FORCED = "teacher-forced"
WRITTEN = "written"
PARSE = "parse"
"""Name of the clause of a task on the share of its written answers that parse, behind the task's own."""
_OF_WRITTEN = ("answer", "answer_tokens", "parse_margin", "lines")
"""Fields that the effective contract holds of written tasks only."""
ANSWER_SLACK_TOKENS = 8
"""Beyond the bytes of the true answer, of which no tokenizer makes more tokens: room for a line break or an end."""


class TaskBound(Section):
    """Paired non-inferiority of a task's accuracy: the loss may be at most `margin` (0.02 = two points)."""

    kind: TaskKind
    """What is asked; by default what the task is called."""
    margin: Margin
    ref_floor: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    items: Count = Field(default=64, ge=1)
    context_lines: int | None = Field(default=None, ge=2, le=1000)
    context_tokens: tuple[ContextTokens, ...] = Field(default=(), max_length=16)
    depths: tuple[Literal["early", "middle", "late"], ...] = ()
    languages: tuple[Literal["en", "de", "fr", "es"], ...] = ()
    rarities: tuple[Literal["common", "rare"], ...] = ()
    hops: tuple[Annotated[int, Field(ge=1, le=4)], ...] = Field(default=(), max_length=4)
    steps: tuple[Annotated[int, Field(ge=1, le=8)], ...] = Field(default=(), max_length=8)
    keys: int | None = Field(default=None, ge=2, le=32)
    values: int | None = Field(default=None, ge=2, le=8)
    answer: Literal["teacher-forced", "written"] = TEACHER_FORCED
    """Whether the true answer is given token by token, or the model writes one by itself."""
    answer_tokens: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    """Most tokens of a written answer; by default what the true answer can take in any tokenizer."""
    parse_margin: Margin | None = None
    """Largest allowed loss of the share of written answers that parse, for kinds whose answers have a form."""
    lines: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = Field(default=(), max_length=8)
    """Lines of an answer of long generation."""
    slices: tuple[str, ...] = ()
    """Those that must be MET by themselves."""

    @model_validator(mode="before")
    @classmethod
    def _kind_defaults(cls, given: Any) -> Any:
        """The effective contract states what a kind takes where the file does not."""
        if not isinstance(given, Mapping):
            return given
        # A validator that comes before turns JSON into Python, where a strict tuple is not written as a list.
        fields = {
            name: tuple(cast(list[Any], value)) if isinstance(value, list) else value
            for name, value in cast(Mapping[str, Any], given).items()
        }
        kind = fields.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            return fields
        if KINDS[kind].written_only:
            fields.setdefault("answer", WRITTEN)
        if fields.get("context_tokens"):
            # A length is given in tokens or in lines, so the default of the other does not count.
            fields.setdefault("context_lines", None)
        return {**KINDS[kind].defaults, **fields}

    @model_validator(mode="after")
    def _fits_its_kind(self) -> TaskBound:
        takes = KINDS[self.kind].defaults
        takes_lines = "lines" in takes
        for name in _SETTINGS:
            value = getattr(self, name)
            if value not in (None, ()) and name not in takes:
                raise ValueError(f"kind {self.kind!r} takes no {name}; it takes {', '.join(takes)}")
            if value in (None, ()) and name in takes and name not in ("context_lines", "context_tokens"):
                raise ValueError(f"{name} is empty; write some, or leave it out for {takes[name]}")
            if isinstance(value, tuple) and len(set(cast(tuple[Any, ...], value))) != len(cast(tuple[Any, ...], value)):
                raise ValueError(f"{name} names something twice: {list(cast(tuple[Any, ...], value))}")
        self._check_answer()
        # The length of what long generation writes again follows from its lines.
        if not takes_lines and (self.context_lines is None) == (not self.context_tokens):
            raise ValueError("expected the length of a context once, as context_tokens or, for recall, context_lines")
        for index, name in enumerate(self.slices):
            if name not in self.settings.labels or name in self.slices[:index]:
                raise ValueError(
                    f"slices: found {name!r}; expected each once, of {', '.join(self.settings.labels) or 'none'}"
                )
        return self

    def _check_answer(self) -> None:
        kind = KINDS[self.kind]
        if not self.is_written:
            if kind.written_only:
                raise ValueError(
                    f'kind {self.kind!r} under teacher forcing gives its lines away; write answer = "written"'
                )
            given = [name for name in ("answer_tokens", "parse_margin") if getattr(self, name) is not None]
            if given:
                raise ValueError(f'{given[0]} is of written answers; add answer = "written", or remove it')
        if self.parse_margin is not None and not kind.form.can_fail_to_parse:
            able = ", ".join(name for name, one in KINDS.items() if one.form.can_fail_to_parse)
            raise ValueError(f"parse_margin: any text is an answer of kind {self.kind!r}; kinds with a form: {able}")

    @model_serializer(mode="wrap")
    def _without_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what only written answers have, where there are none: such a contract keeps its hash."""
        found = cast("dict[str, Any]", handler(self))
        return found if self.is_written else {name: found[name] for name in found if name not in _OF_WRITTEN}

    @property
    def is_written(self) -> bool:
        return self.answer == WRITTEN

    def most_tokens(self, expected: str) -> int:
        """Tokens after which a written answer is cut, if nothing ended it before."""
        return self.answer_tokens or len(expected.encode()) + ANSWER_SLACK_TOKENS

    @property
    def settings(self) -> TaskSettings:
        return TaskSettings(self.kind, **{name: getattr(self, name) for name in _SETTINGS})

    def planned(self, label: str, pilot_items: int) -> int:
        """Items of the verdict that lie in a slice; the pilot's come before them in the sequence."""
        return planned_in_slice(self.settings, label, pilot_items, self.items)


def with_kinds(tasks: Any) -> Any:
    """The `[task.*]` tables as read, each with its kind: by default the task's own name. Raises ValueError."""
    if not isinstance(tasks, Mapping):
        return tasks
    found: dict[Any, Any] = {}
    for name, bound in cast(Mapping[Any, Any], tasks).items():
        if isinstance(bound, Mapping) and "kind" not in bound:
            if name not in KINDS:
                raise ValueError(
                    f"{name!r} is no kind of task; write kind = ... in [task.{name}], one of {', '.join(KIND_NAMES)}"
                )
            bound = {"kind": name, **cast(Mapping[str, Any], bound)}
        found[name] = bound
    return found


def needles_alone(tasks: Mapping[str, TaskBound]) -> bool:
    """Whether the tasks are all of the kind that a badly damaged cache still passes."""
    return bool(tasks) and all(bound.kind in NEEDLE_KINDS for bound in tasks.values())
