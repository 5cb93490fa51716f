"""Lowering: a strategy's layouts become a Draft (which device computes what, and what moves), and a Draft
becomes a Plan. Pure rules.

`make_plan` is the entry for one strategy, `Lowering` for many strategies of one problem. The schedule is in
schedule.py, the optimiser in optimize.py, ONNX in segment.py. Values that no operator and no output needs are
neither computed nor sent (demand.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from copy import copy
from dataclasses import replace

from edgepart.planner.access import Access
from edgepart.planner.access import accesses as accesses_of
from edgepart.planner.errors import InternalError
from edgepart.planner.layout.partial_sums import PartialStrategies
from edgepart.planner.layout.strategy import Layout, Problem, Strategy, Sync
from edgepart.planner.lowering.assemble import Sketches, assemble
from edgepart.planner.lowering.borders_first import send_borders_first
from edgepart.planner.lowering.by_level import Levels
from edgepart.planner.lowering.by_order import schedule_by_order
from edgepart.planner.lowering.demand import Decide, DemandMemo, Holders, Needs, crosses_layers, fetch_missing
from edgepart.planner.lowering.detours import send_around
from edgepart.planner.lowering.draft import Blueprint, Draft, Move, OwnedRegions, missing_regions
from edgepart.planner.lowering.engines import divide_by_engine
from edgepart.planner.lowering.optimize import optimise_draft, optimise_schedule
from edgepart.planner.lowering.outline import Outliner
from edgepart.planner.lowering.schedule import CostModel, NoCost, Schedule, Seconds, ShareTimes
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.plans import timeline
from edgepart.planner.plans.join import join_plans
from edgepart.planner.plans.plan import GATEWAY, Plan
from edgepart.planner.region import Region


class Lowering:
    """Makes plans for many strategies of one problem. What strategies have in common is computed once:
    layouts, the shares and moves of each tensor, sketches of segments."""

    def __init__(
        self, problem: Problem, cost: CostModel | None = None, accesses: Mapping[str, Access] | None = None
    ) -> None:
        """`accesses` are the access maps of the graph, if the caller has them already."""
        self.problem = problem
        self.cost = cost or NoCost()
        self.accesses = accesses or accesses_of(problem.graph)
        self._written = PartialStrategies()
        self._follower = DemandMemo()
        self._levels = Levels()
        self._timing = ShareTimes(self.cost)
        self._sketches = Sketches()
        self.outliner = Outliner(self.cost, self._levels)
        self._equal: dict[tuple[tuple[str, Region], ...], OwnedRegions] = {}
        """The record that all equally computed tensors share, by their layout as (device, region) pairs."""
        self._owned: dict[tuple[str, int], tuple[OwnedRegions, Layout | None]] = {}

    def among(self, graph: Graph, accesses: Mapping[str, Access]) -> Lowering:
        """A lowering for another graph of the same tensors, with operators grouped differently. Both share
        their remembered results."""
        other = copy(self)
        other.problem, other.accesses = replace(self.problem, graph=graph), accesses
        return other

    def plan(
        self,
        strategy: Strategy,
        *,
        model_digest: str = "",
        optimised: bool = True,
        sketch: bool = False,
        digests: MutableMapping[tuple[str, str, Region], str] | None = None,
    ) -> Plan:
        """See `make_plan`."""
        if strategy.replicas:
            shared = {} if digests is None else digests  # Replicas have many weights in common.
            made = [
                self.plan(one, model_digest=model_digest, optimised=optimised, sketch=sketch, digests=shared)
                for one in strategy.replicas
            ]
            return join_plans(made, strategy.name, strategy.why)
        schedule, seconds = self.schedule(strategy, optimised, sketch)
        if sketch:
            return assemble(schedule, seconds, self.cost, model_digest, sketches=self._sketches)
        known = {} if digests is None else digests
        return assemble(schedule, seconds, self.cost, model_digest, digests=known)

    def outline(self, strategy: Strategy) -> tuple[timeline.TimedSchedule, dict[str, int]]:
        """The schedule that a sketched plan would have in the simulator, and an upper bound on each device's
        memory in bytes, without making the plan. Not for replicas."""
        schedule, seconds = self.schedule(strategy, optimised=True, sketch=True)
        return self.outliner.outline(schedule, seconds), self.outliner.most_bytes(schedule)

    def schedule(self, strategy: Strategy, optimised: bool, sketch: bool) -> tuple[Schedule, Seconds]:
        """The stages and messages of all devices, and the seconds of every share."""
        broadcasts = strategy.sync is Sync.BROADCAST
        if broadcasts and optimised and sketch:  # The optimiser's result, in one step.
            draft = self.lower(replace(strategy, sync=Sync.NEEDED))
        else:
            draft = self.lower(strategy)
            draft = optimise_draft(draft) if broadcasts and optimised else draft
        order, layers = strategy.order, strategy.layers
        schedule = schedule_by_order(draft, order, layers) if order else self._levels.stage(draft)
        if strategy.parted:
            self.cost.know(draft.graph)
        seconds = self._timing.seconds_of(draft)
        if optimised:
            schedule = optimise_schedule(schedule, seconds, self.cost)
        if strategy.early:
            schedule = send_borders_first(schedule, strategy.early)
        if strategy.detours:
            schedule = send_around(schedule, strategy.detours)
        return divide_by_engine(schedule, seconds, self.cost), seconds

    def lower(self, strategy: Strategy) -> Draft:
        """The draft of the strategy, which moves data as the strategy's `sync` says. Raises InternalError if
        the layouts do not fit, and for a strategy with replicas, because each replica has its own draft."""
        if strategy.replicas:
            raise InternalError(
                f"strategy {strategy.name!r} has {len(strategy.replicas)} replicas, and no single draft"
            )
        blueprint = self._draw(strategy)
        decide = _DECISIONS[strategy.sync](blueprint)
        return self._follower.follow(blueprint, decide, alike=strategy.sync is Sync.NEEDED)

    def _draw(self, strategy: Strategy) -> Blueprint:
        """The strategy's layouts as a Blueprint, checked and in normal form."""
        problem, strategy, found = self._written.write_out(self.problem, strategy, self.accesses)
        owned: dict[str, OwnedRegions] = {}
        for op in problem.graph.operators:
            for name in filter(None, op.outputs):
                layout = strategy.layouts.get(name)
                key = (
                    name,
                    id(layout),
                )  # The layout is kept with its result, so that its id is not reused.
                if key not in self._owned:
                    made = _find_owned(problem, strategy, name)
                    made = self._equal.setdefault(tuple(made.items()), made)
                    _check(problem.graph, op, found[op.name], name, made)
                    self._owned[key] = made, layout
                owned[name] = self._owned[key][0]
        return Blueprint(problem, strategy, found, owned)


def make_plan(
    problem: Problem,
    strategy: Strategy,
    *,
    model_digest: str,
    cost: CostModel | None = None,
    optimised: bool = True,
    sketch: bool = False,
    digests: MutableMapping[tuple[str, str, Region], str] | None = None,
    accesses: Mapping[str, Access] | None = None,
) -> Plan:
    """The plan that carries out `strategy`.

    `optimised=False` keeps BBGraP's initial partition (and one message per move) as it is, for comparison.
    `sketch=True` leaves the segments' ONNX and every digest out: quick, enough for a simulation, not for an
    agent. `digests` remembers the weights' digests by (model digest, constant, region) between calls.
    `accesses` are the access maps of the graph, if the caller has them already. Raises InternalError if the
    layouts do not fit this graph.
    """
    return Lowering(problem, cost, accesses).plan(
        strategy, model_digest=model_digest, optimised=optimised, sketch=sketch, digests=digests
    )


def lower(problem: Problem, strategy: Strategy, known: Mapping[str, Access] | None = None) -> Draft:
    """The draft of a single strategy. Raises InternalError if the layouts do not fit."""
    return Lowering(problem, accesses=known).lower(strategy)


def _find_owned(problem: Problem, strategy: Strategy, name: str) -> OwnedRegions:
    layout, full = strategy.layouts.get(name), problem.graph.region_of(name)
    if layout is None:
        return {}
    if full.is_empty:  # A tensor without elements cannot be split: one device makes it.
        return {next(iter(layout.regions), problem.gateway): full}
    order = {device.name: n for n, device in enumerate(problem.cluster.devices)}
    if strangers := sorted(set(layout.regions) - set(order)):
        raise InternalError(
            f"strategy {strategy.name!r}: {name!r} is laid out on {strangers}, which are not in the cluster"
        )
    devices = sorted(layout.regions, key=order.__getitem__)
    return {device: layout.regions[device] for device in devices if not layout.regions[device].is_empty}


def _check(graph: Graph, op: Operator, access: Access, name: str, owned: OwnedRegions) -> None:
    full = graph.region_of(name)
    for device, region in owned.items():
        if region.rank != full.rank or not full.contains(region):
            raise InternalError(f"{name!r} on {device!r}: region {region} is not inside the tensor's {full}")
        if access.opaque and region != full:
            raise InternalError(
                f"{op.op_type} {op.name!r} cannot be split ({access.opaque}), yet {name!r} is {region} on "
                f"{device!r}"
            )


def move_needed(blueprint: Blueprint) -> Decide:
    """Returns a function that moves only the missing boxes, directly from a device that computes them
    (BBGraP's four cases)."""

    def decide(name: str, needs: Needs, owned: OwnedRegions) -> list[Move]:
        holders = Holders(owned)
        lacking = [place for place in needs if not _has(owned.get(place), needs[place])]
        return [
            move for place in lacking for move in fetch_missing(blueprint, name, place, needs[place], holders)
        ]

    return decide


def _has(owned: Region | None, needs: Iterable[Region]) -> bool:
    """Whether the device computes everything that it needs, which is the usual case."""
    return owned is not None and all(need is owned or owned.contains(need) for need in needs)


def move_by_broadcast(blueprint: Blueprint) -> Decide:
    """Returns a function that, between layers, moves everything that a device computes to all other devices
    (BBGraP, section 3.2)."""
    needed = move_needed(blueprint)

    def decide(name: str, needs: Needs, owned: OwnedRegions) -> list[Move]:
        if not crosses_layers(blueprint, name):
            return needed(name, needs, owned)
        to_gateway = {place: regions for place, regions in needs.items() if place == GATEWAY}
        devices = blueprint.participants
        everything = [Move(name, owned[s], s, t) for t in devices for s in owned if s != t]
        for target, regions in needs.items():  # Only to raise InternalError for layouts that leave holes.
            fetch_missing(blueprint, name, target, regions, Holders(owned))
        return everything + needed(name, to_gateway, owned)

    return decide


def move_through_hub(blueprint: Blueprint) -> Decide:
    """Returns a function that, between layers, moves everything to the hub, which sends each device what it
    lacks (MoDNN's mapper). Raises InternalError if the strategy names no hub."""
    needed, hub = move_needed(blueprint), blueprint.strategy.hub
    if hub is None:
        raise InternalError(f"strategy {blueprint.strategy.name!r} moves data through a hub, and names none")

    def decide(name: str, needs: Needs, owned: OwnedRegions) -> list[Move]:
        if not crosses_layers(blueprint, name):
            return needed(name, needs, owned)
        gathered: list[Move] = []
        for source in (device for device in owned if device != hub):
            have = [move.region for move in gathered] + ([owned[hub]] if hub in owned else [])
            gathered += [Move(name, box, source, hub) for box in owned[source].subtract_all(have)]
        for place, regions in needs.items():
            fetch_missing(
                blueprint, name, place, regions, Holders(owned)
            )  # Only to raise InternalError for layouts that leave holes.
        handed = [
            Move(name, box, hub, place)
            for place, regions in needs.items()
            if place != hub
            for box in missing_regions(regions, owned.get(place))
        ]
        return gathered + handed

    return decide


_DECISIONS: Mapping[Sync, Callable[[Blueprint], Decide]] = {
    Sync.NEEDED: move_needed,
    Sync.BROADCAST: move_by_broadcast,
    Sync.HUB: move_through_hub,
}
