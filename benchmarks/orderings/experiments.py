"""Claims that are no pair of formats: bits by layer, squared error as a guide, re-quantization, a key bias."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.orderings.claims import ALLOCATED_HIGH, ALLOCATED_LOW, ALLOCATED_MIDDLE, MSE_FORMATS
from benchmarks.orderings.scoring import Interval, Scores, interval
from kvassay.core.format_names import parse_format
from kvassay.formats import quantizer


class Finding(NamedTuple):
    number: str
    text: str
    outcome: str
    """`held`, `not resolved`, `came out the other way` or `not measured`."""
    detail: str
    figures: dict[str, Any]


def outcome_of(difference: Interval) -> str:
    return {1: "held", 0: "not resolved", -1: "came out the other way"}[difference.sign]


def allocator(scores: Scores) -> Finding:
    """10: layers ranked by the KL that each alone causes at 2 bit; the worse half gets 4 bit, the other 2 bit.

    The ranking is made on the first half of the documents and judged on the second, so that it cannot fit them.
    """
    layers = range(scores.loaded.geometry.num_layers)
    alone = {layer: _only(layer, len(layers)) for layer in layers}
    scores.run(alone.values())
    half = len(scores.token_ids) // 2
    damage = {layer: float(scores.kl[name][:half].mean()) for layer, name in alone.items()}
    ranked = sorted(layers, key=damage.__getitem__, reverse=True)
    high, low = ranked[: len(ranked) // 2], ranked[(len(ranked) + 1) // 2 :]
    middle = f"kv={ALLOCATED_MIDDLE}"
    allocated = middle
    for chosen, side in ((high, ALLOCATED_HIGH), (low, ALLOCATED_LOW)):
        allocated += f",@{'+'.join(map(str, sorted(chosen)))}={side}"
    scores.run([middle, allocated])
    judged = slice(half, None)
    values = scores.kl[middle][judged] - scores.kl[allocated][judged]
    difference = interval(values)
    return Finding(
        "10",
        "bits allocated by isolated KL beat uniform bits at equal bytes",
        outcome_of(difference),
        f"3 bit everywhere {scores.kl[middle][judged].mean():.4g}, allocated 2 and 4 bit "
        f"{scores.kl[allocated][judged].mean():.4g}; ranked on {half} documents, judged on {len(values)} others",
        {"difference": difference._asdict(), "allocated": allocated, "n": len(values)},
    )


def _only(layer: int, num_layers: int) -> str:
    others = [str(index) for index in range(num_layers) if index != layer]
    return f"kv={ALLOCATED_LOW},skip={'+'.join(others)}" if others else f"kv={ALLOCATED_LOW}"


@torch.inference_mode()
def mse_as_a_guide(scores: Scores) -> Finding:
    """11: pairs of formats where the one with less squared error of keys has the larger KL, with an interval."""
    scores.run(MSE_FORMATS)
    squared = {name: np.zeros(len(scores.token_ids)) for name in MSE_FORMATS}
    for index, token_ids in enumerate(scores.token_ids):
        reference = scores.scorer.reference(token_ids)
        for name in MSE_FORMATS:
            spec = parse_format(name).keys
            codec = quantizer(spec)
            whole = len(token_ids) // spec.tokens_per_block * spec.tokens_per_block
            for keys in reference.keys:
                part = keys[:, :, :whole]
                error = codec.decode(codec.encode(part).streams) - part
                squared[name][index] += float(error.square().sum() / part.square().sum()) / len(reference.keys)
    inverted = []
    for one in MSE_FORMATS:
        for other in MSE_FORMATS:
            less_error = interval(squared[other] - squared[one])
            more_kl = interval(scores.kl[one] - scores.kl[other])
            if less_error.sign == 1 and more_kl.sign == 1:
                inverted.append((one, other))
    pairs = len(MSE_FORMATS) * (len(MSE_FORMATS) - 1) // 2
    return Finding(
        "11",
        "the squared error of keys does not rank formats as KL does",
        "held" if inverted else "not resolved",
        f"{len(inverted)} of {pairs} pairs rank the other way with both intervals apart from zero"
        + (f", for example {inverted[0][0]} errs less than {inverted[0][1]} and has more KL" if inverted else ""),
        {"inverted": inverted, "pairs": pairs},
    )


@torch.inference_mode()
def requantization(scores: Scores) -> Finding:
    """12: a cache that decodes and re-quantizes its history at each flush, against one that appends only.

    Flushes of 32 tokens, 4-bit groups along channels of 64 consecutive tokens, as caches do that quantize the
    flattened history anew: error of the keys against length, over the documents' middle layer.
    """
    codec = quantizer(parse_format("kv=int4:channel32").keys)
    layer = scores.loaded.geometry.num_layers // 2
    drift, flat = [], []
    for token_ids in scores.token_ids:
        keys = scores.scorer.reference(token_ids).keys[layer]
        flushed, first = None, None
        for end in range(64, keys.shape[2] + 1, 32):
            # The groups move by half at each flush, since the history grew by half a group.
            history = keys[:, :, :end] if flushed is None else torch.cat((flushed, keys[:, :, end - 32 : end]), dim=2)
            offset = end % 64 // 2
            body = history[:, :, offset : offset + (end - offset) // 32 * 32]
            stored = codec.decode(codec.encode(body).streams)
            flushed = torch.cat((history[:, :, :offset], stored, history[:, :, offset + body.shape[2] :]), dim=2)
            error = _relative(flushed[:, :, :64], keys[:, :, :64])
            first = error if first is None else first
        whole = keys.shape[2] // 32 * 32
        appended = codec.decode(codec.encode(keys[:, :, :whole]).streams)
        drift.append(_relative(flushed[:, :, :64], keys[:, :, :64]) - first)
        flat.append(
            _relative(appended[:, :, :64], keys[:, :, :64])
            - _relative(codec.decode(codec.encode(keys[:, :, :64]).streams), keys[:, :, :64])
        )
    growth, still = interval(np.array(drift)), interval(np.array(flat))
    return Finding(
        "12",
        "re-quantizing the history on each flush drifts with length; append-only stays flat",
        "held" if growth.sign == 1 and still.estimate == 0 else outcome_of(growth),
        f"relative error of the first 64 keys grows by {growth.estimate:.3g} "
        f"[{growth.lower:.3g}, {growth.upper:.3g}] over {len(scores.token_ids[0]) // 32 - 1} flushes, append-only by "
        f"{still.estimate:.3g}",
        {"growth": growth._asdict(), "append_only": still._asdict(), "n": len(drift)},
    )


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def key_bias(head_dim: int = 128, tokens: int = 512, seeds: int = 20) -> Finding:
    """13: four channels of a bias of 150 to 300 on Gaussian keys; attention KL of 4-bit keys, by seed.

    The bias is one vector added to every key (a position-independent one; the cache's own removal of a rotated bias is
    tested on a whole model). Removing it leaves the Gaussian part to be quantized.
    """
    per_token, per_channel, removed = [], [], []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        keys = torch.randn(1, 1, tokens, head_dim, generator=generator)
        bias = torch.zeros(head_dim)
        bias[torch.randperm(head_dim, generator=generator)[:4]] = torch.linspace(150, 300, 4)
        queries = torch.randn(32, head_dim, generator=generator)
        biased = keys + bias
        token_spec, channel_spec = (parse_format(f"kv={side}").keys for side in ("int4:group64", "int4:channel32"))
        per_token.append(_attention_kl(queries, biased, _round_trip(token_spec, biased)))
        per_channel.append(_attention_kl(queries, biased, _round_trip(channel_spec, biased)))
        removed.append(_attention_kl(queries, biased, _round_trip(token_spec, biased - bias) + bias))
    means = [interval(np.array(values)) for values in (per_token, per_channel, removed)]
    gaps = [interval(np.array(per_token) - np.array(other)) for other in (per_channel, removed)]
    return Finding(
        "13",
        "a key bias breaks codes per token, not per channel; removing it restores them",
        "held" if all(gap.sign == 1 for gap in gaps) else "not resolved",
        "attention KL at 4 bit: per token {:.3g}, per channel {:.3g}, per token with the bias removed {:.3g}".format(
            *(mean.estimate for mean in means)
        )
        + f" ({seeds} synthetic keys)",
        {"per_token": means[0]._asdict(), "per_channel": means[1]._asdict(), "removed": means[2]._asdict(), "n": seeds},
    )


def _round_trip(spec: Any, values: torch.Tensor) -> torch.Tensor:
    codec = quantizer(spec)
    return codec.decode(codec.encode(values).streams)


def _attention_kl(queries: torch.Tensor, exact: torch.Tensor, found: torch.Tensor) -> float:
    scale = queries.shape[1] ** -0.5
    one, other = (torch.log_softmax(queries.double() @ keys[0, 0].double().T * scale, -1) for keys in (exact, found))
    return float((one.exp() * (one - other)).sum(-1).mean())
