"""HintCollector: what is made of hints, and who is remembered over a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepart.agent.cluster.state import events
from edgepart.agent.discovery.hints import HintCollector
from edgepart.agent.net.sightings import MDNS, PEER, SAVED, AgentHint
from edgepart.agent.options import AgentOptions
from edgepart.agent.security import identity
from tests.agent.security.test_identity import NOW

A, B, C = "a" * 16, "b" * 16, "c" * 16


def member(node: str, address: str) -> events.Member:
    return events.Member(node, node[:4], "boot", "alive", (address,), "", "0.1.0")


@pytest.fixture
def within(tmp_path: Path) -> Callable[[Callable[[HintCollector, list[events.Event]], None]], None]:
    """Runs something with a lookout that has started without mDNS, and what it posted."""
    me = identity.create_cluster(tmp_path, NOW)
    options = AgentOptions(tmp_path, mdns=False, peers=(("p", 1),))

    def run(story: Callable[[HintCollector, list[events.Event]], None]) -> None:
        async def main() -> None:
            posted: list[events.Event] = []
            hint_collector = HintCollector(options, me)
            saved = {C: ("10.0.0.3:1",)}
            # What it gives back is not begun: nothing is to change meanwhile.
            hint_collector.start("pi", ("127.0.0.1", 1), saved, lambda: "http://x", posted.append)
            story(hint_collector, posted)
            await asyncio.sleep(0)

        asyncio.run(main())

    return run


Within = Callable[[Callable[[HintCollector, list[events.Event]], None]], None]


def test_hints_are_posted_and_kept(within: Within) -> None:
    def story(hint_collector: HintCollector, posted: list[events.Event]) -> None:
        assert posted == [
            events.DeviceSeen("", ("p:1",), lasting=True),
            events.DeviceSeen(C, ("10.0.0.3:1",)),
        ]
        ways = {box.node: [way for way, _ in box.heard] for box in hint_collector.boxes.all()}
        assert ways == {"": [PEER], C: [SAVED]}
        ours = hint_collector._identity.fingerprint[:16]
        hint_collector._seen(MDNS, AgentHint(A, (("10.0.0.1", 1),), ours, "nas", True, "0.1.0"))
        assert posted[2:] == [events.DeviceSeen(A, ("10.0.0.1:1",))]
        hint_collector._seen(MDNS, AgentHint(B, (("10.0.0.2", 1),), "e" * 16, "tv", False, "0.1.0"))
        assert len(posted) == 3  # another cluster's: noted, not called
        assert {box.name for box in hint_collector.boxes.all()} == {"", "nas", "tv"}
        assert hint_collector.boxes.heard_self_at is None
        hint_collector._seen(
            MDNS, AgentHint(hint_collector._identity.node_id, (("10.0.0.9", 1),), ours, "pi", True)
        )
        assert hint_collector.boxes.heard_self_at is not None and len(hint_collector.boxes.all()) == 4

    within(story)


def test_who_was_in_is_remembered_unless_it_left_or_was_put_out(within: Within) -> None:
    def story(hint_collector: HintCollector, posted: list[events.Event]) -> None:
        hint_collector.members([member(A, "10.0.0.1:1"), member(B, "10.0.0.2:1")])
        everybody = {A: ("10.0.0.1:1",), B: ("10.0.0.2:1",), C: ("10.0.0.3:1",)}
        assert hint_collector.addresses_to_keep(lambda node: False) == everybody
        hint_collector.members([member(A, "10.0.0.7:1")])  # B died; A moved
        assert hint_collector.addresses_to_keep(lambda node: False) == everybody | {A: ("10.0.0.7:1",)}
        assert set(hint_collector.addresses_to_keep(lambda node: node == B)) == {A, C}
        hint_collector.revoked_nodes = lambda: frozenset({A})
        assert set(hint_collector.addresses_to_keep(lambda node: False)) == {B, C}

    within(story)
