"""A device's card: who measures which link, when it is told, and ends that do not answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from edgepart.agent.cluster.state.cards import MeasuredDevice, parse_card
from edgepart.agent.cluster.state.events import CardReady
from edgepart.agent.measure import card as measuring
from edgepart.agent.measure.card import CardMeasurement
from edgepart.agent.measure.probe import BORDER_BYTES, ECHO_BYTES
from edgepart.agent.wire.queries import EchoedTogether, EchoTogether
from edgepart.planner.devices.cluster import Device, Link
from edgepart.planner.errors import Unavailable

DEVICE = Device("pi", "box", 1e10, 1e10, 1e9)


class Others:
    """In place of the links: members that echo, or do not."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.echoes: list[tuple[str, int]] = []
        self.together: list[tuple[str, EchoTogether]] = []
        self.together_s = 1.0
        self.told: asyncio.Queue[MeasuredDevice] = asyncio.Queue()
        self.theirs: dict[str, MeasuredDevice] = {}
        self.starved: set[str] = set()
        self.bytes_per_s = (2e8, 2e8)
        """To the others, and from them."""
        self.one_way: set[str] = set()

    def trip_s(
        self, node: str, nbytes: int, count: int, timeout_s: float, back_bytes: int | None = None
    ) -> float:
        self.echoes.append((node, nbytes))
        if node in self.silent:
            raise Unavailable(f"{node} did not answer")
        slow = 4 if {node, "A"} & self.starved else 1
        there, back = self.bytes_per_s
        back_bytes = nbytes if back_bytes is None else back_bytes
        return slow * (1e-3 + count * (nbytes / there + back_bytes / back))

    async def ask(self, node: str, question: Any, *, timeout_s: float) -> Any:
        self.together.append((node, question))
        await asyncio.sleep(0)
        if node in self.silent:
            raise Unavailable(f"{node} did not answer")
        return EchoedTogether(0, self.together_s), memoryview(b"")

    def ready(self, card: CardReady) -> None:
        self.told.put_nowait(parse_card(card.document))

    async def next(self) -> MeasuredDevice:
        async with asyncio.timeout(20):
            return await self.told.get()

    @property
    def measured(self) -> set[str]:
        return {node for node, _ in self.echoes}


def run(
    work: Callable[[CardMeasurement, Others], Awaitable[None]],
    node: str = "m",
    kept: MeasuredDevice | None = None,
) -> None:
    async def main() -> None:
        others = Others()
        made = CardMeasurement(
            node,
            DEVICE,
            others,
            others,
            others.ready,
            others.theirs.get,
            lambda: others.starved,
            lambda other: other in others.one_way,
            kept,
        )
        task = asyncio.create_task(made.run())
        try:
            await work(made, others)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "FIRST_S", 0.01)
    monkeypatch.setattr(measuring, "RETRY_S", 0.01)
    monkeypatch.setattr(measuring, "QUIET_S", 0.01)
    monkeypatch.setattr(measuring, "PAUSE_S", 0.0)


def test_alone_it_tells_its_card_soon() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        assert await others.next() == MeasuredDevice(DEVICE)
        assert others.echoes == []

    run(work)


def test_a_device_that_was_measured_again_is_told_where_it_has_changed() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        await others.next()
        made.device_measured(replace(DEVICE, flops_per_s=1.01 * DEVICE.flops_per_s))
        quicker = replace(DEVICE, flops_per_s=3 * DEVICE.flops_per_s)
        made.device_measured(replace(quicker, memory_bytes=DEVICE.memory_bytes / 2))
        assert (await others.next()).device == quicker
        assert others.told.empty()

    run(work)


def test_links_that_were_kept_are_told_at_once_and_measured_later(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = (
        MeasuredDevice(DEVICE)
        .with_link("a", Link(1e6, 0.5), Link(5e6, 0.5))
        .with_link("x", Link(1, 1), Link(1, 1))
    )

    now = [0.0]
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def work(made: CardMeasurement, others: Others) -> None:
        made.members(["a"])
        first = await others.next()
        assert first.rates("a") == (1e6, 5e6) and first.links.keys() == {"a"} and not others.echoes
        made.members(["a", "b"])  # Of the second one nothing was kept.
        assert (await others.next()).links["a"] == kept.links["a"] and others.measured == {"b"}
        now[0] = measuring.NEWCOMER_S
        while (await others.next()).links["a"] == kept.links["a"]:
            pass
        assert others.measured == {"a", "b"}

    run(work, kept=kept)


def test_a_newcomer_measures_all_links_before_it_tells() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        made.members(["z", "a"])
        card = await others.next()
        assert card.links.keys() == {"a", "z"}
        assert all(link.bytes_per_s > 0 for link in card.links.values())
        assert others.echoes[0] == ("a", 0)
        assert max(nbytes for _, nbytes in others.echoes) >= 1 << 20

    run(work)


def test_both_directions_of_a_link_are_told_where_they_clearly_differ() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        others.bytes_per_s, others.one_way = (1e8, 1e7), {"a"}
        made.members(["a", "b"])
        card = await others.next()
        there, back = card.rates("a")
        assert there / back == pytest.approx(10, rel=1e-3)
        assert 2 / card.links["b"].bytes_per_s == pytest.approx(1 / there + 1 / back)
        assert card.rates("b") == (card.links["b"].bytes_per_s,) * 2  # It knows no echoes of one way.

    run(work)


def test_directions_that_hardly_differ_count_as_equal() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        others.bytes_per_s, others.one_way = (1e8, 6e7), {"a"}
        made.members(["a"])
        card = await others.next()
        assert card.back_bytes_per_s == {}
        others.one_way = set()
        plain, _ = await made.measure("a")
        assert plain == card.links["a"]

    run(work)


def test_later_on_newcomers_measure_and_of_two_old_ones_the_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "NEWCOMER_S", -1.0)

    async def work(made: CardMeasurement, others: Others) -> None:
        made.members(["z", "a"])
        assert (await others.next()).links.keys() == {"a"}
        await asyncio.sleep(0.1)
        assert others.measured == {"a"}

    run(work)


def test_a_newcomer_is_not_passed_over_if_its_time_ends_while_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, passing_s = [0.0], [0.0]

    def give_back() -> None:
        now[0] += passing_s[0]

    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(measuring, "give_back_all", give_back)
    monkeypatch.setattr(measuring, "RETRY_S", 10.0)

    async def work(made: CardMeasurement, others: Others) -> None:
        made.members(["a"])
        assert (await others.next()).links.keys() == {"a"}
        now[0], passing_s[0] = measuring.NEWCOMER_S, 10.0
        made.members(["a", "c"])
        assert (await others.next()).links.keys() == {"a", "c"}

    run(work)


@pytest.mark.parametrize("told_again", [True, False])
def test_members_that_were_there_before_wait_for_a_newcomers_measurements(
    monkeypatch: pytest.MonkeyPatch, told_again: bool
) -> None:
    now = [0.0]
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(measuring, "RETRY_S", 10.0)

    async def work(made: CardMeasurement, others: Others) -> None:
        made.members(["a"])
        assert (await others.next()).links.keys() == {"a"}
        now[0] = measuring.NEWCOMER_S
        others.echoes.clear()
        made.members(["a", "b"])
        await asyncio.sleep(0.1)
        assert others.echoes == [] and others.together == []
        others.theirs["b"] = MeasuredDevice(DEVICE, {"m": Link(1e8, 1e-3)})
        found = (await others.next()).together
        assert found is not None and found.nodes == {"a", "b", "m"}
        assert ("b", 0) not in others.echoes
        made.members(["a", "b", "c"])
        await asyncio.sleep(0.1)
        assert others.measured == {"a"}  # in the ring
        now[0] += 10.0  # It has not measured its links in that time.
        if told_again:
            made.members(["a", "b", "c"])
        assert (await others.next()).links.keys() == {"a", "c"}

    run(work)


@pytest.mark.parametrize(("echo_s", "large"), [(0.001, 5), (0.3, 2)])
def test_a_slow_link_is_measured_with_fewer_echoes(
    monkeypatch: pytest.MonkeyPatch, echo_s: float, large: int
) -> None:
    now = [0.0]
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def work(made: CardMeasurement, others: Others) -> None:
        trip_s = others.trip_s

        def pass_time(node: str, nbytes: int, *rest: Any) -> float:
            now[0] += echo_s if nbytes else 0.0
            return trip_s(node, nbytes, *rest)

        monkeypatch.setattr(others, "trip_s", pass_time)
        others.one_way = {"a"}
        link, _ = await made.measure("a")
        counts = Counter(nbytes for _, nbytes in others.echoes)
        assert counts[ECHO_BYTES] == large
        at_once = measuring.LARGE_ECHOES_AT_ONCE  # One after the other, as these others echo them.
        assert link.bytes_per_s == pytest.approx(2e8 * (at_once + 1) / 2 / at_once)

    run(work)


def test_what_the_other_end_has_measured_is_not_measured_again() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        others.theirs["a"] = MeasuredDevice(DEVICE, {"A": Link(1e8, 1e-3)})
        others.theirs["b"] = MeasuredDevice(DEVICE, {"x": Link(1e8, 1e-3)})
        made.members(["a", "b"])
        assert (await others.next()).links.keys() == {"b"}
        assert others.measured == {"b"}

    run(work, "A")


def test_who_does_not_answer_is_tried_again_and_holds_up_nobody() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        others.silent = {"a"}
        made.members(["a", "b"])
        assert (await others.next()).links.keys() == {"b"}
        others.silent = set()
        assert (await others.next()).links.keys() == {"a", "b"}

    run(work, "A")


@pytest.mark.parametrize("end", ["a", "A"])
def test_a_link_that_was_measured_while_an_end_was_starved_is_measured_anew(end: str) -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        others.starved = {end}
        made.members(["a", "b"])
        hasty = (await others.next()).links
        assert hasty.keys() == {"a", "b"}
        trips = len(others.echoes)
        await asyncio.sleep(0.1)
        assert len(others.echoes) == trips  # not while it is
        others.starved = set()
        links = (await others.next()).links
        assert links["a"].bytes_per_s > 3 * hasty["a"].bytes_per_s
        assert (links["b"] == hasty["b"]) == (end == "a")
        trips = len(others.echoes)
        await asyncio.sleep(0.1)
        assert len(others.echoes) == trips  # once

    run(work, "A")


def test_who_leaves_leaves_the_card() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        made.members(["a", "b"])
        assert (await others.next()).links.keys() == {"a", "b"}
        made.members(["b"])
        assert (await others.next()).links.keys() == {"b"}

    run(work, "A")


def test_the_largest_has_all_echo_at_once_and_tells_what_came_of_it() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        made.members(["a", "b"])
        assert (await others.next()).together is None
        found = (await others.next()).together
        assert found is not None
        assert found.nodes == {"a", "b", "m"}
        counts = {question.nbytes: question.count for _, question in others.together}
        (times,) = {question.times for _, question in others.together if question.nbytes == 0}
        assert counts.keys() == {0, BORDER_BYTES}
        rate = 2 * BORDER_BYTES * counts[BORDER_BYTES] * 3 / others.together_s
        assert found.bytes_per_s == pytest.approx(rate)
        assert found.message_s == pytest.approx(others.together_s / (2 * times))
        assert {(node, question.node) for node, question in others.together} == {("a", "b"), ("b", "m")}
        assert ("a", BORDER_BYTES) in others.echoes  # its own part: the ring goes round

    run(work)


def test_two_are_no_crowd_and_another_is_larger() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        made.members(["a"])
        await others.next()
        made.members(["a", "z"])
        await others.next()
        await asyncio.sleep(0.1)
        assert others.together == []

    run(work)


def test_a_crowd_that_one_does_not_join_is_tried_again() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        made.members(["a", "b"])
        others.silent = {"b"}
        assert (await others.next()).links.keys() == {"a"}
        while not others.together:
            await asyncio.sleep(0.01)
        others.silent = set()
        while (card := await others.next()).together is None:
            assert card.links.keys() <= {"a", "b"}

    run(work)


@pytest.mark.parametrize(
    "question",
    [
        EchoTogether(5, "a", 1 << 30, 1, 1),
        EchoTogether(5, "a", 1, 1 << 20, 1),
        EchoTogether(5, "a", 1, 1, 1 << 20),
        EchoTogether(5, "a", -1, 1, 1),
        EchoTogether(5, "a", 1, 0, 1),
        EchoTogether(5, "a", 1, -1, -1),
    ],
)
def test_nobody_can_make_an_agent_send_without_end(question: EchoTogether) -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        answer = await made.answer(question)
        assert answer.ticket == 5
        assert "not what an agent sends" in answer.error
        assert others.echoes == []

    run(work)


def test_who_cannot_reach_the_next_one_says_so() -> None:
    async def work(made: CardMeasurement, others: Others) -> None:
        others.silent = {"a"}
        assert "a did not answer" in (await made.answer(EchoTogether(5, "a", 1, 1, 1))).error
        assert (await made.answer(EchoTogether(5, "b", 1, 1, 3))).seconds > 0

    run(work)
