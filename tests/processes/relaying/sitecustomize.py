"""With this folder on PYTHONPATH, a Python process that plans has everything passed on that can be, in the shape that
EDGEPART_TEST_SHAPE names, whether it is worth it or not: on a loopback it never is. Nothing of the product knows about
it."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE = "edgepart.planner.planner"
VARIABLE = "EDGEPART_TEST_SHAPE"


class _Finder(MetaPathFinder):
    """Changes the module as it is imported, and no earlier."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            found.loader = _Loader(found.loader)
        return found


class _Loader(Loader):
    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        _change(module)


def _change(search: Any) -> None:
    from edgepart.planner.devices.routes import RouteShape
    from edgepart.planner.search.choose_relays import WHY

    choose, shape = search.choose, RouteShape(os.environ[VARIABLE])

    def chosen(problem: Any, name: str = "auto", digest: str = "", **more: Any) -> Any:
        _, _, strategy = choose(problem, name, digest, **more)
        graph, study = problem.graph, more.get("study") or search.Study(problem, more.get("profiles"))
        relays = dict.fromkeys([*graph.inputs, *graph.producers], shape)
        strategy = replace(strategy, relays=relays, why=f"{strategy.why}; {WHY}")
        plan = study.lowering.plan(strategy, model_digest=digest, digests=more.get("digests"))
        simulation = search.simulate(plan, problem.cluster, problem.gateway, study.cost)
        plan = replace(plan, predicted_latency_s=simulation.latency_s, why=strategy.why)
        return plan, simulation, strategy

    search.choose = chosen


if VARIABLE in os.environ:
    sys.meta_path.insert(0, _Finder())
