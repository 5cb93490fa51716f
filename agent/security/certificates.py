"""Certificates of a cluster: one CA, one certificate for each node. Rules: no file; time is an argument.

Keys are P-256. A node's certificate is valid for a year and is renewed, for the same key, when a third of that has passed
(renewal.py), so that the device that holds the CA's key may be away for eight months. A node is put out of the cluster at
once, by revocation (charter.py), and not by expiry. Certificates are valid from long before `now`, because a board without
a clock battery may boot with an old date and must still be let in.
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
"""The remaining lifetime at which a certificate is renewed."""
WARNED_BELOW = LIFETIME / 4
"""The remaining lifetime below which people are warned that a certificate was not renewed."""
CA_LIFETIME = timedelta(days=30 * 365)
"""The lifetime of the CA's certificate, which nothing renews."""
BACKDATE = timedelta(days=3653)
AHEAD = BACKDATE / 2
"""The time for which a device still signs after the end of its own certificate. With a longer time, the device may have
been off for longer; with a shorter one, a clock that is ahead does less harm. Certificates that are signed by a clock that
is ahead by less than BACKDATE are valid by correct clocks."""
_CA_NAME = "edgepart cluster "
"""The beginning of the CA's name, which is therefore no node id."""

Key = ec.EllipticCurvePrivateKey

UNREADABLE = (
    ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.DuplicateExtension,
    x509.InvalidVersion, x509.UnsupportedGeneralNameType,
)  # fmt: skip
"""The errors raised by reading bytes that are no certificate or request, or one of a kind that edgepart never makes."""


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def new_node_id() -> str:
    return secrets.token_hex(8)


def key_pem(key: Key) -> bytes:
    """Return the key as unencrypted PKCS #8. Only the file's mode protects it, so that an agent can start unattended."""
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def key_of(pem: bytes) -> Key:
    """Return the private key in a PEM text. Raises ValueError if it is not an elliptic-curve private key."""
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
    """Return the SHA-256 (hex) of the DER form. That of the CA's certificate identifies the cluster."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def new_ca(key: Key, now: float) -> x509.Certificate:
    """Return the self-signed certificate of a new CA, which may sign certificates of nodes only."""
    name = _name(_CA_NAME + secrets.token_hex(4))
    ca_use: Sequence[tuple[x509.ExtensionType, bool]] = (
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_key_usage(key_cert_sign=True, crl_sign=True), True),
    )
    return _sign(name, name, key.public_key(), ca_use, key, key.public_key(), now, CA_LIFETIME)


def new_request(key: Key) -> bytes:
    """Return a certificate signing request (DER), which proves that we hold `key`. The issuer chooses the node id."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name("edgepart node"))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def issue(request: bytes, node_id: str, ca: x509.Certificate, ca_key: Key, now: float) -> x509.Certificate:
    """Return a node's certificate for the key in `request`; the rest of the request is ignored.

    Raises NotAuthorised if the request is malformed or does not prove possession of its key.
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
    """Return the certificate of a node, read from DER, and its node id. Raises NotAuthorised if this CA did not issue it
    for a node."""
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
    """Return a CA's certificate, read from DER. Raises NotAuthorised if it is not one."""
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
    """Return the time at which a certificate was issued, by the issuer's clock, in seconds since 1970."""
    return (certificate.not_valid_before_utc + BACKDATE).timestamp()


def seconds_left(certificate: x509.Certificate, now: float) -> float:
    """The seconds until the certificate expires; negative if it has expired."""
    return certificate.not_valid_after_utc.timestamp() - now


def due(certificate: x509.Certificate, now: float) -> bool:
    """Whether a node's certificate has to be renewed: it expires soon, or it comes from an early release, whose
    certificates lived ten years."""
    left_s = seconds_left(certificate, now)
    return not RENEWED_BELOW.total_seconds() <= left_s <= LIFETIME.total_seconds() * 1.1


def not_yet_valid(certificate: x509.Certificate, now: float) -> bool:
    return certificate.not_valid_before_utc.timestamp() > now


def too_late(ca: x509.Certificate, own: x509.Certificate, now: float) -> str:
    """Return the reason not to sign by a clock that shows `now`, on the device with the certificate `own`; "" if the clock
    may be right.

    The clocks of other members cannot decide that: for a device whose clock is more than a year ahead, the certificates of
    all members have expired, so that it has no links to them."""
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
