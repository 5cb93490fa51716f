"""Discovery: what is announced and what is made of what others announce; and real mDNS between two processes."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zeroconf import IPVersion

from edgepart.agent.discovery import mdns
from edgepart.agent.discovery.mdns import Announcement, Discovery, DiscoveryTiming
from edgepart.agent.net.sightings import MOST_ADDRESSES, AgentHint

OURS, OTHER = "a" * 64, "b" * 64
BOUND_S = 20.0


def announced(node_id: str = "1" * 16, fingerprint: str = OURS, name: str = "pi") -> Announcement:
    return Announcement(node_id, fingerprint, name, "0.1.0", ("127.0.0.1", 7433))


def test_what_is_announced_is_what_is_read() -> None:
    info = mdns.service_info(announced(name="Küche " * 20), ("10.0.0.5", "fd00::5"))
    addresses = info.parsed_scoped_addresses(IPVersion.All)
    seen = mdns.read_announcement(info.properties, addresses, info.port, OURS)
    assert seen == AgentHint(
        "1" * 16, (("10.0.0.5", 7433), ("fd00::5", 7433)), "a" * 16, ("Küche " * 20)[:63], True, "0.1.0"
    )
    theirs = mdns.read_announcement(info.properties, addresses, info.port, OTHER)
    assert theirs is not None and not theirs.ours


@given(
    st.dictionaries(st.sampled_from([b"id", b"fp", b"name", b"v", b"x"]), st.none() | st.binary(max_size=20)),
    st.lists(st.text(max_size=5), max_size=40),
    st.none() | st.integers(0, 65535),
)
def test_whatever_is_announced_is_bounded_and_well_formed(
    properties: dict[bytes, bytes | None], addresses: list[str], port: int | None
) -> None:
    for more in ({}, {b"id": b"1" * 16, b"fp": b"f" * 16, b"name": b"\xff" * 255}):
        seen = mdns.read_announcement({**properties, **more}, addresses, port, OURS)
        if seen is not None:
            assert len(seen.addresses) <= MOST_ADDRESSES and len(seen.name) <= 63
            assert all(0 < port <= 65535 for _, port in seen.addresses)


def test_the_hint_of_a_static_peer() -> None:
    assert mdns.static(("pi.local", 7433)).addresses == (("pi.local", 7433),)


async def hear(me: Announcement, nodes: set[str], timing: DiscoveryTiming) -> list[AgentHint]:
    """Until all of `nodes` were heard; others that happen to be on this network are none of the test's business."""
    heard: list[AgentHint] = []
    done = asyncio.Event()

    def on_seen(seen: AgentHint) -> None:
        if seen.node_id in nodes:
            heard.append(seen)
        if {s.node_id for s in heard} == nodes:
            done.set()

    running = asyncio.create_task(Discovery(me, on_seen, timing).run())
    try:
        async with asyncio.timeout(BOUND_S):
            await done.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return heard


ANNOUNCE = """
import asyncio, sys
from edgepart.agent.discovery.mdns import Announcement, Discovery
me = Announcement(sys.argv[1], sys.argv[2], sys.argv[3], "0.1.0", ("127.0.0.1", 7433))
asyncio.run(Discovery(me, lambda seen: print(seen.node_id, flush=True)).run())
"""


def multicast_works() -> bool:
    """Whether a multicast datagram of this machine comes back to it."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        try:
            receiver.bind(("", 0))
            membership = socket.inet_aton("224.0.0.251") + socket.inet_aton("0.0.0.0")
            receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            receiver.settimeout(2.0)
            sender.sendto(b"?", ("224.0.0.251", receiver.getsockname()[1]))
            return receiver.recv(1) == b"?"
        except OSError:
            return False


@pytest.mark.processes
def test_processes_hear_each_other_and_other_clusters_are_marked() -> None:
    if not multicast_works():
        pytest.skip("this machine has no network that carries multicast")
    timing = DiscoveryTiming(ask_every_s=1.0)
    others = [("2" * 16, OURS, "two"), ("3" * 16, OTHER, "three")]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", ANNOUNCE, *other],
            stdout=subprocess.PIPE,
            text=True,
        )
        for other in others
    ]
    try:
        heard = asyncio.run(hear(announced(), {"2" * 16, "3" * 16}, timing))
        assert {(s.node_id, s.name, s.ours) for s in heard} == {
            ("2" * 16, "two", True),
            ("3" * 16, "three", False),
        }
        assert {s.addresses for s in heard} == {(("127.0.0.1", 7433),)}
        # They hear us and each other, whoever came first.
        for child in children:
            assert child.stdout is not None
            assert any(line.strip() in {c * 16 for c in "123"} for line in child.stdout)
        assert mdns.find_members(OURS, BOUND_S) == (("127.0.0.1", 7433),)
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_nobody_is_found_where_nobody_is() -> None:
    assert mdns.find_members("c" * 64, 0.2) == ()


def test_without_a_network_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A board that boots before its cable is plugged in."""
    tries: list[int] = []

    def refuse() -> None:
        tries.append(1)
        raise (RuntimeError("no address"), OSError("no device"))[len(tries) % 2]

    monkeypatch.setattr(mdns, "_open", refuse)
    assert mdns.find_members(OURS, 0.2) == ()

    async def several() -> None:
        running = asyncio.create_task(
            Discovery(announced(), lambda seen: None, DiscoveryTiming(ask_every_s=0.0)).run()
        )
        while len(tries) < 5:
            assert not running.done()
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(several(), BOUND_S))
