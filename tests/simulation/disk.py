"""What survives a restart of a simulated box. Each write is whole or not there, as state_files.py promises."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgepart.agent.wire.control import Deployment, Drain, Version

MODEL = "m" * 64


@dataclass
class Disk:
    incarnation: int = 0
    term: int = 0
    deployments: tuple[Deployment, ...] = ()
    models: set[str] = field(default_factory=set)
    drains: tuple[Drain, ...] = ()
    write_s: float = 0.002
    """What writing a file takes. Whatever is under way when its box ends is not written."""
    busy_until: float = 0.0
    full: bool = False
    """No deployments can be written."""

    def versions(self) -> tuple[tuple[str, Version], ...]:
        return tuple((entry.name, entry.version) for entry in self.deployments)

    def knows(self, entry: Deployment) -> bool:
        """Whether it keeps this entry or a later one of that name."""
        return any(d.name == entry.name and d.version >= entry.version for d in self.deployments)
