"""Discovery: announces this agent on the local networks, and hears the announcements of others. A door: mDNS by zeroconf.

It yields hints to connect, never removals, and trusts none of them, because anybody on the network can send them. A host
that was killed stays listed for 19 minutes, and two hosts that were started apart never hear each other unless they ask
again; therefore a fresh browser asks every few seconds. TXT holds the cluster's fingerprint (its first 16 hex digits), the
node id, the name for people and the version; never a secret.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zeroconf import Error, IPVersion, ServiceInfo, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from edgepart.agent.net.addresses import rank
from edgepart.agent.net.interfaces import WATCH_S, interfaces, local_addresses
from edgepart.agent.net.sightings import FINGERPRINT_DIGITS, MOST_ADDRESSES, AgentHint
from edgepart.agent.security.certificates import NODE_ID
from edgepart.agent.wire.address import Address

log = logging.getLogger(__name__)

SERVICE = "_edgepart._tcp.local."


@dataclass(frozen=True, slots=True)
class Announcement:
    """The data that this agent announces about itself."""

    node_id: str
    fingerprint: str
    """The cluster's fingerprint, of which the first 16 digits are announced."""
    name: str
    version: str
    listen: Address
    """The address with the port in use. With a host that stands for all addresses ("", 0.0.0.0, ::), every address is
    announced."""


@dataclass(frozen=True, slots=True)
class DiscoveryTiming:
    ask_every_s: float = 5.0
    """Seconds between fresh questions. A shorter time finds a newly connected device sooner; a longer one spares the
    network."""
    resolve_s: float = 1.5
    """The time limit for resolving one name's addresses."""
    most_names: int = 256
    """The most names that are resolved between two questions, which bounds the cost of a flood of names."""


def static(peer: Address) -> AgentHint:
    """The hint that `--peer` gives."""
    return AgentHint(None, (peer,), "", "", True)


class Discovery:
    """Announces this agent, and listens for others, while `run` runs."""

    def __init__(
        self, me: Announcement, on_seen: Callable[[AgentHint], None], timing: DiscoveryTiming | None = None
    ) -> None:
        """Set up discovery. `on_seen` is called in the event loop, in each round again for every agent that is still
        listed. It is also called for this agent's own announcement, which shows that multicast works."""
        self._me = me
        self._on_seen = on_seen
        self._timing = timing or DiscoveryTiming()

    async def run(self) -> None:
        """Announce and listen until cancelled, which sends a goodbye. Without a usable network it tries again for ever."""
        while True:
            try:
                await self._on_a_network()
            # RuntimeError is what zeroconf raises on a machine without any address.
            except (OSError, RuntimeError, Error) as error:
                log.info("no mDNS for now: %s", error)
            await asyncio.sleep(self._timing.ask_every_s)

    async def listen_until(self, heard: asyncio.Event) -> None:
        """Listen, without announcing anything, until `heard` is set. Raises OSError or RuntimeError if there is no
        network."""
        zeroconf = _open()
        asking = asyncio.create_task(self._ask_for_ever(zeroconf))
        try:
            await heard.wait()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await asyncio.shield(zeroconf.async_close())

    async def _ask_for_ever(self, zeroconf: AsyncZeroconf) -> None:
        while True:
            await self._ask(zeroconf)

    async def _on_a_network(self) -> None:
        addresses = local_addresses(self._me.listen[0])
        zeroconf = _open()
        tasks: list[asyncio.Task[None]] = []
        try:
            await zeroconf.async_register_service(service_info(self._me, addresses), allow_name_change=True)
            tasks += (
                asyncio.create_task(work)
                for work in (self._ask_for_ever(zeroconf), self._follow(zeroconf, addresses))
            )
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.shield(zeroconf.async_close())

    async def _follow(self, zeroconf: AsyncZeroconf, addresses: tuple[str, ...]) -> None:
        """Announce the current interfaces and addresses whenever they change (a cable, a lease, another access point)."""
        while True:
            await asyncio.sleep(WATCH_S)
            if (now := local_addresses(self._me.listen[0])) != addresses:
                log.info("addresses are now %s", ", ".join(now))
                await zeroconf.async_update_interfaces()
                await zeroconf.async_update_service(service_info(self._me, now))
                addresses = now

    async def _ask(self, zeroconf: AsyncZeroconf) -> None:
        """Run one round: start a fresh browser, and report a hint for each name that answers."""
        names: set[str] = set()
        tasks: set[asyncio.Task[None]] = set()

        def changed(
            zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
        ) -> None:
            gone = state_change is ServiceStateChange.Removed
            if gone or name in names or len(names) >= self._timing.most_names:
                return
            names.add(name)
            tasks.add(asyncio.get_running_loop().create_task(self._resolve(zeroconf, name)))

        browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[changed])
        try:
            await asyncio.sleep(self._timing.ask_every_s)
        finally:
            await browser.async_cancel()
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    log.debug("an announcement could not be read: %r", outcome)

    async def _resolve(self, zeroconf: Zeroconf, name: str) -> None:
        info = AsyncServiceInfo(SERVICE, name)
        if not await info.async_request(zeroconf, self._timing.resolve_s * 1000):
            return
        addresses = info.parsed_scoped_addresses(IPVersion.All)
        seen = read_announcement(info.properties, addresses, info.port, self._me.fingerprint)
        if seen is not None:
            self._on_seen(seen)


def find_members(fingerprint: str, timeout_s: float) -> tuple[Address, ...]:
    """Return the addresses of agents that claim this cluster, or () if none was heard in time. It blocks, and is used for
    joining."""
    return asyncio.run(_find(fingerprint, timeout_s))


async def _find(fingerprint: str, timeout_s: float) -> tuple[Address, ...]:
    found: dict[Address, None] = {}
    heard = asyncio.Event()

    def on_seen(seen: AgentHint) -> None:
        if seen.ours:
            found.update(dict.fromkeys(seen.addresses))
            heard.set()

    listener = Discovery(Announcement("", fingerprint, "", "", ("", 0)), on_seen)
    try:
        async with asyncio.timeout(timeout_s):
            await listener.listen_until(heard)
    # TimeoutError is an OSError; a machine without any address raises RuntimeError.
    except (OSError, RuntimeError) as error:
        log.info("no agent of cluster %s was heard: %r", fingerprint[:FINGERPRINT_DIGITS], error)
    return tuple(rank(found, interfaces()))


def service_info(me: Announcement, addresses: Sequence[str]) -> ServiceInfo:
    properties = {
        "fp": me.fingerprint[:FINGERPRINT_DIGITS],
        "id": me.node_id,
        "name": me.name[:63],
        "v": me.version,
    }
    return ServiceInfo(
        SERVICE,
        f"{me.node_id}.{SERVICE}",
        port=me.listen[1],
        properties=properties,
        server=f"edgepart-{me.node_id}.local.",
        parsed_addresses=list(addresses),
    )


def read_announcement(
    properties: Mapping[bytes, bytes | None], addresses: list[str], port: int | None, fingerprint: str
) -> AgentHint | None:
    """Return the hint in an announcement; None if it is not the announcement of an edgepart agent."""
    text = {key: (value or b"").decode(errors="replace") for key, value in properties.items()}
    node_id, claimed = text.get(b"id", ""), text.get(b"fp", "")
    if not NODE_ID.fullmatch(node_id) or not NODE_ID.fullmatch(claimed) or not port or not addresses:
        return None
    where = tuple((address, port) for address in addresses[:MOST_ADDRESSES])
    ours = claimed == fingerprint[:FINGERPRINT_DIGITS]
    return AgentHint(node_id, where, claimed, text.get(b"name", "")[:63], ours, text.get(b"v", "")[:63])


def _open() -> AsyncZeroconf:
    """Open mDNS on every interface, with IPv6 if the machine has it."""
    try:
        return AsyncZeroconf(ip_version=IPVersion.All)
    except OSError:
        return AsyncZeroconf(ip_version=IPVersion.V4Only)
