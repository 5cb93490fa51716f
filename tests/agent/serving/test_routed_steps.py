"""Steps of sequences keep their names on the way through the router, whatever plan they run by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgepart.agent.wire.inference import SequenceStep
from tests.agent.serving.test_shape_routing import Gateway, run


@pytest.mark.parametrize("rows", [1, 2], ids=["first shapes", "other shapes"])
def test_the_step_reaches_the_requester(rows: int) -> None:
    async def story(gateway: Gateway) -> None:
        gateway.serve(2)
        steps, infer = [], gateway.requester.run

        async def seen(*arguments: Any, **named: Any) -> Any:
            steps.append(named["step"])
            return await infer(*arguments, **named)

        setattr(gateway.requester, "run", seen)  # noqa: B010
        inputs = {"x": np.zeros((rows, 3, 8, 8), np.float32)}
        step = SequenceStep("a/0/p", 4, 5)
        await gateway.router.infer("net", inputs, 20.0, (), step)
        await gateway.router.infer("net", inputs, 20.0)
        assert steps == [step, None]

    run(story)
