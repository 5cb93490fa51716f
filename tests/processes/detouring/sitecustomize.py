"""With this folder on PYTHONPATH and EDGEPART_TEST_DETOURS set, a Python process that plans takes the link between the
gateway and one other device to be slow, and sends everything around it: on a loopback no link is. Nothing of the product
knows about it."""

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
VARIABLE = "EDGEPART_TEST_DETOURS"


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


def _change(planner: Any) -> None:
    from edgepart.planner.search.choose_detours import WHY

    choose_plan = planner.choose_plan

    def with_detours(problem: Any, name: str = "auto", digest: str = "", **more: Any) -> Any:
        _, _, strategy = choose_plan(problem, name, digest, **more)
        graph, study = problem.graph, more.get("study") or planner.Study(problem, more.get("profiles"))
        cluster = _with_a_slow_link(problem.cluster, problem.gateway)
        lowering = study.on(replace(problem, cluster=cluster)).memo.lowering
        detours = frozenset([*graph.inputs, *graph.producers])
        strategy = replace(strategy, detours=detours, why=f"{strategy.why}; {WHY}")
        plan = lowering.plan(strategy, model_digest=digest, digests=more.get("digests"))
        simulation = planner.simulate(plan, problem.cluster, problem.gateway, study.memo.cost)
        plan = replace(plan, predicted_latency_s=simulation.latency_s, why=strategy.why)
        return plan, simulation, strategy

    planner.choose_plan = with_detours


def _with_a_slow_link(cluster: Any, gateway: str) -> Any:
    other = next(device.name for device in cluster.devices if device.name != gateway)
    link = cluster.link(gateway, other)
    kept = {pair: kept for pair, kept in cluster.links.items() if set(pair) != {gateway, other}}
    slow = replace(link, bytes_per_s=link.bytes_per_s / 100)
    return replace(cluster, links={**kept, (gateway, other): slow})


if VARIABLE in os.environ:
    sys.meta_path.insert(0, _Finder())
