"""Logits from final hidden states, in chunks, so that no [tokens, vocabulary] array of a whole document exists."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvassay.errors import ModelError

_CHECK_TOKENS = 5
_CHECK_TOLERANCE = 1e-4


class OutputHead:
    """The model's output embedding with its final soft cap, checked once against the model's own logits."""

    def __init__(self, model: PreTrainedModel) -> None:
        linear = model.get_output_embeddings()
        if linear is None:
            raise ModelError(f"{type(model).__name__} has no output embedding; a causal language model is expected")
        self._linear: nn.Module = linear
        text_config = model.config.get_text_config(decoder=True)
        self._softcap: float | None = getattr(text_config, "final_logit_softcapping", None)
        self._check(model)

    @torch.inference_mode()
    def __call__(self, hidden: Tensor) -> Tensor:
        """`[tokens, hidden]` to float32 logits `[tokens, vocabulary]`."""
        logits = self._linear(hidden).float()
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)

    @torch.inference_mode()
    def _check(self, model: PreTrainedModel) -> None:
        token_ids = torch.arange(1, _CHECK_TOKENS + 1, device=next(model.parameters()).device)[None]
        expected = model(token_ids, use_cache=False).logits[0].float()
        found = self(model.get_decoder()(token_ids, use_cache=False).last_hidden_state[0])
        difference = float((expected - found).abs().max())
        if not difference <= _CHECK_TOLERANCE * max(1.0, float(expected.abs().max())):
            raise ModelError(
                f"{type(model).__name__} turns hidden states into logits in a way that is not supported: its own "
                f"logits differ by {difference:.3g} from output embedding and soft cap"
            )
