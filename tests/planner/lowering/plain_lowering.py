"""The plain twin of demand.py and by_level.py: one strategy on its own, share by share and move by move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from edgepart.planner.lowering.demand import Decide, Needs
from edgepart.planner.lowering.draft import Blueprint, Move, OwnedRegions, Share, make_share
from edgepart.planner.lowering.schedule import START, StageMessage, StagePlace, is_mixed
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import GATEWAY
from edgepart.planner.region import Region

Key = tuple[str, str]
"""An operator's name and a device."""


@dataclass
class Plain:
    """Who computes what, and what moves, in the order of a draft."""

    blueprint: Blueprint
    shares: dict[Key, Share]
    moves: tuple[Move, ...]
    computed: dict[str, dict[str, Region]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for share in self.shares.values():
            for name, region in share.written:
                self.computed.setdefault(name, {})[share.device] = region


def overlaps(owned: Region | None, region: Region) -> bool:
    return owned is not None and (owned == region or not owned.intersect(region).is_empty)


def follow(blueprint: Blueprint, decide: Decide) -> Plain:
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
                for device in alive(read, blueprint.owned[name], sent):
                    wanted.setdefault(device, {})[index] = blueprint.owned[name][device]
        for device in (name for name in reversed(blueprint.participants) if name in wanted):
            share = make_share(graph, op, device, blueprint.accesses[op.name], wanted[device])
            shares.append(share)
            for name, region in share.needs:
                needs.setdefault(name, {}).setdefault(device, {})[region] = None
    for name in graph.inputs:
        for device, regions in needs.get(name, {}).items():
            whole, *others = regions
            for region in others:
                whole = whole.union_spans(region)
            moves.append(Move(name, whole, GATEWAY, device))
    return Plain(blueprint, {(s.operator.name, s.device): s for s in reversed(shares)}, tuple(moves[::-1]))


def alive(needs: Needs, owned: OwnedRegions, sent: Sequence[Move]) -> Iterator[str]:
    for device, region in owned.items():
        read_here = any(overlaps(region, need) for need in needs.get(device, ()))
        if read_here or any(move.source == device and overlaps(region, move.region) for move in sent):
            yield device


@dataclass
class Levels:
    """The longest way to every share and move."""

    draft: Plain
    share: dict[Key, int] = field(default_factory=dict)
    sent: dict[Move, int] = field(default_factory=dict)
    received: dict[Move, int] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.draft.blueprint.graph

    def moves_of(self, name: str) -> list[Move]:
        return [move for move in self.draft.moves if move.tensor == name]

    def visit_all(self) -> None:
        for name in self.graph.inputs:
            self.sent.update((move, START.level) for move in self.moves_of(name))
        for op in self.graph.operators:
            for (name, _), share in self.draft.shares.items():
                if name == op.name:
                    self.visit(share)
            for name in op.outputs:
                self.send(name)

    def visit(self, share: Share) -> None:
        feeding = list(self.feeding(share))
        level = max((after for _, after in feeding), default=0)
        self.share[share.operator.name, share.device] = level
        for move, _ in feeding:
            if move is not None:
                self.received[move] = min(level, self.received.get(move, level))

    def feeding(self, share: Share) -> Iterator[tuple[Move | None, int]]:
        for name, need in share.needs:
            own = self.draft.computed.get(name, {}).get(share.device)
            if own is not None and overlaps(own, need):
                step = 1 if is_mixed(need, own) else 0
                yield None, self.share[self.graph.producers[name].name, share.device] + step
            if own is None or not own.contains(need):
                for move in self.moves_of(name):
                    if move.target == share.device and overlaps(move.region, need):
                        yield move, self.sent[move] + 1

    def send(self, name: str) -> None:
        moves, computed = self.moves_of(name), self.draft.computed.get(name, {})
        direct = [m for m in moves if m.source in computed and computed[m.source].contains(m.region)]
        for move in direct:
            self.sent[move] = self.share[self.graph.producers[name].name, move.source]
        for move in moves:
            if move not in self.sent:
                own = computed.get(move.source)
                level = self.share[self.graph.producers[name].name, move.source] if own else 0
                feeding = [m for m in direct if m.target == move.source and overlaps(m.region, move.region)]
                level = max([level, *(self.sent[m] + 1 for m in feeding)])
                self.sent[move] = level
                for m in feeding:
                    self.received[m] = min(level, self.received.get(m, level))


def staged(draft: Plain) -> tuple[dict[str, dict[int, list[Key]]], tuple[StageMessage, ...]]:
    """By device and level, what it computes; and one message for each move."""
    levels = Levels(draft)
    levels.visit_all()
    messages = tuple(
        StageMessage(
            move.source,
            move.target,
            StagePlace(levels.sent[move]),
            StagePlace(arrival(levels, move)),
            (move,),
        )
        for move in draft.moves
    )
    found: dict[str, dict[int, list[Key]]] = {}
    for key in draft.shares:
        found.setdefault(key[1], {}).setdefault(levels.share[key], []).append(key)
    for message in messages:
        for device, at in ((message.source, message.sent), (message.target, message.received)):
            if device != GATEWAY:
                found.setdefault(device, {}).setdefault(at.level, [])
    return found, messages


def arrival(levels: Levels, move: Move) -> int:
    after = levels.sent[move] + 1
    return after if move.target == GATEWAY else max(after, levels.received.get(move, after))
