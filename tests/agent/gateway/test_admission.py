"""Who may come in: laws of places, and turns with an event loop that nobody waits for."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.gateway.admission import (
    MOST_RETRY_S,
    PLACES_PER_RESERVED,
    AdmissionPlaces,
    LaneQueue,
    LaneTurns,
)
from edgepart.planner.errors import Unavailable

steps = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=300)


@settings(max_examples=100)
@given(steps, st.integers(8, 40))
def test_nobody_takes_all_and_nobody_is_shut_out_by_others(moves: list[tuple[str, bool]], total: int) -> None:
    places, there = AdmissionPlaces(total), Counter[str]()
    for now, (client, comes) in enumerate(moves):
        if comes:
            room = sum(there.values()) < total
            try:
                places.take(client)
            except Unavailable as refusal:
                assert 1.0 <= refusal.retry_after_s <= MOST_RETRY_S
                assert not room or there[client], "a client with nothing is refused while there is room"
                continue
            assert room
            there[client] += 1
        elif there[client]:
            places.leave(client, float(now))
            there[client] -= 1
        assert places.taken == sum(there.values()) <= total
    alone = max(there, key=lambda one: there[one], default="a")
    assert there[alone] <= total - total // PLACES_PER_RESERVED or total < PLACES_PER_RESERVED


def test_half_of_the_places_are_for_whoever_comes_and_the_rest_is_shared() -> None:
    places = AdmissionPlaces(64)
    while True:
        try:
            places.take("greedy")
        except Unavailable:
            break
    assert places.taken == 56
    for _ in range(8):
        places.take("modest")
    with pytest.raises(Unavailable, match="64 requests are in flight"):
        places.check("third")
    for _ in range(8):
        places.leave("greedy", 0.0)
    with pytest.raises(Unavailable, match="your part"):
        places.take("greedy")  # it has more than its part, and others are there
    places.take("third")


def test_when_to_come_again_follows_from_how_fast_places_become_free() -> None:
    places = AdmissionPlaces(100)
    for n in range(100):
        places.take(str(n))
    assert places.retry_after_s == 1.0
    for n in range(40):
        places.leave(str(n), 0.1 * n)
        places.take(str(n))
    assert 5.0 < places.retry_after_s < 10.0


@settings(max_examples=100)
@given(st.lists(st.sampled_from("aaaaaaab"), min_size=2, max_size=60), st.integers(1, 4))
def test_each_of_two_clients_has_a_turn_as_long_as_it_waits(comers: list[str], at_once: int) -> None:
    async def run() -> list[str]:
        turns, served = LaneTurns(at_once), list[str]()

        async def one(client: str) -> None:
            async with turns.turn("lane", client):
                served.append(client)
                await asyncio.sleep(0)

        await asyncio.gather(*(one(client) for client in comers))
        assert turns.waiting == 0 and not turns._lines
        return served

    served = asyncio.run(run())
    assert Counter(served) == Counter(comers)
    # Those that came while others were served stood in line: of these, two clients take turns.
    line = served[at_once:]
    few = min(line.count("a"), line.count("b"))
    assert abs(line[: 2 * few].count("a") - line[: 2 * few].count("b")) <= at_once + 1


def test_whoever_goes_away_while_it_waits_takes_no_turn() -> None:
    async def run() -> None:
        turns, gate, served = LaneTurns(1), asyncio.Event(), list[str]()

        async def one(client: str) -> None:
            async with turns.turn("lane", client):
                served.append(client)
                await gate.wait()

        tasks = {client: asyncio.create_task(one(client)) for client in "abcd"}
        await asyncio.sleep(0)
        assert turns.waiting == 3
        tasks["b"].cancel()
        await asyncio.gather(tasks["b"], return_exceptions=True)
        assert turns.waiting == 2
        gate.set()
        tasks["a"].cancel()  # and at the moment at which the next one's turn begins
        await asyncio.sleep(0)
        tasks["c"].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert served[-1] == "d" and "b" not in served and not turns._lines

    asyncio.run(run())


def test_lanes_do_not_wait_for_each_other() -> None:
    async def run() -> None:
        turns = LaneTurns(1)
        async with turns.turn(("net", (1, 3)), "a"), turns.turn(("net", (2, 3)), "a"):
            assert turns.waiting == 0

    asyncio.run(run())


def test_an_empty_line_has_nobody_next() -> None:
    assert LaneQueue().next() is None and LaneQueue().is_empty
