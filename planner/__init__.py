"""Plans: a model and a cluster go in, the best plan that was found comes out.

    from edgepart.planner import Cluster, Problem, compare, load, plan, simulate

    problem = Problem(load("model.onnx"), cluster, gateway="a")
    best = plan(problem)

The planner opens no socket, starts no thread, reads no clock and runs no model: it reads the model's file, and everything
else is an argument. Each name is imported when it is first used, because most commands need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgepart.planner.devices.cluster import Cluster, Device, Link
    from edgepart.planner.layout.strategy import Problem
    from edgepart.planner.model.load import load_graph as load
    from edgepart.planner.planner import compare, plan
    from edgepart.planner.plans.plan import Plan
    from edgepart.planner.simulation.latency import simulate

__all__ = ["Cluster", "Device", "Link", "Plan", "Problem", "compare", "load", "plan", "simulate"]

_HOMES = {
    "Cluster": "devices.cluster:Cluster",
    "Device": "devices.cluster:Device",
    "Link": "devices.cluster:Link",
    "Plan": "plans.plan:Plan",
    "Problem": "layout.strategy:Problem",
    "compare": "planner:compare",
    "load": "model.load:load_graph",
    "plan": "planner:plan",
    "simulate": "simulation.latency:simulate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, found = _HOMES[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), found)
