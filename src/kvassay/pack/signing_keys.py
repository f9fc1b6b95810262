"""Ed25519 keys in PEM files: made, read, and named by a digest. Needs the package `cryptography` (extra `sign`).

Private keys are PKCS #8, public ones SubjectPublicKeyInfo (RFC 8410), as `openssl genpkey -algorithm ed25519` writes
them. A key's id is the SHA-256 of the DER of its public half, so anyone can compute it without kvassay:
`openssl pkey -pubin -in KEY.pub -outform DER | sha256sum`.
"""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvassay.core.regular_file import read_regular
from kvassay.errors import MissingExtraError, PackError, SigningError
from kvassay.pack.whole_file import refuse_existing, write_whole_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAX_KEY_NBYTES = 1 << 16
PASSPHRASE_VARIABLE = "KVASSAY_KEY_PASSPHRASE"
"""If set and not empty, private keys are written encrypted with it, and encrypted ones are read with it."""
MAX_PASSPHRASE_NBYTES = 1023


class KeyPair(NamedTuple):
    private_path: Path
    public_path: Path
    keyid: str


def require_cryptography(command: str) -> None:
    if find_spec("cryptography") is None:
        raise MissingExtraError(
            f"{command} needs cryptography, not installed; install the extra: pip install 'kvassay[sign]'"
        )


def make_keys(path: Path) -> KeyPair:
    """Write a fresh private key to `path`, readable by its owner alone, and the public one to `path` + `.pub`.

    Raises SigningError where either path exists or cannot be written; nothing is left then.
    """
    require_cryptography("keygen")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not path.name:
        raise SigningError(f"{str(path)!r} names no file; give one that does not exist yet")
    private = Ed25519PrivateKey.generate()
    passphrase = _passphrase()
    if passphrase is not None and len(passphrase) > MAX_PASSPHRASE_NBYTES:
        raise SigningError(
            f"{PASSPHRASE_VARIABLE} has {len(passphrase)} bytes; OpenSSL reads at most {MAX_PASSPHRASE_NBYTES}"
        )
    encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    text = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    public = private.public_key()
    public_path = path.with_name(path.name + ".pub")
    try:
        refuse_existing(path)
        write_whole_file(public_path, _public_pem(public))
        try:
            write_whole_file(path, text, mode=0o600)
        except BaseException:
            public_path.unlink()
            raise
    except PackError as error:
        raise SigningError(str(error)) from error
    return KeyPair(path, public_path, keyid(public))


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Raises SigningError for what is no Ed25519 private key, or an encrypted one without its passphrase."""
    require_cryptography("sign")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read(path)
    try:
        key = load_pem_private_key(data, _passphrase() if b"ENCRYPTED" in data else None)
    except TypeError as error:
        raise SigningError(f"{str(path)!r} is encrypted; give its passphrase in {PASSPHRASE_VARIABLE}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        hint = f", or {PASSPHRASE_VARIABLE} holds another passphrase" if b"ENCRYPTED" in data else ""
        raise SigningError(f"{str(path)!r} is no private key in PEM{hint}; kvassay keygen makes one") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningError(f"{str(path)!r} is a {_kind(key)}; expected an Ed25519 private key (kvassay keygen)")
    if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        warnings.warn(f"{str(path)!r} can be read by others (mode {mode:04o}); chmod 600 closes it", stacklevel=2)
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Raises SigningError for what is no Ed25519 public key."""
    require_cryptography("verify --public-key")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = _read(path)
    if b"PRIVATE KEY" in data:
        raise SigningError(f"{str(path)!r} holds a private key; give the public one, which ends in .pub")
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SigningError(
            f"{str(path)!r} is no public key in PEM; expected the .pub file of kvassay keygen"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise SigningError(f"{str(path)!r} is a {_kind(key)}; expected an Ed25519 public key")
    return key


def keyid(key: Ed25519PublicKey) -> str:
    """SHA-256 of the DER of the public key, 64 hexadecimal digits."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _public_pem(key: Ed25519PublicKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _passphrase() -> bytes | None:
    # Its bytes as the environment has them, which need not be UTF-8.
    return os.fsencode(os.environ.get(PASSPHRASE_VARIABLE, "")) or None


def _kind(key: object) -> str:
    return type(key).__name__.removeprefix("_")


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_KEY_NBYTES)
    except OSError as error:
        raise SigningError(f"{str(path)!r} cannot be read: {error.strerror}") from error
