"""One simulated device: its disk and clock, and while it runs, its core and its driver's state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.state.events import LoadPlan
from edgepart.agent.wire.inference import Epoch
from tests.simulation.clients import Device
from tests.simulation.disk import Disk
from tests.simulation.network import Link


@dataclass
class Box:
    node: str
    disk: Disk = field(default_factory=Disk)
    core: Core | None = None
    device: Device | None = None
    life: int = 0
    boot: str = ""
    linked: dict[str, Link] = field(default_factory=dict)
    """Links that its core knows to be up."""
    plans: dict[tuple[str, Epoch], LoadPlan] = field(default_factory=dict)
    loaded: set[tuple[str, Epoch]] = field(default_factory=set)
    active: dict[str, Epoch] = field(default_factory=dict)
    latest: dict[str, Epoch] = field(default_factory=dict)
    """For each deployment, the last epoch that was active in this life."""
    members: frozenset[str] = frozenset()
    to_write: dict[str, Callable[[], None]] = field(default_factory=dict)
    """For each file, the newest version that waits to be written, as in agent/storage/write_queue.py."""
    writing: bool = False
    # Faults
    stalled_since: float = -1e9
    """When its last stall began."""
    stalled_until: float = 0.0
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    """Work that arrives while it is stalled."""
    lag_s: float = 0.0
    """Delay with which a slow box handles anything that arrives."""
    busy_until: float = 0.0
    fuse: int = -1
    """Number of effects of the next event after which it dies; -1: it does not."""
    disturbed_at: float = -1e9
    """When it was last stalled, cut off or started, in the network's time."""
    # Its clock, which only has to move forwards
    offset_s: float = 0.0
    rate: float = 1.0
    woken_at: float = -1.0
    """When it will be woken, in the network's time; -1: not planned."""
    planned_at: float = -1.0
    """The same time in its own clock, as its core gave it."""
    spins: int = 0

    def clock(self, now: float) -> float:
        return self.offset_s + self.rate * now

    def when(self, local: float) -> float:
        """Return the network's time at which its clock shows `local`."""
        return (local - self.offset_s) / self.rate
