"""Steps through a gateway and three executors: each sequence has a home among the replicas, and what devices lose of it is
made again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from edgepart.agent.serving.request_state import (
    Abandon,
    Activated,
    AttemptFailed,
    DeviceFound,
    DeviceLost,
    Effect,
    Fail,
    ReplicaSide,
    Requests,
    RequestWindow,
    Start,
    Submitted,
)
from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.serving.sequences import Sequences
from edgepart.agent.wire.inference import SequenceStep
from edgepart.planner.errors import StateLost
from edgepart.planner.plans.plan import KeptState, Plan, Replica, ValueInfo
from tests.agent.execution.stateful import after, program, transfers_of
from tests.agent.serving.test_requester import E1, E2, Cluster, in_cluster

NUMBERS = {"a": (0, 1, 4), "c": (6, 7, 10)}


def plan_of(*devices: str) -> Plan:
    """Each device answers all alone; with several, they are replicas."""
    transfers = tuple(one for name in devices for one in transfers_of(name, *NUMBERS[name]))
    programs = {name: program(9, name, *NUMBERS[name]) for name in devices}
    infos = {name: ValueInfo(name, "float", (2,)) for name in ("x", "z", "sn", "s")}
    replicas = tuple(Replica((name,), 0.1, 0.1) for name in devices) if len(devices) > 1 else ()
    return Plan(
        "0" * 64,
        "by hand",
        programs,
        transfers,
        (infos["x"], infos["z"]),
        (infos["sn"],),
        replicas=replicas,
        states=(KeptState(infos["s"], "sn"),),
    )


class Client:
    """What one client asks of a sequence, and has to hear."""

    def __init__(self, sequences: Sequences, name: str) -> None:
        self.sequences, self.name = sequences, name
        self.numbers: list[int] = []

    async def ask(self, number: int, *, end: bool = False) -> AnswerInfo:
        start = not self.numbers
        self.numbers.append(number)
        inputs = {name: np.full(2, number, np.float32) for name in "xz"}
        found, info = await self.sequences.infer("m", self.name, inputs, 20.0, start=start, end=end)
        answer: Any = found["sn"]
        assert answer.tolist() == [after(self.numbers)] * 2
        return info


def with_clients(story: Callable[[Cluster, list[Client]], Awaitable[None]], *devices: str) -> None:
    async def live(cluster: Cluster) -> None:
        gateway = cluster.gateway
        cluster.install(E1, plan_of(*devices))
        sequences = Sequences(gateway.infer, gateway.name_sequence, gateway.end_sequence, gateway.serving)
        await story(cluster, [Client(sequences, name) for name in "pqrs"])

    in_cluster(live)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_devices_lose_the_answers_are_those_of_an_undisturbed_run(seed: int) -> None:
    async def story(cluster: Cluster, clients: list[Client]) -> None:
        chance = Random(seed)

        async def go_on(client: Client) -> None:
            for _ in range(12):
                await client.ask(chance.randrange(4))
                if chance.random() < 0.3:
                    for name in ("node-a", "node-c"):
                        cluster.at[name]._sequences._kept.clear()

        asking = [asyncio.create_task(go_on(client)) for client in clients]
        await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        cluster.kill("node-c")
        cluster.install(E2, plan_of("a"))
        cluster.at["node-a"].retire("m", E1)
        await asyncio.gather(*asking)
        for client in clients:
            await client.ask(1)

    with_clients(story, "a", "c")


def test_a_replica_keeps_its_sequences_and_the_other_takes_them_over_when_it_dies() -> None:
    async def story(cluster: Cluster, clients: list[Client]) -> None:
        for number in range(3):
            for client in clients:
                await client.ask(number)
        kept = [cluster.at[node].count_sequences()[0] for node in ("node-a", "node-b", "node-c")]
        assert sum(kept) == len(clients) and kept[1] == 0
        assert clients[0].sequences.replays == 0
        cluster.kill("node-c")
        for client in clients:
            await client.ask(5)
        assert cluster.at["node-a"].count_sequences()[0] == len(clients)
        assert clients[0].sequences.replays == kept[2]

    with_clients(story, "a", "c")


def test_a_sequence_that_ends_is_kept_nowhere() -> None:
    async def story(cluster: Cluster, clients: list[Client]) -> None:
        executor = cluster.at["node-a"]
        for client in clients:
            await client.ask(1)
            await client.ask(2, end=True)
        await asyncio.to_thread(executor.stop)  # It is done with everything.
        assert executor.count_sequences() == (0, 0, 0)

    with_clients(story, "a")


def test_a_step_whose_states_are_lost_is_not_tried_alone() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.install(E1, plan_of("a", "c"))
        step = SequenceStep(cluster.gateway.name_sequence(), 3, 4)
        inputs = {name: np.zeros(2, np.float32) for name in "xz"}
        with pytest.raises(StateLost, match="not kept here"):
            await cluster.gateway.infer("m", inputs, step=step)
        assert cluster.gateway.counts() == {"m": (0, 0)}

    in_cluster(story)


# Where steps go


def replicas(count: int) -> Activated:
    sides = (
        ReplicaSide(frozenset("abcdefgh"[n]), frozenset({n}), Replica((), 1.0, 1.0)) for n in range(count)
    )
    return Activated("m", E1, tuple(sides))


def step(number: int, sequence: str) -> Submitted:
    return Submitted(number, "m", 100.0, home=sequence)


def started(effects: list[Effect]) -> list[int]:
    return [effect.side for effect in effects if isinstance(effect, Start)]


def home_of(requests: Requests, number: int, sequence: str) -> int:
    (side,) = started(requests.handle(step(number, sequence), 0.0))
    return side


def test_a_lost_state_ends_the_request_and_no_replica_is_tried() -> None:
    requests = Requests()
    requests.handle(replicas(2), 0.0)
    (start,) = requests.handle(step(1, "p"), 0.0)
    assert isinstance(start, Start)
    lost = AttemptFailed(start.attempt, True, "not kept here", lost_state=True)
    assert requests.handle(lost, 0.0) == [
        Abandon(start.attempt, "m", E1, start.side),
        Fail(1, "not kept here", "state"),
    ]
    assert requests.counts() == {"m": (0, 0)}


def test_all_steps_of_a_sequence_go_to_its_home_however_busy_that_is() -> None:
    requests = Requests(RequestWindow(in_flight=99))
    requests.handle(replicas(3), 0.0)
    homes = {name: home_of(requests, n, name) for n, name in enumerate("pqrstuvwxyz")}
    assert set(homes.values()) == {0, 1, 2}
    for number, name in enumerate(homes, 100):
        assert home_of(requests, number, name) == homes[name]


@pytest.mark.parametrize(("paces", "expected"), [((1.0, 1.0), [4, 4]), ((1.0, 3.0), [6, 2])])
def test_sequences_are_spread_by_the_pace_of_replicas(paces: tuple[float, ...], expected: list[int]) -> None:
    requests = Requests(RequestWindow(in_flight=99))
    sides = (
        ReplicaSide(frozenset("ab"[n]), frozenset({n}), Replica((), pace, pace))
        for n, pace in enumerate(paces)
    )
    requests.handle(Activated("m", E1, tuple(sides)), 0.0)
    homes = [home_of(requests, n, name) for n, name in enumerate("pqrstuvw")]
    assert [homes.count(side) for side in range(2)] == expected


def test_a_new_plan_spreads_them_anew() -> None:
    requests = Requests(RequestWindow(in_flight=99))
    requests.handle(replicas(1), 0.0)
    assert {home_of(requests, n, name) for n, name in enumerate("pq")} == {0}
    requests.handle(replace(replicas(2), epoch=E2), 0.0)
    assert {home_of(requests, n, name) for n, name in enumerate("pq", 9)} == {0, 1}


def test_a_sequence_whose_home_is_lost_goes_elsewhere_and_stays_there() -> None:
    requests = Requests(RequestWindow(in_flight=99))
    requests.handle(replicas(3), 0.0)
    home = home_of(requests, 1, "p")
    (start,) = started(requests.handle(DeviceLost("abc"[home]), 0.0))
    assert start != home
    assert home_of(requests, 2, "p") == start
    requests.handle(DeviceFound("abc"[home]), 0.0)
    assert home_of(requests, 3, "p") == start
