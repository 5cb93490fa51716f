"""What survives a restart of a simulated box. Each write is whole or not there, as statefiles.py promises."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgepart.agent.control import Deployment, Drain

MODEL = "m" * 64


@dataclass
class Disk:
    incarnation: int = 0
    term: int = 0
    deployments: tuple[Deployment, ...] = ()
    models: set[str] = field(default_factory=set)
    drains: tuple[Drain, ...] = ()
    full: bool = False
    """No deployments can be written."""

    def knows(self, entry: Deployment) -> bool:
        """Whether it keeps this entry or a later one of that name."""
        return any(d.name == entry.name and d.version >= entry.version for d in self.deployments)
