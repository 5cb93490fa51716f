"""Invariants that are checked at every moment, and those that are asked for once a cluster is calm."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from edgepart.agent.cluster.state.bindings import is_variant
from edgepart.agent.cluster.state.events import LoadPlan
from edgepart.agent.wire.control import IN, Deployment, Standing
from edgepart.agent.wire.inference import NO_EPOCH, Epoch
from tests.simulation.disk import MODEL, Disk
from tests.simulation.trace import Broken, short

if TYPE_CHECKING:
    from tests.simulation.box import Box
    from tests.simulation.cluster import SimNet

UNAWARE_S = 1.0
"""Seconds that news of a lost disk may take: its box says Hello again, or is suspect and then dead."""
GHOST_S = 12.0
"""Seconds after which no undisturbed box lists a dead process: the longest silence, its own lateness, and the
time to ask."""


class Invariants:
    """The invariants of one cluster."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, Deployment] = {}
        """Maps a name to the last entry that a user was told is safe."""
        self._plans: dict[tuple[str, Epoch], LoadPlan] = {}
        self._terms: dict[int, tuple[str, int]] = {}
        self._wiped: list[tuple[float, Disk]] = []
        """Disks that were lost, and when."""

    # Checked at every moment

    def persists_term(self, box: Box, term: int) -> None:
        if term <= box.disk.term:
            raise Broken(f"{short(box.node)}: term {box.disk.term} -> {term}")

    def leads(self, box: Box, term: int) -> None:
        """Check that no term is led twice, not even by two lives of one box."""
        me = (box.node, box.life)
        if self._terms.setdefault(term, me) != me:
            raise Broken(f"term {term} of {self._terms[term]} is led by {me} too")
        if box.disk.term < term:
            raise Broken(f"{short(box.node)} leads term {term}, which is not on its disk")

    def loads(self, box: Box, order: LoadPlan) -> None:
        known = self._plans.setdefault((order.deployment, order.epoch), order)
        if (known.plan, known.names, known.version) != (order.plan, order.names, order.version):
            raise Broken(f"two plans of {order.deployment} have epoch {order.epoch}")

    def switches(self, box: Box, name: str, epoch: Epoch) -> None:
        """Check that epochs only grow. A variant that was given up may be taken up again; nothing else serves
        twice."""
        before = box.latest.get(name, NO_EPOCH)
        grows = epoch > before or (epoch == before and is_variant(name) and name not in box.active)
        if not grows or (name, epoch) not in box.plans:
            raise Broken(f"{short(box.node)}: {name} {before} -> {epoch}")

    def acknowledges(self, net: SimNet, box: Box, standing: Standing) -> None:
        """Check that an acknowledged deployment is on two disks, or on that of the only member, and that no member
        starts requests on an earlier version of its model."""
        entry = box.core.deployments.get(standing.deployment) if box.core is not None else None
        if entry is None or entry.version != standing.version:
            return
        known = self.acknowledged.get(entry.name)
        if known is not None and known.version >= entry.version:
            return
        self.acknowledged[entry.name] = entry
        copies = sum(other.disk.knows(entry) for other in net.boxes.values())
        copies += sum(disk.knows(entry) for at, disk in self._wiped if is_unaware(box, at, net.now))
        leads = box.core is not None and box.core.leader == box.node
        staying = len(_staying(box))
        if leads and copies < min(2, staying):
            raise Broken(f"{entry.name} is acknowledged with {copies} copies, of {staying} members that stay")
        for other in (net.boxes[node] for node in box.members if leads and net.boxes[node].core is not None):
            epoch = other.active.get(entry.name, NO_EPOCH)
            if NO_EPOCH < epoch < standing.epoch and self._plans[entry.name, epoch].version < entry.version:
                raise Broken(
                    f"{entry.name} is acknowledged, and {short(other.node)} serves an earlier version"
                )

    def wiped(self, now: float, disk: Disk) -> None:
        """Record a lost disk. Entries on it count until the leader can know of the loss."""
        self._wiped.append((now, disk))

    def gone(self, net: SimNet, nodes: Collection[str]) -> None:
        """Drop the promises for entries that only these nodes had: their disks are lost, or the boxes are gone for good.

        Their box was alone when it acknowledged, or as many disks were lost as there are copies.
        """
        for name, entry in list(self.acknowledged.items()):
            holders = {node for node, box in net.boxes.items() if box.disk.knows(entry)}
            if holders <= set(nodes):
                del self.acknowledged[name]

    def ghosts(self, net: SimNet, node: str, boot: str, since: float) -> None:
        """Check that a process that ended at `since` is in no member list now."""
        for box in net.boxes.values():
            if box.core is None or net.lossy or box.disturbed_at >= since - GHOST_S:
                continue
            if any(member.boot == boot for member in box.core.membership.members()):
                raise Broken(f"{short(box.node)} still lists {short(node)}, gone since {since:.3f}")

    # Asked for in a calm cluster

    def settled_faults(self, net: SimNet) -> list[str]:
        """Return everything that would be wrong in a calm cluster."""
        return [fault for group in net.groups() for fault in self._group_faults(net, group)]

    def _group_faults(self, net: SimNet, group: set[str]) -> Iterable[str]:
        leaders = {net.core(node).leader for node in group}
        if len(leaders) != 1 or not leaders <= group:
            yield f"group {names(group)} is led by {names(leaders)}"
        boots = {net.boxes[node].boot for node in group}
        for node in sorted(group):
            members = net.core(node).membership.members()
            if {member.boot for member in members} != boots:
                yield f"{short(node)} sees {names(member.node for member in members)}"
        yield from self._unserved(net, group)

    def _unserved(self, net: SimNet, group: set[str]) -> Iterable[str]:
        maps = {net.core(node).deployments.versions() for node in group}
        if len(maps) > 1:
            yield f"group {names(group)} has {len(maps)} maps of deployments"
        drains = net.core(min(group)).draining.map
        drained = {node for node in group if drains.state(node) != IN}
        stored = any(MODEL in net.boxes[node].disk.models for node in group)
        for entry in net.core(min(group)).deployments.list_live() if stored else ():
            plans = {net.boxes[node].active.get(entry.name) for node in group}
            devices = net.devices(net.boxes[min(group)], entry.name)
            if len(plans) != 1 or not devices or not devices <= group:
                epochs = sorted(map(str, plans))
                yield f"group {names(group)} serves {entry.name} with {epochs} on {names(devices)}"
            elif drained < group and drained & devices:
                yield f"group {names(group)} serves {entry.name} on {names(drained & devices)}, which is drained"

    def lost_deployments(self, net: SimNet) -> list[str]:
        """Return a fault for each acknowledged deployment that a running box lacks in memory or on its disk."""
        faults = []
        for entry in self.acknowledged.values():
            for node in net.running:
                versions = dict(net.core(node).deployments.versions())
                if entry.name not in versions or versions[entry.name] < entry.version:
                    faults.append(f"{short(node)} does not know {entry.name}, which was acknowledged")
                elif not net.boxes[node].disk.knows(entry):
                    faults.append(f"{short(node)} has not kept {entry.name}, which was acknowledged")
        return faults


def is_unaware(box: Box, lost_at: float, now: float) -> bool:
    """Whether a leader cannot know yet of a disk lost at `lost_at`: it was just now, or while the leader was
    stalled."""
    stalled = box.stalled_since - UNAWARE_S < lost_at <= box.stalled_until
    return now < (box.stalled_until if stalled else lost_at) + UNAWARE_S


def names(nodes: Iterable[str]) -> str:
    return " ".join(sorted(map(short, nodes))) or "nobody"


def _staying(box: Box) -> set[str]:
    """Return the members that are not drained: a copy on a drained one is not safe."""
    drains = box.core.draining.map if box.core is not None else ()
    return set(box.members) - {drain.node for drain in drains if drain.state != IN}
