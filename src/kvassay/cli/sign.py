"""`kvassay keygen` and `kvassay sign`: who stands for a pack, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvassay.cli.output import print_json


def keygen(file: Path, /, *, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Make an Ed25519 key pair for signing packs: FILE, to be kept secret, and FILE.pub, to be handed out.

    KVASSAY_KEY_PASSPHRASE, if set, encrypts the private key.

    Parameters
    ----------
    file
        Where the private key goes; neither it nor FILE.pub may exist.
    json
        Print one JSON document.
    """
    from kvassay.pack.signing_keys import make_keys

    made = make_keys(file)
    if json:
        print_json({"private": str(made.private_path), "public": str(made.public_path), "keyid": made.keyid})
        return 0
    print(f"private {made.private_path}   keep it secret")
    print(f"public  {made.public_path}   hand it out")
    print(f"keyid   {made.keyid}")
    return 0


def sign(folder: Path, /, *, key: Path, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Sign a pack: its manifest, and by that every file of it. Several signers add their signatures one after another.

    The signature says that its maker stands for these very files; `kvassay verify PACK --public-key FILE` checks it.

    Parameters
    ----------
    folder
        What `kvassay assess` or `kvassay experiment` wrote; each file must be as its manifest says.
    key
        The private key: a PEM file of `kvassay keygen`, or of openssl for Ed25519.
    json
        Print one JSON document.
    """
    from kvassay.pack.signing import SIGNATURES_NAME, sign_folder
    from kvassay.pack.signing_keys import read_private_key

    signed = sign_folder(folder, read_private_key(key))
    if json:
        print_json({**signed._asdict(), "file": str(folder / SIGNATURES_NAME)})
        return 0
    print(f"signed root {signed.root}")
    print(f"keyid {signed.keyid}, signature {signed.signatures} in {folder / SIGNATURES_NAME}")
    return 0
