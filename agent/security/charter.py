"""Charter: the decisions of the cluster's CA that every member keeps: the revoked nodes, and the management credential.
Rules: no file, no socket; time and chance are arguments.

Each statement is signed with the CA's key, so that any member can pass it on and none can forge one. Charters are merged,
never replaced: revocations are only added, and of two credentials the one with the larger number wins. Therefore all
members end with the same charter, in whatever order they learn its parts. Members pass on the whole charter, never a
credential alone, so that a member that learns a new credential knows the nodes that must not learn it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from edgepart.agent.security.certificates import NODE_ID, Key, fingerprint
from edgepart.agent.wire import versions
from edgepart.planner.errors import NotAuthorised, UsageError

MOST_REVOKED = 2_000
"""The most revoked nodes in one charter. With more, an old cluster need not be replaced by a new one; with fewer, a new
member checks them sooner (0.1 s for 1,000)."""
SECRET_LENGTH = 32
"""The least number of characters in a credential."""
_ALGORITHM = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True, slots=True)
class Revocation:
    """The statement that a node is put out of the cluster for ever."""

    node: str
    at_s: int
    """The time of the revocation, in seconds since 1970, by the signer's clock; for people."""
    signature: bytes

    def __post_init__(self) -> None:
        if not NODE_ID.fullmatch(self.node) or not 0 <= self.at_s < 1 << 48 or len(self.signature) > 80:
            raise ValueError("that is no revocation")


@dataclass(frozen=True, slots=True)
class Credential:
    """The credential that opens the management API."""

    number: int
    """Grows with each new credential. The credential with which a cluster was created has number 0 and is not signed."""
    secret: str = field(repr=False)
    covers: tuple[str, ...]
    """The nodes that were revoked when the credential was made, and that never learn it."""
    signature: bytes

    def __post_init__(self) -> None:
        sound = self.secret.isascii() and self.secret.isprintable() and " " not in self.secret
        if not sound or not SECRET_LENGTH <= len(self.secret) <= 200:
            raise ValueError("that is no credential")
        if not 1 <= self.number < 1 << 48 or len(self.covers) > MOST_REVOKED or len(self.signature) > 80:
            raise ValueError("that is no credential")


@dataclass(frozen=True, slots=True)
class Charter:
    """All revocations and the credential. It is also the message that passes them on, sent only to members that understand
    it (`understands`)."""

    revocations: tuple[Revocation, ...] = ()
    """One entry for each revoked node, sorted by node."""
    credential: Credential | None = None
    """None while the credential is still the one with which the cluster was created."""

    def __post_init__(self) -> None:
        nodes = [entry.node for entry in self.revocations]
        if len(nodes) > MOST_REVOKED or nodes != sorted(set(nodes)):
            raise ValueError("a charter names each revoked node once, in order")

    @property
    def revoked(self) -> frozenset[str]:
        return frozenset(entry.node for entry in self.revocations)

    @property
    def is_covered(self) -> bool:
        """Whether no revoked node knows the credential."""
        return self.revoked <= frozenset(self.credential.covers if self.credential else ())


CHARTERS = "charter"
"""Stands after the plus in the `Hello.version` of members that understand Charter and WantCertificate."""
ISSUER = "issuer"
"""Stands after the plus in the `Hello.version` of members that held the CA's key when they started."""


def understands(version: str) -> bool:
    """Whether a member of this version understands Charter and WantCertificate.

    >>> understands("1.2+traces.charter"), understands("1.2+traces")
    (True, False)
    """
    return versions.understands(version, CHARTERS)


def is_issuer(version: str) -> bool:
    """Whether a member of this version held the CA's key when it started.

    >>> is_issuer("1.2+charter.issuer"), is_issuer("1.2+charter")
    (True, False)
    """
    return versions.understands(version, ISSUER)


def revoke(charter: Charter, nodes: Iterable[str], ca: x509.Certificate, key: Key, now: float) -> Charter:
    """Return the charter with these nodes revoked. Raises UsageError if one is not a node id, or if they are too many."""
    added = []
    for node in sorted(set(nodes) - charter.revoked):
        if not NODE_ID.fullmatch(node):
            raise UsageError(f"{node[:40]!r} is no node id (16 hex digits). Nothing was revoked")
        at_s = int(now)
        added.append(Revocation(node, at_s, sign(_revocation(node, at_s, ca), key)))
    if len(charter.revocations) + len(added) > MOST_REVOKED:
        raise UsageError(f"a cluster keeps {MOST_REVOKED} revocations at most: make a new cluster")
    return _with(charter, added, charter.credential)


def renew(charter: Charter, secret: str, ca: x509.Certificate, key: Key) -> Charter:
    """Return the charter with a new credential, which revoked nodes never learn."""
    number = charter.credential.number + 1 if charter.credential else 1
    covers = tuple(sorted(charter.revoked))
    signature = sign(_credential(number, secret, covers, ca), key)
    return Charter(charter.revocations, Credential(number, secret, covers, signature))


def merge(one: Charter, other: Charter) -> Charter:
    """Return the union of two charters, which does not depend on their order. Signatures are not checked: see `accept`."""
    known = {entry.node: entry for entry in one.revocations}
    entries = [
        min(entry, known.get(entry.node, entry), key=lambda e: (e.at_s, e.signature))
        for entry in other.revocations
    ]
    credentials = [each for each in (one.credential, other.credential) if each is not None]
    newest = max(credentials, key=lambda each: (each.number, each.signature), default=None)
    return _with(one, entries, newest)


def accept(mine: Charter, told: Charter, ca: x509.Certificate) -> Charter:
    """Return `mine` merged with a charter that another member sent. Raises NotAuthorised, and accepts none of it, if the CA
    did not sign all of it, or if the revocations are too many."""
    known = set(mine.revocations)
    for entry in told.revocations:
        if entry not in known:
            _check(entry.signature, _revocation(entry.node, entry.at_s, ca), ca)
    if (new := told.credential) is not None and new != mine.credential:
        _check(new.signature, _credential(new.number, new.secret, new.covers, ca), ca)
    if len(mine.revoked | told.revoked) > MOST_REVOKED:
        raise NotAuthorised(f"more than {MOST_REVOKED} revocations were told")
    return merge(mine, told)


def to_json(charter: Charter) -> dict[str, Any]:
    held = charter.credential
    return {
        "revocations": [[entry.node, entry.at_s, entry.signature.hex()] for entry in charter.revocations],
        "credential": held and [held.number, held.secret, list(held.covers), held.signature.hex()],
    }


def from_json(document: Any) -> Charter:
    """Return the charter in a document. Raises ValueError for a document that `to_json` did not make."""
    try:
        entries = [
            Revocation(node, at_s, bytes.fromhex(text)) for node, at_s, text in document["revocations"]
        ]
        held = document["credential"]
        if held is None:
            return Charter(tuple(entries))
        number, secret, covers, text = held
        return Charter(tuple(entries), Credential(number, secret, tuple(covers), bytes.fromhex(text)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a charter: {error!r}") from error


def _with(charter: Charter, entries: Iterable[Revocation], credential: Credential | None) -> Charter:
    found = {entry.node: entry for entry in (*charter.revocations, *entries)}
    return Charter(tuple(found[node] for node in sorted(found)), credential)


def _revocation(node: str, at_s: int, ca: x509.Certificate) -> bytes:
    # The signed text begins with a word that begins no certificate, and names the cluster.
    return json.dumps(["edgepart revocation 1", fingerprint(ca), node, at_s]).encode()


def _credential(number: int, secret: str, covers: tuple[str, ...], ca: x509.Certificate) -> bytes:
    return json.dumps(["edgepart credential 1", fingerprint(ca), number, secret, list(covers)]).encode()


def sign(statement: bytes, key: Key) -> bytes:
    """Return the CA's signature of a statement."""
    return key.sign(statement, _ALGORITHM)


def is_signed(signature: bytes, statement: bytes, ca: x509.Certificate) -> bool:
    """Whether `signature` is the CA's signature of the statement."""
    key = ca.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, statement, _ALGORITHM)
    except InvalidSignature:
        return False
    return True


def _check(signature: bytes, statement: bytes, ca: x509.Certificate) -> None:
    if not is_signed(signature, statement, ca):
        raise NotAuthorised("a charter was told that the cluster's CA did not sign")
