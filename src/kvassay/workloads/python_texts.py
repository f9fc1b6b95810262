"""Corpora that come with every Python: its language reference by topic, and the source of its standard library.

Both change with each Python release, so their version and digest are part of the corpus.
"""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path

from kvassay.errors import WorkloadError
from kvassay.workloads.corpus import Corpus, Document, build_corpus

_LICENCE = "PSF-2.0"
_MIN_SOURCE_NBYTES = 2000


def load_topics() -> Corpus:
    """Sections of the Python language reference, as `help('topics')` shows them: technical English prose."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise WorkloadError(
            "this Python has no pydoc_data.topics (some distributions package it apart); choose another corpus"
        ) from error
    return build_corpus(
        "python-topics",
        (Document(f"python-topics/{topic}", topics[topic], "python-topics") for topic in sorted(topics)),
        source="Python language reference (pydoc_data.topics)",
        version=f"Python {platform.python_version()}",
        licence=_LICENCE,
    )


def load_source() -> Corpus:
    """Top-level modules of the standard library, one a document: Python source code with its comments."""
    folder = Path(sysconfig.get_path("stdlib"))
    documents: list[Document] = []
    for file in sorted(folder.glob("*.py")):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if len(text) >= _MIN_SOURCE_NBYTES and not file.name.startswith("_"):
            documents.append(Document(f"python-source/{file.name}", text, "python-source"))
    if not documents:
        raise WorkloadError(f"no source files of the standard library in {str(folder)!r}; choose another corpus")
    return build_corpus(
        "python-source",
        documents,
        source="Python standard library source",
        version=f"Python {platform.python_version()}",
        licence=_LICENCE,
    )
