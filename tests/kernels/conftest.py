"""Runs the tests on another build of the compiled module where the environment names one, as `make sanitize` does."""

from __future__ import annotations

import importlib.util
import os
import sys

NAME = "kvassay.kernels._native"

if path := os.environ.get("KVASSAY_NATIVE_MODULE"):
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
