"""The shared reference: what the full-precision run of a document gives, computed once and read by every cell.

Hidden states are stored and not logits, which are hundreds of times wider and come back through the output head. Under
the policy `exact` a candidate begins with the reference's keys and values of the prompt, so those are stored too; all
of a document's only where static scales or the byte ledger are taken from them. Float32, so that a cell's rows are
bit for bit those of a run that computes its own reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from kvassay.assess.levels.base import Level
from kvassay.assess.levels.items import ItemLevel
from kvassay.assess.pilot import calibration_token_ids
from kvassay.assess.real_ledgers import ledger_token_ids
from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.engines.transformers.decode_scorer import DecodeScorer, ReferencePass
from kvassay.engines.transformers.decode_view import EncodeCounts
from kvassay.engines.transformers.generating import CacheFormat, Generation, GenerationPlan, Generator, Output
from kvassay.errors import StoreError

Read = Callable[[str], bytes | None]
"""Content of a file of the store, or of a copy of it that a cluster hands around."""
Put = Callable[[str, bytes], None]


class Unit(NamedTuple):
    """One document or item of a reference."""

    token_ids: tuple[int, ...]
    first_hidden: int
    """Hidden states are kept from this position on."""
    kept: int
    """Keys and values of so many tokens are kept."""

    def file(self, subject: dict[str, Any], contract: Contract) -> str:
        """Content-addressed, so that workloads and seeds which draw the same document share it."""
        content = {
            "kind": "unit",
            **subject,
            "reference_kv": contract.subject.reference_kv,
            "prefill_reads": contract.inference.prefill_reads,
            **self._asdict(),
        }
        return f"units/{sha256_json({**content, 'token_ids': list(self.token_ids)})}.safetensors"


def reference_units(levels: Sequence[Level], contract: Contract) -> list[Unit]:
    """Every document and item of verdict and pilot, each once."""
    exact = contract.inference.prefill_reads == "exact"
    found: dict[tuple[int, ...], Unit] = {}

    def need(token_ids: Sequence[int], first_hidden: int, kept: int) -> None:
        ids = tuple(token_ids)
        old = found.get(ids, Unit(ids, len(ids), 0))
        found[ids] = Unit(ids, min(old.first_hidden, first_hidden), max(old.kept, kept))

    for level in levels:
        if level.generates:
            continue  # it scores nothing; `GeneratedReference` serves it
        for unit in (*level.pilot_units, *level.units):
            prompt = len(unit.prompt_ids) if isinstance(level, ItemLevel) else contract.text.prompt_tokens
            need(level.token_ids(unit), prompt, prompt if exact else 0)
    for whole in (*calibration_token_ids(levels), ledger_token_ids(levels)):
        need(whole, len(whole), len(whole))
    return list(found.values())


def encode_unit(scorer: DecodeScorer, unit: Unit, reference_kv: str) -> bytes:
    """Run the reference over one unit."""
    ids = torch.tensor(unit.token_ids)
    reference = scorer.reference(ids)
    hidden = reference.hidden[:0]
    if unit.first_hidden < len(ids):
        hidden = scorer.reference_hidden(ids, unit.first_hidden, reference, reference_kv)
    tensors = {"hidden": hidden.contiguous().clone()}
    for layer, (keys, values) in enumerate(zip(reference.keys, reference.values, strict=True)):
        tensors[f"keys.{layer}"] = keys[:, :, : unit.kept].contiguous().clone()
        tensors[f"values.{layer}"] = values[:, :, : unit.kept].contiguous().clone()
    return save(tensors)


class StoredScorer(DecodeScorer):
    """A scorer that reads the reference instead of running it; nothing else of it differs."""

    _units: dict[tuple[int, ...], tuple[Unit, str]] | None = None

    def attach(self, read: Read, units: Sequence[Unit], subject: dict[str, Any], contract: Contract) -> None:
        """Serve `units` from files from now on, and refuse others."""
        self._read = read
        self._units = {unit.token_ids: (unit, unit.file(subject, contract)) for unit in units}

    def detach(self) -> None:
        """Run the reference again, as any scorer does."""
        self._units = None

    def reference(self, token_ids: Tensor) -> ReferencePass:
        """Hidden states before the first kept one are NaN: they were not stored, and nobody may take them for data."""
        if self._units is None:
            return super().reference(token_ids)
        unit, file = self._units[tuple(token_ids.tolist())]
        tensors = _tensors(self._read(file), file)
        stored = tensors["hidden"]
        hidden = torch.full((len(unit.token_ids), stored.shape[-1]), torch.nan, dtype=stored.dtype)
        hidden[unit.first_hidden :] = stored
        layers = range(self.geometry.num_layers)
        return ReferencePass(hidden, [tensors[f"keys.{i}"] for i in layers], [tensors[f"values.{i}"] for i in layers])

    def reference_hidden(
        self, token_ids: Tensor, prompt_tokens: int, reference: ReferencePass, reference_kv: str
    ) -> Tensor:
        if self._units is None:
            return super().reference_hidden(token_ids, prompt_tokens, reference, reference_kv)
        return reference.hidden[prompt_tokens:]  # stored over the contract's reference cache


class GeneratedReference:
    """Stands for `Generator.run` over the reference cache: runs and writes, or reads."""

    def __init__(self, subject: dict[str, Any], contract: Contract, read: Read, put: Put | None = None) -> None:
        """With `put`, what is not there is generated and written; without, it has to be there."""
        self._subject = {**subject, "reference_kv": contract.subject.reference_kv}
        self._read = read
        self._put = put
        self.files: list[str] = []
        """What was asked for, in order."""
        self.tokens = 0
        """That the model ran for it."""

    def __call__(self, generator: Generator, plan: GenerationPlan, stored: CacheFormat) -> Generation:
        content = {
            "kind": "generation",
            **self._subject,
            "prompts": [[prompt.id, list(prompt.token_ids)] for prompt in plan.prompts],
            "tokens": plan.tokens,
            "end_ids": sorted(plan.end_ids),
            "sampling": [type(plan.sampling).__name__, *plan.sampling],
            "prefill_reads": plan.prefill_reads,
            "context_tokens": plan.context_tokens,
            "ended_by": plan.ended_by,
        }
        file = f"units/{sha256_json(content)}.safetensors"
        self.files.append(file)
        data = self._read(file)
        if data is None and self._put is not None:
            found = generator.run(plan, stored)
            self.tokens += sum(len(p.token_ids) + plan.tokens - 1 for p in plan.prompts)
            self._put(file, _encode_generation(found))
            return found
        return _decode_generation(_tensors(data, file))


def reference_files(levels: Sequence[Level], contract: Contract, subject: dict[str, Any]) -> Iterator[str]:
    """Files of all units that are scored; those of generations are known once they were asked for."""
    return (unit.file(subject, contract) for unit in reference_units(levels, contract))


def _tensors(data: bytes | None, file: str) -> dict[str, Tensor]:
    if data is None:
        raise StoreError(f"{file} of the reference is missing from the store; run the matrix again")
    try:
        return load(data)
    except Exception as error:
        raise StoreError(f"{file} of the reference cannot be read: {error}; remove it and run again") from error


def _encode_generation(found: Generation) -> bytes:
    lines = [[list(output.token_ids), list(output.stored_reads)] for output in found.outputs]
    text = json.dumps({"outputs": lines, "counts": list(found.counts)}).encode()
    tops = {f"top_logits.{i}": output.top_logits.contiguous().clone() for i, output in enumerate(found.outputs)}
    return save({**tops, "text": torch.frombuffer(bytearray(text), dtype=torch.uint8)})


def _decode_generation(tensors: dict[str, Tensor]) -> Generation:
    text = json.loads(bytes(tensors["text"].tolist()))
    outputs = tuple(
        Output(tuple(ids), tuple(reads), tensors[f"top_logits.{index}"])
        for index, (ids, reads) in enumerate(text["outputs"])
    )
    return Generation(outputs, EncodeCounts(*text["counts"]))
