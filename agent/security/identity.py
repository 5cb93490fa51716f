"""Identity: this node's id, certificate and cluster. A door: files under STATE/identity, TLS contexts.

    identity/ca.pem        the certificate of the cluster's CA
    identity/ca.key        the CA's key; only on nodes that let others in
    identity/node.pem      this node's certificate; its key is node.key
    identity/node.old.pem  the certificate before node.pem, once there has been one
    identity/admin         the management credential
    identity/members.json  the addresses of members when this node joined
    identity/charter.json  the revoked nodes and the credential (charter_file.py)
    identity/tokens.json   the join tokens (tokens.py)
    identity/issued.json   the devices that were let in (issued.py)
    identity/revoked.json  nodes that a user revoked by hand, on this node only; other nodes are not told

The folder is created complete, by one rename, or not at all. Files have mode 0600, folders 0700.
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
    """The identity of one node in its cluster."""

    directory: Path
    """The state directory's `identity` folder."""
    node_id: str
    """16 hex digits, which are the name in the certificate; an id is never given to another node."""
    fingerprint: str
    """SHA-256 (hex) of the CA's certificate, which identifies the cluster."""
    ca: x509.Certificate = field(repr=False)
    admin: str = field(repr=False)
    """The cluster's management credential at the time of reading; it is the same on every member."""
    first_members: tuple[Address, ...] = ()
    """The addresses at which members listened when this node joined: hints, which may be old."""

    @property
    def is_issuer(self) -> bool:
        """Whether this node holds the CA's key and can let others in."""
        return (self.directory / "ca.key").exists()

    def ca_key(self) -> certificates.Key:
        """Return the CA's key. Raises NotAuthorised if this node does not hold it."""
        if not self.is_issuer:
            raise NotAuthorised("this node holds no CA key: ask the one on which the cluster was made")
        return certificates.key_of((self.directory / "ca.key").read_bytes())

    @property
    def certificate(self) -> x509.Certificate:
        """This node's current certificate, read from disk because it is renewed while the agent runs."""
        return x509.load_pem_x509_certificate((self.directory / "node.pem").read_bytes())

    def issue(self, request: bytes, now: float, node_id: str | None = None) -> bytes:
        """Return a certificate (DER) for the key in the request (a CSR in DER), under a new node id or, for a renewal,
        under the `node_id` of the member that asks.

        Raises NotAuthorised if this node holds no CA key, its clock is likely wrong, or the request is not valid.
        """
        key = self.ca_key()
        if why := certificates.too_late(self.ca, self.certificate, now):
            raise NotAuthorised(why)
        # A clock that went back must not issue certificates that have already expired for all others.
        now = max(now, certificates.issued_at(self.ca), certificates.issued_at(self.certificate))
        node_id = node_id or certificates.new_node_id()
        return certificates.der(certificates.issue(request, node_id, self.ca, key, now))

    def renewal(self) -> bytes:
        """Return a request (CSR in DER) for a new certificate with the same key."""
        return certificates.new_request(certificates.key_of((self.directory / "node.key").read_bytes()))

    def keep(self, encoded: bytes, now: float) -> x509.Certificate:
        """Replace this node's certificate by a new one (DER), which TLS contexts show that are made from now on. The old
        certificate is kept beside it.

        Raises NotAuthorised unless the new certificate is this node's, from this CA, for the same key, newer than the old
        one, and already valid by this device's clock.
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
        """Restore the previous certificate and return it. The caller found that the current one is not valid yet by this
        device's clock, so that it was signed by a wrong clock. Returns None if there is no previous certificate of this
        node, or if that one is not valid yet either.

        Raises NotAuthorised if the previous certificate is not from this CA.
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
        """Return the current management credential."""
        held = read_charter(self.directory).credential
        return held.secret if held else self.admin

    def server_context(self) -> ssl.SSLContext:
        """Return the context for listening: TLS 1.3; the client's certificate must be of this cluster or missing (devices
        that join have none)."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL
        # Tickets would make this side write, after the handshake, on a connection from which it otherwise only reads.
        context.num_tickets = 0
        grant_chacha(context)
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return the context for connecting: mutual TLS 1.3 with the CA pinned. `peer_id`, and not the host name,
        identifies the node that answers."""
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
        """Return the ids of revoked nodes. They are read at every connection, so that a change takes effect at once."""
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
        """Return a charter that holds only the revocation of that node, which is all that a revoked node may be told."""
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
    """Return the node id in the peer's verified certificate; None if the peer showed no certificate.

    Raises NotAuthorised for a certificate of this CA that is not a node's.
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
    """Create a new cluster with this node as its first. Raises UsageError if this device is already in a cluster."""
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
    """Create the complete identity folder. Raises UsageError, and changes nothing, if there is one already."""
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
    """Raise UsageError if this state directory already holds an identity."""
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
    """Return this device's identity. Raises UsageError if the device has none yet, or a damaged one."""
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
