"""What a user who deploys is told of the leader's work, and how it gets into one HTTP answer."""

from __future__ import annotations

import asyncio

from edgepart.agent.api.progress import STILL_S, ProgressLines, StandingProgress
from edgepart.agent.wire.control import DeviceWeights


def test_a_state_is_told_once_and_then_now_and_again_and_weights_where_they_changed() -> None:
    told: list[tuple[str, float, float]] = []
    standing = StandingProgress(lambda *what: told.append(what))
    a, b = DeviceWeights("a", 0, 9), DeviceWeights("b", 7, 7)
    standing.tell("computing a plan", (), 0.0)
    standing.tell("loading", (a, b), 1.0)
    standing.tell("loading", (a, b), 1.2)
    assert told == [
        ("computing a plan", 0, 0),
        ("loading", 0, 0),
        ("weights on a", 0, 9),
        ("weights on b", 7, 7),
    ]
    told.clear()
    standing.tell("loading", (DeviceWeights("a", 4, 9), b), 1.0 + STILL_S)
    assert told == [(f"loading ({STILL_S:.0f} s so far)", 0, 0), ("weights on a", 4, 9)]


def test_of_each_stage_that_nobody_has_read_only_the_newest_figure_waits() -> None:
    async def main() -> None:
        lines = ProgressLines(60.0)
        for done in range(3):
            for device in ("a", "b"):
                lines.report(f"weights on {device}", done, 2)
        lines.report("warming up", 0, 0)
        lines.end({"result": {}})
        assert [line async for line in lines] == [
            {"stage": "weights on a", "done": 2, "total": 2},
            {"stage": "weights on b", "done": 2, "total": 2},
            {"stage": "warming up", "done": 0, "total": 0},
            {"result": {}},
        ]

    asyncio.run(main())
