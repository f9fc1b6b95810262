"""Keeps transformers' progress bars and chatter out of the terminal while a model loads. Errors are still raised."""

from __future__ import annotations

import functools
import logging as levels
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import transformers.modeling_gguf_pytorch_utils
from transformers.utils import logging

_gguf_loading: Any = transformers.modeling_gguf_pytorch_utils


@contextmanager
def quiet_transformers() -> Iterator[None]:
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    bar = _gguf_loading.tqdm
    logging.set_verbosity(levels.CRITICAL)
    logging.disable_progress_bar()
    # The GGUF loader takes its bar straight from tqdm, past the switch above.
    _gguf_loading.tqdm = functools.partial(bar, disable=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _gguf_loading.tqdm = bar
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
