"""Plan reports: a deployment's active plan as a document, with the times that were measured on it, and as pictures. Door: a
thread that draws.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from edgepart.agent.api.known_deployments import KnownDeployments
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.membership.election import readable_epoch
from edgepart.agent.cluster.state import cards, judging
from edgepart.agent.wire.inference import NO_EPOCH, Epoch


class PlanReports:
    """For the event loop's thread."""

    def __init__(
        self,
        core: Core,
        known: KnownDeployments,
        latencies: Callable[[], Mapping[tuple[str, Epoch], Sequence[float]]],
    ) -> None:
        """`latencies` is that of RequestServing."""
        self._core = core
        self._known = known
        self._latencies = latencies

    def describe(self, name: str) -> dict[str, Any]:
        """The document of Node.plan."""
        from edgepart.planner.report.shares import plan_report  # late: imports the simulator and operators

        active, plan = self._known.active(name), self._known.plan(name)
        epoch = active[0] if active else NO_EPOCH
        took = self._latencies().get((name, epoch), ())
        measured = judging.build_measurements_report(plan, self._kinds(name), self._core.profiles, took)
        shown = list(astuple(readable_epoch(epoch))) if active else None
        return plan_report(plan) | {"epoch": shown, "measured": measured}

    async def draw(self, name: str) -> dict[str, Any]:
        """The document of Node.drawing."""
        from edgepart.planner.report.drawing import draw_plan  # late: imports the simulator and operators

        active, plan = self._known.active(name), self._known.plan(name)
        members = {member.node: member.name for member in self._core.membership.members()}
        known = [self._core.cards[node] for node in members if node in self._core.cards]
        cluster = cards.build_cluster(known, members)
        pictures = await asyncio.to_thread(draw_plan, plan, cluster, members.get(self._core.node, ""))
        return {"epoch": list(astuple(readable_epoch(active[0]))) if active else None} | pictures

    def _kinds(self, deployment: str) -> judging.Kinds:
        """The pace and threads of each member that has a card, by name, with its drift as it is now."""
        found = {}
        for member in self._core.membership.members():
            if (card := self._core.cards.get(member.node)) is not None:
                device = cards.parse_card(card.document).device
                device = device.with_drift(self._core.drifts.factor(member.node, deployment))
                found[member.name] = device.pace, device.threads
        return found
