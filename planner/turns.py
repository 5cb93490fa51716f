"""Turns: of a stage that sends whole what it computes, each tensor is sent as soon as it is there, and what no message
needs comes last. Nothing is computed twice for it: unlike borders (planner/borders.py), these parts share no operator.
Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgepart.planner.draft import Share
from edgepart.planner.plan import GATEWAY
from edgepart.planner.stages import Message, Schedule, Stage


def sends_whole(schedule: Schedule, device: str, stage: Stage) -> bool:
    """Whether every message to another device is all that the stage computes of its tensors."""
    whole = dict(one for share in stage.shares for one in share.written)
    messages = _messages(schedule, device, stage)
    return bool(messages) and all(
        move.tensor in whole and whole[move.tensor] == move.region
        for message in messages
        for move in message.moves
    )


def turns(schedule: Schedule, device: str, stage: Stage) -> list[tuple[Share, ...]]:
    """The stage's shares in parts, one for each message that needs more than those before it, in the model's order; then
    the rest, where there is one."""
    writers = {name: n for n, share in enumerate(stage.shares) for name, _ in share.written}
    left = set(range(len(stage.shares)))
    wanted = [
        {writers[move.tensor] for move in message.moves} for message in _messages(schedule, device, stage)
    ]
    found: list[tuple[Share, ...]] = []
    for last in sorted(wanted, key=max):
        if part := set(_behind(stage.shares, writers, last, left)):
            left -= part
            found.append(tuple(stage.shares[n] for n in sorted(part)))
    if left:
        found.append(tuple(stage.shares[n] for n in sorted(left)))
    return found


def _messages(schedule: Schedule, device: str, stage: Stage) -> list[Message]:
    return [message for message in schedule.sent(device, stage) if message.target != GATEWAY]


def _behind(
    shares: Sequence[Share], writers: dict[str, int], last: set[int], left: set[int]
) -> Iterator[int]:
    """Those of `left` that these need, and these."""
    waiting = [n for n in last if n in left]
    seen = set(waiting)
    while waiting:
        number = waiting.pop()
        yield number
        for name, _ in shares[number].needs:
            before = writers.get(name)
            if before is not None and before in left and before not in seen:
                seen.add(before)
                waiting.append(before)
