"""DSSE envelopes: what a signature covers, and the JSON in which signatures travel.

Dead Simple Signing Envelope 1.0.2 (secure-systems-lab/dsse, protocol.md and envelope.md). A signature is of
PAE(payloadType, payload), so that bytes signed as one type cannot be shown as another. `keyid` is a hint that nobody
authenticates: verification tries every signature with the key it was given and decides nothing by the hint.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvassay.errors import SigningError
from kvassay.pack.manifest import first_fault
from kvassay.pack.strict_json import parse_json, render_json

MAX_ENVELOPE_NBYTES = 1 << 20
MAX_SIGNATURES = 64

_URL_SAFE = str.maketrans("-_", "+/")


class EnvelopeSignature(NamedTuple):
    keyid: str
    """Empty where the signer gave none."""
    signature: bytes


class Envelope(NamedTuple):
    payload_type: str
    payload: bytes
    signatures: tuple[EnvelopeSignature, ...]

    @property
    def signed_bytes(self) -> bytes:
        return pre_authentication_encoding(self.payload_type, self.payload)


class _Signature(BaseModel):
    # Further fields are ignored, as envelope.md wants it: extensions live there.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    keyid: str = Field(default="", max_length=1000)
    sig: str = Field(max_length=10_000)


class _Envelope(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    payload: str
    payloadType: str = Field(min_length=1, max_length=1000)  # noqa: N815  (the name in the file)
    signatures: list[_Signature] = Field(min_length=1, max_length=MAX_SIGNATURES)


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """PAE: `DSSEv1 LEN(type) type LEN(body) body`, lengths in bytes and decimal."""
    kind = payload_type.encode()
    return b" ".join([b"DSSEv1", b"%d" % len(kind), kind, b"%d" % len(payload), payload])


def parse_envelope(data: bytes, origin: str) -> Envelope:
    """Read an envelope; raises PackError (no strict JSON) or SigningError (no envelope), naming the fault."""
    value = parse_json(data, origin, max_nbytes=MAX_ENVELOPE_NBYTES)
    try:
        found = _Envelope.model_validate(value)
    except ValidationError as error:
        raise SigningError(f"{origin}: no DSSE envelope: {first_fault(error)}") from error
    return Envelope(
        found.payloadType,
        _from_base64(found.payload, f"{origin}: payload"),
        tuple(
            EnvelopeSignature(each.keyid, _from_base64(each.sig, f"{origin}: signatures.{index}.sig"))
            for index, each in enumerate(found.signatures)
        ),
    )


def render_envelope(envelope: Envelope) -> bytes:
    return render_json(
        {
            "payload": base64.b64encode(envelope.payload).decode(),
            "payloadType": envelope.payload_type,
            "signatures": [
                {"keyid": each.keyid, "sig": base64.b64encode(each.signature).decode()} for each in envelope.signatures
            ],
        }
    )


def _from_base64(text: str, where: str) -> bytes:
    """Standard or URL-safe base64, since a verifier must take both; nothing but its alphabet and padding."""
    try:
        return base64.b64decode(text.translate(_URL_SAFE), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SigningError(f"{where} is no base64: {error}") from error
