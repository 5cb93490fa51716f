"""Report: puts what the agent knows about itself and each box that it has heard of into one document. Door: it reads the
core's state in the event loop's thread; diagnosis.py and checkup.py make the judgements.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from edgepart import __version__
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.leader.status import describe_set_aside
from edgepart.agent.cluster.membership.membership import Membership
from edgepart.agent.cluster.membership.roster import make_unique_names
from edgepart.agent.cluster.state.cards import parse_card
from edgepart.agent.discovery.hints import HintCollector
from edgepart.agent.doctor.checkup import BAD, GOOD, NOTE, Check, check_box, judge_grpc
from edgepart.agent.doctor.diagnosis import (
    LESS_LOAD,
    RECENT_S,
    MembershipEntry,
    OwnAgent,
    ServedDeployment,
    Verdict,
    describe_age,
    diagnose,
    find_unused,
    name_clash_notes,
)
from edgepart.agent.doctor.engines import judge_engines, judge_runtime
from edgepart.agent.engines.installed import installed_runtime
from edgepart.agent.measure.starvation import describe_starvation
from edgepart.agent.net.faults import Fault
from edgepart.agent.net.sightings import Box
from edgepart.agent.options import AgentOptions
from edgepart.agent.serving.loaded_plans import LoadedPlans
from edgepart.agent.wire.address import Address
from edgepart.planner.figures import format_count

HEARD_S = 20.0
"""An agent that has not heard its own announcement for so many seconds has no multicast."""


class DoctorReport:
    """Makes the report of one agent."""

    def __init__(
        self,
        name: str,
        fingerprint: str,
        options: AgentOptions,
        listen: Address,
        core: Core,
        plans: LoadedPlans,
        hint_collector: HintCollector,
        warnings: Callable[[], list[str]],
        grpc: Callable[[], tuple[str, str]],
    ) -> None:
        """Set up the report. `warnings` returns what the user should know about certificates and keys, one sentence
        each. `grpc` returns the address of the gRPC server, and why it does not listen although it is to."""
        through_broker = options.transport == "mqtt"
        self._me = OwnAgent(core.node, name, fingerprint, __version__, listen[1], through_broker)
        self._options = options
        self._core = core
        self._plans = plans
        self._hint_collector = hint_collector
        self._warnings = warnings
        self._grpc = grpc
        self._loop = asyncio.get_running_loop()
        self._began = time.time()

    async def document(self) -> dict[str, Any]:
        """Return the report: {"agent", "boxes", "knocks", "checks", "notes"}; see docs/operations.md."""
        options, port = self._options, self._me.port
        checks = await asyncio.to_thread(
            check_box, options.state, port, options.threads, options.memory_limit_bytes
        )
        now = time.time()
        boxes = self._hint_collector.boxes.all()
        names = self._names(boxes)
        shown = make_unique_names(names.items())
        return {
            "agent": {
                "name": shown[self._me.node],
                "node": self._me.node,
                "version": self._me.version,
                "cluster": self._me.fingerprint[:16],
                "port": port,
                "running": True,
            },
            "boxes": [self._box(box, shown.get(box.node, ""), now) for box in boxes],
            "knocks": [
                {"address": one.address, "why": one.why, "seconds_ago": now - one.at, "times": one.times}
                for one in self._hint_collector.boxes.knocks()
            ],
            "checks": [asdict(check) for check in (*self._own_checks(boxes, now), *checks)],
            "notes": name_clash_notes(names.items()),
        }

    def _names(self, boxes: Iterable[Box]) -> dict[str, str]:
        """The name that each box gives itself, by node id."""
        peers = self._core.membership.peers
        said = {box.node: box.name for box in boxes if box.node}
        said |= {node: peer.hello.name for node, peer in peers.items() if peer.hello.name}
        return {self._me.node: self._me.name} | said

    def _box(self, box: Box, name: str, now: float) -> dict[str, Any]:
        seat = self._seat(box.node)
        verdict = diagnose(box, seat, self._me, now)
        member = next((m.name for m in self._core.membership.members() if m.node == box.node), "")
        without = find_unused(member, seat, self._served_deployments()) if seat is not None and member else []
        return box_document(box, verdict, now) | {
            "name": member or name,
            "deployments": [{"deployment": one, "why": why} for one, why in without],
        }

    def _seat(self, node: str) -> MembershipEntry | None:
        peer = self._core.membership.peers.get(node)
        if peer is None:
            return None
        card = self._core.cards.get(node)
        room = None if card is None else parse_card(card.document).device.memory_bytes
        for_s = self._loop.time() - peer.since
        starved = peer.starvation_at(self._loop.time())
        return MembershipEntry(peer.standing, for_s, peer.hello.name, card is not None, room, starved)

    def _served_deployments(self) -> Iterator[ServedDeployment]:
        for entry in self._core.deployments.list_live():
            active = self._plans.active(entry.name)
            standing = self._core.standings.get(entry.name)
            if active is not None:
                plan = active[1].plan
                yield ServedDeployment(entry.name, tuple(plan.programs), entry.options.devices, plan.why)
            else:
                why = (standing.error or standing.text) if standing else "waiting for the leader"
                why = describe_set_aside(entry.name, entry.fault) if entry.fault else why
                yield ServedDeployment(entry.name, (), entry.options.devices, why)

    # The agent itself

    def _own_checks(self, boxes: tuple[Box, ...], now: float) -> Iterator[Check]:
        yield Check("agent", GOOD, f"runs as {self._me.name} ({self._me.node}), {self._me.version}")
        if text := describe_starvation(self._core.membership.starvation_of(self._me.node, self._loop.time())):
            yield Check("load", NOTE, text, LESS_LOAD)
        if (card := self._core.cards.get(self._me.node)) is not None:
            yield from judge_engines(parse_card(card.document))
        if (mixed := judge_runtime(installed_runtime())) is not None:
            yield mixed
        yield from (Check("certificates", NOTE, text) for text in self._warnings())
        yield judge_grpc(*self._grpc())
        if not self._me.through_broker:
            yield self._check_reached(boxes, now)
            yield self._multicast(now)
        if (up := self._hint_collector.at_broker) is not None:
            where = str(self._options.mqtt)
            do = "" if up else "is it running, and are user and password right? The agent's log says more"
            text = f"connected to {where}" if up else f"not connected to {where}"
            yield Check("broker", GOOD if up else BAD, text, do)

    def _check_reached(self, boxes: tuple[Box, ...], now: float) -> Check:
        port = self._me.port
        members = [box for box in boxes if box.called is not None]
        blocked = [
            one.at
            for box in boxes
            for one in box.tries
            if one.fault is Fault.NO_WAY_BACK and now - one.at < RECENT_S
        ]
        if blocked:
            do = f"let TCP {port} in here; in a container, publish the port"
            return Check(
                "port", BAD, f"{format_count(len(blocked), 'device')} cannot connect to port {port} here", do
            )
        if members:
            last = max(box.called[1] for box in members if box.called is not None)
            have = "has" if len(members) == 1 else "have"
            who = format_count(len(members), "device")
            text = f"{who} {have} connected to port {port}, last {describe_age(now - last)}"
            return Check("port", GOOD, text)
        return Check("port", GOOD, f"no device has connected to port {port} yet")

    def _multicast(self, now: float) -> Check:
        if not self._options.mdns:
            return Check(
                "multicast", NOTE, "not used (--no-mdns): others find this box by --peer or a broker"
            )
        heard_at = self._hint_collector.boxes.heard_self_at
        if heard_at is not None and now - heard_at < HEARD_S:
            return Check(
                "multicast", GOOD, f"this box hears its own announcement, {describe_age(now - heard_at)}"
            )
        if now - self._began < HEARD_S:
            return Check("multicast", GOOD, "this box has just begun to announce itself")
        return Check(
            "multicast",
            BAD,
            "this box does not hear its own announcement",
            "let UDP 5353 through its firewall; where the network has no multicast, use --peer or --mqtt",
        )


def box_document(box: Box, verdict: Verdict, now: float) -> dict[str, Any]:
    """Return the entry of a box in the report's "boxes"."""
    return {
        "node": box.node or None,
        "name": box.name,
        "version": box.version.partition("+")[0],
        "cluster": box.fingerprint,
        "addresses": list(box.addresses),
        "state": verdict.state,
        "why": verdict.why,
        "do": verdict.do,
        "heard": [{"way": way, "seconds_ago": now - at} for way, at in box.heard],
        "tries": [
            {
                "address": one.address,
                "fault": one.fault,
                "text": one.text,
                "seconds_ago": now - one.at,
            }
            for one in box.tries
        ],
        "deployments": [],
    }


def own_names(membership: Membership) -> list[tuple[str, str]]:
    """Return the id of each member and the name that it gives itself, which may not be unique."""
    inside = [member.node for member in membership.members()]
    said = {node: peer.hello.name for node, peer in membership.peers.items()}
    return [(node, said.get(node, membership.facts.name)) for node in inside]
