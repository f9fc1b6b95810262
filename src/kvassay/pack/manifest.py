"""The manifest of a result folder: every other file with its size and SHA-256, bound by one root digest.

`root` is the SHA-256 of the canonical JSON of the manifest without `root`. It names the whole folder: two
folders of equal root hold equal files.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvassay.core.digest import sha256_json
from kvassay.errors import PackError, printable
from kvassay.pack.strict_json import parse_json, render_json

MANIFEST_NAME = "manifest.json"
SIGNATURES_NAME = "signatures.json"
"""Signatures of the manifest (`pack.signing`): beside it, and so covered by none of its hashes."""
OWN_NAMES = (MANIFEST_NAME, SIGNATURES_NAME)
"""What a result folder holds besides the files that its manifest lists."""
MAX_MANIFEST_NBYTES = 8 << 20
MAX_FILES = 10_000
MAX_FILE_NBYTES = 8 << 30
"""A larger declared size is refused before anything is read."""
MAX_NAME_LENGTH = 200

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
UtcTime = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]

_NAME_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")


def check_file_name(name: str) -> str:
    """`name` if it is a plain relative path (`rows/tokens.parquet`), else PackError.

    Only letters, digits and `_.+=-` in each part, so that a name means one file on every platform and in
    every shell, cannot leave the folder and cannot be hidden.
    """
    parts = name.split("/")
    if len(name) > MAX_NAME_LENGTH or not all(_NAME_PART.fullmatch(part) for part in parts):
        raise PackError(
            f"{name[:MAX_NAME_LENGTH]!r} is no file name of a pack; expected a relative path of at most "
            f"{MAX_NAME_LENGTH} letters, digits and '_.+=-', without hidden or parent parts"
        )
    if name.casefold() in OWN_NAMES:
        whose = (
            "the manifest's own name" if name.casefold() == MANIFEST_NAME else "the name of the manifest's signatures"
        )
        raise PackError(f"{name!r} is {whose} and cannot be listed in it")
    return name


class FileEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sha256: Sha256
    nbytes: int = Field(ge=0, le=MAX_FILE_NBYTES)


class Manifest(BaseModel):
    """What every result folder's manifest holds; kinds that bind more subclass it, without defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_: str = Field(alias="schema")
    kvassay_version: str
    created_utc: UtcTime
    files: dict[str, FileEntry] = Field(max_length=MAX_FILES)
    root: Sha256

    @model_validator(mode="after")
    def _plain_names(self) -> Manifest:
        folded: dict[str, str] = {}
        for name in self.files:
            try:
                check_file_name(name)
            except PackError as error:
                raise ValueError(str(error)) from error
            if other := folded.get(name.casefold()):
                raise ValueError(f"files {other!r} and {name!r} differ in case only")
            folded[name.casefold()] = name
        return self

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    def computed_root(self) -> str:
        """The root digest of what the manifest says, whatever its `root` field says."""
        return root_digest(self.to_json())


def root_digest(manifest: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a manifest without its `root`."""
    return sha256_json({key: value for key, value in manifest.items() if key != "root"})


def render_manifest(manifest: Manifest) -> bytes:
    return render_json(manifest.to_json())


M = TypeVar("M", bound=Manifest)


def parse_manifest(data: bytes, schema: str, manifest_type: type[M]) -> M:
    """Read a manifest of one schema; raises PackError for every malformed one, naming the field."""
    value = parse_json(data, MANIFEST_NAME)
    found = schema_of(value)
    if found != schema:
        raise PackError(
            f"{MANIFEST_NAME}: schema is {found!r}, expected {schema!r}; read it with the version that wrote it"
        )
    try:
        return manifest_type.model_validate(value)
    except ValidationError as error:
        raise PackError(f"{MANIFEST_NAME}: {first_fault(error)}") from error


def schema_of(value: Any) -> str:
    """The `schema` field of a manifest's JSON value; raises PackError where it has none."""
    schema: object = cast("dict[str, object]", value).get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, str):
        raise PackError(f"{MANIFEST_NAME}: expected an object with a text field 'schema'; is this a result folder?")
    return schema[:100]


def first_fault(error: ValidationError) -> str:
    """The first fault of a validation in one line: field path, fault, and how many more there are."""
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    path = ".".join(str(part) for part in first["loc"])
    found = "" if first["type"] in ("missing", "value_error") else f", found {repr(first['input'])[:80]}"
    further = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = first["msg"].removeprefix("Value error, ")
    return printable(f"{path + ': ' if path else ''}{message}{found}{further}")
