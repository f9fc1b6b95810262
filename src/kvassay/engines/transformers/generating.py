"""Free-running generation over a real `QuantizedCache`: prompts in, token ids out, and what was read from codes.

Prompts of one call have equal length and run as one batch that keeps its shape to the end: rows that ended go on and
what they say is dropped. Matrix products of another shape may round otherwise, so reference and formats, which run the
same prompts in the same batches, share what the shape does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from kvassay.cache.attention_path import AttentionPath
from kvassay.cache.cohorts import LayerCalibration
from kvassay.cache.key_transform import KeyTransform
from kvassay.cache.quantized_cache import QuantizedCache
from kvassay.cache.quantized_layer import QuantizedLayer
from kvassay.cache.side_store import SideStore
from kvassay.core.kv_format import KVFormat
from kvassay.engines.transformers.decode_scorer import PrefillReads
from kvassay.engines.transformers.decode_view import EncodeCounts
from kvassay.engines.transformers.output_head import OutputHead
from kvassay.engines.transformers.sampling import Sampling, choose
from kvassay.errors import ModelError, WorkloadError


class Prompt(NamedTuple):
    id: str
    token_ids: tuple[int, ...]


Ended = Callable[[int, Sequence[int]], bool]
"""Whether the output so far of the prompt at this place of a plan is over. It is asked after every token."""


class Output(NamedTuple):
    """What was generated from one prompt. Step 0 is the token that the prompt's own pass predicts."""

    token_ids: tuple[int, ...]
    """With the token that ended it, if one did."""
    stored_reads: tuple[int, ...]
    """Of each query after the prompt: distinct older tokens read from codes, in the layer where it read most."""
    top_logits: Float[Tensor, " steps"]
    """The highest logit of each step, float64."""


class Generation(NamedTuple):
    outputs: tuple[Output, ...]
    counts: EncodeCounts


class GenerationPlan(NamedTuple):
    """What is the same for reference and formats."""

    prompts: tuple[Prompt, ...]
    tokens: int
    """At most so many are generated."""
    end_ids: frozenset[int]
    sampling: Sampling
    prefill_reads: PrefillReads = "exact"
    """Whether a prompt runs in one piece, or token by token, each of which reads what the cache then holds."""
    context_tokens: int | None = None
    """Of prompts that run in two pieces, tokens of the first: the second reads what the cache then holds of it, as the
    next turn of a conversation reads the turns before."""
    ended: Ended | None = None
    """Ends outputs beside `end_ids`."""
    ended_by: Any = None
    """JSON on which `ended` depends: it tells a stored generation from one that ended otherwise."""


class CacheFormat(NamedTuple):
    kv_format: KVFormat
    calibration: Mapping[int, LayerCalibration] | None = None
    key_transforms: Mapping[int, KeyTransform] | None = None


def end_token_ids(model: PreTrainedModel) -> frozenset[int]:
    """Tokens that end an output, from the model's generation config; its config where that names none."""
    for config in (getattr(model, "generation_config", None), model.config.get_text_config(decoder=True)):
        named = getattr(config, "eos_token_id", None)
        if named is not None:
            return frozenset(int(token) for token in (named if isinstance(named, Collection) else [named]))
    return frozenset()


class Generator:
    """Runs a model over caches of any format. `output_head` turns its hidden states into logits, and was checked."""

    def __init__(self, model: PreTrainedModel, output_head: OutputHead) -> None:
        self._model = model
        self._decoder = model.get_decoder()
        self._output_head = output_head

    @torch.inference_mode()
    def run(self, plan: GenerationPlan, stored: CacheFormat) -> Generation:
        """Generate from every prompt of the plan over one new cache.

        Raises WorkloadError for prompts of unequal length or that cannot be cut as the plan says, ModelError if logits
        are not finite.
        """
        lengths = {len(prompt.token_ids) for prompt in plan.prompts}
        if len(lengths) != 1 or not min(lengths):
            raise WorkloadError(f"prompts of one batch have equal length and a token at least, found {sorted(lengths)}")
        if plan.context_tokens is not None and not 0 < plan.context_tokens < min(lengths):
            raise WorkloadError(f"prompts of {min(lengths)} tokens cannot be cut after {plan.context_tokens}")
        cache = QuantizedCache(
            self._model.config,
            stored.kv_format,
            calibration=stored.calibration,
            on_clip="count",
            key_transforms=stored.key_transforms,
        )
        names = [prompt.id for prompt in plan.prompts]
        hidden = self._prefill(plan, cache)
        chosen: list[Tensor] = []
        tops: list[Tensor] = []
        reads: list[int] = []
        written: list[list[int]] = [[] for _ in names]
        going = dict.fromkeys(range(len(names)))  # in order
        for step in range(plan.tokens):
            logits = self._logits(hidden)
            chosen.append(choose(plan.sampling, logits, names, step).cpu())
            tops.append(logits.max(dim=-1).values.double().cpu())
            for row in list(going):
                written[row].append(int(chosen[-1][row]))
                if _is_over(plan, row, written[row]):
                    del going[row]
            if step == plan.tokens - 1 or not going:
                break
            hidden = self._step(cache, chosen[-1][:, None])
            reads.append(_stored_reads(cache))
        return Generation(_outputs(written, torch.stack(tops), reads), _encode_counts(cache))

    def _prefill(self, plan: GenerationPlan, cache: QuantizedCache) -> Tensor:
        """Hidden states `[prompts, hidden]` of the prompts' last tokens."""
        ids = torch.tensor([prompt.token_ids for prompt in plan.prompts])
        if plan.prefill_reads == "exact":
            pieces = [ids] if plan.context_tokens is None else ids.tensor_split([plan.context_tokens], dim=1)
            return [self._step(cache, piece) for piece in pieces][-1]
        hidden = self._step(cache, ids[:, :1])
        for position in range(1, ids.shape[1]):
            hidden = self._step(cache, ids[:, position : position + 1])
        return hidden

    def _step(self, cache: QuantizedCache, ids: Int[Tensor, "prompts tokens"]) -> Tensor:
        for layer in cache.quantized_layers:
            layer.path = AttentionPath.NONE  # so that the path after the call is the call's own
        ids = ids.to(self._model.device)
        return self._decoder(ids, cache=cache, use_cache=True).last_hidden_state[:, -1]

    def _logits(self, hidden: Tensor) -> Float[Tensor, "prompts vocabulary"]:
        logits = self._output_head(hidden)
        if not bool(torch.isfinite(logits).all()):
            bad = int((~torch.isfinite(logits)).sum())
            raise ModelError(f"{type(self._model).__name__}: {bad} logits are NaN or infinite; nothing can be chosen")
        return logits


def _is_over(plan: GenerationPlan, row: int, ids: Sequence[int]) -> bool:
    return ids[-1] in plan.end_ids or (plan.ended is not None and plan.ended(row, ids))


def _outputs(written: Sequence[Sequence[int]], tops: Tensor, reads: Sequence[int]) -> tuple[Output, ...]:
    """`written` are the ids of each prompt's output, `tops` is `[steps, prompts]` and goes on behind an end."""
    return tuple(
        Output(tuple(ids), tuple(reads[: len(ids) - 1]), tops[: len(ids), row]) for row, ids in enumerate(written)
    )


def _stored_reads(cache: QuantizedCache) -> int:
    """Tokens older than the last query that it read from codes, in the layer where it read most; alike for all rows.

    From the state of the stores, which the query read: a layer counts only if attention went over its pages in this
    call.
    """
    return max(
        (
            _store_reads(layer, store)
            for layer in cache.quantized_layers
            if layer.path is not AttentionPath.NONE
            for store in layer.stores
        ),
        default=0,
    )


def _store_reads(layer: QuantizedLayer, store: SideStore) -> int:
    if store.plan.spec.is_exact:
        return 0
    window = layer.geometry.sliding_window
    begin = store.sink_tokens + store.dropped
    if window is not None:
        begin = max(begin, store.tokens - window)
    # The query's own token is not an older one, also where the format stores it at once.
    end = min(store.sink_tokens + store.coded, store.tokens - 1)
    return max(0, end - begin)


def _encode_counts(cache: QuantizedCache) -> EncodeCounts:
    stores = [store for layer in cache.quantized_layers for store in layer.stores]
    encoded = sum(store.encoded_values for store in stores if not store.plan.spec.is_exact)
    return EncodeCounts(encoded, sum(store.clipped_values for store in stores))


def logit_drift(reference: Output, candidate: Output, first_step: int = 1) -> float | None:
    """The largest change of the highest logit over the steps whose history both outputs share.

    From step 1 on, since a prompt in one piece reads no codes; from step 0 where its end reads some. None where there
    is no such step: an output of one token, or a difference in the first.
    """
    shared = 0
    for one, other in zip(reference.token_ids, candidate.token_ids, strict=False):
        shared += 1
        if one != other:
            break
    if shared <= first_step:
        return None
    moved = (reference.top_logits[first_step:shared] - candidate.top_logits[first_step:shared]).abs()
    return float(moved.max())
