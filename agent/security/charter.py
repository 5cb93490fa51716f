"""Charter: what the cluster's CA has decided and every member keeps: who is out, and the management credential. Rules: no
file, no socket; time and chance are arguments.

Each statement is signed with the CA's key, so that any member can hand it on and none can make one up. Charters are
merged, never replaced: revocations are only added, of two credentials the one with the larger number counts. So any order
of telling ends in the same charter. Members hand on the whole of it, never a credential alone: whoever learns a new
credential knows by then from whom it is to be kept.
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
from edgepart.planner.errors import NotAuthorised, UsageError

MOST_REVOKED = 2_000
"""Nodes in one charter. More: older ones need no new cluster; fewer: a newcomer checks them sooner (0.1 s for 1,000)."""
SECRET_LENGTH = 32
"""Least number of characters of a credential."""
_ALGORITHM = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True, slots=True)
class Revocation:
    """A node is out, for ever."""

    node: str
    at_s: int
    """When, in seconds since 1970, by the clock of who signed; for people."""
    signature: bytes

    def __post_init__(self) -> None:
        if not NODE_ID.fullmatch(self.node) or not 0 <= self.at_s < 1 << 48 or len(self.signature) > 80:
            raise ValueError("that is no revocation")


@dataclass(frozen=True, slots=True)
class Credential:
    """What opens the management API."""

    number: int
    """Grows with each; the one that a cluster was made with is 0 and not signed."""
    secret: str = field(repr=False)
    covers: tuple[str, ...]
    """The nodes that were revoked when it was made: they never learn it."""
    signature: bytes

    def __post_init__(self) -> None:
        sound = self.secret.isascii() and self.secret.isprintable() and " " not in self.secret
        if not sound or not SECRET_LENGTH <= len(self.secret) <= 200:
            raise ValueError("that is no credential")
        if not 1 <= self.number < 1 << 48 or len(self.covers) > MOST_REVOKED or len(self.signature) > 80:
            raise ValueError("that is no credential")


@dataclass(frozen=True, slots=True)
class Charter:
    """Also the message that tells it; only to members that `understand` it."""

    revocations: tuple[Revocation, ...] = ()
    """One for each node, sorted by node."""
    credential: Credential | None = None
    """None while it is the one that the cluster was made with."""

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
"""The word in a member's `Hello.version`, after the plus, that says that it understands Charter and WantCertificate."""
ISSUER = "issuer"
"""Likewise: it held the CA's key when it started."""


def understands(version: str) -> bool:
    """
    >>> understands("1.2+traces.charter"), understands("1.2+traces")
    (True, False)
    """
    return CHARTERS in version.partition("+")[2].split(".")


def is_issuer(version: str) -> bool:
    """
    >>> is_issuer("1.2+charter.issuer"), is_issuer("1.2+charter")
    (True, False)
    """
    return ISSUER in version.partition("+")[2].split(".")


def revoke(charter: Charter, nodes: Iterable[str], ca: x509.Certificate, key: Key, now: float) -> Charter:
    """The charter with these nodes revoked. UsageError if one is no node id, or they are too many."""
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
    """The charter with a new credential, which revoked nodes are never told."""
    number = charter.credential.number + 1 if charter.credential else 1
    covers = tuple(sorted(charter.revoked))
    signature = sign(_credential(number, secret, covers, ca), key)
    return Charter(charter.revocations, Credential(number, secret, covers, signature))


def merge(one: Charter, other: Charter) -> Charter:
    """Both; whichever is given first. Signatures are not looked at: see `accept`."""
    known = {entry.node: entry for entry in one.revocations}
    entries = [
        min(entry, known.get(entry.node, entry), key=lambda e: (e.at_s, e.signature))
        for entry in other.revocations
    ]
    credentials = [each for each in (one.credential, other.credential) if each is not None]
    newest = max(credentials, key=lambda each: (each.number, each.signature), default=None)
    return _with(one, entries, newest)


def accept(mine: Charter, told: Charter, ca: x509.Certificate) -> Charter:
    """`mine`, with what another member tells. NotAuthorised where any of that is not the CA's word; nothing counts then."""
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
    """ValueError for what `to_json` did not make."""
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
    # What is signed begins with a word that no certificate begins with, and names the cluster.
    return json.dumps(["edgepart revocation 1", fingerprint(ca), node, at_s]).encode()


def _credential(number: int, secret: str, covers: tuple[str, ...], ca: x509.Certificate) -> bytes:
    return json.dumps(["edgepart credential 1", fingerprint(ca), number, secret, list(covers)]).encode()


def sign(statement: bytes, key: Key) -> bytes:
    """The CA's signature under a statement."""
    return key.sign(statement, _ALGORITHM)


def is_signed(signature: bytes, statement: bytes, ca: x509.Certificate) -> bool:
    """Whether that is the CA's signature under the statement."""
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
