"""Joining: how a device that has only a token becomes a member. A door; docs/protocol.md describes it for people.

The joiner connects without a certificate, and believes nothing until it has checked two things: the CA that
it is sent has the fingerprint in the token, and that CA has certified the node at the other end of the TLS
connection. Then the joiner proves that it knows the token's secret, by an HMAC over everything that identifies
this conversation, the server's certificate included, so that neither the secret nor the proof is of use to
somebody in between.

    joiner                                  member
    JoinHello(nonce, token id)      ->
                                    <-      JoinOffer(CA, nonce)       or JoinElsewhere(addresses of issuers)
    JoinRequest(CSR, name, proof)   ->
                                    <-      JoinGrant(certificate, credential, members)    or JoinRefused(why)
                                    <-      Charter                         (members of the first versions: none)
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from cryptography import x509

from edgepart.agent.discovery.mdns import find_members
from edgepart.agent.host.token_bucket import Buckets
from edgepart.agent.net.addresses import rank
from edgepart.agent.net.interfaces import interfaces
from edgepart.agent.net.stream import Stream, dial
from edgepart.agent.security import certificates, issued, tokens
from edgepart.agent.security.charter import Charter, accept
from edgepart.agent.security.identity import Identity, load, read_charter, refuse_second, write_identity
from edgepart.agent.wire.address import Address, format_address
from edgepart.agent.wire.codec import frame_to_message, kinds, message_to_frame
from edgepart.agent.wire.frames import MEMBER, UNAUTHENTICATED
from edgepart.planner.errors import EdgepartError, FrameError, NotAuthorised, Unavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

Find = Callable[[str, float], Sequence[Address]]
"""Called with (fingerprint, seconds): returns the addresses at which members of that cluster say they are, as
mdns.find_members does."""


class Dial(Protocol):
    """The interface of `stream.dial`."""

    def __call__(self, address: Address, context: ssl.SSLContext, *, timeout_s: float) -> Stream: ...


NONCE_BYTES = 32
MOST_ADDRESSES = 64
"""The most members or issuers in one message, and the most addresses that one join tries."""


@dataclass(frozen=True, slots=True)
class JoinHello:
    nonce: bytes
    token_id: str


@dataclass(frozen=True, slots=True)
class JoinOffer:
    ca: bytes
    """DER."""
    nonce: bytes


@dataclass(frozen=True, slots=True)
class JoinElsewhere:
    """The answer of a member that cannot let anybody in, because it does not hold the CA's key."""

    ca: bytes
    issuers: tuple[Address, ...]
    """The addresses of devices that can issue certificates, as far as this one knows."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    request: bytes
    """A CSR in DER; the issuer chooses the node id."""
    name: str
    """The device's name for people, for the issuer's log."""
    proof: bytes
    """HMAC-SHA-256 of `transcript`, under the SHA-256 of the token's secret."""


@dataclass(frozen=True, slots=True)
class JoinGrant:
    certificate: bytes
    """DER."""
    admin: str
    """The cluster's management credential."""
    members: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class JoinRefused:
    why: str
    """The reason, for people. It ends with what to do."""


JOIN_KINDS = kinds(JoinHello, JoinOffer, JoinElsewhere, JoinRequest, JoinGrant, JoinRefused, Charter)


def transcript(hello: JoinHello, member_nonce: bytes, server_certificate: bytes, request: bytes) -> bytes:
    """The bytes that the proof covers. All parts but the last have a fixed length, so equal bytes mean equal
    parts."""
    return b"".join(
        (
            b"edgepart join 1\0",
            hello.nonce,
            member_nonce,
            hashlib.sha256(server_certificate).digest(),
            hashlib.sha256(request).digest(),
            hello.token_id.encode(),
        )
    )


GUESSES, GUESSES_PER_S = 10, 0.1
"""The wrong tokens that an address may send at once, and per second from then on. More forgives more
mistakes."""


class Doorkeeper:
    """A member's side of joining; Transport calls it as `on_join`."""

    def __init__(
        self,
        identity: Identity,
        members: Callable[[], Sequence[Address]],
        issuers: Callable[[], Sequence[Address]] = tuple,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`members` and `issuers` return the addresses at which members, and members with the CA's key,
        listen now."""
        self._identity = identity
        self._members = members
        self._issuers = issuers
        self._clock = clock
        self._guesses = Buckets(GUESSES_PER_S, GUESSES)
        self._shut: dict[str, float] = {}
        """The time until which no token is accepted from an address, for each address that sent too many
        wrong ones."""
        self._lock = threading.Lock()

    def __call__(self, stream: Stream, deadline: float) -> None:
        """Serve one joiner. Raises NotAuthorised if the joiner was refused (it was told why), and FrameError
        if it sends nonsense."""
        hello = _expect(JoinHello, _read(stream, deadline))
        if len(hello.nonce) != NONCE_BYTES:
            raise FrameError("a joiner's nonce has the wrong length")
        ca = certificates.der(self._identity.ca)
        if not self._identity.is_issuer:
            _write(stream, JoinElsewhere(ca, tuple(self._issuers())[:MOST_ADDRESSES]), deadline)
            return
        offer = JoinOffer(ca, secrets.token_bytes(NONCE_BYTES))
        _write(stream, offer, deadline)
        request = _expect(JoinRequest, _read(stream, deadline))
        where = _address_of(stream)
        try:
            self._check_tries(where)
            grant = self._grant(hello, offer, request)
        except NotAuthorised as error:
            self._count_try(where)
            _write(stream, JoinRefused(str(error)), deadline)
            raise
        _write(stream, grant, deadline)
        # The newcomer gets the charter at once, so that it does not trust a revoked node first.
        _write(stream, read_charter(self._identity.directory), deadline)

    def _check_tries(self, where: str) -> None:
        with self._lock:
            if self._clock() < self._shut.get(where, 0.0):
                raise NotAuthorised(
                    "too many tokens from there were wrong: wait a minute, and see `edgepart token list`"
                )

    def _count_try(self, where: str) -> None:
        with self._lock:
            now = self._clock()
            if wait_s := self._guesses.take(where, now):
                self._shut = {at: until for at, until in self._shut.items() if until > now} | {
                    where: now + wait_s
                }

    def _grant(self, hello: JoinHello, offer: JoinOffer, request: JoinRequest) -> JoinGrant:
        now = self._clock()
        mine = certificates.der(
            x509.load_pem_x509_certificate((self._identity.directory / "node.pem").read_bytes())
        )
        said = transcript(hello, offer.nonce, mine, request.request)
        # Issue before the token is redeemed, so that a bad request does not use it up; send after both.
        certificate = self._identity.issue(request.request, now)
        tokens.redeem(self._identity.directory.parent, hello.token_id, said, request.proof, now)
        _, node = certificates.read_node(certificate, self._identity.ca)
        name = "".join(letter for letter in request.name[:64] if letter.isprintable())
        issued.add(self._identity.directory, issued.IssuedEntry(node, name, hello.token_id, now))
        log.info("let %r in as node %s, by token %s", name, node, hello.token_id)
        members = tuple(self._members())[:MOST_ADDRESSES]
        return JoinGrant(certificate, self._identity.current_admin(), members)


def join(
    token: str,
    state: Path,
    peers: Sequence[Address],
    name: str = "",
    *,
    timeout_s: float = 10.0,
    find_s: float = 5.0,
    find: Find = find_members,
    reach: Dial = dial,
) -> Identity:
    """Make this device a member of the token's cluster, through any of the addresses `peers`.

    Without addresses, `find` (mDNS) looks for members for `find_s` seconds. Each address gets `timeout_s`
    seconds, and `reach` (TCP) connects to it. Raises UsageError if the token is malformed, or if `state` is
    in a cluster already; NotAuthorised if the cluster refuses or is not the token's; Unavailable if no
    address leads to it. Nothing is written unless everything succeeds.
    """
    held = tokens.parse(token)
    refuse_second(state)
    here = interfaces()
    todo, tried = deque(rank(peers or find(held.fingerprint, find_s), here)), set[Address]()
    refusals: list[EdgepartError] = []
    while todo and len(tried) < MOST_ADDRESSES:
        address = todo.popleft()
        if address in tried:
            continue
        tried.add(address)
        try:
            answer = _ask(held, address, reach, name, timeout_s)
        except (Unavailable, NotAuthorised, FrameError) as error:
            refusals.append(error)
            continue
        if isinstance(answer, JoinElsewhere):
            todo.extend(rank(answer.issuers, here))
            where = "no other was named" if not answer.issuers else "others were asked"
            refusals.append(Unavailable(f"{format_address(address)} holds no CA key ({where})"))
            continue
        return _keep(state, answer, address)
    raise _failure(refusals)


@dataclass(frozen=True, slots=True)
class _Granted:
    ca: x509.Certificate
    node: x509.Certificate
    key: certificates.Key
    grant: JoinGrant
    charter: Charter


def _ask(
    token: tokens.Token, address: Address, reach: Dial, name: str, timeout_s: float
) -> _Granted | JoinElsewhere:
    """Have one conversation with the device at the address. Every error names the address."""
    deadline = time.monotonic() + timeout_s
    stream = reach(address, _strangers_context(), timeout_s=timeout_s)
    try:
        return _converse(stream, token, name, deadline)
    except EdgepartError as error:
        raise type(error)(f"{format_address(address)}: {error}") from error
    finally:
        stream.close()


def _strangers_context() -> ssl.SSLContext:
    """A TLS 1.3 context that accepts any server: the conversation checks who that is before it reveals
    anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _converse(stream: Stream, token: tokens.Token, name: str, deadline: float) -> _Granted | JoinElsewhere:
    hello = JoinHello(secrets.token_bytes(NONCE_BYTES), token.token_id)
    _write(stream, hello, deadline)
    offer = _read(stream, deadline)
    if not isinstance(offer, (JoinOffer, JoinElsewhere)):
        raise FrameError("answers with another frame than asked for")
    server_certificate = stream.connection.getpeercert(binary_form=True) or b""
    ca = _verify_ca(offer.ca, server_certificate, token)
    if isinstance(offer, JoinElsewhere):
        return offer
    key = certificates.new_key()
    request = certificates.new_request(key)
    proof = hmac.digest(token.key, transcript(hello, offer.nonce, server_certificate, request), "sha256")
    _write(stream, JoinRequest(request, name[:64], proof), deadline)
    answer = _read(stream, deadline)
    if isinstance(answer, JoinRefused):
        raise NotAuthorised(answer.why[:500])
    grant = _expect(JoinGrant, answer)
    node, _ = certificates.read_node(grant.certificate, ca)
    if not certificates.same_key(node, key):
        raise NotAuthorised("the certificate that came back is for another key. Nothing was kept")
    return _Granted(ca, node, key, grant, _charter(stream, ca, deadline))


def _charter(stream: Stream, ca: x509.Certificate, deadline: float) -> Charter:
    """Read the charter, which says who was revoked. It is empty if the member's version sends none."""
    try:
        frame = stream.read(MEMBER, deadline)  # the limits for members: it has proved that it is one
    except Unavailable:
        return Charter()
    return accept(Charter(), _expect(Charter, frame_to_message(frame, JOIN_KINDS)), ca)


def _verify_ca(encoded: bytes, server_certificate: bytes, token: tokens.Token) -> x509.Certificate:
    """Return the CA. Raises NotAuthorised unless it is the token's CA, and has issued the server's
    certificate."""
    ca = certificates.read_ca(encoded)
    if certificates.fingerprint(ca) != token.fingerprint:
        raise NotAuthorised(
            "belongs to another cluster than the token, or pretends to be yours; nothing was sent to it. "
            "Check the token and the address"
        )
    try:
        certificates.read_node(server_certificate, ca)
    except NotAuthorised as error:
        raise NotAuthorised(
            "shows your cluster's CA but is no member: somebody may be in between. Nothing was sent to it"
        ) from error
    return ca


def _keep(state: Path, granted: _Granted, address: Address) -> Identity:
    members = tuple(dict.fromkeys((address, *granted.grant.members[:MOST_ADDRESSES])))
    grant, told = granted.grant, granted.charter
    write_identity(state, granted.ca, granted.node, granted.key, grant.admin, members=members, told=told)
    return load(state)


def _failure(refusals: Sequence[EdgepartError]) -> EdgepartError:
    """The error for the user: a refusal matters more than addresses where nobody answered."""
    told = "; ".join(map(str, refusals))
    if any(isinstance(error, NotAuthorised) for error in refusals):
        return NotAuthorised(f"could not join: {told}. Nothing was changed")
    return Unavailable(
        f"could not join: {told or 'no member of the cluster was found'}. Nothing was changed; is an agent "
        "of the cluster running, and can this device reach it? Name one with --peer HOST:PORT"
    )


def _read(stream: Stream, deadline: float) -> Any:
    return frame_to_message(stream.read(UNAUTHENTICATED, deadline), JOIN_KINDS)


def _write(stream: Stream, message: Any, deadline: float) -> None:
    stream.write(message_to_frame(message), deadline)


def _expect(cls: type[T], message: Any) -> T:
    if not isinstance(message, cls):
        raise FrameError(f"sent {type(message).__name__} where {cls.__name__} is due")
    return message


def _address_of(stream: Stream) -> str:
    """The address under which a joiner's wrong tokens are counted; "" for all joiners that come through a
    broker."""
    try:
        name = stream.connection.getpeername()
    except OSError:
        return ""  # the joiner is gone already
    return str(name[0]) if isinstance(name, tuple) else ""
