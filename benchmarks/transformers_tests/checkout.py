"""Make a folder of transformers' tests importable beside an installed transformers of another version.

Best is the folder of the tag that is installed: then nothing here does anything but leave out the mixins. With another
version, the differences are bridged and each bridge is named in the record of the run.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

LEFT_OUT = (
    "tests.exporters.test_export",
    "tests.test_expert_parallel_mixin",
    "tests.test_fsdp_mixin",
    "tests.test_memory_cleanup_mixin",
    "tests.test_pipeline_mixin",
    "tests.test_tensor_parallel_mixin",
    "tests.test_training_mixin",
)
"""Mixins that test neither caches nor generation: replaced by empty classes, so that their imports do not matter."""

_COPIED = (
    "tests/*.py",
    "tests/generation/*.py",
    "tests/utils/*.py",
    "utils/test_module/*.py",
    "conftest.py",
    "src/transformers/testing_utils.py",
)
_RENAMED = ("past_key_values", "cache")


def needs_renaming(folder: Path) -> bool:
    """Whether the tests say `past_key_values` where the installed transformers says `cache`."""
    from transformers import LlamaForCausalLM

    says_cache = "cache" in inspect.signature(LlamaForCausalLM.forward).parameters
    text = (folder / "tests" / "generation" / "test_utils.py").read_text()
    return says_cache and re.search(r"\.past_key_values\b", text) is not None


def copy_tests(folder: Path, target: Path, models: list[str], rename: bool) -> None:
    """Copy what is run, with the whole word `past_key_values` replaced by `cache` if `rename`."""
    patterns = [*_COPIED, *(f"tests/models/{model}/*.py" for model in models), "tests/models/__init__.py"]
    for pattern in patterns:
        for source in folder.glob(pattern):
            copy = target / source.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if rename:
                copy.write_text(re.sub(rf"\b{_RENAMED[0]}\b", _RENAMED[1], source.read_text()))
            else:
                shutil.copyfile(source, copy)


def leave_out_mixins() -> None:
    """Bind the modules of LEFT_OUT to ones whose every `...TesterMixin` is an empty class."""
    for name in LEFT_OUT:
        module = ModuleType(name)

        def attribute(wanted: str, name: str = name) -> Any:
            if not wanted.endswith("TesterMixin"):
                raise AttributeError(wanted)
            return type(wanted, (), {"__module__": name})

        module.__getattr__ = attribute  # pyright: ignore[reportAttributeAccessIssue]
        sys.modules[name] = module


class Missing:
    """Stands for a name that the installed transformers lacks: skips the test that uses it, says which it was."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and (inspect.isfunction(args[0]) or inspect.isclass(args[0])):
            return pytest.mark.skip(f"the installed transformers has no {self.name}")(args[0])
        pytest.skip(f"the installed transformers has no {self.name}")


def bind_missing_names(folder: Path) -> list[str]:
    """Bind each name that a test file takes from transformers and that is not there; returns them, sorted.

    A name that the tests' own version of the module sets to a literal gets that literal, if the sources lie beside the
    tests (`src/transformers/...`); any other becomes a `Missing`.
    """
    missing = []
    for path in sorted(folder.glob("tests/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.level or not (node.module or "").startswith("transformers"):
                continue
            assert node.module is not None
            try:
                module = importlib.import_module(node.module)
            except ImportError:
                continue
            for alias in node.names:
                if alias.name != "*" and not _has(module, alias.name):
                    setattr(module, alias.name, _literal(folder, node.module, alias.name))
                    missing.append(f"{node.module}.{alias.name}")
    return sorted(set(missing))


def _has(module: ModuleType, name: str) -> bool:
    try:
        getattr(module, name)
    except (AttributeError, ImportError):
        try:
            importlib.import_module(f"{module.__name__}.{name}")
        except ImportError:
            return False
    return True


def _literal(folder: Path, module: str, name: str) -> object:
    source = folder / "src" / Path(*module.split(".")).with_suffix(".py")
    if source.exists():
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                try:
                    return ast.literal_eval(node.value)
                except ValueError:
                    break
    return Missing(f"{module}.{name}")
