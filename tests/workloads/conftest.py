from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    """The real tokenizer, without the weights; the conversion stays in the user's cache."""
    from transformers import AutoTokenizer

    from kvassay.core.model_source import resolve_model
    from kvassay.engines.transformers.gguf_conversion import converted_gguf

    source = resolve_model("smollm2-135m")
    assert source.path is not None
    return AutoTokenizer.from_pretrained(converted_gguf(source.path, print))
