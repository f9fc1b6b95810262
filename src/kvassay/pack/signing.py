"""Signing a result folder, and checking who signed it.

What is signed is an in-toto Statement (attestation framework, spec/v1/statement.md) about `manifest.json`, in a DSSE
envelope beside it. The manifest binds every other file by its hash, so a signature that holds says: whoever has this
key stood for these very files. Any number of signers sign the same statement, which follows from the manifest alone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvassay.core.digest import canonical_json, sha256_bytes
from kvassay.errors import KvassayError, PackError, SigningError
from kvassay.judge.wording import counted
from kvassay.pack.checks import Check, printable_checks
from kvassay.pack.dsse import (
    MAX_ENVELOPE_NBYTES,
    MAX_SIGNATURES,
    Envelope,
    EnvelopeSignature,
    parse_envelope,
    render_envelope,
)
from kvassay.pack.files import verify_files
from kvassay.pack.manifest import MANIFEST_NAME, MAX_MANIFEST_NBYTES, SIGNATURES_NAME, Manifest, first_fault
from kvassay.pack.plain_files import list_files, read_plain
from kvassay.pack.signing_keys import keyid
from kvassay.pack.strict_json import parse_json
from kvassay.pack.whole_file import replace_whole_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:kvassay:signed-manifest:1"


class Signed(NamedTuple):
    keyid: str
    root: str
    signatures: int
    """In the folder now, this one included."""


class _AnyManifest(Manifest):
    """A manifest of any kind of result folder: its further fields are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class _Subject(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    digest: dict[str, str]


class _Predicate(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    root: str


class _Statement(BaseModel):
    # The attestation framework wants unknown fields ignored; what is read here is checked, the rest claims nothing.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    type_: str = Field(alias="_type")
    subject: list[_Subject] = Field(min_length=1)
    predicateType: str  # noqa: N815  (the name in the file)
    predicate: _Predicate


def statement(manifest_bytes: bytes, manifest: Manifest) -> bytes:
    """The payload: canonical JSON that follows from the manifest alone, so that every signer signs the same bytes."""
    told = manifest.to_json()
    return canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": MANIFEST_NAME, "digest": {"sha256": sha256_bytes(manifest_bytes)}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                name: told[name]
                for name in ("schema", "kvassay_version", "created_utc", "contract_sha256", "root")
                if name in told
            },
        }
    )


def sign_folder(folder: Path, key: Ed25519PrivateKey) -> Signed:
    """Add a signature to a pack, an aborted pack or an experiment folder.

    Raises PackError for a folder that is not as its manifest says, and SigningError where the signatures that are
    there are of another manifest, or one of them is this key's. Of signers at the same time one waits for the other.
    """
    with _alone(folder):
        return _sign(folder, key)


def _sign(folder: Path, key: Ed25519PrivateKey) -> Signed:
    manifest_bytes, manifest = _read_manifest(folder)
    if failed := [check for check in verify_files(folder, manifest) if not check.passed]:
        raise PackError(f"{str(folder)!r} is not what its run wrote and is not signed: {failed[0].sentence}")
    payload = statement(manifest_bytes, manifest)
    envelope = Envelope(PAYLOAD_TYPE, payload, _signatures_so_far(folder, payload))
    public = key.public_key()
    if any(_holds(public, each, envelope) for each in envelope.signatures):
        raise SigningError(f"{str(folder)!r} is signed with this key already")
    if len(envelope.signatures) >= MAX_SIGNATURES:
        raise SigningError(f"{str(folder)!r} has {MAX_SIGNATURES} signatures, and more are not read")
    added = EnvelopeSignature(keyid(public), key.sign(envelope.signed_bytes))
    envelope = envelope._replace(signatures=(*envelope.signatures, added))
    replace_whole_file(folder / SIGNATURES_NAME, render_envelope(envelope))
    return Signed(added.keyid, manifest.computed_root(), len(envelope.signatures))


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Holds the folder against other signers: each adds to the signatures that it read, and must read the last ones."""
    list_files(folder)  # says that it is no folder, where it is none
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks; signers in turn are right there too
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def signature_checks(folder: Path, root: str, keys: Sequence[Ed25519PublicKey]) -> tuple[Check, ...]:
    """Checks of the signatures of a folder whose manifest has the root digest `root`; every one of `keys` must hold.

    Names: `signatures-file`, `signed-type`, `signed-statement`, `signed-manifest`, `signed-root`, `signature: KEYID`.
    None where the folder is not signed and no key was given.
    """
    distinct = {keyid(key): key for key in keys}
    return printable_checks(_checks(folder, root, distinct))


def _checks(folder: Path, root: str, keys: Mapping[str, Ed25519PublicKey]) -> Iterator[Check]:
    found = list_files(folder)
    if not found.has_signatures and SIGNATURES_NAME not in found.odd:
        for name in keys:
            yield Check(f"signature: {name}", False, f"the folder is not signed: it has no {SIGNATURES_NAME}")
        return
    try:
        envelope = parse_envelope(read_plain(folder, SIGNATURES_NAME, MAX_ENVELOPE_NBYTES), SIGNATURES_NAME)
    except KvassayError as error:
        yield Check("signatures-file", False, str(error))
        for name in keys:
            yield Check(f"signature: {name}", False, f"{SIGNATURES_NAME} cannot be read")
        return
    count = len(envelope.signatures)
    unchecked = "" if keys else "; whose they are was not checked (no --public-key)"
    yield Check("signatures-file", True, f"{SIGNATURES_NAME} holds {counted(count, 'signatures')}{unchecked}")
    for name, key in keys.items():
        holds = any(_holds(key, each, envelope) for each in envelope.signatures)
        sentence = "signed the statement" if holds else f"made none of the {count} signatures of the statement"
        yield Check(f"signature: {name}", holds, f"the key {name[:16]} {sentence}")
    same = envelope.payload_type == PAYLOAD_TYPE
    yield Check("signed-type", same, f"what is signed is of type {envelope.payload_type[:100]!r}")
    yield from _statement_checks(folder, root, envelope.payload)


def _statement_checks(folder: Path, root: str, payload: bytes) -> Iterator[Check]:
    try:
        told = _Statement.model_validate(parse_json(payload, "the signed statement"))
    except (PackError, ValidationError) as error:
        fault = str(error) if isinstance(error, PackError) else first_fault(error)
        yield Check("signed-statement", False, f"what is signed is no statement about a manifest: {fault}")
        return
    known = (told.type_, told.predicateType) == (STATEMENT_TYPE, PREDICATE_TYPE)
    kinds = f"{told.type_[:100]!r} with predicate {told.predicateType[:100]!r}"
    yield Check("signed-statement", known, f"the statement is {kinds}")
    digest = sha256_bytes(read_plain(folder, MANIFEST_NAME, MAX_MANIFEST_NBYTES))
    named = [subject.digest.get("sha256") for subject in told.subject]
    same = named == [digest]
    sentence = "is that of" if same else f"is not {digest}, that of"
    yield Check("signed-manifest", same, f"the SHA-256 that is signed {sentence} {MANIFEST_NAME}")
    same = told.predicate.root == root
    sentence = "is the folder's" if same else f"is {told.predicate.root[:80]}, the folder's is {root}"
    yield Check("signed-root", same, f"the root digest that is signed {sentence}")


def _signatures_so_far(folder: Path, payload: bytes) -> tuple[EnvelopeSignature, ...]:
    found = list_files(folder)
    if SIGNATURES_NAME in found.odd:
        raise SigningError(f"{SIGNATURES_NAME} is a link, device or pipe; remove it and sign again")
    if not found.has_signatures:
        return ()
    envelope = parse_envelope(read_plain(folder, SIGNATURES_NAME, MAX_ENVELOPE_NBYTES), SIGNATURES_NAME)
    if (envelope.payload_type, envelope.payload) != (PAYLOAD_TYPE, payload):
        raise SigningError(
            f"{SIGNATURES_NAME} signs something else than the manifest that is there now; remove it to sign anew"
        )
    return envelope.signatures


def _read_manifest(folder: Path) -> tuple[bytes, Manifest]:
    list_files(folder)  # says that it is no folder, where it is none
    data = read_plain(folder, MANIFEST_NAME, MAX_MANIFEST_NBYTES)
    value: Any = parse_json(data, MANIFEST_NAME)
    try:
        return data, cast("Manifest", _AnyManifest.model_validate(value))
    except ValidationError as error:
        raise PackError(f"{MANIFEST_NAME}: {first_fault(error)}") from error


def _holds(key: Ed25519PublicKey, signature: EnvelopeSignature, envelope: Envelope) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature.signature, envelope.signed_bytes)
    except InvalidSignature:
        return False
    return True
