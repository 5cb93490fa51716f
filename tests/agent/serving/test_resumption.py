"""Resumptions: how far all devices of a plan have the states of a sequence, and what ends the wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from edgepart.agent.serving.resumption import RESUMED_WITHIN_S, Resumptions
from edgepart.agent.wire.inference import Epoch, ResumeSequence, SequenceResumed
from edgepart.planner.errors import Unavailable
from tests.agent.serving.virtual_time import run_virtually

EPOCH = Epoch(2, 1)


class Gateway:
    """A gateway whose plan runs on b and c, and what it sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ResumeSequence]] = []
        self.gone: set[str] = set()
        self.plan: tuple[str, Epoch, frozenset[str]] | None = ("m", EPOCH, frozenset("bc"))
        self.resumptions = Resumptions(self.send, lambda *_: self.plan, lambda _: {"c", "a", "b"})

    def send(self, node: str, message: ResumeSequence, values: tuple[()]) -> None:
        if node in self.gone:
            raise Unavailable(f"no link to {node}")
        self.sent.append((node, message))

    async def asked(self, position: int = 9, revision: int = 3) -> asyncio.Task[int]:
        task = asyncio.create_task(self.resumptions.resume("m", "gate/0/p", revision, position, 0))
        await asyncio.sleep(0)
        return task

    async def answer(
        self, node: str, position: int, epoch: Epoch = EPOCH, sequence: str = "gate/0/p"
    ) -> None:
        self.resumptions.deliver(SequenceResumed("m", epoch, sequence, position), node)
        await asyncio.sleep(0)


def tell(story: Callable[[Gateway], Awaitable[None]]) -> None:
    async def live() -> None:
        await story(Gateway())

    run_virtually(live())


def test_a_sequence_goes_on_where_all_its_devices_have_it() -> None:
    async def story(gateway: Gateway) -> None:
        task = await gateway.asked()
        asked = ResumeSequence("m", EPOCH, "gate/0/p", 3, 9, ("a", "b", "c"))
        assert gateway.sent == [("b", asked), ("c", asked)]
        await gateway.answer("b", 7)
        assert not task.done()
        await gateway.answer("c", 8)
        assert await task == 7

    tell(story)


def test_one_device_that_has_nothing_is_enough_to_read_all_again() -> None:
    async def story(gateway: Gateway) -> None:
        task = await gateway.asked()
        await gateway.answer("b", 0)
        assert await task == 0

    tell(story)


def test_no_device_has_more_than_was_asked_for() -> None:
    async def story(gateway: Gateway) -> None:
        task = await gateway.asked()
        await gateway.answer("b", 12)
        await gateway.answer("c", 10)
        assert await task == 9

    tell(story)


def test_answers_of_others_about_other_plans_and_twice_do_not_count() -> None:
    async def story(gateway: Gateway) -> None:
        task = await gateway.asked()
        await gateway.answer("b", 6)
        await gateway.answer("b", 0)
        await gateway.answer("a", 0)
        await gateway.answer("c", 0, Epoch(1, 1))
        await gateway.answer("c", 0, sequence="gate/0/q")
        assert not task.done()
        await gateway.answer("c", 8)
        assert await task == 6
        await gateway.answer("c", 8)  # Late, and nobody waits for it.

    tell(story)


def test_a_device_that_is_lost_answers_nothing() -> None:
    async def story(gateway: Gateway) -> None:
        task = await gateway.asked()
        gateway.resumptions.lost("c")
        assert await task == 0
        gateway.gone.add("c")
        assert await (await gateway.asked()) == 0

    tell(story)


def test_a_device_that_says_nothing_is_waited_for_only_so_long() -> None:
    async def story(gateway: Gateway) -> None:
        task, began_s = await gateway.asked(), asyncio.get_running_loop().time()
        await gateway.answer("b", 8)
        assert await task == 0
        assert asyncio.get_running_loop().time() - began_s == RESUMED_WITHIN_S

    tell(story)


def test_nothing_is_asked_without_a_plan_or_anything_to_go_on_with() -> None:
    async def story(gateway: Gateway) -> None:
        assert await (await gateway.asked(position=0)) == 0
        assert await (await gateway.asked(revision=0)) == 0
        gateway.plan = None
        assert await (await gateway.asked()) == 0
        assert not gateway.sent

    tell(story)
