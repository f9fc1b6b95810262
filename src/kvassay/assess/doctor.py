"""`kvassay doctor`: what config, weights and a short text say about a model's keys and values, before any run.

It names layers at risk and formats to avoid, each with the figure that was read. It scores nothing: how much of the
model a format keeps is what `kvassay assess` measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import torch

from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat, head_groups
from kvassay.core.layout import streams
from kvassay.core.methods import method_of
from kvassay.core.model_source import resolve_model
from kvassay.core.spec import STATIC, Granularity, QuantSpec
from kvassay.engines.transformers.checkpoint_keys import KeyWeights, checkpoint_keys
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.loading import load_model, model_folder
from kvassay.engines.transformers.loading_checks import checked_config
from kvassay.errors import FormatError, GeometryError, WorkloadError
from kvassay.measures.channel_outliers import SINK_TOKENS, LayerChannels, layer_channels
from kvassay.workloads.corpus import load_corpus
from kvassay.workloads.excerpts import text_documents

BIAS_RATIO_LIMIT = 2.0
"""A bias of ρ times the typical key makes a rotated key √(1+ρ²) times as long, and with it the step of its codes: at 2,
log2 √5 = 1.16 bits of precision are gone. Codes that are not rotated lose more, as the bias sits in few channels."""
OUTLIER_LIMIT = 8.0
"""A channel r times as large as the median one widens the step of codes that share a scale with it up to r times: at 8,
three bits of precision are gone for the others."""
SINK_LIMIT = 0.5
FP8_E4M3_MAX = 448.0
FLOAT16_MAX = 65504.0
_SHARED_SCALES = {Granularity.TOKEN, Granularity.TOKEN_HEAD, Granularity.GROUP, Granularity.BLOCK, *STATIC} - {
    Granularity.STATIC_CHANNEL
}
"""One scale serves several channels of a token."""
_FEW_BITS = 8
"""Codes of fewer bits have no precision to spare."""


class Severity(StrEnum):
    RISK = "risk"
    """Some layers may lose much under the formats named: the command exits with 1."""
    NOTE = "note"


class Finding(NamedTuple):
    severity: Severity
    what: str
    basis: str
    """`config`, `weights` or `text`: what was read for it."""
    layers: tuple[int, ...]
    measured: str
    reason: str
    avoid: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()


class Diagnosis(NamedTuple):
    model: str
    geometry: CacheGeometry
    weights: list[KeyWeights]
    channels: list[LayerChannels] | None
    """None if no text was run."""
    text: dict[str, Any] | None
    findings: list[Finding]

    @property
    def at_risk(self) -> bool:
        return any(finding.severity is Severity.RISK for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        layers = []
        for index, (geometry, weights) in enumerate(zip(self.geometry.layers, self.weights, strict=True)):
            channels = None if self.channels is None else self.channels[index]._asdict()
            layers.append({"layer": index, **geometry.model_dump(), "weights": weights._asdict(), "on_text": channels})
        return {
            "model": self.model,
            "model_type": self.geometry.model_type,
            "query_heads": self.geometry.query_heads,
            "max_context": self.geometry.max_context,
            "layers": layers,
            "text": self.text,
            "thresholds": {"bias_ratio": BIAS_RATIO_LIMIT, "outlier_ratio": OUTLIER_LIMIT, "sink_share": SINK_LIMIT},
            "findings": [finding._asdict() for finding in self.findings],
            "at_risk": self.at_risk,
        }


def diagnose(model: str, corpus: str | None, tokens: int, say: Callable[[str], None]) -> Diagnosis:
    """Read a model's config and key weights, and run `tokens` tokens of a corpus through it unless that is None.

    Raises GeometryError or ModelError for models without plain keys and values in every layer, multi-head latent
    attention among them.
    """
    source = resolve_model(model)
    folder = model_folder(source, say)
    _, geometry = checked_config(folder, model)
    weights = checkpoint_keys(folder, geometry)
    findings = [*geometry_findings(geometry), *weight_findings(weights)]
    channels, text = None, None
    if corpus is not None:
        say(f"loading {model}")
        loaded = load_model(source, announce=say)
        document = text_documents(
            load_corpus(corpus), loaded.tokenizer, documents=1, prompt_tokens=1, scored_tokens=tokens - 1, seed=0
        )[0]
        if geometry.max_context is not None and tokens > geometry.max_context:
            raise WorkloadError(f"{tokens} tokens do not fit the model's context of {geometry.max_context}")
        say(f"running {tokens} tokens of {corpus} through {model}")
        channels = layer_channels(DecodeScorer(loaded.model, geometry), torch.tensor(document.token_ids))
        text = {"corpus": corpus, "document": document.id, "tokens": tokens}
        findings += text_findings(channels, geometry)
    return Diagnosis(model, geometry, weights, channels, text, findings)


def geometry_findings(geometry: CacheGeometry) -> list[Finding]:
    """What the config alone says: formats that cannot serve these shapes, and layers that slide."""
    found = []
    refused: dict[str, list[str]] = {}
    for preset in PRESETS:
        if (reason := _refusal(parse_format(preset.name), geometry)) is not None:
            refused.setdefault(reason, []).append(preset.name)
    for reason, names in refused.items():
        found.append(
            Finding(Severity.NOTE, "shape", "config", (), reason, "these formats cannot serve it", tuple(names))
        )
    sliding = tuple(index for index, layer in enumerate(geometry.layers) if layer.sliding_window is not None)
    if sliding:
        window = geometry.layers[sliding[0]].sliding_window
        measured = f"{len(sliding)} of {geometry.num_layers} layers see {window} tokens only"
        reason = "their caches stay bounded, so a smaller format saves less there, and sinks=N does not apply to them"
        found.append(Finding(Severity.NOTE, "sliding layers", "config", sliding, measured, reason))
    return found


def weight_findings(weights: Sequence[KeyWeights]) -> list[Finding]:
    """What the weights alone say."""
    found = []
    biased = [
        layer
        for layer, keys in enumerate(weights)
        if keys.bias_ratio is not None and keys.bias_ratio >= BIAS_RATIO_LIMIT
    ]
    if biased:
        worst = max(biased, key=lambda layer: weights[layer].bias_ratio or 0)
        ratio = weights[worst].bias_ratio or 0.0
        found.append(
            Finding(
                Severity.RISK,
                "key bias",
                "weights",
                tuple(biased),
                f"key bias of norm {weights[worst].bias_norm:.4g} in layer {worst}, in one head {ratio:.3g} times a "
                f"typical key of the weights (limit {BIAS_RATIO_LIMIT:g})",
                f"it widens every code that shares a scale with it: {math.log2(math.hypot(1, ratio)):.1f} bits of "
                "precision are lost even if rotation spreads it",
                avoid=_shared_scale_keys(),
                prefer=(
                    "int4-g64,keybias=removed",
                    "k=int4:channel32,v=int4:group32,rope=removed",
                    _exact_keys(biased),
                ),
            )
        )
    saturating = tuple(layer for layer, keys in enumerate(weights) if (_kept_bias(keys) or 0) > FP8_E4M3_MAX)
    if saturating:
        largest = max(_kept_bias(weights[layer]) or 0 for layer in saturating)
        found.append(_saturation("weights", saturating, f"key bias reaches {largest:.4g}"))
    sinks = tuple(layer for layer, keys in enumerate(weights) if keys.learned_sinks)
    if sinks:
        measured = f"{len(sinks)} layers have a learned sink logit a head"
        reason = "it is a weight and no token, so it takes no cache and no format changes it"
        found.append(Finding(Severity.NOTE, "learned sinks", "weights", sinks, measured, reason))
    unknown = tuple(layer for layer, keys in enumerate(weights) if keys.projection is None)
    if unknown:
        measured = "keys are projected by a module that is neither k_proj nor qkv_proj"
        reason = "nothing is said of its bias, and keybias=removed and rope=removed are refused"
        found.append(Finding(Severity.NOTE, "key projection not read", "weights", unknown, measured, reason))
    return found


def text_findings(channels: Sequence[LayerChannels], geometry: CacheGeometry) -> list[Finding]:
    """What the keys and values of a short text say."""
    found = []
    keys = tuple(layer for layer, row in enumerate(channels) if row.key_outlier_ratio >= OUTLIER_LIMIT)
    if keys:
        worst = max(keys, key=lambda layer: channels[layer].key_outlier_ratio)
        ratio = channels[worst].key_outlier_ratio
        found.append(
            Finding(
                Severity.RISK,
                "key channels",
                "text",
                keys,
                f"one key channel of layer {worst} is {ratio:.3g} times the median one (limit {OUTLIER_LIMIT:g})",
                f"codes that share a scale with it have a step up to {ratio:.3g} times as wide",
                avoid=_shared_scale_keys(rotated=False),
                prefer=("kivi-4", "k=int4:group64/had,v=int4:group64", _exact_keys(keys)),
            )
        )
    values = tuple(layer for layer, row in enumerate(channels) if row.value_outlier_ratio >= OUTLIER_LIMIT)
    if values:
        worst = max(values, key=lambda layer: channels[layer].value_outlier_ratio)
        ratio = channels[worst].value_outlier_ratio
        found.append(
            Finding(
                Severity.RISK,
                "value channels",
                "text",
                values,
                f"one value channel of layer {worst} is {ratio:.3g} times the median one (limit {OUTLIER_LIMIT:g})",
                f"codes that share a scale with it have a step up to {ratio:.3g} times as wide",
                avoid=_shared_scale_values(),
                prefer=("k=int4:channel32,v=int4:group32/had", f"@{'+'.join(map(str, values))}.v=f16"),
            )
        )
    largest = [max(row.key_max_abs, row.value_max_abs) for row in channels]
    saturating = tuple(layer for layer, size in enumerate(largest) if size > FP8_E4M3_MAX)
    if saturating:
        found.append(_saturation("text", saturating, f"keys or values reach {max(largest):.4g}"))
    overflowing = tuple(layer for layer, size in enumerate(largest) if size > FLOAT16_MAX)
    if overflowing:
        measured = f"keys or values reach {max(largest):.4g}"
        reason = f"float16 ends at {FLOAT16_MAX:g}, so windows and sinks cannot hold them"
        prefer = ("exact=bf16", "exact=f32")
        found.append(
            Finding(Severity.RISK, "float16 range", "text", overflowing, measured, reason, ("exact=f16",), prefer)
        )
    sinks = tuple(
        layer
        for layer, row in enumerate(channels)
        if row.sink_share >= SINK_LIMIT and geometry.layers[layer].sliding_window is None
    )
    if sinks:
        worst = max(sinks, key=lambda layer: channels[layer].sink_share)
        measured = (
            f"the first {SINK_TOKENS} tokens take {channels[worst].sink_share:.0%} of the attention in layer {worst} "
            f"(limit {SINK_LIMIT:.0%})"
        )
        reason = "an error of their keys moves most of the weights"
        found.append(Finding(Severity.NOTE, "sinks", "text", sinks, measured, reason, prefer=(f"sinks={SINK_TOKENS}",)))
    return found


def _saturation(basis: str, layers: tuple[int, ...], measured: str) -> Finding:
    unit_scale = tuple(
        preset.name
        for preset in PRESETS
        if any(
            spec.code_dtype == "float8_e4m3fn" and spec.granularity is Granularity.NONE
            for spec in parse_format(preset.name).specs
        )
    )
    reason = f"float8 e4m3 with scale one ends at {FP8_E4M3_MAX:g} and saturates"
    prefer = ("fp8-e4m3-token-head",)
    return Finding(Severity.RISK, "float8 range", basis, layers, measured, reason, unit_scale, prefer)


def _kept_bias(keys: KeyWeights) -> float | None:
    """The largest element of a bias that is a term of the keys."""
    return None if keys.normalises_keys else keys.bias_max_abs


def _refusal(kv_format: KVFormat, geometry: CacheGeometry) -> str | None:
    """Why a format cannot serve a model's shapes."""
    try:
        for index, layer in enumerate(geometry.layers):
            for group in head_groups(kv_format, index, layer):
                streams(group.keys.spec, group.num_heads, layer.head_dim)
                streams(group.values.spec, group.num_heads, layer.value_dim)
    except (FormatError, GeometryError) as error:
        return str(error)
    return None


def _shared_scale_keys(*, rotated: bool = True) -> tuple[str, ...]:
    """Presets whose key codes of few bits share a scale between channels; rotation may be no remedy."""
    return tuple(
        preset.name
        for preset in PRESETS
        if _shares_scale(spec := parse_format(preset.name).keys) and (rotated or not _rotates(spec))
    )


def _shared_scale_values() -> tuple[str, ...]:
    return tuple(
        preset.name
        for preset in PRESETS
        if _shares_scale(spec := parse_format(preset.name).values) and not _rotates(spec)
    )


def _shares_scale(spec: QuantSpec) -> bool:
    return spec.num_bits < _FEW_BITS and spec.granularity in _SHARED_SCALES


def _rotates(spec: QuantSpec) -> bool:
    return spec.rotation is not None or method_of(spec).rotates


def _exact_keys(layers: Sequence[int]) -> str:
    return f"@{'+'.join(map(str, layers))}.k=f16"
