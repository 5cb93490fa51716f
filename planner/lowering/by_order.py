"""Stages by order: schedules a draft in the order that a strategy gives (Strategy.order), instead of by
levels (planner/lowering/by_level.py). Pure rules.

All operators get one order in which they can run, and each device runs its shares in that order. Data that a
share waits for is received right before it, and data that other devices wait for is sent right after it. A
stage's level is the position of its last operator. So here too, messages go from a level to a higher one, and
there is no deadlock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from edgepart.planner.lowering.draft import Draft, Move, Share, covers
from edgepart.planner.lowering.schedule import START, Schedule, Stage, StageMessage, StagePlace, reads_mixed
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import GATEWAY

Ranks = Mapping[int, float]
"""The rank of each layer; layers of smaller rank come first."""


def schedule_by_order(draft: Draft, ranks: Ranks, layers: Mapping[str, int]) -> Schedule:
    """The schedule of a draft by the ranks of its layers, with one message for each move. Only for drafts in which each
    move starts at a device that computes its region."""
    place = {name: n for n, name in enumerate(order_operators(draft.graph, ranks, layers))}
    shares: dict[str, list[Share]] = {}
    for name in sorted(draft.groups, key=place.__getitem__):
        for share in draft.groups[name].shares:
            shares.setdefault(share.device, []).append(share)
    stages: dict[str, tuple[Stage, ...]] = {}
    sent: dict[Move, StagePlace] = {}
    received: dict[Move, StagePlace] = {}
    for device in sorted({*shares, *_ends(draft)}):
        made = list(_stages(draft, device, shares.get(device, []), place))
        stages[device] = tuple(made)
        for stage in made:
            for share in stage.shares:
                sent.update((move, stage.last) for move in _moves_out(draft, share))
                for move in _moves_in(draft, share):
                    received.setdefault(move, stage.first)
    _add_last_stages(draft, stages, sent, received)
    messages = tuple(
        StageMessage(move.source, move.target, at, received.get(move, StagePlace(at.level + 1)), (move,))
        for move in draft.moves
        for at in (START if move.source == GATEWAY else sent[move],)
    )
    return Schedule(draft, stages, messages)


def _add_last_stages(
    draft: Draft,
    stages: dict[str, tuple[Stage, ...]],
    sent: Mapping[Move, StagePlace],
    received: Mapping[Move, StagePlace],
) -> None:
    """Gives devices stages in which they receive what no share reads: parts of states, for the next step."""
    for move in draft.moves:
        if move.target != GATEWAY and move.source != GATEWAY and move not in received:
            at, own = StagePlace(sent[move].level + 1), stages[move.target]
            if all(stage.first != at for stage in own):
                stages[move.target] = tuple(sorted((*own, Stage(at, at, ())), key=lambda stage: stage.first))


def order_operators(graph: Graph, ranks: Ranks, layers: Mapping[str, int]) -> list[str]:
    """Names of the operators, each after the operators that it reads from, and smaller ranks first. An
    operator without a rank has the rank of its first reader."""
    operators = graph.operators
    wanted: dict[str, float] = {}
    for op in reversed(operators):
        own = ranks.get(layers.get(op.name, -1))
        readers = (wanted[reader.name] for name in op.outputs if name for reader in graph.consumers[name])
        wanted[op.name] = min(readers, default=float("inf")) if own is None else own
    number = {op.name: n for n, op in enumerate(operators)}
    waits = {
        op.name: len({graph.producers[n].name for n in graph.reads(op) if n in graph.producers})
        for op in operators
    }
    ready = [(wanted[op.name], n) for n, op in enumerate(operators) if not waits[op.name]]
    heapify(ready)
    found: list[str] = []
    while ready:
        op = operators[heappop(ready)[1]]
        found.append(op.name)
        for reader in {r.name for name in op.outputs if name for r in graph.consumers[name]}:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, (wanted[reader], number[reader]))
    return found


def _ends(draft: Draft) -> Iterator[str]:
    return (end for move in draft.moves for end in (move.source, move.target) if end != GATEWAY)


def _stages(draft: Draft, device: str, shares: list[Share], place: Mapping[str, int]) -> Iterator[Stage]:
    """Yields the stages of a device. A stage begins where something is received, and ends where something is sent."""
    inside: list[Share] = []
    written: set[str] = set()
    there: set[Move] = set()

    def close() -> Iterator[Stage]:
        if inside:
            at = StagePlace(place[inside[-1].operator.name])
            yield Stage(at, at, tuple(inside))
            inside.clear()
            written.clear()

    for share in shares:
        new = set(_moves_in(draft, share)) - there
        if new or any(
            name in written and reads_mixed(draft, share, name, need) for name, need in share.needs
        ):
            yield from close()
        there |= new
        inside.append(share)
        written.update(name for name, _ in share.written)
        if any(True for _ in _moves_out(draft, share)):
            yield from close()
    yield from close()


def _moves_out(draft: Draft, share: Share) -> Iterator[Move]:
    """Yields the moves from a share's device of tensors that the share writes."""
    for name, _ in share.written:
        yield from (move for move in draft.moves_of(name) if move.source == share.device)


def _moves_in(draft: Draft, share: Share) -> Iterator[Move]:
    """Yields the moves to a share's device that bring data that the share reads."""
    for name, need in share.needs:
        own = draft.computed_regions(name).get(share.device)
        if own is None or not own.contains(need):
            yield from (
                move
                for move in draft.moves_of(name)
                if move.target == share.device and covers(move.region, need)
            )
