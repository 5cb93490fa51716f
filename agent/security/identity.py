"""Identity: who this node is and in which cluster. A door: files under STATE/identity, TLS contexts.

    identity/ca.pem        the cluster's CA            identity/node.pem  node.key   this node
    identity/ca.key        only where nodes are let in identity/admin                the management credential
    identity/node.old.pem  the certificate before node.pem, once there was one
    identity/members.json  where members listened when this node joined
    identity/charter.json  who is out (charter_file.py) identity/tokens.json, issued.json   (tokens.py, issued.py)
    identity/revoked.json  nodes that somebody has put out here by hand; nobody else is told

The folder appears complete, by one rename, or not at all. Files are 0600, folders 0700.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from edgepart.agent.security import certificates, charter
from edgepart.agent.security.charter import Charter
from edgepart.agent.security.ciphers import grant_chacha
from edgepart.agent.storage.atomic_files import read_json, write_atomic
from edgepart.agent.storage.private_files import write_private
from edgepart.agent.wire.address import Address
from edgepart.planner.errors import NotAuthorised, UsageError
from edgepart.planner.json_text import parse_json


@dataclass(frozen=True)
class Identity:
    """One node's place in its cluster."""

    directory: Path
    """The state directory's `identity` folder."""
    node_id: str
    """16 hex digits, in the certificate's name; never given again."""
    fingerprint: str
    """SHA-256 (hex) of the CA's certificate: names the cluster."""
    ca: x509.Certificate = field(repr=False)
    admin: str = field(repr=False)
    """The cluster's management credential when this was read; the same on every member."""
    first_members: tuple[Address, ...] = ()
    """The addresses at which members listened when this node joined: hints, which may be old."""

    @property
    def is_issuer(self) -> bool:
        """Whether this node holds the CA's key and can let others in."""
        return (self.directory / "ca.key").exists()

    def ca_key(self) -> certificates.Key:
        """NotAuthorised where this node does not hold it."""
        if not self.is_issuer:
            raise NotAuthorised("this node holds no CA key: ask the one on which the cluster was made")
        return certificates.key_of((self.directory / "ca.key").read_bytes())

    @property
    def certificate(self) -> x509.Certificate:
        """This node's, as it is now: it is renewed while the agent runs."""
        return x509.load_pem_x509_certificate((self.directory / "node.pem").read_bytes())

    def issue(self, request: bytes, now: float, node_id: str | None = None) -> bytes:
        """A certificate (DER) for the key in the request (a CSR in DER): under a new node id, or under that of the
        member who asks.

        NotAuthorised where this node holds no CA key, its clock is likely wrong, or the request is not sound.
        """
        key = self.ca_key()
        if why := certificates.too_late(self.ca, self.certificate, now):
            raise NotAuthorised(why)
        # A clock that went back must not make certificates that have expired for all others.
        now = max(now, certificates.issued_at(self.ca), certificates.issued_at(self.certificate))
        node_id = node_id or certificates.new_node_id()
        return certificates.der(certificates.issue(request, node_id, self.ca, key, now))

    def renewal(self) -> bytes:
        """A request (CSR in DER) for a new certificate with the same key."""
        return certificates.new_request(certificates.key_of((self.directory / "node.key").read_bytes()))

    def keep(self, encoded: bytes, now: float) -> x509.Certificate:
        """Put a new certificate (DER) in place of this node's; contexts that are made from now on show it.

        NotAuthorised where it is not this node's, by this CA, for its key, valid by this clock, and newer than the one
        before, which is kept beside it.
        """
        certificate, node_id = certificates.read_node(encoded, self.ca)
        before = self.certificate
        if node_id != self.node_id or certificate.public_key() != before.public_key():
            raise NotAuthorised("the new certificate is another node's. The old one stays")
        if certificates.issued_at(certificate) <= certificates.issued_at(before):
            raise NotAuthorised(
                "the new certificate is no newer than the old one, which stays; is a clock wrong?"
            )
        if certificates.not_yet_valid(certificate, now):
            raise NotAuthorised(
                "the new certificate is not valid yet by this device's clock, so that one of two clocks is wrong. The old "
                "one stays"
            )
        write_private(self.directory / "node.old.pem", certificates.pem(before))
        write_private(self.directory / "node.pem", certificates.pem(certificate))
        return certificate

    def take_back(self, now: float) -> x509.Certificate | None:
        """The certificate before this one in its place again: this one is not valid yet by the clock, so it was signed by
        one that was wrong. None where there is none, or that one is not valid yet either.

        NotAuthorised where it is not by this CA.
        """
        path = self.directory / "node.old.pem"
        if not path.exists():
            return None
        before = x509.load_pem_x509_certificate(path.read_bytes())
        _, node_id = certificates.read_node(certificates.der(before), self.ca)
        if node_id != self.node_id or certificates.not_yet_valid(before, now):
            return None
        write_private(self.directory / "node.pem", certificates.pem(before))
        return before

    def current_admin(self) -> str:
        """The management credential as it is now."""
        held = read_charter(self.directory).credential
        return held.secret if held else self.admin

    def server_context(self) -> ssl.SSLContext:
        """The context for listening: TLS 1.3, where a client's certificate is of this cluster or missing (joiners)."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL
        # Tickets would make this side write after the handshake on a connection that only ever reads.
        context.num_tickets = 0
        grant_chacha(context)
        return context

    def client_context(self) -> ssl.SSLContext:
        """The context for connecting: mutual TLS 1.3 with the CA pinned. `peer_id` tells who answered, not the host
        name."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=certificates.pem(self.ca).decode())
        context.load_cert_chain(self.directory / "node.pem", self.directory / "node.key")
        return context

    def revoked_nodes(self) -> frozenset[str]:
        """Node ids that are out. Read at every connection, so that a change counts at once."""
        told = read_charter(self.directory).revoked
        path = self.directory / "revoked.json"
        try:
            listed = parse_json(path.read_bytes())["nodes"]
            if not isinstance(listed, list) or not all(map(_is_node, listed)):
                raise ValueError("expected a list of node ids")
        except FileNotFoundError:
            return told
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path} is damaged ({error}): restore it, or delete it to forgive all"
            ) from error
        return told | frozenset(listed)

    def revocation_of(self, node_id: str) -> Charter:
        """What the CA has decided about that node and nothing else: what may be told to a node that is revoked."""
        told = read_charter(self.directory).revocations
        return Charter(tuple(entry for entry in told if entry.node == node_id))


def read_charter(directory: Path) -> Charter:
    """Read the charter in an identity's folder; it is empty if nothing was decided yet. UsageError if it is damaged."""
    path = directory / "charter.json"
    document = read_json(path)
    try:
        return Charter() if document is None else charter.from_json(document)
    except ValueError as error:
        raise UsageError(
            f"{path} is damaged ({error}): restore it, or delete it; other members tell it again, but until then "
            "revoked nodes are let in"
        ) from error


def peer_id(connection: ssl.SSLSocket) -> str | None:
    """The node id in the peer's verified certificate; None where it showed none.

    NotAuthorised for a certificate of this CA that is no node's.
    """
    certificate = connection.getpeercert()
    if not certificate:
        return None
    subject: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject", ())  # type: ignore[assignment]
    names = [value for part in subject for name, value in part if name == "commonName"]
    if len(names) != 1 or not certificates.NODE_ID.fullmatch(names[0]):
        raise NotAuthorised("the peer's certificate is not a node's")
    return names[0]


def create_cluster(state: Path, now: float) -> Identity:
    """A new cluster whose first node is this one. UsageError where this device is in a cluster already."""
    ca_key, node_key = certificates.new_key(), certificates.new_key()
    ca = certificates.new_ca(ca_key, now)
    node = certificates.sign_node(node_key.public_key(), certificates.new_node_id(), ca, ca_key, now)
    admin = secrets.token_urlsafe(32)
    write_identity(state, ca, node, node_key, admin, ca_key=ca_key)
    return load(state)


def write_identity(
    state: Path,
    ca: x509.Certificate,
    node: x509.Certificate,
    node_key: certificates.Key,
    admin: str,
    *,
    ca_key: certificates.Key | None = None,
    members: Sequence[Address] = (),
    told: Charter | None = None,
) -> None:
    """Make the identity folder, whole. UsageError where there is one already; nothing is then changed."""
    files = {
        "ca.pem": certificates.pem(ca),
        "node.pem": certificates.pem(node),
        "node.key": certificates.key_pem(node_key),
        "admin": admin.encode(),
        "members.json": json.dumps([list(address) for address in members]).encode(),
    }
    if ca_key is not None:
        files["ca.key"] = certificates.key_pem(ca_key)
    if told is not None:
        files["charter.json"] = json.dumps(charter.to_json(told)).encode()
    refuse_second(state)
    _make_folder(state / "identity", files)


def refuse_second(state: Path) -> None:
    """UsageError where this state directory holds an identity."""
    if (state / "identity").exists():
        raise UsageError(
            f"{state} already belongs to a cluster. Nothing was changed; to leave it for good, "
            f"stop the agent and delete {state / 'identity'}"
        )


def _make_folder(target: Path, files: Mapping[str, bytes]) -> None:
    draft = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.mkdir(mode=0o700)
        for name, data in files.items():
            write_atomic(draft / name, data)
        os.rename(draft, target)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise UsageError(f"{target} cannot be written: {error}. Nothing was changed") from error


def _is_node(value: object) -> bool:
    return isinstance(value, str) and certificates.NODE_ID.fullmatch(value) is not None


def _port(value: object) -> int:
    if type(value) is not int or not 0 <= value <= 65535:
        raise ValueError(f"{str(value)[:20]!r} is no port")
    return value


def load(state: Path) -> Identity:
    """This device's identity. UsageError where it has none yet, or a damaged one."""
    directory = state / "identity"
    if not directory.is_dir():
        raise UsageError(
            f"{state} belongs to no cluster yet: run `edgepart init` on the first device, "
            "`edgepart join TOKEN` on each other one"
        )
    try:
        ca = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
        node = x509.load_pem_x509_certificate((directory / "node.pem").read_bytes())
        key = certificates.key_of((directory / "node.key").read_bytes())
        _, node_id = certificates.read_node(certificates.der(node), ca)
        if not certificates.same_key(node, key):
            raise ValueError("node.key does not belong to node.pem")
        held = read_charter(directory).credential
        admin = held.secret if held else (directory / "admin").read_text().strip()
        if len(admin) < charter.SECRET_LENGTH:
            raise ValueError("admin holds no credential")
        listed = parse_json((directory / "members.json").read_bytes())
        members = tuple((str(host), _port(port)) for host, port in listed)
    except (OSError, *certificates.UNREADABLE, NotAuthorised) as error:
        raise UsageError(
            f"the identity in {directory} cannot be used: {error}. Restore it, or delete it and join again"
        ) from error
    return Identity(directory, node_id, certificates.fingerprint(ca), ca, admin, members)
