"""The ways to choose layouts, by name. Each is a module that registers `candidates(study)`, which yields the
strategies to compare; the best by simulation that fits is chosen. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType

from edgepart.planner.errors import UsageError
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.study import Study
from edgepart.planner.vocabulary import STRATEGIES

Candidates = Callable[[Study], Iterator[Strategy]]

MODULES = STRATEGIES
"""To add a strategy, add a file here, and its name to planner/vocabulary.py."""

PLACERS = (
    "expert",
    "heft",
    "m-etf",
    "m-sct",
    "getf",
    "metis",
    "climb",
    "learned",
    "moirai",
    "placeto",
    "gdp",
)
"""The strategies that place whole operators; placed.py has them all."""

_registered: dict[str, Candidates] = {}


def register(name: str) -> Callable[[Candidates], Candidates]:
    """Registers the decorated `candidates` as the strategy `name`."""

    def keep(candidates: Candidates) -> Candidates:
        _registered[name] = candidates
        return candidates

    return keep


def strategies() -> Mapping[str, Candidates]:
    """All strategies, by name."""
    for name in MODULES:
        import_module(f"{__package__}.{'placed' if name in PLACERS else name}")
    return MappingProxyType({name: _registered[name] for name in MODULES})


def get(name: str) -> Candidates:
    """The `candidates` of the strategy `name`. Raises UsageError if there is no strategy of that name."""
    found = strategies().get(name)
    if found is None:
        raise UsageError(f"no strategy is called {name!r}; there are {', '.join(MODULES)}")
    return found
