"""A result folder's files against its manifest: all listed, none unlisted, sizes and hashes equal."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from kvassay.errors import PackError
from kvassay.pack.checks import Check, printable_checks
from kvassay.pack.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_NBYTES,
    FileEntry,
    Manifest,
    parse_manifest,
    schema_of,
)
from kvassay.pack.plain_files import FolderFiles, list_files, open_plain, read_plain
from kvassay.pack.strict_json import parse_json

_CHUNK_NBYTES = 1 << 20


def read_schema(folder: Path) -> str:
    """The schema of a result folder, e.g. `kvassay.pack/1`; raises PackError without a readable manifest."""
    list_files(folder)
    return schema_of(parse_json(read_plain(folder, MANIFEST_NAME, MAX_MANIFEST_NBYTES), MANIFEST_NAME))


def read_manifest(folder: Path, schema: str, manifest_type: type[Manifest] = Manifest) -> Manifest:
    """The manifest of a folder of one schema; raises PackError for a missing or malformed one."""
    list_files(folder)
    return parse_manifest(read_plain(folder, MANIFEST_NAME, MAX_MANIFEST_NBYTES), schema, manifest_type)


def verify_files(folder: Path, manifest: Manifest, expect_root: str | None = None) -> tuple[Check, ...]:
    """Checks of files and root digest, in a fixed order.

    `expect_root` is the digest that the run printed: with it a folder whose manifest was re-hashed after an
    edit fails.

    Names: `root-digest`, `expected-root`, `file-set`, `file-missing: F`, `file-unlisted: F`, `file-kind: F`,
    `file-size: F`, `file-hash: F`.
    """
    found = list_files(folder)
    listed = [name for name in found.names if name in manifest.files]
    checks = (
        *_root_checks(manifest, expect_root),
        *_set_checks(found, manifest),
        *(_content_check(folder, name, manifest.files[name]) for name in listed),
    )
    return printable_checks(checks)


def _root_checks(manifest: Manifest, expect_root: str | None) -> Iterator[Check]:
    computed = manifest.computed_root()
    same = computed == manifest.root
    verb = "is" if same else f"should be {computed} and is"
    yield Check("root-digest", same, f"the manifest's root digest {verb} {manifest.root}")
    if expect_root is not None:
        same = computed == expect_root.strip().lower()
        found = "as expected" if same else f"{computed}, not the expected {expect_root[:80]}"
        yield Check("expected-root", same, f"the root digest is {found}")


def _set_checks(found: FolderFiles, manifest: Manifest) -> Iterator[Check]:
    present = {*found.names, *found.odd}
    missing = sorted(set(manifest.files) - present)
    unlisted = sorted(present - set(manifest.files))
    odd = sorted(set(found.odd) & set(manifest.files))
    whole = not (missing or unlisted or odd)
    count = len(manifest.files)
    sentence = f"the {count} listed files and no other" if whole else "other files than those listed"
    yield Check("file-set", whole, f"the folder holds {sentence}")
    for name in missing:
        yield Check(f"file-missing: {name}", False, f"{name} is listed and not there")
    for name in unlisted:
        yield Check(f"file-unlisted: {name}", False, f"{name} is there and not listed")
    for name in odd:
        yield Check(f"file-kind: {name}", False, f"{name} is a link, device or pipe and not a regular file")


def _content_check(folder: Path, name: str, entry: FileEntry) -> Check:
    try:
        with open_plain(folder, name) as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes != entry.nbytes:
                return Check(f"file-size: {name}", False, f"{name} has {nbytes} bytes, listed are {entry.nbytes}")
            digest = hashlib.sha256()
            while piece := file.read(_CHUNK_NBYTES):
                digest.update(piece)
    except (PackError, OSError) as error:
        return Check(f"file-kind: {name}", False, str(error))
    same = digest.hexdigest() == entry.sha256
    sentence = "matches its hash" if same else f"hashes to {digest.hexdigest()}, listed is {entry.sha256}"
    return Check(f"file-hash: {name}", same, f"{name} {sentence}")
