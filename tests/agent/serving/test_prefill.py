"""Steps without an answer at the gateway: they return when they are sent, and no latency that contains them is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgepart.agent.serving.requester import Requester
from edgepart.agent.wire.inference import RequestMessage, SequenceStep, Tensors
from edgepart.agent.wire.tensors import Value
from edgepart.planner.plans.plan import GATEWAY
from edgepart.planner.search.prefill import drop_answers
from tests.agent import handmade
from tests.agent.serving.test_lost_states import plan_of
from tests.agent.serving.test_requester import E1

INPUTS: dict[str, Value] = {"x": np.zeros(2, np.float32), "z": np.zeros(2, np.float32)}


def test_blocks_return_when_they_are_sent_and_the_step_that_waits_for_them_is_not_measured() -> None:
    sent: list[Tensors] = []

    def send(node: str, message: RequestMessage, values: Sequence[Value]) -> None:
        if isinstance(message, Tensors):
            sent.append(message)

    plan = plan_of("a")
    back = next(transfer.number for transfer in plan.transfers if transfer.target == GATEWAY)

    async def answer(gateway: Requester, step: SequenceStep) -> None:
        asked = asyncio.create_task(gateway.run("m", dict(INPUTS), 60.0, ("sn",), step=step))
        await asyncio.sleep(0)
        assert not sent[-1].prefill and sent[-1].step == step
        gateway.deliver(Tensors("m", E1, sent[-1].request, back, ()), [np.ones(2, np.float32)])
        assert list((await asked)[0]) == ["sn"]

    async def story() -> None:
        gateway = Requester("gate", send)
        gateway.activate("m", E1, replace(plan, prefill=drop_answers(plan)), handmade.NODES)
        name = gateway.name_sequence()
        block = SequenceStep(name, 0, 64)
        found, _ = await gateway.run("m", dict(INPUTS), 60.0, (), step=block, prefill=True)
        assert found == {} and sent and all(one.prefill and one.step == block for one in sent)
        await answer(gateway, SequenceStep(name, 64, 65))
        assert not gateway.latencies(), "The devices may have computed the block meanwhile."
        await answer(gateway, SequenceStep(name, 65, 66))
        assert [len(seconds) for seconds in gateway.latencies().values()] == [1]
        await gateway.run("m", dict(INPUTS), 60.0, (), step=SequenceStep(name, 66, 130), prefill=True)
        gateway.end_sequence("m", name)
        await answer(gateway, SequenceStep(gateway.name_sequence(), 0, 1))
        assert [len(seconds) for seconds in gateway.latencies().values()] == [2]

    asyncio.run(story())
