"""Arrivals: how far the weights of a plan's devices have come, in the messages that tell it. Rules, without I/O."""

from __future__ import annotations

from dataclasses import replace

from edgepart.agent.wire.control import Report, Standing


def without_arrivals(message: Report | Standing) -> Report | Standing:
    """The message as members read it that do not know weights on their way."""
    if isinstance(message, Standing):
        return replace(message, weights=())
    holdings = (replace(one, here_bytes=0, needed_bytes=0) for one in message.holdings)
    return replace(message, holdings=tuple(holdings))
