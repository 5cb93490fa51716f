"""The ways to choose layouts, by name. Each is a module that registers `candidates(study)`: the strategies
it would consider, of which the best by simulation that fits is taken. Rules only."""

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
"""A new strategy is a new file, and its name in planner/vocabulary.py."""

PLACERS = ("expert", "heft", "m-etf", "m-sct", "getf", "metis", "moirai")
"""Those that place whole operators, all of one file."""

_registered: dict[str, Candidates] = {}


def register(name: str) -> Callable[[Candidates], Candidates]:
    """Makes the decorated `candidates` known as the strategy `name`."""

    def keep(candidates: Candidates) -> Candidates:
        _registered[name] = candidates
        return candidates

    return keep


def strategies() -> Mapping[str, Candidates]:
    """All of them."""
    for name in MODULES:
        import_module(f"{__package__}.{'placed' if name in PLACERS else name}")
    return MappingProxyType({name: _registered[name] for name in MODULES})


def get(name: str) -> Candidates:
    """UsageError where there is no strategy of that name."""
    found = strategies().get(name)
    if found is None:
        raise UsageError(f"no strategy is called {name!r}; there are {', '.join(MODULES)}")
    return found
