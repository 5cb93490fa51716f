"""Escrow: a copy of the CA's key, encrypted with a passphrase, to be kept elsewhere. Rules: no file; chance is in the
library.

scrypt derives the encryption key from the passphrase (32 MiB and some tenths of a second for each guess on a small board).
The encryption is ChaCha20-Poly1305, which also authenticates the CA's certificate; that is in the file unencrypted.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from edgepart.agent.security import certificates
from edgepart.agent.security.certificates import Key
from edgepart.planner.errors import NotAuthorised, UsageError

LEAST_PASSPHRASE = 12
"""The fewest characters of a passphrase: anybody may get hold of the file, and can then guess for as long as they like."""
MOST_BYTES = 64 << 10
_KIND = "edgepart CA key 1"
_SCRYPT = {"n": 1 << 15, "r": 8, "p": 1}


def seal(ca: x509.Certificate, key: Key, passphrase: str) -> bytes:
    """Return the content of the file. Raises UsageError for a passphrase that is too short."""
    if len(passphrase) < LEAST_PASSPHRASE:
        raise UsageError(f"the passphrase needs {LEAST_PASSPHRASE} characters or more. Nothing was written")
    salt, nonce, public = secrets.token_bytes(16), secrets.token_bytes(12), certificates.pem(ca)
    sealed = ChaCha20Poly1305(_stretch(passphrase, salt)).encrypt(nonce, certificates.key_pem(key), public)
    document = {
        "kind": _KIND,
        "ca": public.decode(),
        "salt": salt.hex(),
        "nonce": nonce.hex(),
        "sealed": sealed.hex(),
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def unseal(data: bytes, passphrase: str) -> tuple[x509.Certificate, Key]:
    """Return the CA and its key. Raises UsageError if `data` is not such a file, and NotAuthorised if the passphrase is
    wrong or the file was changed."""
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"{len(data)} bytes are too many")
        document: Any = json.loads(data)
        if document["kind"] != _KIND:
            raise ValueError(f"it is a {str(document['kind'])[:40]!r}")
        public = str(document["ca"]).encode()
        salt, nonce, sealed = (bytes.fromhex(document[name]) for name in ("salt", "nonce", "sealed"))
        ca = x509.load_pem_x509_certificate(public)
        if len(salt) != 16 or len(nonce) != 12 or public != certificates.pem(ca):
            raise ValueError("its fields are damaged")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"that is no file of `edgepart ca export`: {error}. Nothing was changed") from error
    try:
        key = certificates.key_of(ChaCha20Poly1305(_stretch(passphrase, salt)).decrypt(nonce, sealed, public))
    except (InvalidTag, ValueError) as error:
        raise NotAuthorised(
            "the passphrase is wrong, or the file was changed. Nothing was changed"
        ) from error
    if not certificates.same_key(ca, key):
        raise NotAuthorised("the key in the file is not its CA's. Nothing was changed")
    return ca, key


def _stretch(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, **_SCRYPT).derive(passphrase.encode())
