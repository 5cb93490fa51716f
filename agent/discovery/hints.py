"""Hint collector: the sources of hints where other agents are (mDNS, a broker, --peer, the saved list), and the record of
the boxes that this agent has heard of. Door: the event loop; mdns.py and mqtt/ use the network.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING

from edgepart import __version__
from edgepart.agent.cluster.state import events
from edgepart.agent.discovery.mdns import Announcement, Discovery
from edgepart.agent.host.jobs import Begin
from edgepart.agent.net import sightings
from edgepart.agent.net.endpoints import own_addresses, parse_addresses
from edgepart.agent.net.faults import Fault
from edgepart.agent.net.interfaces import watch
from edgepart.agent.net.sightings import AgentHint, Sightings
from edgepart.agent.net.transport import Carrier
from edgepart.agent.options import AgentOptions
from edgepart.agent.security.identity import Identity
from edgepart.agent.wire.address import Address, format_address, mqtt_node

if TYPE_CHECKING:
    from edgepart.agent.mqtt.carrier import BrokerCarrier

log = logging.getLogger(__name__)

MOST_REMEMBERED = 64
"""The most members that an agent looks for after a restart."""

PostEvent = Callable[[events.Event], None]
Work = tuple[str, Begin]
"""A job that runs for as long as the agent, with its name."""


class HintCollector:
    """Gathers hints. It is created in the event loop's thread; any thread may call `tried`, `called` and `knocked`
    (sightings.LinkObserver)."""

    def __init__(self, options: AgentOptions, identity: Identity) -> None:
        self.boxes = Sightings()
        self._options = options
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        self._post: PostEvent | None = None
        self.revoked_nodes: Callable[[], Container[str]] = identity.revoked_nodes
        """Returns the node ids that are put out of the cluster; this agent does not call them."""
        self._reach = self._meet_at_broker()

    def _meet_at_broker(self) -> BrokerCarrier | None:
        if (broker := self._options.mqtt) is None:
            return None
        # Imported here because the module takes memory, which only agents with a broker should spend.
        from edgepart.agent.mqtt.carrier import BrokerCarrier

        def seen(hint: AgentHint) -> None:
            self._soon(lambda: self._seen(sightings.BROKER, hint))

        return BrokerCarrier(broker, self._identity.fingerprint, self._identity.node_id, seen)

    @property
    def carrier(self) -> Carrier | None:
        """The carrier that replaces TCP; None if TCP is used."""
        return self._reach.tunnels if self._reach is not None and self._options.transport == "mqtt" else None

    @property
    def at_broker(self) -> bool | None:
        """Whether there is a connection to the broker; None if no broker is used."""
        return None if self._reach is None else self._reach.is_up

    def stop(self) -> None:
        """End the use of the broker that `start` began. Blocks."""
        if self._reach is not None:
            self._reach.stop()

    def start(
        self,
        name: str,
        listen: Address,
        saved: Mapping[str, tuple[str, ...]],
        http: Callable[[], str],
        post: PostEvent,
    ) -> list[Work]:
        """Start to pass hints to `post`, and return the jobs that the caller has to run. `listen` is the address in use,
        `saved` maps the node ids of members before the restart to their addresses, and `http` returns the current URL of
        this agent's HTTP API."""
        self._post = post
        for address in self._options.peers:
            self._hint(sightings.PEER, "", (format_address(address),), lasting=True)
        for address in self._identity.first_members:
            self._hint(sightings.SAVED, "", (format_address(address),))
        for node, addresses in saved.items():
            self._hint(sightings.SAVED, node, addresses)
        me = self._identity.node_id
        if self._reach is not None:
            self._reach.start(me, name, __version__, lambda: parse_addresses(own_addresses(listen)))
        if self._options.transport != "tcp":
            return []
        work: list[Work] = [("watching addresses", lambda: self._watch(listen, http))]
        if self._options.mdns:
            told = Announcement(me, self._identity.fingerprint, name, __version__, listen)
            work.append(
                ("mDNS", lambda: Discovery(told, lambda seen: self._seen(sightings.MDNS, seen)).run())
            )
        return work

    async def _watch(self, listen: Address, http: Callable[[], str]) -> None:
        """Report each change of this device's addresses, so that members learn them."""

        def changed() -> None:
            if self._post is not None:
                self._post(events.AddressesChanged(own_addresses(listen), http()))

        await watch(lambda: own_addresses(listen), changed)

    # What comes in

    def _seen(self, way: str, hint: AgentHint) -> None:
        """Record a hint. An agent that claims our cluster is also reported for dialling, and has to prove its membership;
        other agents are only recorded."""
        if hint.node_id == self._identity.node_id:
            if way == sightings.MDNS:
                self.boxes.heard_self_at = time.time()
            return
        texts = tuple(map(format_address, hint.addresses))
        self.boxes.heard(
            way,
            hint.node_id or "",
            texts,
            time.time(),
            name=hint.name,
            fingerprint=hint.fingerprint,
            version=hint.version,
        )
        through_broker = self._options.transport == "mqtt"
        usable = [each for each in hint.addresses if (mqtt_node(each) is not None) is through_broker]
        if hint.node_id in self.revoked_nodes():
            return
        if usable and hint.ours and hint.node_id and self._post is not None:
            self._post(events.DeviceSeen(hint.node_id, tuple(map(format_address, usable))))

    def _hint(self, way: str, node: str, addresses: tuple[str, ...], *, lasting: bool = False) -> None:
        self.boxes.heard(way, node, addresses, time.time())
        if self._post is not None:
            self._post(events.DeviceSeen(node, addresses, lasting))

    def members(self, members: Iterable[events.Member]) -> None:
        """Record the current members. This device, which is one of them, is left out."""
        for member in members:
            if member.node != self._identity.node_id:
                self.boxes.member(member.node, member.name, member.version, member.listen, time.time())

    def addresses_to_keep(self, left: Callable[[str], bool]) -> dict[str, tuple[str, ...]]:
        """Return the addresses at which to look for members after a restart, by node id. Former members that did not leave
        are included, because a power cut takes one box after the other."""
        out = self.revoked_nodes()
        known = [
            (max(box.member_at or 0.0, dict(box.heard).get(sightings.SAVED, 0.0)), box)
            for box in self.boxes.all()
            if box.node and box.addresses and box.node not in out and not left(box.node)
        ]
        newest = sorted((one for one in known if one[0]), key=lambda one: one[0], reverse=True)
        return {box.node: box.addresses for _, box in newest[:MOST_REMEMBERED]}

    def linked(self, node: str, up: bool, why: str) -> None:
        """Record that a link came up or went down. Any thread may call this."""
        if not up:
            self._soon(lambda: self.boxes.ended(node, why, time.time()))

    def tried(self, node: str, address: str, fault: Fault | None, text: str) -> None:
        self._soon(lambda: self.boxes.tried(node, address, fault, text, time.time()))

    def called(self, node: str, address: str) -> None:
        self._soon(lambda: self.boxes.called(node, address, time.time()))

    def knocked(self, address: str, why: str) -> None:
        self._soon(lambda: self.boxes.knocked(address, why, time.time()))

    def _soon(self, work: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)
