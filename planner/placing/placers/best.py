"""Best: place everything on one machine, or take the best answer of all placers. Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from types import MappingProxyType

from edgepart.planner.errors import Infeasible, NotInstalled, UsageError
from edgepart.planner.placing.engine.judge import dispatcher_of
from edgepart.planner.placing.engine.load import max_load
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import MODULES, Placer, placer

OBJECTIVES = ("latency", "throughput")

IN_TURN = ("heft", "m-etf", "learned", "expert", "pipeline", "metis", "m-sct", "getf", "moirai", "climb")
"""The placers in the order in which `auto` asks them: the cheapest first. The last one gets all the time that is left, and
starts, as moirai does, from the best that was found before."""

SHARE = 0.25
"""The part of the remaining budget that each placer may take."""

SHARES: Mapping[str, float] = MappingProxyType({"learned": 0.05, "moirai": 0.8, "climb": 1.0})
"""The part for those that use all of their time. Without OR-tools moirai needs none of it."""


def names() -> tuple[str, ...]:
    """The names of all placers, in the order of a comparison."""
    return ("single", *MODULES, "auto")


def find(workload: Workload, name: str, asked: Asked) -> PlacementFound:
    """Return the answer of the placer `name`; "single" and "auto" are defined here. Raises UsageError if
    there is no such placer or objective, and Infeasible if no placement is found."""
    if asked.objective not in OBJECTIVES:
        raise UsageError(f"objective {asked.objective!r}: choose {' or '.join(OBJECTIVES)}")
    if name not in names():
        raise UsageError(f"no strategy for a workload is called {name!r}; there are {', '.join(names())}")
    own: Mapping[str, Placer] = {"single": single, "auto": auto}
    return (own.get(name) or placer(name))(workload, asked)


def single(workload: Workload, asked: Asked) -> PlacementFound:
    """Place everything on the machine that computes it fastest."""
    kept = sum(task.memory_bytes for task in workload.tasks)
    short: dict[str, int] = {}
    fastest, least_s = -1, inf
    for number, machine in enumerate(workload.machines):
        took_s = sum(task.compute_s[number] for task in workload.tasks)
        if took_s == inf:
            continue
        if kept > machine.memory_bytes:
            short.update(workload.short_bytes([number] * len(workload.tasks)))
        elif took_s < least_s:
            fastest, least_s = number, took_s
    if fastest < 0:
        what = "no device can run all of its nodes"
        if short:
            what = "no device that can run it has the memory for it: "
            what += ", ".join(f"{name} lacks {lack:,} bytes" for name, lack in short.items())
        raise Infeasible(f"workload {workload.name!r}: {what}; place it on several", short, proven=True)
    placement = (fastest,) * len(workload.tasks)
    why = f"everything is on {workload.machines[fastest].name}"
    if asked.objective == "throughput":
        return PlacementFound(placement, max_load(workload, placement), why=why)
    schedule = dispatcher_of(workload)(placement, None)
    return PlacementFound(placement, schedule.makespan_s, schedule, why=why)


def auto(workload: Workload, asked: Asked) -> PlacementFound:
    """Return the best answer of all placers, with the highest bound that any of them proved. Its `why` names
    the placers that were not asked.

    Raises Infeasible, with the fewest missing bytes that any placer reports, if none of them finds a
    placement."""
    found: dict[str, PlacementFound] = {}
    left_out: list[str] = []
    refused: list[Infeasible] = []
    for name, alone in _turns(workload, asked, found, left_out):
        try:
            found[name] = find(workload, name, alone)
            asked.tell(found[name].value_s)
        except Infeasible as error:
            if name != "single":
                refused.append(error)
        except NotInstalled as error:
            left_out.append(f"{name} ({error})")
    if not found:
        raise min(refused, key=lambda e: (not e.proven, not e.short_bytes, sum(e.short_bytes.values())))
    name = min(found, key=lambda name: found[name].value_s)
    # A bound holds only for placements without replicas.
    who = [found[name]] if found[name].replicas else found.values()
    bounds = [one.bound_s for one in who if one.bound_s is not None]
    why = f"{name} is the best of {len(found)} strategies: {found[name].why}"
    if left_out:
        why += f"; not asked: {', '.join(left_out)}"
    return replace(found[name], bound_s=max(bounds, default=None), why=why)


def _turns(
    workload: Workload, asked: Asked, found: Mapping[str, PlacementFound], left_out: list[str]
) -> Iterator[tuple[str, Asked]]:
    """Yield the placers to ask, each with its budget, as long as there is time and no answer is proved to be
    the best. Add the others to `left_out`."""
    begun_s = asked.clock()
    for name in ("single", *IN_TURN):
        left_s = asked.budget_s - (asked.clock() - begun_s)
        if found and left_s <= 0:
            left_out.append(f"{name} (no time left)")
        elif any(one.bound_s is not None and one.bound_s >= one.value_s for one in found.values()):
            left_out.append(f"{name} (what was found is proved to be best)")
        else:
            # Turns that machines take are not what those that improve a placement can change.
            whole = [one for one in found.values() if not one.replicas]
            start = min(whole, key=lambda one: one.value_s, default=None)
            yield name, replace(asked, budget_s=SHARES.get(name, SHARE) * left_s, start=start)
