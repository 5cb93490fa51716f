"""Draft: a strategy written out, before it is a schedule. Share: what one device computes of one operator; Group: what
all devices do. Move: boxes of one tensor that go from one place to another; Flow: all of one tensor's. Also the four
cases that decide what has to move.

Groups and flows are compared by identity: drafts of one search share what they have in common (demand.py), and what
follows from a group or a flow alone is remembered with it.

Facts and region arithmetic. No order in time (schedule.py), no ONNX (segment.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from edgepart.planner.access.declare.protocol import Access
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.region import Region, Span

Owned = Mapping[str, Region]
"""By device, the region of one tensor that it computes; never an empty one, save of a tensor without
elements."""


class Case(Enum):
    """What a device needs of a tensor against what it computes of it itself (BBGraP, section 3.3, figure
    5)."""

    EQUAL = "equal"
    """Figure 5(c): nothing to do."""
    SMALLER = "smaller"
    """Figure 5(d): crop, nothing travels."""
    BIGGER = "bigger"
    """Figure 5(b): the difference is fetched and put together with what is there."""
    SHIFTED = "shifted"
    """Figure 5(e): smaller on one side, yet something is missing on another: crop and fetch."""
    ELSEWHERE = "elsewhere"
    """Nothing of it is here: all of it is fetched."""


def case_of(need: Region, owned: Region | None) -> Case:
    """
    >>> case_of(Region.box((0, 5)), Region.box((0, 4)))
    <Case.BIGGER: 'bigger'>
    """
    if owned is None or (owned != need and owned.intersect(need).is_empty):
        return Case.ELSEWHERE
    if owned == need:
        return Case.EQUAL
    if owned.contains(need):
        return Case.SMALLER
    return Case.BIGGER if need.contains(owned) else Case.SHIFTED


def missing(needs: Iterable[Region], owned: Region | None) -> tuple[Region, ...]:
    """Disjoint regions that hold everything in `needs` that is not in `owned`, as few as is cheap to find."""
    boxes: list[Region] = []
    for need in needs:
        if owned is not None and owned.contains(need):  # Nearly always.
            continue
        have = boxes if owned is None else [owned, *boxes]
        boxes.extend(need.subtract_all(have))
    return coalesce(boxes)


def coalesce(regions: Iterable[Region]) -> tuple[Region, ...]:
    """The same elements, in fewer regions where two make one product of spans."""
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
    """Whether `owned` can give a part of `region` (or all of one without elements)."""
    if owned is None or owned is region:
        return owned is not None
    if not all(map(_near, owned.spans, region.spans)):
        return owned == region
    return owned == region or not owned.intersect(region).is_empty


def _near(one: Span, two: Span) -> bool:
    """Whether nothing tells at a glance that the two have nothing in common."""
    return bool(one and two) and one[0].start < two[-1].stop and two[0].start < one[-1].stop


@dataclass(frozen=True, slots=True)
class Share:
    """The part of an operator that one device computes."""

    operator: Operator
    device: str
    outputs: Mapping[int, Region]
    """Per index of an output, what is computed; outputs that nobody reads are not named."""
    reads: tuple[Region | None, ...]
    """Per input of the operator, what is read of it; None where it is not read."""
    needs: tuple[tuple[str, Region], ...]
    """The same by name, captured values too; no constants, no regions without elements; each pair once."""

    @property
    def written(self) -> Iterator[tuple[str, Region]]:
        return ((self.operator.outputs[index], region) for index, region in self.outputs.items())


def share_of(graph: Graph, op: Operator, device: str, access: Access, outputs: Mapping[int, Region]) -> Share:
    """The share that writes `outputs`, with what it reads."""
    reads = tuple(access.needs(outputs))
    pairs = [(name, region) for name, region in zip(op.inputs, reads, strict=True) if region is not None]
    pairs += [(name, graph.region_of(name)) for name in op.captured]
    needs = dict.fromkeys((n, region) for n, region in pairs if n in graph.tensors and not region.is_empty)
    return Share(op, device, outputs, reads, tuple(needs))


@dataclass(frozen=True, slots=True)
class Move:
    """A part of a tensor on its way. What `source` sends it computes itself, or was sent before."""

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
    """In the cluster's order."""

    @property
    def operator(self) -> Operator:
        return self.shares[0].operator


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """One tensor: who computes it, and where it goes."""

    computed: Owned
    """What the shares write of it, in the cluster's order; {} for an input of the model."""
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Blueprint:
    """What stays the same while drafts of one strategy are improved."""

    problem: Problem
    strategy: Strategy
    accesses: Mapping[str, Access]
    """By operator name."""
    owned: Mapping[str, Owned]
    """By tensor, what the strategy's layouts say; empty regions left out."""

    @property
    def graph(self) -> Graph:
        return self.problem.graph

    @cached_property
    def participants(self) -> tuple[str, ...]:
        """Devices that compute something, in the cluster's order."""
        named = {device for owned in self.owned.values() for device in owned}
        return tuple(device.name for device in self.problem.cluster.devices if device.name in named)


@dataclass(frozen=True)
class Draft:
    """Who computes what, and what moves."""

    blueprint: Blueprint
    groups: Mapping[str, Group]
    """By operator name, in the graph's order. Only what somebody reads."""
    flows: Mapping[str, Flow]
    """By tensor that somebody reads: inputs of the model, then what operators write, in the graph's order."""
    runs_the_model: bool = False
    """One device can run the model as its file has it, and is given all of every input that is read."""

    @property
    def graph(self) -> Graph:
        return self.blueprint.graph

    @cached_property
    def shares(self) -> Mapping[tuple[str, str], Share]:
        """By operator name and device, in the graph's order."""
        return {(name, share.device): share for name, group in self.groups.items() for share in group.shares}

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        return tuple(move for flow in self.flows.values() for move in flow.moves)

    @cached_property
    def order(self) -> Mapping[tuple[str, str], int]:
        """By operator name and device, the place of its share among all."""
        return {key: n for n, key in enumerate(self.shares)}

    def computed(self, name: str) -> Owned:
        """What the shares write of a tensor."""
        flow = self.flows.get(name)
        return flow.computed if flow else {}

    def moves_of(self, name: str) -> tuple[Move, ...]:
        """Those of one tensor."""
        flow = self.flows.get(name)
        return flow.moves if flow else ()

    def shares_of(self, name: str) -> tuple[Share, ...]:
        """Those of one operator, in the cluster's order."""
        group = self.groups.get(name)
        return group.shares if group else ()

    def nbytes(self, move: Move) -> int:
        return move.region.size * self.graph.tensors[move.tensor].item_bytes


@dataclass(frozen=True)
class DraftTraffic:
    """What a draft sends between devices, the gateway's part apart."""

    moves: int = 0
    nbytes: int = 0
    elements: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """By tensor, source and target."""


def traffic(draft: Draft) -> DraftTraffic:
    """Between devices only."""
    inner = [move for move in draft.moves if move.source and move.target]
    elements: dict[tuple[str, str, str], int] = {}
    for move in inner:
        key = (move.tensor, move.source, move.target)
        elements[key] = elements.get(key, 0) + move.region.size
    return DraftTraffic(len(inner), sum(map(draft.nbytes, inner)), elements)
