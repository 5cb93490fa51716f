"""Demand: from a model's outputs back to its inputs, what is read of every tensor, and so who computes and
sends what.

Rules and region arithmetic. How data moves is a `Decide`, made in lower.py and optimize.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from edgepart.planner.draft import Blueprint, Draft, Move, Owned, Share, covers, missing, share_of
from edgepart.planner.errors import InternalError
from edgepart.planner.plan import GATEWAY
from edgepart.planner.region import Region

Needs = Mapping[str, tuple[Region, ...]]
"""By device (or GATEWAY), the regions of one tensor that are read there."""

Decide = Callable[[str, Needs, Owned], list[Move]]
"""Of a tensor, who needs it and who computes it: what moves."""


def follow(
    blueprint: Blueprint, decide: Decide, known: Mapping[tuple[str, str], Share] | None = None
) -> Draft:
    """From the outputs back to the inputs, as BBGraP's partitioner goes (section 3.2): per tensor, `decide`
    what moves; compute what is read or moved, no more. `known` are the shares of a draft of the same blueprint."""
    graph = blueprint.graph
    needs: dict[str, dict[str, dict[Region, None]]] = {}
    for name in graph.outputs:
        if name in graph.producers:
            needs.setdefault(name, {}).setdefault(GATEWAY, {})[graph.region_of(name)] = None
    shares: list[Share] = []
    moves: list[Move] = []
    for op in reversed(graph.operators):
        wanted: dict[str, dict[int, Region]] = {}
        for index, name in enumerate(op.outputs):
            if name in needs:
                read = {place: tuple(regions) for place, regions in needs[name].items()}
                sent = decide(name, read, blueprint.owned[name])
                moves += sent
                for device in _alive(read, blueprint.owned[name], sent):
                    wanted.setdefault(device, {})[index] = blueprint.owned[name][device]
        for device in (name for name in reversed(blueprint.participants) if name in wanted):
            share = known.get((op.name, device)) if known else None
            if share is None or share.outputs != wanted[device]:
                share = share_of(graph, op, device, blueprint.accesses[op.name], wanted[device])
            shares.append(share)
            for name, region in share.needs:
                needs.setdefault(name, {}).setdefault(device, {})[region] = None
    for name in graph.inputs:
        moves += _from_gateway(name, needs.get(name, {}))
    return Draft(
        blueprint, {(s.operator.name, s.device): s for s in reversed(shares)}, tuple(reversed(moves))
    )


def _alive(needs: Needs, owned: Owned, sent: Sequence[Move]) -> Iterator[str]:
    """Devices whose part of a tensor is read by themselves or sent."""
    for device, region in owned.items():
        read_here = any(covers(region, need) for need in needs.get(device, ()))
        if read_here or any(move.source == device and covers(region, move.region) for move in sent):
            yield device


def _from_gateway(name: str, needs: Mapping[str, Mapping[Region, None]]) -> Iterator[Move]:
    """A model's input: each device gets one piece that holds all it reads of it."""
    for device, regions in needs.items():
        whole, *others = regions
        for region in others:
            whole = whole.union_spans(region)
        yield Move(name, whole, GATEWAY, device)


def crosses(blueprint: Blueprint, name: str) -> bool:
    """Whether an operator of another layer than its producer's reads the tensor."""
    layers, graph = blueprint.strategy.layers, blueprint.graph
    if graph.region_of(name).is_empty:
        return False
    own = layers.get(graph.producers[name].name)
    return any(own is None or layers.get(op.name) != own for op in graph.consumers[name])


def fetch(
    blueprint: Blueprint, name: str, target: str, needs: Sequence[Region], owned: Owned
) -> Iterator[Move]:
    """What `target` misses of `needs`, each box from one device that computes it.

    The device that has most of it, then the quickest link, then in turn, so that replicas share the sending.
    InternalError where nobody computes it.
    """
    boxes = missing(needs, owned.get(target))
    if not boxes and target not in owned:  # A tensor without elements still has to be told of.
        boxes = tuple(needs[:1])
    moves: list[Move] = []
    for box in boxes:
        left: tuple[Region, ...] = (box,)
        for source in _by_preference(blueprint, target, box, owned):
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
                f"strategy {blueprint.strategy.name!r}: nobody computes {left[0]} of {name!r} (written by "
                f"{op.op_type} {op.name!r}), which {target or 'the gateway'!r} needs"
            )
    return iter(moves)


def _by_preference(blueprint: Blueprint, target: str, box: Region, owned: Owned) -> list[str]:
    problem, cluster = blueprint.problem, blueprint.problem.cluster
    places = {device.name: n for n, device in enumerate(cluster.devices)}
    sources = [device for device in owned if device != target]
    turns = {source: (n - places.get(target, 0)) % len(sources) for n, source in enumerate(sources)}

    def rank(source: str) -> tuple[int, float, int]:
        link = cluster.link(source, target or problem.gateway)
        part = owned[source].intersect(box).size
        return (-part, link.latency_s + part / link.bytes_per_s, turns[source])

    return sorted(sources, key=rank)
