"""The ways to choose layouts, by name. Each is a module that registers `candidates(study)`: the strategies
it would consider, of which the best by simulation that fits is taken. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType

from edgepart.planner.errors import Infeasible, UsageError
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.search.choose_borders import hastened
from edgepart.planner.search.choose_relays import passed_on
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
        import_module(f"{__name__}.{'placed' if name in PLACERS else name}")
    return MappingProxyType({name: _registered[name] for name in MODULES})


def get(name: str) -> Candidates:
    """UsageError where there is no strategy of that name."""
    found = strategies().get(name)
    if found is None:
        raise UsageError(f"no strategy is called {name!r}; there are {', '.join(MODULES)}")
    return found


def plan(problem: Problem, name: str = "auto", study: Study | None = None) -> Strategy:
    """The best candidate of the strategy `name`; Infeasible where none fits the devices' memory."""
    candidates = get(name)
    study = study or Study(problem)
    try:
        best = study.best(candidates(study))
    except Infeasible:
        if name != "auto":
            raise
        from edgepart.planner.strategies.out_of_memory import infeasible  # which registers with this module

        raise infeasible(study) from None
    if problem.borders_first and not best.early:
        best = hastened(study, best) or best
    if problem.relays and not best.relays:
        best = passed_on(study, best) or best
    return best
