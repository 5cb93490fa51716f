"""BBGraP's graph optimiser (section 3.3) as passes: drop and shrink on a draft; merge, hoist, join and settle on a
schedule. Pure rules.

No pass changes the answers. `optimise_draft` and `optimise_schedule` run the passes in order; if one fails, the error
names it and those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from edgepart.planner.errors import InternalError
from edgepart.planner.layers.coarsen import DEQUANTIZE
from edgepart.planner.lowering.demand import Holders, Needs, crosses_layers, fetch_missing, follow_demand
from edgepart.planner.lowering.draft import (
    Case,
    Draft,
    Move,
    OwnedRegions,
    Share,
    classify_need,
    coalesce_regions,
    covers,
    missing_regions,
)
from edgepart.planner.lowering.schedule import (
    CostModel,
    Schedule,
    Seconds,
    Stage,
    StageMessage,
    StagePlace,
    reads_mixed,
)
from edgepart.planner.plans.plan import GATEWAY
from edgepart.planner.region import Region

T = TypeVar("T")


def optimise_draft(draft: Draft) -> Draft:
    """Reduces a draft in which everything is broadcast to the moves that are needed: as many as lowering with
    Sync.NEEDED gives. Not for drafts with a hub, whose moves stay as the strategy says."""
    return _run_passes(draft, drop_moves, shrink_moves)


def optimise_schedule(schedule: Schedule, seconds: Seconds, cost: CostModel) -> Schedule:
    """Makes fewer messages and segments, sends messages sooner, and keeps each quantise/dequantise group in
    one segment."""

    def hoist_costly(one: Schedule) -> Schedule:
        return hoist_sends(one, seconds, cost)

    return _run_passes(schedule, merge_messages, hoist_costly, join_stages, copy_companions)


def _run_passes(value: T, *passes: Callable[[T], T]) -> T:
    for n, one in enumerate(passes):
        try:
            value = one(value)
        except InternalError as error:
            error.add_note(f"in the pass {one.__name__}, after {[p.__name__ for p in passes[:n]]}")
            raise
    return value


def drop_moves(draft: Draft) -> Draft:
    """Removes moves from which the target reads nothing, because it computes the whole region itself (cases
    EQUAL, SMALLER) or does not need it. Regions that are then no longer read are not computed either."""

    def decide(name: str, needs: Needs, owned: OwnedRegions) -> list[Move]:
        return [move for move in draft.moves_of(name) if _is_read(move, needs, owned)]

    return follow_demand(draft.blueprint, decide)


def _is_read(move: Move, needs: Needs, owned: OwnedRegions) -> bool:
    if move.target == GATEWAY:
        return True
    wanted = missing_regions(needs.get(move.target, ()), owned.get(move.target))
    return any(covers(move.region, region) for region in wanted)


def shrink_moves(draft: Draft) -> Draft:
    """Reduces every move to the boxes that its target lacks (BIGGER, SHIFTED, ELSEWHERE), each box from one source."""
    blueprint = draft.blueprint

    def decide(name: str, needs: Needs, owned: OwnedRegions) -> list[Move]:
        kept: list[Move] = []
        for place, regions in needs.items():
            if any(_fetches(need, owned.get(place)) for need in regions):
                sources = _senders(draft, name, place, owned)
                kept += fetch_missing(blueprint, name, place, regions, Holders(sources))
        return kept

    return follow_demand(blueprint, decide)


def _fetches(need: Region, owned: Region | None) -> bool:
    return classify_need(need, owned) in (Case.BIGGER, Case.SHIFTED, Case.ELSEWHERE)


def _senders(draft: Draft, name: str, place: str, owned: OwnedRegions) -> OwnedRegions:
    """The devices that may send a tensor to `place`, with their regions: inside a layer all devices that
    compute it, between layers those that send it in the draft. The target itself is kept."""
    if place == GATEWAY or not crosses_layers(draft.blueprint, name):
        return owned
    sources = {move.source for move in draft.moves_of(name) if move.target == place}
    return {device: region for device, region in owned.items() if device in sources or device == place}


def merge_messages(schedule: Schedule) -> Schedule:
    """Joins messages with the same ends that are sent and received at the same places. All inputs of a device
    become one message."""
    groups: dict[tuple[StagePlace, str, str, StagePlace | None], list[StageMessage]] = {}
    for message in schedule.messages:
        received = None if message.source == GATEWAY else message.received
        groups.setdefault((message.sent, message.source, message.target, received), []).append(message)
    messages = [
        replace(group[0], received=min(m.received for m in group), moves=tuple(_merge_moves(group)))
        for group in groups.values()
    ]
    messages.sort(key=lambda m: (m.sent, m.source, m.target, m.received))
    return replace(schedule, messages=tuple(messages))


def _merge_moves(group: Sequence[StageMessage]) -> Iterator[Move]:
    moves: dict[str, list[Move]] = {}
    for message in group:
        for move in message.moves:
            moves.setdefault(move.tensor, []).append(move)
    for same in moves.values():
        for region in coalesce_regions(move.region for move in same):
            yield replace(same[0], region=region)


def hoist_sends(schedule: Schedule, seconds: Seconds, cost: CostModel) -> Schedule:
    """Sends messages as soon as their data is computed: the stage ends there, and the rest of its work becomes
    a late stage, which runs while the messages travel. A stage is split only if the late stage takes longer
    than starting one more segment."""
    stages: dict[str, tuple[Stage, ...]] = {}
    messages = {id(message): message for message in schedule.messages}
    for device, old in schedule.stages.items():
        new: list[Stage] = []
        for stage in old:
            early = _find_early_sends(schedule, device, stage)
            names = {share.operator.name for share in early}
            late = tuple(share for share in stage.shares if share.operator.name not in names)
            put_off = sum(seconds[share.operator.name, device] for share in late)
            if not early or put_off <= cost.segment_s(device):
                new.append(stage)
                continue
            after = replace(stage.first, late=1)
            new += [replace(stage, shares=tuple(early)), Stage(after, after, late)]
            for message in _late_messages(schedule, device, stage, early):
                messages[id(message)] = replace(message, received=after)
        stages[device] = tuple(new)
    return replace(schedule, stages=stages, messages=tuple(messages.values()))


def _find_early_sends(schedule: Schedule, device: str, stage: Stage) -> list[Share]:
    """The shares of a stage that the data it sends depends on."""
    wanted = {move.tensor for message in schedule.sent_messages(device, stage) for move in message.moves}
    early: list[Share] = []
    for share in reversed(stage.shares):
        if any(name in wanted for name, _ in share.written):
            early.append(share)
            wanted.update(name for name, _ in share.needs)
    return early[::-1]


def _late_messages(
    schedule: Schedule, device: str, stage: Stage, early: Sequence[Share]
) -> Iterator[StageMessage]:
    """Yields the messages to a stage that its early part neither reads nor forwards."""
    read = {name for share in early for name, _ in share.needs}
    read |= {move.tensor for message in schedule.sent_messages(device, stage) for move in message.moves}
    for message in schedule.received_messages(device, stage):
        if not any(move.tensor in read for move in message.moves):
            yield message


def join_stages(schedule: Schedule) -> Schedule:
    """Joins neighbouring stages that no communication separates.

    This causes no deadlock: the first stage sends nothing and the second receives nothing, so the order of
    all sends and receives stays the same."""
    stages: dict[str, tuple[Stage, ...]] = {}
    for device, old in schedule.stages.items():
        joined: list[Stage] = []
        for stage in old:
            if joined and _joinable(schedule, device, joined[-1], stage):
                before = joined.pop()
                stage = Stage(before.first, stage.last, _in_order(schedule, before.shares + stage.shares))
            joined.append(stage)
        stages[device] = tuple(joined)
    return replace(schedule, stages=stages)


def _joinable(schedule: Schedule, device: str, one: Stage, two: Stage) -> bool:
    if schedule.sent_messages(device, one) or schedule.received_messages(device, two):
        return False
    written = {name for share in one.shares for name, _ in share.written}
    draft = schedule.draft
    reads = ((share, name, need) for share in two.shares for name, need in share.needs)
    return not any(name in written and reads_mixed(draft, share, name, need) for share, name, need in reads)


def _in_order(schedule: Schedule, shares: tuple[Share, ...]) -> tuple[Share, ...]:
    order = schedule.draft.order
    return tuple(sorted(shares, key=lambda share: order[share.operator.name, share.device]))


def copy_companions(schedule: Schedule) -> Schedule:
    """Computes operators that belong to their readers in each stage that reads them, instead of passing their
    outputs from segment to segment.

    These are DequantizeLinears, operators that read only constants, and views of either. The runtime computes
    an operator between quantised tensors in integers only if it sees the whole quantise/dequantise group: a
    segment whose inputs are dequantised weights would round differently from the whole model."""
    companions = _companions(schedule.draft)
    sent = {(move.source, move.tensor) for move in schedule.draft.moves}
    stages: dict[str, tuple[Stage, ...]] = {}
    for device, old in schedule.stages.items():
        makers = {
            name: share
            for stage in old
            for share in stage.shares
            if share.operator.name in companions and not any((device, n) in sent for n, _ in share.written)
            for name, _ in share.written
        }
        own = frozenset(id(share) for share in makers.values())
        new = [replace(stage, shares=_with_companions(schedule, stage.shares, makers, own)) for stage in old]
        stages[device] = tuple(
            s
            for s in new
            if s.shares or schedule.received_messages(device, s) or schedule.sent_messages(device, s)
        )
    return replace(schedule, stages=stages)


def _with_companions(
    schedule: Schedule, shares: Sequence[Share], makers: Mapping[str, Share], own: Collection[int]
) -> tuple[Share, ...]:
    """The shares of a stage without `makers`, but with the makers that it reads. `makers` are by the tensor
    that they write; `own` are their ids."""
    kept = [share for share in shares if id(share) not in own]
    there = {id(share) for share in kept}
    for share in kept:  # The list grows during the loop, because a companion may read another companion.
        for name, _ in share.needs:
            maker = makers.get(name)
            if maker is not None and id(maker) not in there:
                there.add(id(maker))
                kept.append(maker)
    return _in_order(schedule, tuple(kept))


def _companions(draft: Draft) -> frozenset[str]:
    """Names of the operators that belong to their readers."""
    graph, found = draft.graph, set[str]()
    for op in graph.operators:
        access = draft.blueprint.accesses[op.name]
        if access.opaque is not None:
            continue
        writers = [graph.producers.get(name) for name in graph.reads(op)]
        follows = all(w is not None and w.name in found for w in writers)
        if op.op_type in DEQUANTIZE or not writers or (follows and access.family == "move"):
            found.add(op.name)
    return frozenset(found)
