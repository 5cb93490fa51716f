"""Certificates of a cluster: one CA, one certificate for each node. Rules: no file; time is an argument.

P-256 keys. A node's certificate lives a year and is renewed, for the same key, when a third of that has passed
(renewal.py): who holds the CA's key may be away for eight months. To put a node out nobody waits for that: it is
revoked (charter.py), at once. Certificates start long before `now`, because a board without a clock battery may
boot with an old date and must still be let in.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgepart.planner.errors import NotAuthorised

NODE_ID = re.compile(r"[0-9a-f]{16}")
LIFETIME = timedelta(days=365)
"""The lifetime of a node's certificate. With a shorter one, a box that was given away and forgotten is out sooner; with
a longer one, the CA's key may be away for longer."""
RENEWED_BELOW = LIFETIME * 2 / 3
"""What is left of a certificate's life when it is renewed."""
WARNED_BELOW = LIFETIME / 4
"""What is left when people are told that it was not renewed."""
CA_LIFETIME = timedelta(days=30 * 365)
"""Nothing renews it."""
BACKDATE = timedelta(days=3653)
AHEAD = BACKDATE / 2
"""So long after the end of its own certificate a device still signs. Longer: it may have been off for longer; shorter: a
clock that runs ahead does less. What is signed by one that is ahead by less than BACKDATE is valid by right ones."""
_CA_NAME = "edgepart cluster "
"""Starts the CA's name, which is thus no node id."""

Key = ec.EllipticCurvePrivateKey

UNREADABLE = (
    ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.DuplicateExtension,
    x509.InvalidVersion, x509.UnsupportedGeneralNameType,
)  # fmt: skip
"""What reading a certificate or a request raises that is none, or of a kind that nobody here makes."""


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def new_node_id() -> str:
    return secrets.token_hex(8)


def key_pem(key: Key) -> bytes:
    """Unencrypted PKCS #8: the file's mode protects it, so that an agent starts unattended."""
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def key_of(pem: bytes) -> Key:
    """ValueError for what is no P-256 private key."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"no private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic-curve key")
    return key


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 (hex) of the DER form; of the CA's it names the cluster."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def new_ca(key: Key, now: float) -> x509.Certificate:
    """A self-signed CA that signs nodes only."""
    name = _name(_CA_NAME + secrets.token_hex(4))
    ca_use: Sequence[tuple[x509.ExtensionType, bool]] = (
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_key_usage(key_cert_sign=True, crl_sign=True), True),
    )
    return _sign(name, name, key.public_key(), ca_use, key, key.public_key(), now, CA_LIFETIME)


def new_request(key: Key) -> bytes:
    """A certificate signing request (DER): proves that we hold `key`. The issuer chooses the node id."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name("edgepart node"))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def issue(request: bytes, node_id: str, ca: x509.Certificate, ca_key: Key, now: float) -> x509.Certificate:
    """A node's certificate for the key in `request`; nothing else of the request is taken over.

    NotAuthorised where the request is malformed or does not prove its key.
    """
    try:
        parsed = x509.load_der_x509_csr(request)
        key = parsed.public_key()
        sound = parsed.is_signature_valid
    except UNREADABLE as error:
        raise NotAuthorised(f"the certificate request cannot be read: {error}") from error
    if not sound or not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise NotAuthorised("the certificate request does not prove a P-256 key")
    return sign_node(key, node_id, ca, ca_key, now)


def sign_node(
    key: ec.EllipticCurvePublicKey, node_id: str, ca: x509.Certificate, ca_key: Key, now: float
) -> x509.Certificate:
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    node_use: Sequence[tuple[x509.ExtensionType, bool]] = (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(digital_signature=True), True),
        (both, False),
    )
    return _sign(_name(node_id), ca.subject, key, node_use, ca_key, ca_key.public_key(), now, LIFETIME)


def read_node(encoded: bytes, ca: x509.Certificate) -> tuple[x509.Certificate, str]:
    """A node's certificate (DER) and its node id. NotAuthorised where this CA did not issue it."""
    try:
        certificate = x509.load_der_x509_certificate(encoded)
        certificate.verify_directly_issued_by(ca)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        name = str(names[0].value) if len(names) == 1 else ""
    except UNREADABLE as error:
        raise NotAuthorised(f"the certificate is not one of this cluster: {error!r}") from error
    if not NODE_ID.fullmatch(name):
        raise NotAuthorised(f"the certificate of {name[:40]!r} is not a node's")
    return certificate, name


def read_ca(encoded: bytes) -> x509.Certificate:
    """A CA's certificate (DER). NotAuthorised where it is none."""
    try:
        certificate = x509.load_der_x509_certificate(encoded)
        certificate.verify_directly_issued_by(certificate)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except UNREADABLE as error:
        raise NotAuthorised(f"that is no CA certificate: {error!r}") from error
    if not constraints.ca:
        raise NotAuthorised("that is a certificate, but not a CA's")
    return certificate


def issued_at(certificate: x509.Certificate) -> float:
    """By its issuer's clock, in seconds since 1970."""
    return (certificate.not_valid_before_utc + BACKDATE).timestamp()


def seconds_left(certificate: x509.Certificate, now: float) -> float:
    """The seconds until the certificate expires; negative if it has."""
    return certificate.not_valid_after_utc.timestamp() - now


def due(certificate: x509.Certificate, now: float) -> bool:
    """Whether a node's certificate is to be renewed: its time is near, or it is of the days when they lived ten years."""
    left_s = seconds_left(certificate, now)
    return not RENEWED_BELOW.total_seconds() <= left_s <= LIFETIME.total_seconds() * 1.1


def not_yet_valid(certificate: x509.Certificate, now: float) -> bool:
    return certificate.not_valid_before_utc.timestamp() > now


def too_late(ca: x509.Certificate, own: x509.Certificate, now: float) -> str:
    """Why nothing is to be signed by a clock that shows `now`, on a device of this certificate; "" where it may be right.

    Members' clocks do not say: to one that is ahead by more than a year all their certificates have ended, so that there
    are no links to them."""
    last = min(own.not_valid_after_utc + AHEAD, ca.not_valid_after_utc)
    if now <= last.timestamp():
        return ""
    return (
        f"the clock of the device that holds the CA's key shows {_date(now)}, and its own certificate is of "
        f"{_date(issued_at(own))}: as the clock is likely to be wrong, nothing is signed by it. Set it (`timedatectl "
        "set-ntp true`); if it is right, the cluster's certificates ended long ago: make a new cluster"
    )


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def same_key(certificate: x509.Certificate, key: Key) -> bool:
    return bool(certificate.public_key() == key.public_key())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(**true: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    uses: dict[str, Any] = {name: true.get(name, False) for name in names}
    return x509.KeyUsage(**uses)


def _sign(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    ca_key: Key,
    ca_public: ec.EllipticCurvePublicKey,
    now: float,
    lifetime: timedelta,
) -> x509.Certificate:
    at = datetime.fromtimestamp(now, UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - BACKDATE)
        .not_valid_after(at + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_public), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(ca_key, hashes.SHA256())
