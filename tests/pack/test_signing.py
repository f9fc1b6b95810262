"""Signed packs: the formats are those of their specifications, and every way of tampering is rejected by its name."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvassay.cli.app import run
from kvassay.core.contract import parse_contract
from kvassay.errors import PackError, SigningError
from kvassay.pack.dsse import Envelope, EnvelopeSignature, parse_envelope, pre_authentication_encoding, render_envelope
from kvassay.pack.folder import EXPERIMENT_SCHEMA, FolderWriter
from kvassay.pack.manifest import SIGNATURES_NAME
from kvassay.pack.signing import PAYLOAD_TYPE, sign_folder, signature_checks
from kvassay.pack.signing_keys import keyid, make_keys, read_private_key, read_public_key
from kvassay.pack.verify import verify_pack
from kvassay.pack.writer import PackWriter
from tests.pack.sample_pack import CONTRACT_TOML, write_rows
from tests.pack.tampering import edit, load, rehash, store

# RFC 8032, section 7.1, TEST 1 and TEST 2: secret and public keys.
SEEDS = {
    "A": "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
    "B": "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
}
PUBLIC = {
    "A": "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    "B": "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
}
KEYS = {name: Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)) for name, seed in SEEDS.items()}
STATEMENT = b'{"_type":"https://in-toto.io/Statement/v1"}'

# Signatures of these keys as DSSE's own test vectors have them (secure-systems-lab/dsse, testvectors/vectors.json).
VECTORS = {
    ("A", PAYLOAD_TYPE, STATEMENT): (
        "2WAfaHm5jluo0w+0rk8uVkluELJYWjSmU9x7EUzx+AyteDGJ4/nqyJXfmAUVFIAoQafWm7AxBZNw5M9ixNHiCA=="
    ),
    ("B", PAYLOAD_TYPE, STATEMENT): (
        "c1+67/aT0yqEpwx8PsVY3MLHsj9D0CZ014/Fv/QlG59P+9CobUZ7xECJ/V3USG0Ob9CiE5LjReEZUzNF2l7eBw=="
    ),
    ("A", PAYLOAD_TYPE, b"\xfb\xff\xbf>?"): (
        "P-_KHICeR7tI6S_YyejJTRtrXhcQyQ2LYPaL8h90KjC9qN8HU_svOQ6TuDOT1HIrsGW886DbWNWcCmX5twLrAw=="
    ),
    ("A", "application/vnd.exämple+json", STATEMENT): (
        "xmSk/ug66ysT7ayhkCIjhAq42zgZXSsEWuzUaNL7w2eGAdF/NU6/fRXPtmfN+5DNSAs5/i2lUnHjbbjPsu0tAw=="
    ),
    ("A", PAYLOAD_TYPE, b""): (
        "gSggCAaTLTYyRH6FIDBem6meyIynsYy8RTHVzwx9tnTb7Bg/1jMWnuVgI/gffqmbsC2VX5/jHfkkDqsj7CDbDg=="
    ),
}


def test_the_encoding_is_that_of_the_dsse_protocol() -> None:
    """protocol.md, "Test Vectors"; lengths are of bytes, and an empty body keeps its space."""
    encode = pre_authentication_encoding
    assert encode("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert encode("application/vnd.exämple+json", b"") == "DSSEv1 29 application/vnd.exämple+json 0 ".encode()


@pytest.mark.parametrize("vector", VECTORS)
def test_signatures_equal_the_vectors_of_dsse_and_rfc_8032(vector: tuple[str, str, bytes]) -> None:
    name, kind, payload = vector
    assert KEYS[name].public_key().public_bytes_raw().hex() == PUBLIC[name]
    text = {
        "payload": base64.urlsafe_b64encode(payload).decode(),  # a verifier must take both alphabets
        "payloadType": kind,
        "signatures": [{"sig": VECTORS[vector]}],
    }
    envelope = parse_envelope(json.dumps(text).encode(), "vector")
    assert envelope == Envelope(kind, payload, (EnvelopeSignature("", KEYS[name].sign(envelope.signed_bytes)),))
    assert parse_envelope(render_envelope(envelope), "vector") == envelope


def write_public(name: str, folder: Path) -> Path:
    path = folder / f"{name}.pub"
    pem = (
        KEYS[name]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    path.write_bytes(pem)
    return path


def failed(pack: Path, *names: str) -> list[str]:
    root = verify_pack(pack).root
    checks = signature_checks(pack, root, [KEYS[name].public_key() for name in names])
    assert len({check.name for check in checks}) == len(checks)
    return [check.name for check in checks if not check.passed]


def signature(name: str) -> str:
    return f"signature: {keyid(KEYS[name].public_key())}"


def test_a_pack_is_signed_by_several_and_stays_as_it_was(pack: Path) -> None:
    before = {path: path.read_bytes() for path in pack.rglob("*") if path.is_file()}
    assert failed(pack) == []
    assert failed(pack, "A") == [signature("A")]
    first = sign_folder(pack, KEYS["A"])
    assert (first.signatures, failed(pack, "A"), failed(pack, "A", "B")) == (1, [], [signature("B")])
    assert sign_folder(pack, KEYS["B"]).signatures == 2
    assert failed(pack, "A", "B", "A") == []
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in pack.iterdir()} - {path.name for path in before} <= {
        SIGNATURES_NAME,
        "rows",
        "charts",
    }
    assert verify_pack(pack, expect_root=first.root).passed
    with pytest.raises(SigningError, match="signed with this key already"):
        sign_folder(pack, KEYS["A"])


def test_the_statement_is_an_in_toto_statement_of_the_manifest(pack: Path, whole_pack) -> None:
    """Read by the specification alone: spec/v1/statement.md and envelope.md of the in-toto attestation framework."""
    sign_folder(pack, KEYS["A"])
    envelope = load(pack, SIGNATURES_NAME)
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    told = json.loads(base64.b64decode(envelope["payload"]))
    digest = subprocess.run(["sha256sum", str(pack / "manifest.json")], capture_output=True, text=True, check=True)
    assert told == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "manifest.json", "digest": {"sha256": digest.stdout.split()[0]}}],
        "predicateType": "urn:kvassay:signed-manifest:1",
        "predicate": {
            "schema": "kvassay.pack/1",
            "root": whole_pack[1].root,
            "contract_sha256": whole_pack[1].contract_sha256,
            **{name: load(pack, "manifest.json")[name] for name in ("created_utc", "kvassay_version")},
        },
    }


def test_another_implementation_reads_what_is_written(pack: Path) -> None:
    """securesystemslib, by the authors of DSSE, verifies our envelope and adds a signature that we verify."""
    dsse = pytest.importorskip("securesystemslib.dsse")
    signer = pytest.importorskip("securesystemslib.signer")
    sign_folder(pack, KEYS["A"])
    theirs = dsse.Envelope.from_dict(load(pack, SIGNATURES_NAME))
    keys = {name: signer.SSlibKey.from_crypto(key.public_key()) for name, key in KEYS.items()}
    # Their library tries a key on the signature of its own id alone.
    renamed = {key.keyid: each for each, key in zip(theirs.signatures.values(), [keys["A"]], strict=True)}
    for key_id, each in renamed.items():
        each.keyid = key_id
    theirs.signatures = renamed
    assert len(theirs.verify([keys["A"]], 1)) == 1
    theirs.sign(signer.CryptoSigner(KEYS["B"]))
    assert len(theirs.verify(list(keys.values()), 2)) == 2
    store(pack, SIGNATURES_NAME, theirs.to_dict())
    assert failed(pack, "A", "B") == []


def _payload(change: Callable[[dict], None]) -> Callable[[Path], None]:
    """The statement edited, and not signed again."""

    def apply(pack: Path) -> None:
        envelope = load(pack, SIGNATURES_NAME)
        told = json.loads(base64.b64decode(envelope["payload"]))
        change(told)
        envelope["payload"] = base64.b64encode(json.dumps(told).encode()).decode()
        store(pack, SIGNATURES_NAME, envelope)

    return apply


def _resigned(payload: bytes, kind: str = PAYLOAD_TYPE) -> Callable[[Path], None]:
    """Something else that the signer really signed, put in the place of the statement."""

    def apply(pack: Path) -> None:
        envelope = Envelope(kind, payload, ())
        made = EnvelopeSignature("", KEYS["A"].sign(envelope.signed_bytes))
        (pack / SIGNATURES_NAME).write_bytes(render_envelope(envelope._replace(signatures=(made,))))

    return apply


def _set(**fields: object) -> Callable[[Path], None]:
    return lambda pack: edit(pack, SIGNATURES_NAME, lambda envelope: envelope.update(fields))


def _text(text: str) -> Callable[[Path], None]:
    return lambda pack: (pack / SIGNATURES_NAME).write_text(text)


def _flip(pack: Path) -> None:
    envelope = load(pack, SIGNATURES_NAME)
    raw = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
    raw[5] ^= 1
    envelope["signatures"][0]["sig"] = base64.b64encode(raw).decode()
    store(pack, SIGNATURES_NAME, envelope)


def _edited_and_rehashed(pack: Path) -> None:
    edit(pack, "environment.json", lambda environment: environment.update(python="3.99"))
    rehash(pack)


def _reformatted_manifest(pack: Path) -> None:
    (pack / "manifest.json").write_text(json.dumps(load(pack, "manifest.json")))


def _link(pack: Path) -> None:
    (pack / SIGNATURES_NAME).rename(pack.parent / "elsewhere.json")
    (pack / SIGNATURES_NAME).symlink_to(pack.parent / "elsewhere.json")


def _pipe(pack: Path) -> None:
    (pack / SIGNATURES_NAME).unlink()
    os.mkfifo(pack / SIGNATURES_NAME)


UNREADABLE = ["signatures-file", signature("A")]
TAMPERINGS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "a byte of the signature": (_flip, [signature("A")]),
    "no signatures at all": (lambda pack: (pack / SIGNATURES_NAME).unlink(), [signature("A")]),
    "another key's signature under this key's id": (
        lambda pack: edit(
            pack,
            SIGNATURES_NAME,
            lambda envelope: envelope["signatures"][0].update(sig=VECTORS["B", PAYLOAD_TYPE, STATEMENT]),
        ),
        [signature("A")],
    ),
    "a signature of another length": (
        lambda pack: edit(pack, SIGNATURES_NAME, lambda envelope: envelope["signatures"][0].update(sig="AAAA")),
        [signature("A")],
    ),
    "the type changed after signing": (_set(payloadType="text/plain"), [signature("A"), "signed-type"]),
    "another root in the statement": (
        _payload(lambda told: told["predicate"].update(root="0" * 64)),
        [signature("A"), "signed-root"],
    ),
    "another digest in the statement": (
        _payload(lambda told: told["subject"][0]["digest"].update(sha256="0" * 64)),
        [signature("A"), "signed-manifest"],
    ),
    "a second subject": (
        _payload(lambda told: told["subject"].append({"digest": {"sha256": "0" * 64}})),
        [signature("A"), "signed-manifest"],
    ),
    "a file edited and everything hashed anew": (_edited_and_rehashed, ["signed-manifest", "signed-root"]),
    "the manifest reformatted": (_reformatted_manifest, ["signed-manifest"]),
    "another statement of the same signer": (_resigned(STATEMENT), ["signed-statement"]),
    "another predicate of the same signer": (
        lambda pack: _resigned(
            base64.b64decode(load(pack, SIGNATURES_NAME)["payload"]).replace(b"urn:kvassay", b"urn:elsewhere")
        )(pack),
        ["signed-statement"],
    ),
    "a message of the same signer": (_resigned(b"hello", "text/plain"), ["signed-type", "signed-statement"]),
    "keys twice in the statement": (_resigned(b'{"_type":"a","_type":"b"}'), ["signed-statement"]),
    "keys twice in the envelope": (_text('{"payload":"","payload":"","payloadType":"x","signatures":[]}'), UNREADABLE),
    "no base64": (_set(payload="!!!!"), UNREADABLE),
    "an empty list of signatures": (_set(signatures=[]), UNREADABLE),
    "a thousand signatures": (_set(signatures=[{"sig": "AAAA"}] * 1000), UNREADABLE),
    "no object": (_text("[]"), UNREADABLE),
    "no JSON": (_text("{"), UNREADABLE),
    "nested without end": (_text("[" * 100_000), UNREADABLE),
    "megabytes": (_text(" " * (2 << 20)), UNREADABLE),
    "a link": (_link, UNREADABLE),
    "a pipe": (_pipe, UNREADABLE),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_r108_every_tampering_is_rejected_by_its_name(tampering: str, pack: Path) -> None:
    sign_folder(pack, KEYS["A"])
    change, expected = TAMPERINGS[tampering]
    change(pack)
    assert failed(pack, "A") == expected


def test_signatures_are_added_to_the_statement_that_is_there_only(pack: Path) -> None:
    sign_folder(pack, KEYS["A"])
    _edited_and_rehashed(pack)
    with pytest.raises(SigningError, match="signs something else than the manifest that is there now"):
        sign_folder(pack, KEYS["B"])
    (pack / SIGNATURES_NAME).unlink()
    (pack / "plan.json").write_text("{}")
    with pytest.raises(PackError, match=r"not signed: plan\.json has 3 bytes|not signed: plan\.json has 2 bytes"):
        sign_folder(pack, KEYS["B"])


def test_signing_writes_through_no_link(pack: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    (pack / SIGNATURES_NAME).symlink_to(outside)
    with pytest.raises(PackError):
        sign_folder(pack, KEYS["A"])
    (pack / SIGNATURES_NAME).unlink()
    sign_folder(pack, KEYS["A"])
    other = tmp_path / "other.json"
    os.link(pack / SIGNATURES_NAME, other)
    once = other.read_bytes()
    sign_folder(pack, KEYS["B"])
    assert (outside.read_text(), other.read_bytes()) == ("kept", once)


def _of_another_version(pack: Path) -> str:
    """The sample has made-up charts, which are not compared in a pack that another version wrote."""
    edit(pack, "manifest.json", lambda manifest: manifest.update(kvassay_version="0.0.1"))
    rehash(pack)
    return load(pack, "manifest.json")["root"]


def test_the_commands_from_key_to_verdict(pack: Path, tmp_path: Path, capsys) -> None:
    key, root = tmp_path / "key", _of_another_version(pack)
    assert run(["keygen", str(key), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert key.stat().st_mode & 0o777 == 0o600
    assert run(["keygen", str(key)]) == 2
    assert "exists" in capsys.readouterr().err
    assert run(["sign", str(pack), "--key", str(key), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "keyid": made["keyid"],
        "root": root,
        "signatures": 1,
        "file": str(pack / SIGNATURES_NAME),
    }
    verify = ["verify", str(pack), "--public-key", made["public"]]
    assert run(verify) == 0
    assert "neither root nor public key" not in capsys.readouterr().out
    assert run([*verify, "--public-key", str(write_public("A", tmp_path))]) == 1
    assert f"FAIL  {signature('A')}" in capsys.readouterr().out
    assert run(["verify", str(pack)]) == 0
    assert "whose they are was not checked" in capsys.readouterr().out
    edit(pack, SIGNATURES_NAME, lambda envelope: envelope.update(payloadType="x"))
    assert run(["verify", str(pack)]) == 1


def test_a_pack_is_verified_without_cryptography_and_the_extra_is_named(pack: Path, tmp_path: Path) -> None:
    _of_another_version(pack)
    sign_folder(pack, KEYS["A"])
    code = """
import sys
sys.modules["cryptography"] = None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "cryptography" else found(name, *more)
from kvassay.cli.app import run
print(run(["verify", sys.argv[1]]), run(["verify", sys.argv[1], "--public-key", sys.argv[2]]))
"""
    arguments = [sys.executable, "-c", code, str(pack), str(write_public("A", tmp_path))]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "0 2"
    assert "pip install 'kvassay[sign]'" in ran.stderr


def test_keys_of_openssl_are_read_and_encrypted_ones_need_their_passphrase(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("KVASSAY_KEY_PASSPHRASE", "a passphrase")
    made = make_keys(tmp_path / "key")
    assert b"ENCRYPTED" in made.private_path.read_bytes()
    assert keyid(read_private_key(made.private_path).public_key()) == made.keyid
    monkeypatch.setenv("KVASSAY_KEY_PASSPHRASE", "another")
    with pytest.raises(SigningError, match="another passphrase"):
        read_private_key(made.private_path)
    monkeypatch.delenv("KVASSAY_KEY_PASSPHRASE")
    with pytest.raises(SigningError, match="give its passphrase in KVASSAY_KEY_PASSPHRASE"):
        read_private_key(made.private_path)
    assert keyid(read_public_key(made.public_path)) == made.keyid


def _pem(key: object, private: bool) -> bytes:
    if private:
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )  # type: ignore[attr-defined]
    return key.public_key().public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def test_other_keys_and_no_keys_are_refused_by_name(tmp_path: Path) -> None:
    curve, large = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 1024)
    files: dict[str, tuple[Callable[[Path], object], bytes, str]] = {
        "curve": (read_private_key, _pem(curve, True), "expected an Ed25519 private key"),
        "curve.pub": (read_public_key, _pem(curve, False), "expected an Ed25519 public key"),
        "rsa": (read_private_key, _pem(large, True), "RSAPrivateKey; expected an Ed25519"),
        "swapped": (read_public_key, _pem(KEYS["A"], True), r"holds a private key; give the public one"),
        "swapped.pub": (read_private_key, _pem(KEYS["A"], False), "no private key in PEM"),
        "empty": (read_public_key, b"", "no public key in PEM"),
        "large": (read_public_key, b"-" * (1 << 17), "131,072 bytes; at most 65,536 are read"),
    }
    for name, (read, data, message) in files.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o600)
        with pytest.raises(SigningError, match=message):
            read(tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SigningError, match="a pipe, socket or device"):
        read_public_key(tmp_path / "pipe")
    with pytest.raises(SigningError, match="No such file"):
        read_private_key(tmp_path / "absent")
    (tmp_path / "open").write_bytes(_pem(KEYS["A"], True))
    (tmp_path / "open").chmod(0o644)
    with pytest.warns(UserWarning, match="can be read by others"):
        read_private_key(tmp_path / "open")


def test_an_experiment_and_an_aborted_pack_are_signed_alike(tmp_path: Path) -> None:
    with FolderWriter(tmp_path / "experiment", EXPERIMENT_SCHEMA) as folder:
        folder.write_json("config.json", {"seed": 7})
        root = folder.commit().root
    assert sign_folder(tmp_path / "experiment", KEYS["A"]).root == root
    assert all(check.passed for check in signature_checks(folder.out, root, [KEYS["A"].public_key()]))
    contract = parse_contract(CONTRACT_TOML)
    with PackWriter(tmp_path / "aborted", contract, CONTRACT_TOML) as pack:
        write_rows(pack)
        pack.write_plan({})
        manifest = pack.abort({"reason": "a test"})
    assert manifest is not None
    assert sign_folder(tmp_path / "aborted", KEYS["A"]).root == manifest.root
    assert not [each for each in signature_checks(pack.out, manifest.root, []) if not each.passed]


def test_what_is_no_whole_result_folder_is_not_signed(pack: Path, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="absent' does not exist"):
        sign_folder(tmp_path / "absent", KEYS["A"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(PackError, match=r"manifest\.json: missing"):
        sign_folder(tmp_path / "empty", KEYS["A"])
    edit(pack, "manifest.json", lambda manifest: manifest.update(root="0" * 64))
    with pytest.raises(PackError, match="the manifest's root digest should be"):
        sign_folder(pack, KEYS["A"])


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_key_without_a_name_is_refused(name: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["keygen", name]) == 2
    assert "names no file; give one" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_passphrase_is_its_bytes_and_one_that_cannot_be_used_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("KVASSAY_KEY_PASSPHRASE", os.fsdecode(b"\xff not UTF-8"))
    pair = make_keys(tmp_path / "key")
    assert keyid(read_private_key(pair.private_path).public_key()) == pair.keyid
    monkeypatch.setenv("KVASSAY_KEY_PASSPHRASE", "x" * 1100)
    with pytest.raises(SigningError, match="has 1100 bytes; OpenSSL reads at most 1023"):
        make_keys(tmp_path / "long")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["key", "key.pub"]


def test_of_two_who_sign_at_once_neither_is_lost(pack: Path, monkeypatch) -> None:
    """The first is held between reading the signatures and writing them, while the second begins."""
    from kvassay.pack import signing

    held, go_on = threading.Event(), threading.Event()
    replace = signing.replace_whole_file

    def slow(path: Path, data: bytes) -> None:
        if not held.is_set():
            held.set()
            assert go_on.wait(30)
        replace(path, data)

    monkeypatch.setattr(signing, "replace_whole_file", slow)
    first, second = (threading.Thread(target=sign_folder, args=(pack, KEYS[name])) for name in "AB")
    first.start()
    assert held.wait(30)
    second.start()
    second.join(0.5)
    go_on.set()
    for thread in (first, second):
        thread.join(30)
    checks = signature_checks(pack, load(pack, "manifest.json")["root"], [key.public_key() for key in KEYS.values()])
    assert len(checks) == 7
    assert all(check.passed for check in checks), checks
