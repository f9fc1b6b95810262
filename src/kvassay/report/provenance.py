"""What was run, on what, and how to check it."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.digest import sha256_json
from kvassay.core.tasks.settings import TaskSettings
from kvassay.pack import layout
from kvassay.pack.reader import PackContent
from kvassay.report.figures import NOT_RECORDED, Shown, number, size
from kvassay.report.free_fields import field, members_at, number_at, objects_at, text_at
from kvassay.report.visible_text import clipped, visible_lines

MAX_CONTRACT_CHARACTERS = 60_000


class Fact(NamedTuple):
    name: str
    value: Shown


class FactGroup(NamedTuple):
    heading: str
    facts: tuple[Fact, ...]


class Document(NamedTuple):
    id: str
    slice: str
    tokens: Shown
    sha256: str


class PackFile(NamedTuple):
    name: str
    holds: str
    sha256: str


class Provenance(NamedTuple):
    groups: tuple[FactGroup, ...]
    dirty: bool
    documents: tuple[Document, ...]
    documents_left_out: int
    packages: tuple[Fact, ...]
    sources: tuple[Fact, ...]
    sources_sha256: str
    files: tuple[PackFile, ...]
    contract_sha256: str
    contract_toml: str
    """Ready to be shown: hidden characters are visible."""


_TASK_FIELDS = ("kind", "items", *(name for name in TaskSettings._fields if name != "kind"), "seed")

_FILES = {
    layout.CONTRACT_TOML: "the contract as it was written",
    layout.CONTRACT_JSON: "the contract with its defaults; its hash is the contract's",
    layout.PLAN: "the plan made before the run",
    layout.ARMS: "the formats that ran",
    **dict(
        zip(
            layout.ROW_FILES,
            (
                "one row a decode position of the teacher-forced level",
                "one row a task item",
                "one row a cell of a captured document",
                "one row a prompt of the free-running level",
                "one row an item whose answer the model wrote by itself",
            ),
            strict=True,
        )
    ),
    layout.LEDGERS: "bytes by side and owner",
    layout.VERDICTS: "the judgement; a function of contract, arms, ledgers and rows",
    layout.SUBJECT: "model, engine, corpus, worst examples",
    layout.ENVIRONMENT: "machine, packages, source hashes, times",
}


def provenance(content: PackContent, max_documents: int, max_sources: int) -> Provenance:
    environment, subject = content.environment, content.subject
    documents = objects_at(subject, "corpus", "documents")
    sources = members_at(environment, "source_sha256")
    return Provenance(
        groups=_groups(content),
        dirty=field(environment, "dirty") is True,
        documents=tuple(
            Document(
                text_at(one, "id") or NOT_RECORDED,
                text_at(one, "slice") or NOT_RECORDED,
                number(number_at(one, "tokens")),
                text_at(one, "sha256") or NOT_RECORDED,
            )
            for one in documents[:max_documents]
        ),
        documents_left_out=max(0, len(documents) - max_documents),
        packages=_facts(members_at(environment, "packages"), max_sources),
        sources=_facts(sources, max_sources),
        sources_sha256=sha256_json(sources) if sources else NOT_RECORDED,
        files=tuple(_file(name, holds, content) for name, holds in _FILES.items()),
        contract_sha256=content.contract.sha256,
        contract_toml=visible_lines(clipped(content.contract_toml, MAX_CONTRACT_CHARACTERS), mark_ends=False),
    )


def _groups(content: PackContent) -> tuple[FactGroup, ...]:
    environment, subject = content.environment, content.subject
    weights = members_at(subject, "model", "quantized_weights")

    def text(record: object, *path: str) -> str:
        return text_at(record, *path) or NOT_RECORDED

    return (
        FactGroup(
            "Model",
            (
                *(
                    Fact(name, text(subject, "model", name))
                    for name in ("name", "source", "stored_weights", "weights", "revision", "dtype")
                ),
                *(
                    Fact(f"quantized weights: {name.replace('_', ' ')}", text(weights, name))
                    for name in ("package", "bits", "group_size", "linear_layers", "nbytes", "sha256")
                    if weights
                ),
                Fact("parameters", number(number_at(subject, "model", "parameters"))),
                *(
                    Fact(f"{part} SHA-256", text(subject, "model", f"{part}_sha256"))
                    for part in ("weights", "tokenizer", "config")
                ),
                *(
                    Fact(f"SHA-256 of {name}", text(subject, "model", "weight_files_sha256", name))
                    for name in sorted(members_at(subject, "model", "weight_files_sha256"))
                ),
                *_geometry(content),
            ),
        ),
        FactGroup(
            "Engine",
            (
                *(Fact(name, text(subject, "engine", name)) for name in ("name", "version", "attention")),
                Fact("numerical reference", f"full-precision cache, {content.contract.subject.reference_kv}"),
                Fact("policy for static scales", content.contract.inference.calibration),
                *(
                    Fact(f"checkpoint scales, {name.replace('_', ' ')}", text(subject, "scales", name))
                    for name in ("name", "layout", "codec", "tensors", "tensors_sha256")
                    if members_at(subject, "scales")
                ),
            ),
        ),
        FactGroup(
            "Corpus",
            (
                *(
                    Fact(name, text(subject, "corpus", name))
                    for name in ("name", "source", "version", "licence", "sha256")
                ),
                *(
                    Fact(f"{words} {task}, {name.replace('_', ' ')}", text(subject, *path, task, name))
                    for words, path in (("task", ("task",)), ("written task", ("written", "tasks")))
                    for task in sorted(members_at(subject, *path))
                    for name in _TASK_FIELDS
                    if field(subject, *path, task, name) is not None
                ),
            ),
        ),
        FactGroup(
            "Machine",
            (
                Fact("platform", text(environment, "platform")),
                Fact("CPU", text(environment, "cpu")),
                Fact("cores", number(number_at(environment, "cores"))),
                Fact("threads", number(number_at(environment, "threads"))),
                Fact("attention kernels", text(environment, "kernels")),
                Fact("memory", size(number_at(environment, "memory_nbytes"))),
                Fact("peak resident memory", size(number_at(environment, "peak_rss_nbytes"))),
                Fact("started (UTC)", text(environment, "started_utc")),
                Fact("finished (UTC)", text(environment, "finished_utc")),
            ),
        ),
        FactGroup(
            "Software",
            (
                Fact("kvassay", text(environment, "kvassay_version")),
                Fact("Python", text(environment, "python")),
                Fact("commit", text(environment, "commit")),
                Fact("uncommitted changes", _yes_no(field(environment, "dirty"))),
            ),
        ),
    )


def _geometry(content: PackContent) -> tuple[Fact, ...]:
    layers = objects_at(content.subject, "geometry", "layers")
    shapes: dict[str, int] = {}
    for layer in layers:
        parts = [
            f"{number_at(layer, 'kv_heads') or '?'} KV heads",
            f"key size {number_at(layer, 'head_dim') or '?'}",
            f"value size {number_at(layer, 'value_dim') or '?'}",
        ]
        if (window := number_at(layer, "sliding_window")) is not None:
            parts.append(f"window {window}")
        shape = ", ".join(parts)
        shapes[shape] = shapes.get(shape, 0) + 1
    described = "; ".join(f"{count:,} with {shape}" for shape, count in shapes.items())
    return (
        Fact("architecture", text_at(content.subject, "geometry", "model_type") or NOT_RECORDED),
        Fact("query heads", number(number_at(content.subject, "geometry", "query_heads"))),
        Fact("cache layers", described or NOT_RECORDED),
    )


def _facts(members: dict[str, object], limit: int) -> tuple[Fact, ...]:
    return tuple(Fact(name, text_at(members, name) or NOT_RECORDED) for name in sorted(members)[:limit])


def _file(name: str, holds: str, content: PackContent) -> PackFile:
    entry = content.manifest.files.get(name) if content.manifest else None
    return PackFile(name, holds, entry.sha256 if entry else "")


def _yes_no(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else NOT_RECORDED
