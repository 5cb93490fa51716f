"""Discovery: says on the local networks that this agent is here, and hears others say so. A door: mDNS by zeroconf.

What comes out are hints to connect, never removals, and nothing in them is believed: anybody on the network can
send them. A host that was killed stays listed for 19 minutes, and two hosts that were started apart never hear
each other unless they ask again; so a fresh browser asks every few seconds. TXT holds the cluster's fingerprint
(its first 16 hex digits), the node id, the name for people and the version; never a secret.
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
    """What this agent says of itself."""

    node_id: str
    fingerprint: str
    """The cluster's fingerprint, of which the first 16 digits are announced."""
    name: str
    version: str
    listen: Address
    """The address with the port in use. A host that stands for all ("", 0.0.0.0, ::) announces every address."""


@dataclass(frozen=True, slots=True)
class DiscoveryTiming:
    ask_every_s: float = 5.0
    """Between fresh questions: sooner finds a device that was plugged in sooner; later spares the network."""
    resolve_s: float = 1.5
    """The time limit for resolving one name's addresses."""
    most_names: int = 256
    """Looked at between two questions, so that a flood of names is bounded."""


def static(peer: Address) -> AgentHint:
    """The hint of `--peer`."""
    return AgentHint(None, (peer,), "", "", True)


class Discovery:
    """Announces and listens while `run` runs."""

    def __init__(
        self, me: Announcement, on_seen: Callable[[AgentHint], None], timing: DiscoveryTiming | None = None
    ) -> None:
        """`on_seen` is called in the event loop, again at each round for whatever is still listed; also for this agent's
        own announcement, which is how one knows that multicast works."""
        self._me = me
        self._on_seen = on_seen
        self._timing = timing or DiscoveryTiming()

    async def run(self) -> None:
        """Until cancelled (which says goodbye). With no usable network, tries again for ever."""
        while True:
            try:
                await self._on_a_network()
            # RuntimeError is what zeroconf raises on a machine without any address.
            except (OSError, RuntimeError, Error) as error:
                log.info("no mDNS for now: %s", error)
            await asyncio.sleep(self._timing.ask_every_s)

    async def listen_until(self, heard: asyncio.Event) -> None:
        """Only listen, announcing nothing, until `heard` is set. OSError or RuntimeError without a network."""
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
        """Other interfaces and addresses, as they come and go: a cable, a lease, another access point."""
        while True:
            await asyncio.sleep(WATCH_S)
            if (now := local_addresses(self._me.listen[0])) != addresses:
                log.info("addresses are now %s", ", ".join(now))
                await zeroconf.async_update_interfaces()
                await zeroconf.async_update_service(service_info(self._me, now))
                addresses = now

    async def _ask(self, zeroconf: AsyncZeroconf) -> None:
        """One round: a fresh browser, and a hint for each name that answers."""
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
    """Find where agents that claim this cluster listen. Returns () if none was heard in time. It blocks, and is for
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
    # TimeoutError is an OSError; RuntimeError is a machine without any address.
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
    """The hint in what somebody announced; None where it is none of an edgepart agent's."""
    text = {key: (value or b"").decode(errors="replace") for key, value in properties.items()}
    node_id, claimed = text.get(b"id", ""), text.get(b"fp", "")
    if not NODE_ID.fullmatch(node_id) or not NODE_ID.fullmatch(claimed) or not port or not addresses:
        return None
    where = tuple((address, port) for address in addresses[:MOST_ADDRESSES])
    ours = claimed == fingerprint[:FINGERPRINT_DIGITS]
    return AgentHint(node_id, where, claimed, text.get(b"name", "")[:63], ours, text.get(b"v", "")[:63])


def _open() -> AsyncZeroconf:
    """On every interface; with IPv6 where the machine has it."""
    try:
        return AsyncZeroconf(ip_version=IPVersion.All)
    except OSError:
        return AsyncZeroconf(ip_version=IPVersion.V4Only)
