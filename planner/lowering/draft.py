"""Draft: a strategy written out for all operators and tensors, before it is a schedule. Facts and region
arithmetic.

A Share is the part of one operator that one device computes; a Group is the shares of all devices. A Move is
a region of one tensor that goes from one place to another; a Flow is all moves of one tensor. The module also
has the cases that decide what has to move. It knows no order in time (schedule.py) and no ONNX (segment.py).

Groups and flows are compared by identity: drafts of one search share equal groups and flows (demand.py), and
results that depend on a group or a flow alone are remembered with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from edgepart.planner.access.declare.protocol import Access
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.region import Region, Span

OwnedRegions = Mapping[str, Region]
"""The region of one tensor that each device computes; empty only for a tensor without elements."""


class Case(Enum):
    """How the region of a tensor that a device needs compares with the region that it computes itself (BBGraP, section
    3.3, figure 5)."""

    EQUAL = "equal"
    """Figure 5(c): there is nothing to do."""
    SMALLER = "smaller"
    """Figure 5(d): the need is cropped out; nothing travels."""
    BIGGER = "bigger"
    """Figure 5(b): the difference is fetched, and joined with what the device has."""
    SHIFTED = "shifted"
    """Figure 5(e): the need is smaller on one side and bigger on another: crop and fetch."""
    ELSEWHERE = "elsewhere"
    """The device computes nothing of the need: all of it is fetched."""


def classify_need(need: Region, owned: Region | None) -> Case:
    """The case of a need on a device that computes `owned` (None if the device computes nothing).

    >>> classify_need(Region.box((0, 5)), Region.box((0, 4)))
    <Case.BIGGER: 'bigger'>
    """
    if owned is None or (owned != need and owned.intersect(need).is_empty):
        return Case.ELSEWHERE
    if owned == need:
        return Case.EQUAL
    if owned.contains(need):
        return Case.SMALLER
    return Case.BIGGER if need.contains(owned) else Case.SHIFTED


def missing_regions(needs: Iterable[Region], owned: Region | None) -> tuple[Region, ...]:
    """Disjoint regions of everything in `needs` that is not in `owned`, as few as can be found cheaply."""
    boxes: list[Region] = []
    for need in needs:
        if owned is not None and owned.contains(need):  # The usual case.
            continue
        have = boxes if owned is None else [owned, *boxes]
        boxes.extend(need.subtract_all(have))
    return coalesce_regions(boxes)


def coalesce_regions(regions: Iterable[Region]) -> tuple[Region, ...]:
    """The same elements in fewer regions, joining those whose union is a product of spans."""
    joined: list[Region] = []
    for region in regions:
        while True:
            unions = ((n, other.union_if_box(region)) for n, other in enumerate(joined))
            found = next(((n, union) for n, union in unions if union is not None), None)
            if found is None:
                break
            joined.pop(found[0])
            region = found[1]
        joined.append(region)
    return tuple(joined)


def covers(owned: Region | None, region: Region) -> bool:
    """Whether `owned` has a part of `region`, or equals it if `region` has no elements."""
    if owned is None or owned is region:
        return owned is not None
    if not all(map(_near, owned.spans, region.spans)):
        return owned == region
    return owned == region or not owned.intersect(region).is_empty


def _near(one: Span, two: Span) -> bool:
    """Whether the hulls of two spans overlap. This is a quick test: spans whose hulls do not overlap have
    nothing in common."""
    return bool(one and two) and one[0].start < two[-1].stop and two[0].start < one[-1].stop


@dataclass(frozen=True, slots=True)
class Share:
    """The part of an operator that one device computes."""

    operator: Operator
    device: str
    outputs: Mapping[int, Region]
    """The region that is computed of each output, by the output's index. Outputs that are not read are left out."""
    reads: tuple[Region | None, ...]
    """The region that is read of each input of the operator; None for an input that is not read."""
    needs: tuple[tuple[str, Region], ...]
    """The regions that are read, by name of the tensor: with captured values, without constants and empty
    regions, each pair once."""

    @property
    def written(self) -> Iterator[tuple[str, Region]]:
        return ((self.operator.outputs[index], region) for index, region in self.outputs.items())


def make_share(
    graph: Graph, op: Operator, device: str, access: Access, outputs: Mapping[int, Region]
) -> Share:
    """The share that writes `outputs`, with the regions that it reads."""
    reads = tuple(access.needs(outputs))
    pairs = [(name, region) for name, region in zip(op.inputs, reads, strict=True) if region is not None]
    pairs += [(name, graph.region_of(name)) for name in op.captured]
    needs = dict.fromkeys((n, region) for n, region in pairs if n in graph.tensors and not region.is_empty)
    return Share(op, device, outputs, reads, tuple(needs))


@dataclass(frozen=True, slots=True)
class Move:
    """A part of a tensor that travels. `source` computes it itself, or has received it before."""

    tensor: str
    region: Region
    source: str
    """A device, or GATEWAY."""
    target: str
    """A device, or GATEWAY."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The shares of one operator."""

    shares: tuple[Share, ...]
    """The shares in the cluster's order of devices."""

    @property
    def operator(self) -> Operator:
        return self.shares[0].operator


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """One tensor: the regions that devices compute, and the moves."""

    computed: OwnedRegions
    """The region of the tensor that each device's share writes, in the cluster's order; {} for an input of
    the model."""
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Blueprint:
    """The facts that stay the same while drafts of one strategy are improved."""

    problem: Problem
    strategy: Strategy
    accesses: Mapping[str, Access]
    """The access map of each operator, by name."""
    owned: Mapping[str, OwnedRegions]
    """The regions of each tensor in the strategy's layouts, without empty ones."""

    @property
    def graph(self) -> Graph:
        return self.problem.graph

    @cached_property
    def participants(self) -> tuple[str, ...]:
        """The devices that compute something, in the cluster's order."""
        named = {device for owned in self.owned.values() for device in owned}
        return tuple(device.name for device in self.problem.cluster.devices if device.name in named)


@dataclass(frozen=True)
class Draft:
    """The shares that each device computes, and the moves between devices."""

    blueprint: Blueprint
    groups: Mapping[str, Group]
    """Groups by operator name, in the graph's order; only operators that are read are included."""
    flows: Mapping[str, Flow]
    """Flows by tensor: inputs of the model, then operators' outputs in the graph's order. Only tensors that
    are read are included."""
    runs_the_model: bool = False
    """Whether one device runs the model as it stands in its file, and so gets all of every input that is read."""
    kept: Mapping[str, Mapping[str, tuple[Region, ...]]] = field(default_factory=dict)
    """For each state, by its output: the regions of the output that each device keeps for the next step."""

    @property
    def graph(self) -> Graph:
        return self.blueprint.graph

    @cached_property
    def shares(self) -> Mapping[tuple[str, str], Share]:
        """All shares by operator name and device, in the graph's order."""
        return {(name, share.device): share for name, group in self.groups.items() for share in group.shares}

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        return tuple(move for flow in self.flows.values() for move in flow.moves)

    @cached_property
    def order(self) -> Mapping[tuple[str, str], int]:
        """The position of each share among all shares, by operator name and device."""
        return {key: n for n, key in enumerate(self.shares)}

    def computed_regions(self, name: str) -> OwnedRegions:
        """The region of a tensor that each device's share writes."""
        flow = self.flows.get(name)
        return flow.computed if flow else {}

    def moves_of(self, name: str) -> tuple[Move, ...]:
        """The moves of one tensor."""
        flow = self.flows.get(name)
        return flow.moves if flow else ()

    def kept_regions(self, name: str, device: str) -> tuple[Region, ...]:
        """The regions of a state's output that the device keeps for the next step; () for other tensors."""
        needs = self.kept.get(name)
        return needs.get(device, ()) if needs else ()

    def shares_of(self, name: str) -> tuple[Share, ...]:
        """The shares of one operator, in the cluster's order."""
        group = self.groups.get(name)
        return group.shares if group else ()

    def nbytes(self, move: Move) -> int:
        return move.region.size * self.graph.tensors[move.tensor].item_bytes


@dataclass(frozen=True)
class DraftTraffic:
    """The number and size of the moves between devices, without those from or to the gateway."""

    moves: int = 0
    nbytes: int = 0
    elements: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """The number of elements sent, by tensor, source and target."""


def count_traffic(draft: Draft) -> DraftTraffic:
    """Counts what a draft sends between devices."""
    inner = [move for move in draft.moves if move.source and move.target]
    elements: dict[tuple[str, str, str], int] = {}
    for move in inner:
        key = (move.tensor, move.source, move.target)
        elements[key] = elements.get(key, 0) + move.region.size
    return DraftTraffic(len(inner), sum(map(draft.nbytes, inner)), elements)
