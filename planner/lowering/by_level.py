"""Stages by level: finds the earliest level of every share and move; a device's shares of one level make a
stage. Pure rules.

The level of a share is the number of messages that have to arrive, one after another, before it can run. The
dependencies of a share or move follow from groups and flows alone, and drafts of one search have most of
these in common. So dependencies are found once for each group and flow, and only the levels are counted for
each draft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgepart.planner.lowering.draft import Draft, Flow, Group, Share, covers
from edgepart.planner.lowering.schedule import START, Schedule, Stage, StageMessage, StagePlace
from edgepart.planner.model.graph import Operator
from edgepart.planner.plans.plan import GATEWAY


@dataclass(frozen=True, slots=True)
class _Feeding:
    """The tensors and moves that one share waits for."""

    own: tuple[tuple[str, int], ...]
    """Tensors that its device computes itself, each with the number of levels that must lie between writing
    and reading."""
    sent: tuple[tuple[str, int], ...]
    """Moves to its device, as pairs of a tensor and the number of the move in its flow."""


@dataclass(frozen=True, slots=True)
class _Sending:
    """The dependencies of one move."""

    own: bool
    """Whether its source computes some of its region."""
    after: tuple[int, ...]
    """The numbers of the other moves in the flow that bring its source the data to forward."""


class Levels:
    """Finds the level of every share and move, in the graph's order. Their dependencies are remembered for
    each group and flow."""

    def __init__(self) -> None:
        self._feeding: dict[tuple[Group, tuple[Flow, ...]], tuple[_Feeding, ...]] = {}
        self._read: dict[Group, tuple[str, ...]] = {}
        self._sending: dict[Flow, tuple[_Sending, ...]] = {}

    def feeding(self, draft: Draft, group: Group) -> tuple[_Feeding, ...]:
        """The dependencies of each share of a group."""
        read = self._read.get(group)
        if read is None:
            needs = (name for share in group.shares for name, _ in share.needs)
            read = self._read[group] = tuple(dict.fromkeys(needs))
        flows = tuple(map(draft.flows.__getitem__, read))
        found = self._feeding.get((group, flows))
        if found is None:
            by_name = dict(zip(read, flows, strict=True))
            found = self._feeding[group, flows] = tuple(_feeding(share, by_name) for share in group.shares)
        return found

    def own(self, draft: Draft) -> dict[int, tuple[tuple[str, int], ...]]:
        """The tensors that a share reads from its own device, each with the number of levels between writing
        and reading, by id of the share."""
        found: dict[int, tuple[tuple[str, int], ...]] = {}
        for group in draft.groups.values():
            for share, feeding in zip(group.shares, self.feeding(draft, group), strict=True):
                found[id(share)] = feeding.own
        return found

    def sending(self, flow: Flow) -> tuple[_Sending, ...]:
        """The dependencies of each move of a flow."""
        found = self._sending.get(flow)
        if found is None:
            found = self._sending[flow] = tuple(_sending(flow))
        return found

    def stage(self, draft: Draft) -> Schedule:
        """The schedule with every share at its earliest level, and one message per move."""
        return _Staging(draft, self).schedule()


def schedule_by_level(draft: Draft) -> Schedule:
    """The schedule of a single draft."""
    return Levels().stage(draft)


def _feeding(share: Share, flows: Mapping[str, Flow]) -> _Feeding:
    own_ones: list[tuple[str, int]] = []
    sent: list[tuple[str, int]] = []
    for name, need in share.needs:
        own = flows[name].computed.get(share.device)
        if own is not None and (own is need or own.contains(need)):
            if own == need or not need.is_empty:
                own_ones.append((name, 0))
            continue
        if own is not None and covers(own, need):
            # The need is joined from a local part and received ones, which the segment that computes the local part
            # cannot do.
            own_ones.append((name, 1))
        moves = enumerate(flows[name].moves)
        sent += [(name, n) for n, m in moves if m.target == share.device and covers(m.region, need)]
    return _Feeding(tuple(own_ones), tuple(sent))


def _sending(flow: Flow) -> Iterator[_Sending]:
    """Yields the dependencies of each move. If its source computes the whole region, a move waits only for
    that; otherwise also for moves to its source."""
    computed, moves = flow.computed, flow.moves
    direct = [m.source in computed and computed[m.source].contains(m.region) for m in moves]
    for n, move in enumerate(moves):
        if direct[n]:
            yield _Sending(True, ())
            continue
        after = tuple(
            k
            for k, m in enumerate(moves)
            if direct[k] and m.target == move.source and covers(m.region, move.region)
        )
        yield _Sending(move.source in computed, after)


class _Staging:
    """Counts the levels of one draft."""

    def __init__(self, draft: Draft, known: Levels) -> None:
        self.draft, self.known = draft, known
        self.share: dict[str, dict[str, int]] = {}
        """The level of the share that writes each computed tensor, by tensor and device."""
        self.sent: dict[str, list[int]] = {}
        """The levels after which each tensor's moves are sent."""
        self.received: dict[str, list[int | None]] = {}
        """The earliest levels that read each tensor's moves; filled in as readers are found."""
        self.by_level: dict[str, dict[int, list[Share]]] = {}
        """The shares of each device, by level."""

    def schedule(self) -> Schedule:
        draft = self.draft
        for name in draft.graph.inputs:
            self._note(name, [START.level] * len(draft.moves_of(name)))
        for op in draft.graph.operators:
            group = draft.groups.get(op.name)
            if group is not None:
                self._visit(op, group)
            for name in op.outputs:
                if name in draft.flows:
                    self._send(name, draft.flows[name])
        messages = tuple(self._messages())
        for message in messages:  # A level at which a device only receives or forwards is a stage, too.
            for device, at in ((message.source, message.sent), (message.target, message.received)):
                if device != GATEWAY:
                    self.by_level.setdefault(device, {}).setdefault(at.level, [])
        return Schedule(
            draft, {name: _stages(self.by_level[name]) for name in sorted(self.by_level)}, messages
        )

    def _note(self, name: str, levels: list[int]) -> None:
        self.sent[name] = levels
        self.received[name] = [None] * len(levels)

    def _visit(self, op: Operator, group: Group) -> None:
        at: dict[str, int] = {}
        for share, feeding in zip(group.shares, self.known.feeding(self.draft, group), strict=True):
            level = 0
            for name, step in feeding.own:
                level = max(level, self.share[name][share.device] + step)
            for name, n in feeding.sent:
                level = max(level, self.sent[name][n] + 1)
            for name, n in feeding.sent:
                before = self.received[name][n]
                self.received[name][n] = level if before is None else min(level, before)
            at[share.device] = level
            self.by_level.setdefault(share.device, {}).setdefault(level, []).append(share)
        self.share.update((name, at) for name in op.outputs if name)

    def _send(self, name: str, flow: Flow) -> None:
        """Finds the levels of a tensor's moves."""
        self._note(name, [START.level] * len(flow.moves))
        sent, received, computed = self.sent[name], self.received[name], self.share.get(name, {})
        sending = self.known.sending(flow)
        for n, (move, one) in enumerate(zip(flow.moves, sending, strict=True)):
            sent[n] = computed[move.source] if one.own else 0
        for n, one in enumerate(sending):
            if one.after:
                sent[n] = max(sent[n], *(sent[k] + 1 for k in one.after))
                for k in one.after:
                    before = received[k]
                    received[k] = sent[n] if before is None else min(sent[n], before)

    def _messages(self) -> Iterator[StageMessage]:
        """The messages, one for each move."""
        places: dict[int, StagePlace] = {}
        for name, flow in self.draft.flows.items():
            for move, level, read in zip(flow.moves, self.sent[name], self.received[name], strict=True):
                after = level + 1
                arrival = after if read is None or move.target == GATEWAY else max(after, read)
                sent, received = (places.setdefault(at, StagePlace(at)) for at in (level, arrival))
                yield StageMessage(move.source, move.target, sent, received, (move,))


def _stages(by_level: Mapping[int, Sequence[Share]]) -> tuple[Stage, ...]:
    return tuple(
        Stage(StagePlace(level), StagePlace(level), tuple(by_level[level])) for level in sorted(by_level)
    )
