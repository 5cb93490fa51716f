"""Continued sequences: tells the leader on which plans sequences are being continued, because a new plan has to make them
again from their first step. Door: the event loop and the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from edgepart.agent.cluster.state.events import SequencesContinued
from edgepart.agent.wire.inference import Epoch

LOOK_S = 1.0
"""Seconds between two looks. Longer ones tell the leader later that it need not wait any more."""
LATELY_S = 5.0
"""Seconds after its last step for which a sequence counts as continued. With fewer, a plan may change while its user or its
gateway pauses; with more, better plans wait longer."""


async def watch_sequences(
    continued: Callable[[float], Mapping[tuple[str, Epoch], int]], post: Callable[[SequencesContinued], None]
) -> None:
    """Post the plans on which sequences are continued whenever they change, until cancelled. `continued(lately_s)` returns
    those by which a sequence made a step in the last `lately_s` seconds, each with the furthest position."""
    told: dict[tuple[str, Epoch], int] = {}
    while True:
        await asyncio.sleep(LOOK_S)
        # Rounded up to powers of two, so that not every step is news.
        found = {
            plan: 1 << max(0, position - 1).bit_length() for plan, position in continued(LATELY_S).items()
        }
        if found != told:
            told = found
            post(SequencesContinued(found))
