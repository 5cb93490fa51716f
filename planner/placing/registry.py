"""The placers, by name. Each is a module here that registers what finds a placement. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

from edgepart.planner.errors import UsageError
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload

Placer = Callable[[Workload, Asked], PlacementFound]
"""Infeasible where no placement is found that the machines have memory for, with the bytes that are short."""

MODULES: Mapping[str, str] = MappingProxyType(
    {
        "expert": "placers.expert",
        "m-etf": "placers.list_schedulers",
        "m-sct": "placers.list_schedulers",
        "getf": "placers.getf",
        "heft": "placers.heft",
        "metis": "placers.min_cut",
        "pipeline": "placers.contiguous",
        "moirai": "exact.moirai",
    }
)
"""By name of a placer, the module that registers it."""

_registered: dict[str, Placer] = {}


def register(name: str) -> Callable[[Placer], Placer]:
    """Makes the decorated function known as the placer `name`."""

    def keep(placer: Placer) -> Placer:
        _registered[name] = placer
        return placer

    return keep


def placer(name: str) -> Placer:
    """UsageError where there is none of that name."""
    if name not in MODULES:
        raise UsageError(f"no placer is called {name!r}; there are {', '.join(MODULES)}")
    import_module(f"{__package__}.{MODULES[name]}")
    return _registered[name]
