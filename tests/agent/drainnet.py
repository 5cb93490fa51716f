"""The simulated network with drains: what the fake shell does of them, and what survives a restart."""

from __future__ import annotations

from edgepart.agent.control import DRAINS, IN, LEAVES, Drain, Report
from edgepart.agent.core import Core
from edgepart.agent.events import (
    CardReady,
    DeploymentsKept,
    Discharged,
    DrainRequested,
    Effect,
    LeaveAnnounced,
    LeaveRequested,
    PersistDeployments,
    PersistDrains,
    Seen,
    Send,
)
from edgepart.agent.membership import Facts
from tests.agent.simnet import Box, SimNet

VERSION = f"0.1.0+traces.{LEAVES}.{DRAINS}"


class DrainNet(SimNet):
    """`versions`: what boxes call themselves, by node; `full`: those that can write no file."""

    def __init__(self, count: int, seed: int = 0, *, lossy: float = 0.0) -> None:
        super().__init__(count, seed, lossy=lossy)
        self.versions: dict[str, str] = {}
        self.drains: dict[str, tuple[Drain, ...]] = {}
        self.discharged: list[str] = []
        self.full: set[str] = set()

    def _start(self, box: Box) -> None:
        box.life += 1
        box.disk.incarnation += 1
        box.plans, box.active, box.waiting, box.stalled_until = {}, {}, [], 0.0
        disk, boot, name = box.disk, f"{box.node}/{box.life}", f"box{int(box.node, 16)}"
        version = self.versions.get(box.node, VERSION)
        facts = Facts(box.node, name, boot, disk.incarnation, (box.node,), "", version)
        box.core = Core(
            facts,
            self.now,
            term=disk.term,
            deployments=disk.deployments,
            models=disk.models,
            drains=self.drains.get(box.node, ()),
        )
        self.note(box, "starts")
        self.give(box, CardReady(f"card of {box.node}".encode()))
        for other in self.boxes:
            if other != box.node:
                self._later(box, self.random.uniform(0.05, 0.8), Seen(other, (other,)))

    def obey(self, box: Box, effects: list[Effect]) -> None:
        """As the shell does: what could not be written is not reported, and said once all is obeyed."""
        failed = box.node in self.full and any(isinstance(e, PersistDeployments) for e in effects)
        if failed:
            effects = [e for e in effects if not isinstance(e, PersistDeployments)]
            effects = [e for e in effects if not (isinstance(e, Send) and isinstance(e.message, Report))]
        super().obey(box, effects)
        if failed:
            self.give(box, DeploymentsKept(False))

    def has_room(self, node: str) -> None:
        self.full.discard(node)
        core = self.core(node)
        self.boxes[node].disk.deployments = tuple(core.deployments)
        self.give(self.boxes[node], DeploymentsKept(True))

    def _work(self, box: Box, effect: Effect) -> None:
        match effect:
            case PersistDrains(entries):
                self.drains[box.node] = entries
            case Discharged():
                self.discharged.append(box.node)
                self.note(box, "is discharged")
                life = box.life
                self.at(self.now + 0.01, lambda: self._leave(box, life))
            case _:
                super()._work(box, effect)

    def _leave(self, box: Box, life: int) -> None:
        """As the service does: announced, and gone when it is not needed."""
        if box.life != life or box.core is None:
            return
        self.give(box, LeaveAnnounced())

        def look() -> None:
            if box.life != life or box.core is None:
                return
            if box.core.needed:
                self.at(self.now + 0.05, look)
                return
            self.give(box, LeaveRequested())
            self.at(self.now + 0.05, lambda: self.crash(box.node) if box.life == life else None)

        look()

    # What tests ask

    def wish(self, asked: str, node: str, state: str) -> None:
        self.give(self.boxes[asked], DrainRequested(node, f"box{int(node, 16)}", state))

    def is_out(self, node: str, asked: str) -> bool:
        """Whether whoever is asked there is told that nothing needs the device."""
        draining = self.core(asked).draining
        entry, standing = draining.map.get(node), draining.standings.get(node)
        return bool(entry and standing and standing.version == entry.version and standing.done)

    def states(self, node: str) -> set[str]:
        """What running boxes know of it."""
        return {self.core(other).draining.map.state(node) for other in self.running} or {IN}
