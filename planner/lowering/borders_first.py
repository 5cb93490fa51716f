"""Borders first: cuts a stage so that the data that other devices wait for is computed and sent first, and
the rest is computed while that data travels. Pure rules.

A stage is cut into **parts**, one for each border that it sends, and the **rest**. A part is a stage of its
own, with operators computed for a smaller region. Rows of intermediate tensors that several parts need are
computed twice. The rest does not compute what a part computes already.

Cutting causes no deadlock: among the sends and receives of a device, a send keeps its place or moves earlier,
and a receive keeps its place or moves to after a send."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from edgepart.planner.lowering.draft import Draft, Share, covers, make_share
from edgepart.planner.lowering.liveness import RequestedRegions, is_requested, requested_regions
from edgepart.planner.lowering.schedule import Schedule, Stage, StageMessage, StagePlace
from edgepart.planner.plans.plan import GATEWAY
from edgepart.planner.region import Region

ComputedRegions = Mapping[str, Region]
"""The region of each tensor that is computed, by name of the tensor."""

LARGEST_BORDER_PART = 0.5
"""The largest fraction of a tensor's computed region that borders may take together. If they take more, the
stage is not cut."""


@dataclass(frozen=True)
class StageCut:
    """A stage that is cut into parts."""

    stages: tuple[Stage, ...]
    """The parts, then the rest."""
    received: Mapping[int, StagePlace]
    """The part before which each message to the stage is received, by id of the message."""
    sent: Mapping[int, StagePlace]
    """The part after which each message from the stage is sent, by id of the message."""


StageCuts = Mapping[str, Sequence[StageCut | None]]
"""The cuts of each device's stages; None for a stage that is not cut."""


def send_borders_first(schedule: Schedule, tensors: Collection[str]) -> Schedule:
    """The schedule with every stage cut that sends some of `tensors` to other devices and can be cut."""
    return apply_cuts(schedule, find_cuts(schedule, tensors))


def find_cuts(schedule: Schedule, tensors: Collection[str] | None = None) -> StageCuts:
    """The cuts of all stages that send some of `tensors` (None: of all tensors) to other devices and can be cut."""
    found: dict[str, list[StageCut | None]] = {}
    for device, stages in schedule.stages.items():
        found[device] = []
        for stage, wanted in zip(stages, requested_regions(schedule, device), strict=True):
            sent = tensors_sent_to_devices(schedule, device, stage)
            early = sent if tensors is None else sent & frozenset(tensors)
            found[device].append(cut_stage(schedule, device, stage, wanted) if early else None)
    return found


def apply_cuts(schedule: Schedule, cuts: StageCuts) -> Schedule:
    """The schedule with these stages cut. Messages to and from a cut stage are received and sent at its parts."""
    stages: dict[str, tuple[Stage, ...]] = {}
    received, sent = dict[int, StagePlace](), dict[int, StagePlace]()
    for device, old in schedule.stages.items():
        made = [cut.stages if cut else (stage,) for stage, cut in zip(old, cuts[device], strict=True)]
        stages[device] = tuple(chain.from_iterable(made))
        for cut in filter(None, cuts[device]):
            received.update(cut.received)
            sent.update(cut.sent)
    messages = (
        replace(one, sent=sent.get(id(one), one.sent), received=received.get(id(one), one.received))
        for one in schedule.messages
    )
    return replace(schedule, stages=stages, messages=tuple(messages))


def tensors_sent_to_devices(schedule: Schedule, device: str, stage: Stage) -> frozenset[str]:
    """Names of the tensors that a stage sends to other devices, in full or in part."""
    messages = schedule.sent_messages(device, stage)
    return frozenset(move.tensor for m in messages if m.target != GATEWAY for move in m.moves)


def cut_stage(schedule: Schedule, device: str, stage: Stage, wanted: RequestedRegions) -> StageCut | None:
    """The stage in parts. None if it sends something that it does not compute, or most of what it computes,
    or cannot be divided."""
    draft, whole = schedule.draft, dict(one for share in stage.shares for one in share.written)
    borders = _borders(schedule, device, stage, whole)
    if not borders:
        return None
    made: list[tuple[tuple[Share, ...], ComputedRegions]] = []
    for border in borders:
        shares = _shares_computing(draft, stage, whole, border, ())
        if shares is None:
            return None
        made.append((shares, _written_regions(shares)))
    left = dict(_remaining_regions(whole, wanted, [computed for _, computed in made]))
    rest = _shares_computing(draft, stage, whole, left, [computed for _, computed in made])
    if not rest:
        return None
    at = [StagePlace(stage.last.level, stage.last.late + 2 + n) for n in range(len(made) + 1)]
    stages = [Stage(one, one, shares, is_part=True) for one, (shares, _) in zip(at, made, strict=False)]
    stages.append(Stage(at[-1], at[-1], rest, is_part=True))
    received = dict(_first_readers(schedule, device, stage, stages))
    return StageCut(tuple(stages), received, dict(_last_writers(schedule, device, stage, stages)))


def _borders(schedule: Schedule, device: str, stage: Stage, whole: ComputedRegions) -> list[ComputedRegions]:
    """The regions that the stage sends to other devices, one border per part; [] if the stage must not be cut."""
    found: list[dict[str, Region]] = []
    for message in schedule.sent_messages(device, stage):
        if any(
            move.tensor not in whole or not whole[move.tensor].contains(move.region) for move in message.moves
        ):
            return []
        if message.target == GATEWAY:
            continue
        sent: dict[str, Region] = {}
        for move in message.moves:
            if move.region.size > LARGEST_BORDER_PART * whole[move.tensor].size:
                return []
            _want(sent, move.tensor, move.region)
        found.append(sent)
    borders = _merge(found)
    for name in {name for border in borders for name in border}:
        size = sum(border[name].size for border in borders if name in border)
        if size > LARGEST_BORDER_PART * whole[name].size:
            return []
    return borders


def _merge(borders: Sequence[Mapping[str, Region]]) -> list[ComputedRegions]:
    """The borders, with two of them joined if they are no larger together than apart, because one lies inside
    or beside the other."""
    found: list[dict[str, Region]] = []
    for border in sorted(borders, key=lambda one: -sum(region.size for region in one.values())):
        for other in found:
            both = dict(other)
            for name, region in border.items():
                _want(both, name, region)
            apart = sum(region.size for one in (other, border) for region in one.values())
            if sum(region.size for region in both.values()) <= apart:
                other.update(both)
                break
        else:
            found.append(dict(border))
    return list(found)


def _want(wanted: dict[str, Region], name: str, region: Region) -> None:
    """Adds `region` to the region that is wanted of a tensor, as one box around both."""
    wanted[name] = (wanted[name].union_spans(region) if name in wanted else region).hull()


def _remaining_regions(
    whole: ComputedRegions, wanted: RequestedRegions, parts: Sequence[ComputedRegions]
) -> Iterator[tuple[str, Region]]:
    """Yields each tensor with one region around everything that the stage computes and the parts do not, if
    some of it is requested."""
    for name, region in whole.items():
        left = region.subtract_all(part[name] for part in parts if name in part)
        box = region if region.is_empty else None
        for other in left:
            box = other if box is None else box.union_spans(other)
        if box is not None and is_requested(wanted[name], box):
            yield name, box


def _shares_computing(
    draft: Draft,
    stage: Stage,
    whole: ComputedRegions,
    wanted: ComputedRegions,
    there: Sequence[ComputedRegions],
) -> tuple[Share, ...] | None:
    """Shares that compute the `wanted` regions of a stage, and the regions that these shares need from the
    stage and that are not `there`. None if an operator would read something that its share in the stage does
    not read."""
    wanting, found = dict(wanted), list[Share]()
    for share in reversed(stage.shares):
        outputs = {
            n: region.intersect(wanting[name]) for n, name, region in _outputs(share) if name in wanting
        }
        outputs = {
            n: region for n, region in outputs.items() if share.outputs[n].is_empty or not region.is_empty
        }
        if not outputs:
            continue
        op, access = share.operator, draft.blueprint.accesses[share.operator.name]
        if access.opaque or outputs == share.outputs:
            part = share
        else:
            part = make_share(draft.graph, op, share.device, access, outputs)
            if not all(_is_read(share, name, need) for name, need in part.needs):
                return None
        found.append(part)
        for name, need in part.needs:
            if name in whole and not any(name in one and one[name].contains(need) for one in there):
                _want(wanting, name, need)
    return tuple(reversed(found))


def _outputs(share: Share) -> Iterator[tuple[int, str, Region]]:
    return ((n, share.operator.outputs[n], region) for n, region in share.outputs.items())


def _is_read(share: Share, name: str, need: Region) -> bool:
    return any(read == name and region.contains(need) for read, region in share.needs)


def _written_regions(shares: Sequence[Share]) -> dict[str, Region]:
    return dict(one for share in shares for one in share.written)


def _first_readers(
    schedule: Schedule, device: str, stage: Stage, parts: Sequence[Stage]
) -> Iterator[tuple[int, StagePlace]]:
    """Yields the id of each message to the stage, with the place of the first part that reads the message, or
    else of the rest."""
    for message in schedule.received_messages(device, stage):
        reader = next((one for one in parts if _reads(schedule.draft, device, one, message)), parts[-1])
        yield id(message), reader.first


def _last_writers(
    schedule: Schedule, device: str, stage: Stage, parts: Sequence[Stage]
) -> Iterator[tuple[int, StagePlace]]:
    """Yields the id of each message from the stage, with the place of the part after which the whole message
    is computed."""
    for message in schedule.sent_messages(device, stage):
        have: dict[str, list[Region]] = {}
        for one in parts:
            for name, region in _written_regions(one.shares).items():
                have.setdefault(name, []).append(region)
            if one is parts[-1] or all(_has(have.get(m.tensor, []), m.region) for m in message.moves):
                yield id(message), one.last
                break


def _has(have: Sequence[Region], region: Region) -> bool:
    return bool(have) and not region.subtract_all(have)


def _reads(draft: Draft, device: str, stage: Stage, message: StageMessage) -> bool:
    """Whether a part needs something that the message brings and that the device does not compute itself."""
    for share in stage.shares:
        for name, need in share.needs:
            own = draft.computed_regions(name).get(device)
            if (own is None or not own.contains(need)) and any(
                move.tensor == name and covers(move.region, need) for move in message.moves
            ):
                return True
    return False
