"""Keys, values and queries of a real model, captured once in the background and kept in memory (R100)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.errors import KvassayError, ModelError

CAPTURED_TOKENS = 256
CAPTURED_QUERIES = 8
"""The last positions of the text, as many as the experiment has query rows."""
_SEED = 0


class CapturedHead(NamedTuple):
    """One KV head with the query heads that read it: `[1, repeats, queries, dim]`, `[1, 1, tokens, dim]` twice."""

    queries: Any
    keys: Any
    values: Any
    rule: Any
    """AttentionRule of the layer."""


class Captured(NamedTuple):
    """What one text left in a model's full-precision cache."""

    model: str
    document: str
    tokens: int
    layers: tuple[Any, ...]
    """LayerAttention of each layer, its queries cut to the last ones."""

    def shape(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "document": self.document,
            "tokens": self.tokens,
            "heads": [layer.keys.shape[1] for layer in self.layers],
        }

    def head(self, layer: int, head: int) -> CapturedHead:
        """Raises ModelError for a layer or head that the model does not have."""
        if layer >= len(self.layers):
            raise ModelError(f"{self.model} has layers 0 to {len(self.layers) - 1}, found {layer}")
        found = self.layers[layer]
        heads = found.keys.shape[1]
        if head >= heads:
            raise ModelError(f"layer {layer} of {self.model} has KV heads 0 to {heads - 1}, found {head}")
        repeats = found.queries.shape[1] // heads
        own = slice(head * repeats, (head + 1) * repeats)
        rule = found.rule
        if rule.sink_logits is not None:
            rule = rule._replace(sink_logits=rule.sink_logits[own])
        one = slice(head, head + 1)
        return CapturedHead(found.queries[:, own], found.keys[:, one], found.values[:, one], rule)

    def layer(self, layer: int) -> CacheGeometry:
        """The geometry of a model whose layers have the one head that is on the bench."""
        head = self.head(layer, 0)
        one = LayerGeometry(
            kv_heads=1,
            head_dim=head.keys.shape[3],
            value_dim=head.values.shape[3],
            sliding_window=head.rule.sliding_window,
        )
        return CacheGeometry(model_type="captured", query_heads=head.queries.shape[1], layers=(one,) * (layer + 1))


class CaptureDesk:
    """Starts one capture, says how far it is, and keeps its result or its fault."""

    def __init__(self, model: str, take: Callable[[str, Callable[[str], None]], Captured] | None = None) -> None:
        self.model = model
        self._take = take or capture
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.captured: Captured | None = None
        self._stage = ""
        self._fault = ""

    def start(self) -> None:
        """Begin, unless one runs or has ended well. After a fault the next start tries again."""
        with self._lock:
            if self.captured is not None or (self._thread is not None and self._thread.is_alive()):
                return
            self._fault, self._stage = "", f"loading {self.model}"
            self._thread = threading.Thread(target=self._work, name="capture", daemon=True)
            self._thread.start()

    def state(self) -> dict[str, Any]:
        """`state` is `none`, `running`, `failed` or `done`."""
        if self.captured is not None:
            return {"state": "done", "model": self.model, "captured": self.captured.shape()}
        if self._fault:
            return {"state": "failed", "model": self.model, "error": self._fault}
        running = self._thread is not None and self._thread.is_alive()
        return {"state": "running" if running else "none", "model": self.model, "stage": self._stage}

    def _work(self) -> None:
        try:
            self.captured = self._take(self.model, self._say)
        except KvassayError as error:
            self._fault = str(error)
        except Exception as error:  # a fault in the background has no other way to the page
            self._fault = f"{type(error).__name__}: {str(error)[:300]}; this is a fault of kvassay"

    def _say(self, stage: str) -> None:
        self._stage = stage


def capture(model: str, say: Callable[[str], None], corpus: str | None = None) -> Captured:
    """Run one text over the full-precision cache. Raises ModelError, WorkloadError or MissingExtraError."""
    import torch

    from kvassay.core.format_names import parse_format
    from kvassay.engines.transformers.decode_scorer import DecodeScorer, LayerAttention
    from kvassay.engines.transformers.loading import load_model
    from kvassay.workloads.corpus import DEFAULT_CORPUS, load_corpus
    from kvassay.workloads.excerpts import text_documents

    loaded = load_model(model, announce=say)
    say("running the text")
    prompt = CAPTURED_TOKENS - CAPTURED_QUERIES
    (document,) = text_documents(
        load_corpus(corpus or DEFAULT_CORPUS),
        loaded.tokenizer,
        documents=1,
        prompt_tokens=prompt,
        scored_tokens=CAPTURED_QUERIES,
        seed=_SEED,
    )
    scorer = DecodeScorer(loaded.model, loaded.geometry)
    ids = torch.tensor(document.token_ids)
    layers: list[LayerAttention] = []

    def keep(observed: LayerAttention) -> None:
        layers.append(observed._replace(queries=observed.queries[:, :, -CAPTURED_QUERIES:].clone()))

    scorer.candidate(ids, prompt, scorer.reference(ids), parse_format("f32"), observer=keep)
    return Captured(loaded.source.name, document.id, len(ids), tuple(layers))
