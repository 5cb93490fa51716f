"""The cluster report: the members and devices as this agent sees them, and this device's own figures, as documents for
people and scripts. Door: the event loop, the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from edgepart import __version__
from edgepart.agent.api.drain import DrainService
from edgepart.agent.api.node_parts import Diagnostics, NodeIdentity, RequestServing
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.membership.election import term_round
from edgepart.agent.cluster.state import cards, events
from edgepart.agent.doctor.diagnosis import name_clash_notes
from edgepart.agent.doctor.report import own_names
from edgepart.agent.engines.verdicts import verdicts_to_json
from edgepart.agent.measure.starvation import describe_starvation
from edgepart.agent.wire.control import Starved
from edgepart.planner.devices.cluster_json import cluster_to_json


class ClusterReport:
    """For the event loop's thread."""

    def __init__(
        self,
        me: NodeIdentity,
        core: Core,
        serving: RequestServing,
        residents: DrainService,
        diagnostics: Diagnostics,
    ) -> None:
        self._me = me
        self._core = core
        self._serving = serving
        self._residents = residents
        self._diagnostics = diagnostics
        self._started = time.monotonic()

    def status(self) -> dict[str, Any]:
        """The document of Node.status."""
        members = self._core.membership.members()
        names = {member.node: member.name for member in members}
        now = asyncio.get_running_loop().time()
        return {
            "name": names.get(self._core.node, self._me.name),
            "node": self._core.node,
            "version": __version__,
            "cluster": self._me.fingerprint,
            "http": self._me.http() or None,
            "grpc": self._me.grpc() or None,
            "grpc_trouble": self._me.grpc_trouble() or None,
            "leader": names.get(self._core.leader),
            "term": term_round(self._core.election.term),
            "uptime_s": time.monotonic() - self._started,
            "computed": self._serving.computed(),
            "security": self._diagnostics.security(),
            "members": [
                self._describe_member(member, self._core.membership.starvation_of(member.node, now))
                for member in members
            ],
            "notes": name_clash_notes(own_names(self._core.membership)),
            "lost": self._residents.lost_devices(),
            "drains": self._residents.drains(),
            "refused": self._residents.refused_devices(),
            "disk": dict(self._diagnostics.disk()),
            "sequences": self._count_sequences(),
            "loading": self._serving.plans.unfinished,
            "workers_ended": dict(self._serving.workers_ended()),
            "plans_refused": dict(self._core.leadership.count_refused()),
            "traffic": {
                names[node]: dict(traffic)
                for node, traffic in self._diagnostics.traffic().items()
                if node in names
            },
            "drifts": self._list_drifts(names),
        }

    def _describe_member(self, member: events.Member, starved: Starved) -> dict[str, Any]:
        notes = member.note, self._core.cards.faults.get(member.node, ""), describe_starvation(starved)
        return {
            "name": member.name,
            "node": member.node,
            "state": self._residents.state(member),
            "note": "; ".join(filter(None, notes)) or None,
            "starved": asdict(starved) if starved.share else None,
            "http": member.http or None,
            "grpc": member.grpc,
            "address": member.listen[0] if member.listen else None,
            "leader": member.node == self._core.leader,
            "measured": member.node in self._core.cards,
        }

    def _count_sequences(self) -> dict[str, int]:
        serving = self._serving
        kept, nbytes, evictions = serving.kept()
        return {
            "kept": kept,
            "bytes": nbytes,
            "evictions": evictions,
            "replays": serving.sequences.replays + serving.tokens.replays,
            "batches": serving.tokens.batches,
            "resumed": serving.tokens.resumed,
            "mirrored_bytes": serving.mirrored_bytes(),
        }

    def _list_drifts(self, names: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """The drift of each device that computes a deployment, by deployment and device."""
        nodes = {name: node for node, name in names.items()}
        found = {}
        for entry in self._core.deployments.list_live():
            active = self._serving.plans.active(entry.name)
            found[entry.name] = {
                device: self._core.drifts.factor(nodes[device], entry.name)
                for device in (active[1].plan.programs if active is not None else ())
                if device in nodes
            }
        return found

    def devices(self) -> dict[str, Any]:
        """The document of Node.devices."""
        members = self._core.membership.members()
        names = {member.node: member.name for member in members}
        known = [self._core.cards[node] for node in names if node in self._core.cards]
        document = cluster_to_json(cards.build_cluster(known, names))
        measured = {names[card.node]: cards.parse_card(card.document) for card in known}
        left_out = {name: dict(one.left_out) for name, one in measured.items() if one.left_out}
        refused = {name: verdicts_to_json(one.refused) for name, one in measured.items() if one.refused}
        drifts = {name: [asdict(e) for e in one.drifts] for name, one in measured.items() if one.drifts}
        engines = {"engines_left_out": left_out, "engines_refused": refused, "engine_drifts": drifts}
        return document | {"gateway": names.get(self._core.leader)} | {k: v for k, v in engines.items() if v}
