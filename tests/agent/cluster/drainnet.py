"""What stories of drains ask of the simulated cluster."""

from __future__ import annotations

from edgepart.agent.cluster.state.events import DeploymentsKept
from edgepart.agent.wire.control import IN
from tests.simulation.cluster import VERSION, SimNet

__all__ = ["VERSION", "DrainNet"]


class DrainNet(SimNet):
    """Boxes that are drained, removed, or whose disk is full."""

    def fills(self, node: str) -> None:
        """Its disk does."""
        self.boxes[node].disk.full = True

    def has_room(self, node: str) -> None:
        """Its disk has, again; what could not be written is now."""
        box = self.boxes[node]
        box.disk.full = False
        box.disk.deployments = tuple(self.core(node).deployments)
        self.give(box, DeploymentsKept(box.disk.versions()))

    def is_out(self, node: str, asked: str) -> bool:
        """Whether whoever is asked there is told that nothing needs the device."""
        draining = self.core(asked).draining
        entry, standing = draining.map.get(node), draining.standings.get(node)
        return bool(entry and standing and standing.version == entry.version and standing.done)

    def states(self, node: str) -> set[str]:
        """What running boxes know of it."""
        return {self.core(other).draining.map.state(node) for other in self.running} or {IN}
