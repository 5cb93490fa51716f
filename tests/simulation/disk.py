"""The state that survives a restart of a simulated box. Each write is atomic, as state_files.py promises."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgepart.agent.wire.control import Deployment, Drain, Prepare, Version

MODEL = "m" * 64


@dataclass
class Disk:
    incarnation: int = 0
    term: int = 0
    deployments: tuple[Deployment, ...] = ()
    plans: dict[str, Prepare] = field(default_factory=dict)
    """The order of the plan that served last, by deployment."""
    models: set[str] = field(default_factory=set)
    drains: tuple[Drain, ...] = ()
    write_s: float = 0.002
    """Seconds to write a file. A write in progress is lost when its box ends."""
    busy_until: float = 0.0
    full: bool = False
    """Whether no deployments can be written."""

    def versions(self) -> tuple[tuple[str, Version], ...]:
        return tuple((entry.name, entry.version) for entry in self.deployments)

    def knows(self, entry: Deployment) -> bool:
        """Whether the disk has this entry, or a later one of that name."""
        return any(d.name == entry.name and d.version >= entry.version for d in self.deployments)
