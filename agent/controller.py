"""What a leader does: deployments and members in, orders out. Rules, without I/O; the same code runs on every
agent and is asked only while that agent leads. One deployment's way from plan to plan is cutover.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from edgepart.agent.control import Prepare, Standing
from edgepart.agent.cutover import Cutover, World, epochs
from edgepart.agent.deployments import DeploymentMap
from edgepart.agent.events import Effect, PlanComputed, PlanFailed, Send
from edgepart.agent.messages import Epoch
from edgepart.agent.planning import PlanningTiming


class Controller:
    """One leadership."""

    def __init__(
        self, term: int, adopt: Callable[[str], Prepare | None], timing: PlanningTiming | None = None
    ) -> None:
        """`adopt`: the plan of a deployment that serves on this device already; it goes on if it still
        can."""
        self.term = term
        self._adopt = adopt
        self._timing = timing or PlanningTiming()
        self._epochs: Iterator[Epoch] = epochs(term)
        self._cutovers: dict[str, Cutover] = {}

    def step(self, deployments: DeploymentMap, world: World, now: float) -> list[Effect]:
        """Look at everything and give the orders that are missing."""
        living = {entry.name: entry for entry in deployments.living()}
        for name in self._cutovers.keys() - living.keys():
            del self._cutovers[name]
        effects: list[Effect] = []
        for name, entry in living.items():
            if name not in self._cutovers:
                self._cutovers[name] = Cutover(entry, self._adopt(name), self._timing)
            cutover = self._cutovers[name]
            cutover.deployment = entry
            effects += cutover.step(world, self._epochs, now)
        return effects

    def answered(self, result: PlanComputed | PlanFailed, now: float) -> None:
        """Of a deployment that is gone, the answer is dropped."""
        if cutover := self._cutovers.get(result.key.deployment):
            cutover.answered(result, now)

    def retell(self, nodes: Iterable[str]) -> list[Effect]:
        """How all deployments stand, for members that may not know."""
        return [Send(node, standing) for node in nodes for standing in self.standings()]

    def standings(self) -> list[Standing]:
        return [c.standing for c in self._cutovers.values() if c.standing is not None]

    def wake_at(self, now: float) -> float:
        return min((cutover.wake_at(now) for cutover in self._cutovers.values()), default=math.inf)
