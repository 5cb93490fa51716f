"""Transport: authenticated links to other agents, by mutual TLS 1.3 over TCP or through a broker (`Carrier`). A door:
sockets and threads.

links.py defines links, and agent/wire/ the bytes; docs/protocol.md describes both. Which agents to dial, and when to dial
again, is decided elsewhere (redial.py): `connect` tries once. The other side dials back by itself.

Threads: one accepts connections; one for each incoming connection reads it and calls `on_frame`, unless a thread that
waits for its frames does so itself (incoming.py); one for each outgoing connection writes it (writer.py); and one calls
`on_link`, so that these calls come in order. For each link the order is:
on_link(up), frames, on_link(down). A frame that is being handled when the link ends may finish after on_link(down).
"""

from __future__ import annotations

import logging
import queue
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from edgepart.agent.net.acceptor import AcceptOptions, Acceptor
from edgepart.agent.net.dialer import DialAttempts, Dialer
from edgepart.agent.net.faults import Fault, Mistrusted, Unreached
from edgepart.agent.net.incoming import IncomingConnection
from edgepart.agent.net.interfaces import interfaces
from edgepart.agent.net.links import (
    CHANNELS,
    CONTROL,
    DATA,
    LINK_KINDS,
    LinkAccepted,
    LinkOpen,
    LinkRefused,
    LinkTraffic,
    PeerLink,
)
from edgepart.agent.net.sightings import LinkObserver
from edgepart.agent.net.stream import Stream
from edgepart.agent.net.writer import Writer
from edgepart.agent.security.charter import Charter
from edgepart.agent.security.identity import Identity
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.wire.address import Address, format_address
from edgepart.agent.wire.codec import frame_to_message, message_to_frame
from edgepart.agent.wire.frames import MEMBER, UNAUTHENTICATED, Frame, FrameLimits
from edgepart.planner.errors import EdgepartError, FrameError, NotAuthorised, Unavailable, UsageError

log = logging.getLogger(__name__)

OnFrame = Callable[[str, str, Frame], None]
"""(node id, channel, frame). Called in the thread that read it: while it runs, nothing more is read from that connection.
An exception that it raises ends the link."""
OnLink = Callable[[str, bool, str], None]
"""(node id, up, text). The text of a link that is up is the address that was dialled ("" if the other side dialled), that
of a link that is down is the reason."""
OnJoin = Callable[[Stream, float], None]
"""Serves a connection without a certificate until the deadline (time.monotonic()). The connection is closed afterwards."""


class Carrier(Protocol):
    """A replacement for TCP: agent/mqtt/tunnel_sockets.py."""

    @property
    def address(self) -> Address:
        """The address at which others reach this agent over this carrier."""

    def listen(self, welcome: Callable[[socket.socket, Address], None]) -> None:
        """Call `welcome` with each connection from another agent and the address that it claims."""

    def dial(
        self, address: Address, context: ssl.SSLContext, *, timeout_s: float, dead_after_s: float
    ) -> Stream:
        """Connect as `stream.dial` does."""


@dataclass(frozen=True, slots=True)
class TransportOptions:
    accept: AcceptOptions = field(default_factory=AcceptOptions)
    limits: FrameLimits = MEMBER
    """Size limits of the frames of members."""
    connect_s: float = 5.0
    """The time limit of each step: the connection, the handshake, and the dialling back by the other side. A longer one
    suits slow boards."""
    control_queue_bytes: int = 32 << 20
    """The capacity of the control queue of one peer. A larger one survives longer stalls and takes more memory. If it is
    full, `send` fails at once."""
    data_queue_bytes: int = 256 << 20
    """The capacity of the data queue of one peer. If it is full, `send` waits up to `full_s`."""
    full_s: float = 10.0
    """The time for which a sender of data waits for room before the peer counts as stuck."""


class Transport:
    """This agent's links."""

    def __init__(
        self,
        identity: Identity,
        on_frame: OnFrame,
        on_link: OnLink,
        on_join: OnJoin | None = None,
        options: TransportOptions | None = None,
        recorder: Recorder | None = None,
        carrier: Carrier | None = None,
        witness: LinkObserver | None = None,
    ) -> None:
        """Set up the transport. `recorder` records frames on data channels. `carrier` replaces TCP."""
        self.boot = secrets.token_hex(8)
        """Distinguishes this start of the agent from other starts."""
        self._identity = identity
        self._on_frame = on_frame
        self._on_link = on_link
        self._on_join = on_join
        self._options = options or TransportOptions()
        self._recorder = recorder or Recorder()
        self._carrier = carrier
        self._witness = witness
        connect_s, dead_s = self._options.connect_s, self._options.accept.dead_after_s
        another_way = None
        if carrier is not None:
            another_way = partial(carrier.dial, timeout_s=connect_s, dead_after_s=dead_s)
        self._dialer = Dialer(identity, interfaces, connect_s, dead_s, another_way)
        self._acceptor = Acceptor(identity, self._serve, self._options.accept, witness)
        self._lock = threading.Condition()
        self._links: dict[str, PeerLink] = {}
        self._past: dict[str, LinkTraffic] = {}
        """What went over links that have ended, by node. It has no more entries than nodes that were ever members."""
        self._dialling: set[str] = set()
        """Nodes to which a thread of this agent is opening a link."""
        self._attempts = 0
        self._listen: tuple[Address, ...] = ()
        self._writers: set[Writer] = set()
        self._stopped = False
        self._news: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._crier = threading.Thread(target=self._cry, name="links", daemon=True)
        self._crier.start()

    # What the agent calls

    def listen(self, host: str, port: int) -> Address:
        """Accept connections and return the address in use (port 0 picks a port). Raises Unavailable on failure.

        A carrier has its own address.
        """
        if self._carrier is not None:
            self._carrier.listen(self._acceptor.take)
            with self._lock:
                self._listen = (self._carrier.address,)
            return self._carrier.address
        bound = self._acceptor.start(host, port)
        with self._lock:
            anywhere = host in ("", "0.0.0.0", "::")
            self._listen = (("" if anywhere else bound[0], bound[1]),)
        return bound

    def connect(self, node_id: str | None, addresses: Sequence[Address]) -> str:
        """Try each address once until one leads to `node_id` (None: any member), and return the node id.

        Returns when the link is up, even if it was up before. Raises Unavailable, with the reason of each address, if no
        address leads there, and NotAuthorised if there is only one address and a link to its node is not allowed.
        """
        return self._try_each(node_id, addresses, dials_back=False)

    def _try_each(self, node_id: str | None, addresses: Sequence[Address], *, dials_back: bool) -> str:
        if node_id is not None and node_id in self.linked_nodes():
            return node_id
        if node_id in self._identity.revoked_nodes():
            raise Unreached(Fault.REVOKED, f"node {node_id} is revoked")
        tries = DialAttempts(node_id, self._witness)
        with closing(self._dialer.each(node_id, addresses)) as reached:
            for address, found in reached:
                if isinstance(found, EdgepartError):
                    tries.refused(address, found)
                    continue
                try:
                    self._connect(*found, address, dials_back)
                except (Unavailable, NotAuthorised, FrameError) as error:
                    tries.refused(address, error, found[0])
                    continue
                tries.led(address, found[0])
                return found[0]
        raise tries.failure()

    def send(self, node_id: str, channel: str, frame: Frame) -> None:
        """Queue a frame on the link's channel, in order. The frame may still be lost if the link ends.

        The payload's buffers must not change afterwards. Raises Unavailable if there is no link or no room.
        """
        # Without the lock: a link that ends meanwhile loses the frame, as it does if it ends later.
        link = self._links.get(node_id)
        writer = link.out.get(channel) if link is not None and link.complete else None
        if writer is None:
            raise Unavailable(f"there is no link to {node_id} now")
        try:
            writer.put(frame, self._options.full_s if channel == DATA else 0.0)
        except Unavailable as error:
            raise Unavailable(f"cannot send {frame.kind} to {node_id}: {error}") from error

    def data_from(self, node_id: str) -> IncomingConnection | None:
        """The connection on which frames of the data channel come from a node; None if there is none now."""
        # Without the lock: compute threads ask before each wait, and a link that has ended cannot be borrowed from.
        link = self._links.get(node_id)
        return link.readers.get(DATA) if link is not None else None

    def linked_nodes(self) -> frozenset[str]:
        """The nodes to which a link is up."""
        with self._lock:
            return frozenset(node for node, link in self._links.items() if link.complete)

    def traffic(self) -> dict[str, LinkTraffic]:
        """What went over the links with each node since this agent was started."""
        with self._lock:
            found = dict(self._past)
            for node, link in self._links.items():
                found[node] = found.get(node, LinkTraffic()) + link.traffic
            return found

    def close(self, node_id: str, why: str = "closed here") -> None:
        """End the link to a node, if there is one. A call of on_link follows."""
        with self._lock:
            link = self._links.get(node_id)
        if link is not None:
            self._drop(link, why)

    def renew(self) -> None:
        """Show this node's current certificate in all new connections. Existing connections stay."""
        self._dialer.renew()
        self._acceptor.renew()

    def stop(self, flush_s: float = 1.0) -> None:
        """End all links. The other sides have `flush_s` seconds to take the queued frames.

        A link ends as soon as its control frames are taken. Callbacks that are running may still finish.
        """
        deadline = time.monotonic() + flush_s
        with self._lock:
            self._stopped = True
            links, writers = list(self._links.values()), list(self._writers)
            outs = [(channel, writer) for link in links for channel, writer in link.out.items()]
        self._acceptor.stop()
        # Data first: when the control channel ends, the other side ends the link.
        for _, writer in sorted(outs, key=lambda out: out[0] == CONTROL):
            writer.flush(max(0.0, deadline - time.monotonic()))
        for channel, writer in outs:
            if channel == CONTROL:
                writer.finish()
        with self._lock:
            self._lock.wait_for(lambda: not self._links, max(0.0, deadline - time.monotonic()))
        for link in links:
            self._drop(link, "this agent stops")
        for writer in writers:
            writer.join(2.0)
        self._news.put(None)
        self._crier.join(5.0)

    # Opening a link: our side

    def _connect(self, node_id: str, stream: Stream, address: Address, dials_back: bool) -> None:
        """Make the link to the node that answered with this stream. The stream is used or closed."""
        with self._lock:
            mine = node_id not in self._dialling and not self._has_out(node_id)
            if mine:
                self._dialling.add(node_id)
        if not mine:
            # Another thread of this agent is opening the link: two links would replace each other.
            stream.close()
            self._await_link(node_id, address)
            return
        try:
            self._open(stream, node_id, address, dials_back)
        finally:
            with self._lock:
                self._dialling.discard(node_id)
                self._lock.notify_all()
        self._await_link(node_id, address)

    def _has_out(self, node_id: str) -> bool:
        link = self._links.get(node_id)
        return link is not None and bool(link.out)

    def _open(self, control: Stream, node_id: str, address: Address, dials_back: bool) -> None:
        """Open the connections of both channels, introduce this agent on them, and hand them to their writers."""
        streams = {CONTROL: control}
        try:
            with self._lock:
                self._attempts += 1
                attempt = self._attempts
            boot = self._introduce(control, CONTROL, attempt, node_id)
            streams[DATA] = self._dialer.again(node_id, address)
            if self._introduce(streams[DATA], DATA, attempt, node_id) != boot:
                raise Unavailable(f"{format_address(address)} was restarted just now")
            self._attach_out(node_id, boot, streams, "" if dials_back else format_address(address))
        except EdgepartError:
            for stream in streams.values():
                stream.close()
            raise

    def _introduce(self, stream: Stream, channel: str, attempt: int, node_id: str) -> str:
        deadline = time.monotonic() + self._options.connect_s
        opening = LinkOpen(channel, self.boot, attempt, node_id, self._listen)
        stream.write(message_to_frame(opening), deadline)
        frame = stream.read(UNAUTHENTICATED, deadline)
        match frame_to_message(frame, LINK_KINDS):
            case LinkAccepted(boot):
                return boot
            case Charter():
                self._on_frame(node_id, CONTROL, frame)
                raise Unreached(Fault.OURS_REVOKED, f"node {node_id} says that this node is revoked")
            case LinkRefused(why):
                raise Unreached(Fault.TURNED_AWAY, f"node {node_id} refuses: {why[:200]}")
        raise FrameError(f"node {node_id} answers with another frame than asked for")

    def _attach_out(self, node_id: str, boot: str, streams: dict[str, Stream], via: str) -> None:
        with self._lock:
            if self._stopped:
                raise Unavailable("this agent stops")
            link = self._link_for(node_id, boot)
            if link.out:
                raise Unavailable(f"another connection to {node_id} was made meanwhile")
            link.via = via
            for channel, stream in streams.items():
                link.out[channel] = self._writer(link, channel, stream)
            self._announce_if_complete(link)

    def _writer(self, link: PeerLink, channel: str, stream: Stream) -> Writer:
        options = self._options
        capacity = options.data_queue_bytes if channel == DATA else options.control_queue_bytes

        def ended(why: str) -> None:
            with self._lock:
                self._writers.discard(writer)
            self._drop(link, why)

        recorder = self._recorder if channel == DATA else None
        writer = Writer(stream, capacity, f"{channel} to {link.node_id}", ended, recorder, link.node_id)
        self._writers.add(writer)
        writer.start()
        return writer

    def _await_link(self, node_id: str, address: Address) -> None:
        """Wait until the link is up, which means that the other side has dialled back."""
        with self._lock:

            def is_settled() -> bool:
                link = self._links.get(node_id)
                up = link is not None and link.complete
                return up or self._stopped or (link is None and node_id not in self._dialling)

            in_time = self._lock.wait_for(is_settled, 2 * self._options.connect_s)
            link = self._links.get(node_id)
            if link is not None and link.complete:
                return
        if in_time or link is None:
            raise Unavailable(f"{format_address(address)}: the link to {node_id} ended while it was made")
        why = f"node {node_id} did not connect back; is this agent's port reachable from it?"
        self._drop(link, why)
        raise Unreached(Fault.NO_WAY_BACK, f"{format_address(address)}: {why}")

    # Opening a link: the other side's

    def _serve(self, stream: Stream, node_id: str | None, peer: Address, known: Callable[[], None]) -> None:
        """Serve one incoming connection from its handshake to its end."""
        deadline = time.monotonic() + self._options.accept.stranger_s
        if node_id is None:
            if self._on_join is None:
                raise NotAuthorised("it shows no certificate, and this agent lets nobody in")
            self._on_join(stream, deadline)
            return
        opening = frame_to_message(stream.read(UNAUTHENTICATED, deadline), LINK_KINDS)
        if not isinstance(opening, LinkOpen):
            raise FrameError(f"node {node_id} does not introduce itself")
        if node_id in self._identity.revoked_nodes():
            # The node may have been off when it was revoked; without being told it would go on serving alone.
            if (told := self._identity.revocation_of(node_id)) != Charter():
                stream.write(message_to_frame(told), deadline)
            raise Mistrusted(Fault.REVOKED, f"node {node_id} is revoked")
        why = self._refusal(opening, node_id)
        if why is not None:
            stream.write(message_to_frame(LinkRefused(why)), deadline)
            raise NotAuthorised(f"link of node {node_id} refused: {why}")
        link, dial_back = self._attach_in(node_id, opening, stream)
        try:
            stream.write(message_to_frame(LinkAccepted(self.boot)), deadline)
        except Unavailable as error:
            self._drop(link, str(error))
            raise
        known()
        if self._witness is not None:
            self._witness.called(node_id, format_address(peer))
        threading.current_thread().name = f"{opening.channel} from {node_id}"
        if dial_back:
            addresses = tuple((host or peer[0], port) for host, port in opening.listen)
            name = f"dial {node_id}"
            threading.Thread(target=self._dial_back, args=[link, addresses], name=name, daemon=True).start()
        self._read(link, opening.channel, stream)

    def _refusal(self, opening: LinkOpen, node_id: str) -> str | None:
        if opening.channel not in CHANNELS:
            return f"there is no channel {opening.channel[:20]!r}"
        if opening.expected != self._identity.node_id:
            return f"this is node {self._identity.node_id}"
        if node_id == self._identity.node_id:
            return "that is my own certificate: a state directory was copied; let the copy join anew"
        return None

    def _attach_in(self, node_id: str, opening: LinkOpen, stream: Stream) -> tuple[PeerLink, bool]:
        """Attach an incoming connection. Return the link that it belongs to, and whether to dial back."""
        with self._lock:
            if self._stopped:
                raise Unavailable("this agent stops")
            old = self._links.get(node_id)
            if opening.channel == CONTROL:
                if old is not None and old.is_replaced_by(opening.boot, opening.attempt):
                    self._drop(old, "the other side connected anew")
                elif old is not None and old.attempt_in >= 0:
                    raise Unavailable(f"node {node_id} opened a link that it had given up")
                link = self._link_for(node_id, opening.boot)
                link.attempt_in = opening.attempt
            elif old is None or not old.awaits(opening.channel, opening.boot, opening.attempt):
                raise Unavailable(f"node {node_id} opened a channel of a link that is over")
            else:
                link = old
            link.into[opening.channel] = stream
            dial_back = opening.channel == CONTROL and not link.out and node_id not in self._dialling
            self._announce_if_complete(link)
            return link, dial_back

    def _dial_back(self, link: PeerLink, addresses: Sequence[Address]) -> None:
        try:
            self._try_each(link.node_id, addresses, dials_back=True)
        except (Unavailable, NotAuthorised, UsageError) as error:
            self._drop(link, f"cannot dial back: {error}")

    def _read(self, link: PeerLink, channel: str, stream: Stream) -> None:
        why = "the reader failed"
        try:
            if not link.announced.wait(4 * self._options.connect_s):
                raise Unavailable("the link was not completed")
            incoming = link.readers[channel] = IncomingConnection(
                stream,
                self._options.limits,
                partial(self._take, link, channel),
                self._recorder if channel == DATA else None,
                link.node_id,
            )
            incoming.serve(lambda: link.over is not None)
        except EdgepartError as error:
            why = str(error)
            if not isinstance(error, Unavailable):
                log.warning("link to %s ends: %s", link.node_id, why)
        except Exception as error:
            # The fault is ours and not the peer's. Ending the link lets it be retried, and the agent stays up.
            log.exception("a frame from %s could not be handled", link.node_id)
            why = f"a frame could not be handled: {error!r}"
        finally:
            self._drop(link, why)

    def _take(self, link: PeerLink, channel: str, frame: Frame) -> None:
        if link.over is None:
            self._on_frame(link.node_id, channel, frame)

    # The table of links: each of these methods is called with the lock held, or takes it

    def _link_for(self, node_id: str, boot: str) -> PeerLink:
        link = self._links.get(node_id)
        if link is not None and link.boot != boot:
            self._drop(link, "the other side was restarted")
            link = None
        if link is None:
            link = self._links[node_id] = PeerLink(node_id, boot)
        return link

    def _announce_if_complete(self, link: PeerLink) -> None:
        if link.complete:
            self._news.put(lambda: self._tell_up(link))
            self._lock.notify_all()

    def _tell_up(self, link: PeerLink) -> None:
        try:
            self._on_link(link.node_id, True, link.via)
        finally:
            link.announced.set()

    def _drop(self, link: PeerLink, why: str) -> None:
        with self._lock:
            if link.over is not None:
                return
            was_up = link.complete
            link.over = why
            if self._links.get(link.node_id) is link:
                del self._links[link.node_id]
            self._past[link.node_id] = self._past.get(link.node_id, LinkTraffic()) + link.traffic
            ends = [*link.into.values()]
            writers = [*link.out.values()]
            if was_up:
                self._news.put(lambda: self._on_link(link.node_id, False, why))
            else:
                log.info("no link to %s: %s", link.node_id, why)
            # After the news above, so that readers that wait for the announcement find that the link is over.
            self._news.put(link.announced.set)
            self._lock.notify_all()
        for stream in ends:
            stream.cut()
        for writer in writers:
            writer.close(why)

    def _cry(self) -> None:
        while (news := self._news.get()) is not None:
            try:
                news()
            except Exception:
                log.exception("a change of links could not be handled")
