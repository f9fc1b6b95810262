"""The lm-eval model `kvassay`: generation on a real QuantizedCache, likelihoods read as decode steps read them.

lm-eval scores a continuation in one forward pass over context and continuation, in which no query ever reads a cache: a
cache passed to it would be written and not read, and any format would look perfect. Here every token of a continuation
is a decode step (`DecodeScorer`): it reads the context as the format's cache holds it at that step. Generation hands a
QuantizedCache to the model.

A run of which fewer than half of the queries read a stored code is refused: it says nothing about the format. lm-eval
mixes the requests of several tasks, so a short one may hide among longer ones: run one task at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

import kvassay
from kvassay.cache.quantized_cache import QuantizedCache
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import Owner
from kvassay.core.serving import check_serves
from kvassay.engines.transformers.decode_scorer import DecodeScorer, PrefillReads
from kvassay.engines.transformers.loading import load_model
from kvassay.errors import CalibrationError, FormatError
from kvassay.judge.engagement import LEAST_READING_SHARE

Request = tuple[tuple[str, str] | None, list[int], list[int]]
"""Context and continuation as texts, then as token ids."""


@register_model("kvassay")
class KvassayLM(HFLM):
    """`pretrained` is what `kvassay assess` takes: built-in name, folder, .gguf file or hub id; float32 on the CPU.

    `kv_format` is a format; where commas part the arguments, write its options with semicolons (`kivi-4;recent=32`).
    Formats with static scales are refused, since nothing here calibrates them.
    """

    def __init__(
        self,
        pretrained: str,
        kv_format: str,
        *,
        prefill_reads: PrefillReads = "exact",
        batch_size: int = 1,
        **options: Any,
    ) -> None:
        self._format = parse_format(str(kv_format).replace(";", ","))
        if any(spec.needs_calibration for spec in self._format.specs):
            raise CalibrationError(
                f"{self._format.name} has static scales, which lm-eval has no text to calibrate on; choose a format "
                "whose scales are dynamic"
            )
        options = {key: value for key, value in options.items() if key not in ("device", "max_batch_size")}
        loaded = load_model(pretrained)
        check_serves(self._format, loaded.geometry)
        self._scorer = DecodeScorer(loaded.model, loaded.geometry, prefill_reads)
        self._prefill_reads: PrefillReads = prefill_reads
        self._weights_sha256 = loaded.hashes.weights
        self._queries = self._reading = 0
        super().__init__(
            pretrained=loaded.model,
            tokenizer=loaded.tokenizer,
            backend="causal",
            batch_size=int(batch_size),
            **options,
        )

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Log likelihood of each continuation, and whether greedy decoding would have said it."""
        # Requests of one context stand together, and those of one-token continuations share their whole pass.
        order = sorted(range(len(requests)), key=lambda index: requests[index][1] + requests[index][2])
        found: dict[int, tuple[float, bool]] = {}
        last: tuple[tuple[int, ...], int] | None = None
        logits = torch.empty(0)
        for index in order:
            text, context, continuation = requests[index]
            inputs = tuple((context + continuation)[-(self.max_length + 1) : -1])
            queries = min(len(continuation), len(inputs))
            if last != (inputs, queries):
                logits, last = self._decode_logits(inputs, queries), (inputs, queries)
            targets = torch.tensor(continuation[-queries:])
            chosen = logits.gather(1, targets[:, None])
            answer = float(chosen.sum()), bool((logits.argmax(dim=-1) == targets).all())
            found[index] = answer
            if text is not None:
                self.cache_hook.add_partial("loglikelihood", text, answer)
        self._require_engaged()
        return [found[index] for index in range(len(requests))]

    def _decode_logits(self, inputs: tuple[int, ...], queries: int) -> torch.Tensor:
        """Log probabilities `[queries, vocabulary]` after each of the last `queries` inputs, as decode steps."""
        ids = torch.tensor(inputs)
        reference = self._scorer.reference(ids)
        run = self._scorer.candidate(ids, len(ids) - queries, reference, self._format)
        self._queries += queries
        self._reading += int((run.stored_reads > 0).sum())
        return torch.log_softmax(self._scorer.output_head(run.hidden), dim=-1)

    def _model_generate(self, context: Any, max_length: int, stop: list[str], **options: Any) -> Any:
        mask = options.get("attention_mask")
        padding = None if mask is None else (mask == 0).sum(1)
        cache = QuantizedCache.for_model(self.model, self._format, left_padding=padding)
        output = super()._model_generate(context, max_length, stop, cache=cache, **options)
        self._queries += len(context)
        self._reading += len(context) * (cache.ledger().owner_nbytes(Owner.CODES) > 0)
        self._require_engaged()
        return output

    def get_model_info(self) -> dict[str, Any]:
        """What goes into lm-eval's results: which format ran, and how far it was read."""
        return {
            **super().get_model_info(),
            "kvassay_version": kvassay.__version__,
            "kv_format": self._format.name,
            "kv_format_digest": self._format.digest,
            "prefill_reads": self._prefill_reads,
            "weights_sha256": self._weights_sha256,
            "queries": self._queries,
            "queries_that_read_codes": None if self._format.is_exact else self._reading,
        }

    def _require_engaged(self) -> None:
        if self._format.is_exact or self._reading >= LEAST_READING_SHARE * self._queries:
            return
        raise FormatError(
            f"{self._format.name}: {self._reading} of {self._queries} queries read a stored code; at least half must, "
            "or the task measures full precision. Its contexts are shorter than the window: write a smaller one "
            "(recent=32), or choose a longer task"
        )
