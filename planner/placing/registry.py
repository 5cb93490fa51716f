"""The placers, by name. The modules in `MODULES` register the functions that find placements. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

from edgepart.planner.errors import UsageError
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload

Placer = Callable[[Workload, Asked], PlacementFound]
"""Finds a placement. Raises Infeasible, with the bytes that are short, if it finds none that fits the machines' memory."""

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
        "climb": "placers.climb",
        "learned": "placers.learned",
        "placeto": "placers.placeto",
        "gdp": "placers.gdp",
    }
)
"""The module that registers each placer, by the placer's name."""

_registered: dict[str, Placer] = {}


def register(name: str) -> Callable[[Placer], Placer]:
    """Registers the decorated function as the placer `name`."""

    def keep(placer: Placer) -> Placer:
        _registered[name] = placer
        return placer

    return keep


def placer(name: str) -> Placer:
    """Returns the placer `name`. Raises UsageError if there is none of that name."""
    if name not in MODULES:
        raise UsageError(f"no placer is called {name!r}; there are {', '.join(MODULES)}")
    import_module(f"{__package__}.{MODULES[name]}")
    return _registered[name]
