"""Decode-faithful scoring: the hidden states of T decode steps over a quantized cache, in one forward pass.

What a decode query sees of an older token depends on when that token was committed: exact while it was in the recent
window, decoded codes after. `decode_attention` gives every query its own view, so one pass over all tokens computes
what a stepwise run on a real cache of the format computes (a test compares the two to 1e-4).

Prompt tokens read each other exactly under the policy `exact`, so their keys and values are those of the reference and
are shared by all formats: only the scored tokens run again. Under `stored` every token goes through the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from kvassay.cache.cohorts import LayerCalibration, SideCalibration
from kvassay.cache.key_transform import KeyTransform
from kvassay.cache.layer_calibration import layer_calibration
from kvassay.cache.model_keys import key_transforms
from kvassay.core.calibration_policy import MIN_MAX, CalibrationPolicy
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import HeadGroup, KVFormat, head_groups
from kvassay.core.serving import check_serves
from kvassay.engines.transformers.calibration import RecordedSample, calibrate_layers
from kvassay.engines.transformers.capture import CaptureCache, PrefixCache
from kvassay.engines.transformers.decode_attention import AttentionRule, decode_attention, query_heads_of
from kvassay.engines.transformers.decode_view import DecodeView, EncodeCounts, decode_view
from kvassay.engines.transformers.loading_checks import first_line
from kvassay.engines.transformers.output_head import OutputHead
from kvassay.engines.transformers.rope_length import rope_length_limit
from kvassay.errors import KvassayError, ModelError

PrefillReads = Literal["exact", "stored"]

_IMPLEMENTATION = "kvassay_decode"
_CHECK_TOKENS = 40
_CHECK_PROMPT_TOKENS = 16
_CHECK_TOLERANCE = 1e-3


class ReferencePass(NamedTuple):
    """The full-precision run of one document."""

    hidden: Float[Tensor, "tokens hidden"]
    keys: list[Tensor]
    """By layer, `[1, kv_heads, tokens, head_dim]`, after RoPE."""
    values: list[Tensor]


class CandidatePass(NamedTuple):
    """The run of the scored tokens of one document over one format."""

    hidden: Float[Tensor, "scored_tokens hidden"]
    stored_reads: Int[Tensor, " scored_tokens"]
    """Distinct older tokens that each query read from codes, in the layer where it read most."""
    counts: EncodeCounts


class LayerAttention(NamedTuple):
    """What one layer's attention worked on, as an observer sees it."""

    layer: int
    queries: Float[Tensor, "batch query_heads queries head_dim"]
    keys: Float[Tensor, "batch kv_heads tokens head_dim"]
    values: Float[Tensor, "batch kv_heads tokens value_dim"]
    rule: AttentionRule


Observer = Callable[[LayerAttention], None]


class _Run:
    """State of one candidate pass, found by the attention function through a context variable."""

    def __init__(
        self,
        kv_format: KVFormat,
        geometry: CacheGeometry,
        calibration: Mapping[int, LayerCalibration],
        transforms: Mapping[int, KeyTransform],
        queries: int,
        observer: Observer | None,
    ) -> None:
        self._observer = observer
        self.kv_format = kv_format
        self.geometry = geometry
        self.calibration = calibration
        self.transforms = transforms
        self.layers_served: set[int] = set()
        self.stored_reads = torch.zeros(queries, dtype=torch.int32)
        self.encoded_values = 0
        self.clipped_values = 0

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        if self._observer is not None:
            self._observer(LayerAttention(layer, query, key, value, rule))
        geometry = self.geometry.layers[layer]
        groups = head_groups(self.kv_format, layer, geometry)
        scales = layer_calibration(self.calibration, self.kv_format, layer, geometry)
        self.layers_served.add(layer)
        if len(groups) == 1:
            return self._attend_group(layer, groups[0], scales[0], query, key, value, rule)
        output = query.new_empty((*query.shape[:3], value.shape[3]))
        for group, sides in zip(groups, scales, strict=True):
            heads = list(group.heads)
            queries = query_heads_of(group.heads, query.shape[1] // key.shape[1])
            part = rule if rule.sink_logits is None else rule._replace(sink_logits=rule.sink_logits[queries])
            output[:, queries] = self._attend_group(
                layer, group, sides, query[:, queries], key[:, heads], value[:, heads], part
            )
        return output

    def _attend_group(
        self,
        layer: int,
        group: HeadGroup,
        sides: SideCalibration,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rule: AttentionRule,
    ) -> Tensor:
        exact = self.kv_format.exact_dtype
        transform = _heads_transform(self.transforms, layer, group)
        keys = decode_view(key, group.keys, exact, sides[0], f"keys of layer {layer}", transform)
        values = decode_view(value, group.values, exact, sides[1], f"values of layer {layer}")
        first = key.shape[2] - query.shape[2]
        for view, plan in ((keys, group.keys), (values, group.values)):
            self.encoded_values += view.counts.encoded_values
            self.clipped_values += view.counts.clipped_values
            if not plan.spec.is_exact:
                self._count_reads(view, first, rule.sliding_window)
        return decode_attention(query, keys, values, first, rule)

    def _count_reads(self, view: DecodeView, first: int, window: int | None) -> None:
        positions = torch.arange(first, len(view.boundaries))
        begin = torch.full_like(positions, view.first_stored)
        if window is not None:
            begin = torch.maximum(begin, positions - window + 1)
        # The query's own token is not an older one, also where the format stores it at once.
        end = torch.minimum(torch.tensor(view.boundaries[first:]), positions)
        self.stored_reads = torch.maximum(self.stored_reads, (end - begin).clamp_min(0).to(torch.int32))


_RUN: ContextVar[_Run] = ContextVar("kvassay_run")


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs):
    """transformers' attention interface: `[batch, heads, tokens, dim]` in, `[batch, tokens, heads, dim]` out."""
    if kwargs.get("position_bias") is not None or getattr(module, "is_causal", True) is False:
        raise ModelError(
            f"{type(module).__name__} uses a position bias or non-causal attention; the decode-faithful scorer "
            "computes causal attention only"
        )
    rule = AttentionRule(
        scaling=kwargs.get("scaling") or query.shape[-1] ** -0.5,
        sliding_window=kwargs.get("sliding_window"),
        softcap=kwargs.get("softcap"),
        sink_logits=kwargs.get("s_aux"),
    )
    layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType]  (nn.Module types attributes as tensors)
    output = _RUN.get().attend(layer, query, key, value, rule)
    return output.transpose(1, 2).contiguous(), None


# No mask function is registered under this name, so transformers builds no mask: causality and window come from
# positions. A row of padding would be read as a token, which is why the scorer takes one document at a time.
AttentionInterface.register(_IMPLEMENTATION, _attention)


class DecodeScorer:
    """Runs documents over the full-precision cache and over quantized ones.

    Raises ModelError at construction if the model's attention does not go through transformers' attention registry, or
    is not what `decode_attention` computes (checked on a short text with the identity format).
    """

    def __init__(self, model: PreTrainedModel, geometry: CacheGeometry, prefill_reads: PrefillReads = "exact") -> None:
        self.geometry = geometry
        self.prefill_reads: PrefillReads = prefill_reads
        self._model = model
        self._transforms: dict[tuple[str, str], dict[int, KeyTransform]] = {}
        try:
            self._decoder = model.get_decoder()
            self.output_head = OutputHead(model)
            self._check_attention()
        except KvassayError:
            raise
        except Exception as error:  # what a model of another build than expected raises cannot be known
            raise ModelError(
                f"{type(model).__name__} cannot be scored: its decoder does not run as token ids to hidden states over "
                f"a cache ({first_line(error)}); this model type is not supported"
            ) from error

    @torch.inference_mode()
    def reference(self, token_ids: Int[Tensor, " tokens"]) -> ReferencePass:
        """Run all tokens with the model's own attention over a full-precision cache."""
        self._check_rope_length(len(token_ids))
        cache = CaptureCache()
        hidden = self._decoder(token_ids[None], cache=cache, use_cache=True).last_hidden_state[0]
        return ReferencePass(hidden, cache.keys, cache.values)

    def reference_hidden(
        self, token_ids: Int[Tensor, " tokens"], prompt_tokens: int, reference: ReferencePass, reference_kv: str
    ) -> Float[Tensor, "scored_tokens hidden"]:
        """Hidden states of the scored positions over the contract's reference cache (`f32`, `f16` or `bf16`)."""
        if reference_kv == "f32":
            return reference.hidden[prompt_tokens:]
        return self.candidate(token_ids, prompt_tokens, reference, parse_format(reference_kv)).hidden

    @torch.inference_mode()
    def candidate(
        self,
        token_ids: Int[Tensor, " tokens"],
        prompt_tokens: int,
        reference: ReferencePass,
        kv_format: KVFormat,
        calibration: Mapping[int, LayerCalibration] | None = None,
        observer: Observer | None = None,
    ) -> CandidatePass:
        """Hidden states of the decode steps from `prompt_tokens` on, over a cache of `kv_format`.

        `observer` is called once a layer with the exact queries, keys and values of that layer.
        """
        check_serves(kv_format, self.geometry)
        prefix = prompt_tokens if self.prefill_reads == "exact" else 0
        transforms = self.key_transforms(kv_format)
        run = _Run(kv_format, self.geometry, calibration or {}, transforms, len(token_ids) - prefix, observer)
        cache = PrefixCache(reference.keys, reference.values, prefix)
        with self._implementation(_IMPLEMENTATION), _running(run):
            hidden = self._decoder(token_ids[None, prefix:], cache=cache, use_cache=True).last_hidden_state[0]
        self._require_all_layers(run)
        skipped = prompt_tokens - prefix
        counts = EncodeCounts(run.encoded_values, run.clipped_values)
        return CandidatePass(hidden[skipped:], run.stored_reads[skipped:], counts)

    def key_transforms(self, kv_format: KVFormat) -> dict[int, KeyTransform]:
        """Key transforms by layer, checked on the model once; empty for formats that need none.

        Raises ModelError if the model has not what the format removes.
        """
        steps = (kv_format.key_bias, kv_format.key_rope)
        if steps not in self._transforms:
            self._transforms[steps] = key_transforms(self._model, kv_format)
        return self._transforms[steps]

    def calibrate(
        self, kv_format: KVFormat, references: list[ReferencePass], policy: CalibrationPolicy = MIN_MAX
    ) -> dict[int, LayerCalibration]:
        """Static arrays by layer from recorded keys and values; empty for formats that need none."""
        samples = [RecordedSample(reference.keys, reference.values) for reference in references]
        return calibrate_layers(kv_format, self.geometry, self.key_transforms(kv_format), samples, policy)

    def _check_rope_length(self, tokens: int) -> None:
        """Frequencies that follow the length of a call differ between one pass and steps, so such texts are refused."""
        limit = rope_length_limit(self._decoder.config)
        if limit is not None and tokens > limit:
            raise ModelError(
                f"{type(self._model).__name__}: its rotary frequencies change beyond {limit} tokens, where one pass "
                f"differs from decoding step by step; found {tokens} tokens, use texts of at most {limit}"
            )

    @contextmanager
    def _implementation(self, name: str) -> Iterator[None]:
        config = self._decoder.config
        before = config._attn_implementation
        config._attn_implementation = name
        try:
            yield
        finally:
            config._attn_implementation = before

    def _require_all_layers(self, run: _Run) -> None:
        missing = sorted(set(range(self.geometry.num_layers)) - run.layers_served)
        if missing:
            raise ModelError(
                f"{type(self._model).__name__}: the attention of layers {missing} does not go through transformers' "
                "attention registry, so its cache cannot be scored"
            )

    def _check_attention(self) -> None:
        vocabulary = self._model.config.get_text_config(decoder=True).vocab_size
        # A model may have a shorter context than the check's text.
        tokens = min(_CHECK_TOKENS, self.geometry.max_context or _CHECK_TOKENS)
        prompt_tokens = min(_CHECK_PROMPT_TOKENS, tokens // 2)
        token_ids = torch.arange(tokens) * 7919 % vocabulary
        reference = self.reference(token_ids)
        identity = self.candidate(token_ids, prompt_tokens, reference, parse_format("f32"))
        expected = reference.hidden[prompt_tokens:]
        difference = float((identity.hidden - expected).abs().max())
        if not difference <= _CHECK_TOLERANCE * max(1.0, float(expected.abs().max())):
            raise ModelError(
                f"{type(self._model).__name__}: attention over an unquantized cache differs by {difference:.3g} from "
                "the model's own; its attention does more than scale, mask, soft cap and sinks, and is not supported"
            )


def _heads_transform(transforms: Mapping[int, KeyTransform], layer: int, group: HeadGroup) -> KeyTransform | None:
    return transforms[layer].for_heads(group.heads) if layer in transforms else None


@contextmanager
def _running(run: _Run) -> Iterator[None]:
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)
