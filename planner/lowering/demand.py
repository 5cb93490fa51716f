"""Demand: follows a model from its outputs back to its inputs, to find which regions of every tensor are
read, and so what each device computes and sends. Pure rules and region arithmetic.

A `Decide` function decides how data moves; lower.py and optimize.py make such functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edgepart.planner.errors import InternalError
from edgepart.planner.lowering.draft import (
    Blueprint,
    Draft,
    Flow,
    Group,
    Move,
    OwnedRegions,
    covers,
    make_share,
    missing_regions,
)
from edgepart.planner.model.graph import Graph, Operator, State
from edgepart.planner.plans.plan import GATEWAY
from edgepart.planner.region import Array, Region

Needs = Mapping[str, tuple[Region, ...]]
"""The regions of one tensor that each device (or GATEWAY) reads."""

Decide = Callable[[str, Needs, OwnedRegions], list[Move]]
"""A function that returns the moves of a tensor, from its name, the regions that are needed, and the regions
that devices compute."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorDemand:
    """The regions of one tensor that are read. Compared by identity."""

    needs: Needs


Reads = tuple[tuple[str, TensorDemand], ...]
"""The demands of a group: names of the tensors that it reads, and the regions that it reads of each."""


FEW_DEVICES = 6
"""Up to this number of devices, each device's region is intersected with a box. With more devices, numpy
first picks those near the box."""


class DemandMemo:
    """Follows the strategies of one problem from outputs to inputs. Strategies that need the same regions of
    a tensor or an operator share one flow or group object. Each problem needs its own memo, because the
    remembered results depend on links and gateway."""

    def __init__(self) -> None:
        self._unions: dict[tuple[TensorDemand, TensorDemand], TensorDemand] = {}
        self._entire: dict[tuple[str, str], TensorDemand] = {}
        self._flows: dict[tuple[str, int, TensorDemand], tuple[Flow, OwnedRegions]] = {}
        self._patterns: dict[Hashable, tuple[Flow, OwnedRegions]] = {}
        self._computed: dict[tuple[int, tuple[str, ...]], tuple[OwnedRegions, OwnedRegions]] = {}
        self._groups: dict[tuple[int, tuple[int | None, ...]], tuple[Group, Reads, object]] = {}
        self._sources: dict[tuple[str, TensorDemand], Flow] = {}
        self._kept: dict[tuple[str, TensorDemand], TensorDemand] = {}
        """The demand for each state's output, by its name and the demand for its input."""

    def follow(self, blueprint: Blueprint, decide: Decide, *, alike: bool = False) -> Draft:
        """Makes the draft of a blueprint, from the outputs back to the inputs, like BBGraP's partitioner
        (section 3.2). `decide` gives the moves of each tensor, and only regions that are read or moved are
        computed. `alike` promises that `decide` is the same function in all such calls and depends only on
        the regions that devices hold and read, not on the tensor's name, so that its results can be
        remembered.

        A device reads the regions of a state that the step before has left there, so at the end of a step it needs the
        same regions of what the step writes. Demand for that may make devices compute, and read, more. So the model is
        followed again until devices keep all that they read."""
        pinned = blueprint.problem.pinned or {}
        kept: Mapping[str, TensorDemand] = {name: TensorDemand(needs) for name, needs in pinned.items()}
        while True:
            draft, wanted = self._follow(blueprint, decide, alike, kept)
            read = [state for state in blueprint.graph.states if state.input in wanted]
            found = {one.output: self._keep(blueprint.graph, one, wanted[one.input]) for one in read}
            if found == kept:
                return draft
            kept = found

    def _keep(self, graph: Graph, state: State, read: TensorDemand) -> TensorDemand:
        """The demand for a state's output, from the demand for its input."""
        found = self._kept.get((state.output, read))
        if found is None:
            needs = {
                device: tuple(graph.written_region(state, region) for region in regions)
                for device, regions in read.needs.items()
            }
            found = self._kept[state.output, read] = TensorDemand(needs)
        return found

    def _follow(
        self, blueprint: Blueprint, decide: Decide, alike: bool, kept: Mapping[str, TensorDemand]
    ) -> tuple[Draft, Mapping[str, TensorDemand]]:
        """The draft if devices keep `kept` of the states' outputs, and the demand for each tensor."""
        graph = blueprint.graph
        wanted: dict[str, TensorDemand] = dict(kept)
        for name in graph.answer_outputs if blueprint.problem.answers else ():
            if name in graph.producers:  # The gateway reads all of an output.
                self._want(wanted, name, self._all(name, GATEWAY, graph.region_of(name)))
        groups: list[tuple[str, Group]] = []
        flows: list[tuple[str, Flow]] = []
        for op in reversed(graph.operators):
            written: list[OwnedRegions | None] = []
            for name in op.outputs:
                flow = None
                if name in wanted:
                    flow = self._flow(name, wanted[name], blueprint.owned[name], decide, alike)
                    flows.append((name, flow))
                written.append(flow.computed if flow else None)
            if not any(written):
                continue
            group, reads = self._group(blueprint, op, written)
            groups.append((op.name, group))
            for name, more in reads:
                self._want(wanted, name, more)
        if (device := _find_model_runner(graph, groups, wanted)) is not None:
            wanted |= {
                name: self._all(name, device, graph.region_of(name))
                for name in graph.inputs
                if name in wanted
            }
        given = frozenset(graph.request_inputs)
        flows += [
            (name, self._source(name, wanted[name], name in given)) for name in graph.inputs if name in wanted
        ]
        regions = {name: demand.needs for name, demand in kept.items()}
        draft = Draft(blueprint, dict(reversed(groups)), dict(reversed(flows)), device is not None, regions)
        return draft, wanted

    def _all(self, name: str, place: str, region: Region) -> TensorDemand:
        """The demand of one place for a whole tensor."""
        found = self._entire.get((name, place))
        if found is None:
            found = self._entire[name, place] = TensorDemand({place: (region,)})
        return found

    def _want(self, wanted: dict[str, TensorDemand], name: str, more: TensorDemand) -> None:
        before = wanted.get(name)
        if before is None:
            wanted[name] = more
            return
        found = self._unions.get((before, more))
        if found is None:
            needs = dict(before.needs)
            for place, regions in more.needs.items():
                needs[place] = tuple(dict.fromkeys((*needs.get(place, ()), *regions)))
            found = self._unions[before, more] = TensorDemand(needs)
        wanted[name] = found

    def _flow(
        self, name: str, wanted: TensorDemand, owned: OwnedRegions, decide: Decide, alike: bool
    ) -> Flow:
        if not alike:
            return self._decide(name, wanted, owned, decide)
        key = (name, id(owned), wanted)  # `owned` is kept with the result, so that its id is not reused.
        found = self._flows.get(key)
        if found is None:
            found = self._flows[key] = self._repeat(name, wanted, owned, decide), owned
        return found[0]

    def _repeat(self, name: str, wanted: TensorDemand, owned: OwnedRegions, decide: Decide) -> Flow:
        """The flow of a tensor, copied from the first tensor that devices hold and read in the same way:
        blocks of a network repeat."""
        key = id(owned), tuple(wanted.needs.items())
        first = self._patterns.get(key)
        if first is None:
            first = self._patterns[key] = self._decide(name, wanted, owned, decide), owned
            return first[0]
        moves = (Move(name, move.region, move.source, move.target) for move in first[0].moves)
        return Flow(first[0].computed, tuple(moves))

    def _decide(self, name: str, wanted: TensorDemand, owned: OwnedRegions, decide: Decide) -> Flow:
        moves = tuple(decide(name, wanted.needs, owned))
        alive = tuple(_alive(wanted.needs, owned, moves))
        if (id(owned), alive) not in self._computed:
            self._computed[id(owned), alive] = {device: owned[device] for device in alive}, owned
        return Flow(self._computed[id(owned), alive][0], moves[::-1])

    def _group(
        self, blueprint: Blueprint, op: Operator, written: Sequence[OwnedRegions | None]
    ) -> tuple[Group, Reads]:
        """The shares that compute the regions `written` of an operator's outputs, and the regions that these
        shares read."""
        key = (id(op), tuple(None if owned is None else id(owned) for owned in written))
        found = self._groups.get(key)
        if found is None:
            group = _group(blueprint, op, written)
            found = self._groups[key] = group, tuple(_reads(group)), (op, tuple(written))
        return found[:2]

    def _source(self, name: str, wanted: TensorDemand, given: bool) -> Flow:
        """The flow of an input: from the gateway if a request brings it (`given`), else none, as devices have kept it."""
        found = self._sources.get((name, wanted))
        if found is None:
            moves = tuple(_from_gateway(name, wanted.needs)) if given else ()
            found = self._sources[name, wanted] = Flow({}, moves[::-1])
        return found


def _find_model_runner(
    graph: Graph, groups: Sequence[tuple[str, Group]], wanted: Mapping[str, TensorDemand]
) -> str | None:
    """The device that computes everything and can run the model as it stands in its file; None if there is
    none. This device then needs all of every input, even of an input that is read in part."""
    if graph.whole is None or len(groups) < len(graph.operators):
        return None
    devices = {share.device for _, group in groups for share in group.shares}
    read = {name for name in graph.inputs if name in wanted}
    return devices.pop() if len(devices) == 1 and read == set(graph.whole.inputs) else None


def follow_demand(blueprint: Blueprint, decide: Decide) -> Draft:
    """The draft of a single strategy."""
    return DemandMemo().follow(blueprint, decide)


def _group(blueprint: Blueprint, op: Operator, written: Sequence[OwnedRegions | None]) -> Group:
    graph, access = blueprint.graph, blueprint.accesses[op.name]
    outputs: dict[str, dict[int, Region]] = {}
    for index, owned in enumerate(written):
        for device, region in (owned or {}).items():
            outputs.setdefault(device, {})[index] = region
    devices = [device.name for device in blueprint.problem.cluster.devices if device.name in outputs]
    return Group(tuple(make_share(graph, op, device, access, outputs[device]) for device in devices))


def _reads(group: Group) -> Iterator[tuple[str, TensorDemand]]:
    found: dict[str, dict[str, dict[Region, None]]] = {}
    for share in reversed(group.shares):
        for name, region in share.needs:
            found.setdefault(name, {}).setdefault(share.device, {})[region] = None
    for name, needs in found.items():
        yield name, TensorDemand({device: tuple(regions) for device, regions in needs.items()})


def _alive(needs: Needs, owned: OwnedRegions, sent: Sequence[Move]) -> Iterator[str]:
    """Yields the devices that read or send their own part of a tensor."""
    sending = {move.source for move in sent if covers(owned.get(move.source), move.region)}
    for device, region in owned.items():
        if device in sending or any(covers(region, need) for need in needs.get(device, ())):
            yield device


def _from_gateway(name: str, needs: Mapping[str, Sequence[Region]]) -> Iterator[Move]:
    """Yields the moves of a model's input: each device gets one piece that contains everything that it reads."""
    for device, regions in needs.items():
        whole, *others = regions
        for region in others:
            whole = whole.union_spans(region)
        yield Move(name, whole, GATEWAY, device)


def crosses_layers(blueprint: Blueprint, name: str) -> bool:
    """Whether an operator outside the producer's layer reads the tensor; False for a tensor without elements."""
    layers, graph = blueprint.strategy.layers, blueprint.graph
    if graph.region_of(name).is_empty:
        return False
    own = layers.get(graph.producers[name].name)
    return any(own is None or layers.get(op.name) != own for op in graph.consumers[name])


class Holders:
    """The regions of one tensor that devices compute, with a quick look-up of the few devices that have some
    of a box."""

    def __init__(self, owned: OwnedRegions) -> None:
        self.owned = owned

    @cached_property
    def _bounds(self) -> tuple[Array, Array]:
        """The starts and the stops of the devices' regions, each of shape [device, axis]."""
        spans = [region.spans for region in self.owned.values()]
        shape = len(spans), len(spans[0]) if spans else 0
        low = [[one[0].start if one else 0 for one in each] for each in spans]
        high = [[one[-1].stop if one else 0 for one in each] for each in spans]
        return np.array(low, np.int64).reshape(shape), np.array(high, np.int64).reshape(shape)

    @cached_property
    def apart(self) -> bool:
        """Whether the bounding boxes of the devices' regions are disjoint, so that no element is computed twice."""
        low, high = self._bounds
        meet = ((low[:, None] < high[None, :]) & (low[None, :] < high[:, None])).all(axis=2)
        return not (meet & ~np.eye(len(self.owned), dtype=bool)).any()

    def of(self, box: Region) -> dict[str, Region]:
        """The part of the box that each device computes, in the order of `owned`. A device has a box without
        elements in full or not at all."""
        near: Iterable[str] = self.owned
        if len(self.owned) > FEW_DEVICES and not box.is_empty:
            low, high = self._bounds
            begin, end = np.array([(one[0].start, one[-1].stop) for one in box.spans]).reshape(-1, 2).T
            names = tuple(self.owned)
            near = [names[n] for n in np.flatnonzero(((low < end) & (begin < high)).all(axis=1))]
        return {name: self.owned[name].intersect(box) for name in near if covers(self.owned[name], box)}


def fetch_missing(
    blueprint: Blueprint, name: str, target: str, needs: Sequence[Region], holders: Holders
) -> Iterator[Move]:
    """The moves that bring `target` the parts of `needs` that it lacks, each box from as few devices as possible.

    The first choice is the device that has most of a box, then the quickest link, then devices in turn, so that devices
    with copies share the sending. Raises InternalError if no device computes some of a box.
    """
    owned = holders.owned
    boxes = missing_regions(needs, owned.get(target))
    if not boxes and target not in owned:  # A tensor without elements still needs a message.
        boxes = tuple(needs[:1])
    moves: list[Move] = []
    for box in boxes:
        left: tuple[Region, ...] = (box,)
        parts = {source: part for source, part in holders.of(box).items() if source != target}
        if holders.apart and not box.is_empty and sum(part.size for part in parts.values()) == box.size:
            sources = _by_preference(blueprint, target, parts, owned)
            moves += [Move(name, parts[source], source, target) for source in sources]
            continue
        for source in _by_preference(blueprint, target, parts, owned):
            moves += [
                Move(name, part, source, target)
                for region in left
                if covers(owned[source], region)
                for part in [region.intersect(owned[source])]
            ]
            left = tuple(rest for region in left for rest in region.subtract(owned[source]))
            if not left:
                break
        if left:
            op = blueprint.graph.producers[name]
            raise InternalError(
                f"strategy {blueprint.strategy.name!r}: no device computes {left[0]} of {name!r} (written by "
                f"{op.op_type} {op.name!r}), which {target or 'the gateway'!r} needs"
            )
    return iter(moves)


def _by_preference(
    blueprint: Blueprint, target: str, parts: Mapping[str, Region], owned: OwnedRegions
) -> Sequence[str]:
    """The devices that have `parts` of a box, best source first."""
    if len(parts) < 2:
        return tuple(parts)
    problem, cluster = blueprint.problem, blueprint.problem.cluster
    sources = [device for device in owned if device != target]
    place = next((n for n, device in enumerate(cluster.devices) if device.name == target), 0)
    turns = {source: (n - place) % len(sources) for n, source in enumerate(sources)}

    def rank(source: str) -> tuple[int, float, int]:
        link, size = cluster.link(source, target or problem.gateway), parts[source].size
        return (-size, link.latency_s + size / link.bytes_per_s, turns[source])

    return sorted(parts, key=rank)
