"""Identity: who this node is and in which cluster. A door: files under STATE/identity, TLS contexts.

    identity/ca.pem        the cluster's CA            identity/node.pem  node.key   this node
    identity/ca.key        only where nodes are let in identity/admin                the management credential
    identity/members.json  where members listened when this node joined
    identity/revoked.json  nodes that are put out      identity/tokens.json          (tokens.py)

The folder appears complete, by one rename, or not at all. Files are 0600, folders 0700.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from edgepart.agent import certificates
from edgepart.agent.ciphers import grant_chacha
from edgepart.agent.options import Address
from edgepart.agent.store import write_atomic
from edgepart.planner.documents import parse_json
from edgepart.planner.errors import NotAuthorised, UsageError


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
    """The cluster's management credential; the same on every member."""
    first_members: tuple[Address, ...] = ()
    """Where members listened when this node joined: hints, perhaps old."""

    @property
    def is_issuer(self) -> bool:
        """Whether this node holds the CA's key and can let others in."""
        return (self.directory / "ca.key").exists()

    def issue(self, request: bytes, now: float) -> bytes:
        """A certificate (DER), under a new node id, for the key in the request (a CSR in DER).

        NotAuthorised where this node holds no CA key or the request is not sound.
        """
        if not self.is_issuer:
            raise NotAuthorised("this node holds no CA key: ask the one on which the cluster was made")
        ca_key = certificates.key_of((self.directory / "ca.key").read_bytes())
        return certificates.der(certificates.issue(request, certificates.new_node_id(), self.ca, ca_key, now))

    def server_context(self) -> ssl.SSLContext:
        """For listening: TLS 1.3; a client's certificate is of this cluster, or missing (joiners)."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL
        # Tickets would make this side write after the handshake on a connection that only ever reads.
        context.num_tickets = 0
        grant_chacha(context)
        return context

    def client_context(self) -> ssl.SSLContext:
        """For connecting: TLS 1.3, mutual, the CA pinned. `peer_id` tells who answered, not the host name."""
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

    def revoked(self) -> frozenset[str]:
        """Node ids that are out. Read at every connection, so that a change counts at once."""
        path = self.directory / "revoked.json"
        try:
            listed = parse_json(path.read_bytes())["nodes"]
            if not isinstance(listed, list) or not all(map(_is_node, listed)):
                raise ValueError("expected a list of node ids")
        except FileNotFoundError:
            return frozenset()
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path} is damaged ({error}): restore it, or delete it to forgive all"
            ) from error
        return frozenset(listed)

    def revoke(self, node_ids: Iterable[str]) -> frozenset[str]:
        """Put nodes out, for ever; returns all that are out. Members merge their lists by calling this."""
        known = self.revoked()
        everyone = known | set(node_ids)
        for node_id in everyone - known:
            if not certificates.NODE_ID.fullmatch(node_id):
                raise UsageError(f"{node_id!r} is no node id (16 hex digits). Nothing was revoked")
        if everyone != known:
            document = json.dumps({"nodes": sorted(everyone)}).encode()
            write_atomic(self.directory / "revoked.json", document)
        return everyone


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
        admin = (directory / "admin").read_text().strip()
        if len(admin) < 32:
            raise ValueError("admin holds no credential")
        listed = parse_json((directory / "members.json").read_bytes())
        members = tuple((str(host), _port(port)) for host, port in listed)
    except (OSError, *certificates.UNREADABLE, NotAuthorised) as error:
        raise UsageError(
            f"the identity in {directory} cannot be used: {error}. Restore it, or delete it and join again"
        ) from error
    return Identity(directory, node_id, certificates.fingerprint(ca), ca, admin, members)
