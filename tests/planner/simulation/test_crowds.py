"""Ways that are held up together, with one book for all, against a plain twin that keeps one for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.plans.plan import GATEWAY, Receive, Send
from edgepart.planner.plans.timeline import Compute, MessageTimes, TimedSchedule
from edgepart.planner.simulation import latency, network, throughput
from edgepart.planner.simulation.fair_share import NEVER
from edgepart.planner.simulation.latency import Simulation, run_schedule
from edgepart.planner.simulation.network import Network
from edgepart.planner.simulation.throughput import run_requests
from tests.planner.simulation.plain_network import PlainNetwork
from tests.planner.simulation.plain_simulation import Twin
from tests.planner.simulation.random_schedules import Steps, a_cluster, a_schedule, names

SEEDS = st.integers(0, 2**32)
CROWDS = st.sampled_from([2, 3, 5, 16])


class Checked(Network):
    """Says what is wrong with its books after every change."""

    def settle(self, now: float) -> None:
        super().settle(now)
        assert self.crowds == sum(one.line is not None for one in self.shared.values())
        for one in self.shared.values():
            wants = sorted((way.alone, n) for way, n in one.carrying.items())
            assert one.line is None or (wants, one.crossings) == (one.wants, sum(n for _, n in wants))
        for way in self.ways:
            if way.key >= 0:
                self.check(min([way.alone, *(one.offered for one, _ in way.shared)]), now, way.code)

    def check(self, rate: float, now: float, code: int) -> None:
        way = self.ways[-1 - code]
        if way.line is None:
            assert way.rate == rate and way.event <= way.finish < NEVER
            return
        assert way.line.offered == rate
        assert way.until >= way.line.served_at(now) * (1 - 1e-9) - 1e-6
        assert (way.finish < NEVER) == (way is way.line.first)


@contextmanager
def using(kind: type[Network], crowd: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "CROWD", crowd)
        patch.setattr(latency, "Network", kind)
        patch.setattr(throughput, "Network", kind)
        yield


def simulated(kind: type[Network], crowd: int, schedule: TimedSchedule, cluster: Cluster) -> Simulation:
    with using(kind, crowd):
        return run_schedule(schedule, cluster, "d0")


def gathered(chance: Random, count: int, rounds: int) -> TimedSchedule:
    """Everybody sends to some hubs at almost the same time, which hand out again."""
    steps: Steps = {name: [] for name in names(count)}
    hubs = names(count)[: chance.randint(1, 3)]
    messages: list[MessageTimes] = []
    for _ in range(rounds):
        for sources, targets in ((steps, hubs), (hubs, steps)):
            came: dict[str, list[int]] = {name: [] for name in steps}
            for source in sources:
                steps[source].append(Compute(chance.uniform(0.0, 1.0), "x"))
                for target in targets:
                    if target != source and chance.random() < 0.8:
                        messages.append(MessageTimes(source, target, chance.randint(0, 1500)))
                        steps[source].append(Send(len(messages) - 1))
                        came[target].append(len(messages) - 1)
            for target, numbers in came.items():
                steps[target] += [Receive(number) for number in numbers]
    messages.append(MessageTimes(hubs[0], GATEWAY, 10))
    steps[hubs[0]].append(Send(len(messages) - 1))
    return TimedSchedule(steps, messages)


@given(SEEDS, st.integers(2, 6), CROWDS)
@settings(max_examples=200)
def test_a_crowd_takes_what_each_alone_would(seed: int, count: int, crowd: int) -> None:
    chance = Random(seed)
    cluster, schedule = a_cluster(chance, count), a_schedule(chance, count)
    found = simulated(Checked, crowd, schedule, cluster)
    assert found.arrivals_s == pytest.approx(
        simulated(PlainNetwork, 0, schedule, cluster).arrivals_s, rel=1e-9
    )


@given(SEEDS, st.integers(8, 24), CROWDS)
@settings(max_examples=60)
def test_hubs_with_many_around_them(seed: int, count: int, crowd: int) -> None:
    chance = Random(seed)
    cluster, schedule = a_cluster(chance, count), gathered(chance, count, 2)
    found, plain = (
        simulated(Checked, crowd, schedule, cluster),
        simulated(PlainNetwork, 0, schedule, cluster),
    )
    assert found.arrivals_s == pytest.approx(plain.arrivals_s, rel=1e-9)
    assert found.departures_s == pytest.approx(plain.departures_s, rel=1e-9)
    assert found.sent_s == pytest.approx(plain.sent_s, rel=1e-9)


@given(SEEDS, st.integers(2, 4), st.integers(1, 5), st.integers(1, 3), CROWDS)
@settings(max_examples=60)
def test_many_requests_in_crowds(seed: int, devices: int, count: int, flying: int, crowd: int) -> None:
    chance = Random(seed)
    cluster, schedule = a_cluster(chance, devices), a_schedule(chance, devices)
    assume(not Twin(schedule, cluster, "d0", count, flying).run().tied)
    with using(Checked, crowd):
        found = run_requests(schedule, cluster, "d0", count, flying)
    with using(PlainNetwork, 0):
        plain = run_requests(schedule, cluster, "d0", count, flying)
    assert found.answers_s == pytest.approx(plain.answers_s, rel=1e-9)
    assert found.most_present == plain.most_present


def test_what_comes_to_a_hub_at_once_is_there_at_once() -> None:
    """A hundred equal messages share a card evenly, and nobody's books are anybody else's."""
    devices = tuple(Device(f"d{n}", "k", 1.0, 1.0, 1e9) for n in range(101))
    among = Cluster(devices, {}, Link(bytes_per_s=1000.0, latency_s=0.5, message_s=0.0))
    messages = [MessageTimes(f"d{n}", "d0", 100 + 100 * (n > 50)) for n in range(1, 101)]
    steps: Steps = {"d0": [Receive(n) for n in range(100)]}
    steps |= {f"d{n}": [Send(n - 1)] for n in range(1, 101)}
    found = run_schedule(TimedSchedule(steps, messages), among, "d0")
    assert found.sent_s == pytest.approx([10.0] * 50 + [15.0] * 50)
    assert len(set(found.sent_s)) == 2
    world = Network(among, [])
    for number, message in enumerate(messages):
        world.start(world.known.way(message.source, message.target), number, message.nbytes, 0.0)
    world.settle(0.0)
    assert (
        world.crowds == 1 and len(world.events) == 2
    )  # Of the first sender, alone for a moment, and of the line.
