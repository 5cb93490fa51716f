"""The leader is told when sequences begin to be continued on a plan, and when they are not any more."""

from __future__ import annotations

import asyncio

import pytest

from edgepart.agent.cluster.state.events import SequencesContinued
from edgepart.agent.serving import continued_sequences
from edgepart.agent.serving.continued_sequences import watch_sequences
from edgepart.agent.wire.inference import Epoch

CHAT = ("chat", Epoch(1, 1))


def test_only_news_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continued_sequences, "LOOK_S", 0.0)
    looks: list[dict[tuple[str, Epoch], int]] = [{}, {CHAT: 0}, {CHAT: 5}, {CHAT: 8}, {CHAT: 9}, {}, {}]
    told: list[SequencesContinued] = []

    def continued(lately_s: float) -> dict[tuple[str, Epoch], int]:
        if not looks:
            raise asyncio.CancelledError
        return looks.pop(0)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch_sequences(continued, told.append))
    assert [one.plans for one in told] == [{CHAT: 1}, {CHAT: 8}, {CHAT: 16}, {}]
