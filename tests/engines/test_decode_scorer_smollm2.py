"""The real model: one pass equals a stepwise run on a real cache, in float64.

Float64, because one rounding of float32 may tip a value over the edge between two codes, and then both runs are right
and differ by a code. With 52 bits the two runs choose the same codes, and what is compared is the schedule: which
decoded values each query reads.
"""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import NamedTuple

import pytest
import torch
from transformers import PreTrainedModel

from kvassay.core.format_names import parse_format
from kvassay.engines.transformers.decode_scorer import DecodeScorer, ReferencePass
from kvassay.engines.transformers.loading import load_model
from tests.engines.test_decode_scorer import assert_equal_logits, stepwise_hidden
from tests.thorough import some

PROMPT_TOKENS = 140  # beyond KIVI's window of 128, so that every format reads codes
DECODE_STEPS = 20
FORMATS = [
    "int8-token-head",
    "int8-tensor",
    "fp8-e4m3",
    "int4-g32",
    "int2-g32,recent=16,sinks=4",
    "q8_0",
    "q4_0,recent=8",
    "kivi-4",
    "kivi-2,recent=16",
    "kivi-4,recent=20,sinks=4,skip=1",
]

pytestmark = pytest.mark.model


class Document(NamedTuple):
    model: PreTrainedModel
    scorer: DecodeScorer
    token_ids: torch.Tensor
    reference: ReferencePass


@pytest.fixture(scope="module")
def document() -> Document:
    loaded = load_model("smollm2-135m")
    model = loaded.model.to(torch.float64)
    token_ids = loaded.tokenizer(topics["assignment"], return_tensors="pt").input_ids[0, : PROMPT_TOKENS + DECODE_STEPS]
    assert len(token_ids) == PROMPT_TOKENS + DECODE_STEPS
    scorer = DecodeScorer(model, loaded.geometry)
    return Document(model, scorer, token_ids, scorer.reference(token_ids))


@pytest.mark.parametrize("format_name", some(FORMATS, 3))
def test_r52_one_pass_equals_stepwise_decoding_on_smollm2(document: Document, format_name: str) -> None:
    kv_format = parse_format(format_name)
    calibration = document.scorer.calibrate(kv_format, [document.reference])

    found = document.scorer.candidate(document.token_ids, PROMPT_TOKENS, document.reference, kv_format, calibration)
    expected = stepwise_hidden(document.model, document.token_ids, PROMPT_TOKENS, kv_format, calibration)

    assert found.hidden.dtype == torch.float64
    assert int(found.stored_reads.max()) > 0
    assert_equal_logits(document.scorer, found.hidden, expected)
