"""Laws of simulated time, and a plain twin that agrees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.plans.plan import GATEWAY, Send
from edgepart.planner.plans.timeline import Compute, TimedSchedule, critical_path
from edgepart.planner.simulation.latency import run_schedule
from edgepart.planner.simulation.network import local_transfer_s
from edgepart.planner.simulation.throughput import run_requests, simulate_stream
from tests.planner.simulation.plain_simulation import Twin
from tests.planner.simulation.random_schedules import a_chain, a_cluster, a_schedule, a_star

SEEDS = st.integers(0, 2**32)
COUNTS = st.integers(2, 5)


@given(SEEDS, COUNTS)
@settings(max_examples=150)
def test_one_request_takes_what_the_plain_twin_says(seed: int, count: int) -> None:
    chance = Random(seed)
    cluster, schedule = a_cluster(chance, count), a_schedule(chance, count)
    found = run_schedule(schedule, cluster, "d0")
    twin = Twin(schedule, cluster, "d0").run()
    expected = [twin.arrived[0, number] for number in range(len(schedule.messages))]
    assert found.arrivals_s == pytest.approx(expected)
    assert found.latency_s == pytest.approx(twin.answered[0])


@given(SEEDS, st.integers(2, 4), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=60)
def test_many_requests_take_what_the_plain_twin_says(
    seed: int, devices: int, count: int, flying: int
) -> None:
    chance = Random(seed)
    cluster, schedule = a_cluster(chance, devices), a_schedule(chance, devices)
    found = run_requests(schedule, cluster, "d0", count, flying)
    twin = Twin(schedule, cluster, "d0", count, flying).run()
    assume(not twin.tied)
    assert found.answers_s == pytest.approx(sorted(twin.answered.values()))


@given(SEEDS, COUNTS)
@settings(max_examples=100)
def test_nothing_is_faster_than_its_longest_way_or_its_busiest_part(seed: int, count: int) -> None:
    chance = Random(seed)
    cluster, schedule = a_cluster(chance, count), a_schedule(chance, count)
    found = run_schedule(schedule, cluster, "d0")
    least = 1 - 1e-9
    assert found.latency_s >= least * longest_way(schedule, partial(alone_s, schedule, cluster))
    assert found.latency_s >= least * max(found.loads_s.values())
    assert found.latency_s == pytest.approx(
        sum(leg.seconds for leg in critical_path(schedule, found.arrivals_s))
    )
    assert found == run_schedule(schedule, cluster, "d0")


@given(SEEDS, COUNTS, st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=60)
def test_many_requests_need_the_busiest_part_as_often(
    seed: int, count: int, requests: int, flying: int
) -> None:
    chance = Random(seed)
    cluster, schedule = a_cluster(chance, count), a_schedule(chance, count)
    one = run_schedule(schedule, cluster, "d0")
    many = run_requests(schedule, cluster, "d0", requests, flying)
    assert many.answers_s[-1] >= (1 - 1e-9) * requests / one.most_per_s
    assert many.answers_s[0] >= (1 - 1e-9) * longest_way(schedule, partial(alone_s, schedule, cluster))
    assert max(many.most_present.values()) <= min(flying, requests)
    assert simulate_stream(one, cluster, "d0", flying).throughput_per_s <= one.most_per_s


@given(SEEDS, COUNTS, st.floats(1, 20), st.booleans())
@settings(max_examples=150)
def test_more_bandwidth_makes_no_star_or_chain_slower(
    seed: int, count: int, times: float, chain: bool
) -> None:
    chance = Random(seed)
    cluster, schedule = a_cluster(chance, count), (a_chain if chain else a_star)(chance, count)
    before = run_schedule(schedule, cluster, "d0").latency_s
    after = run_schedule(schedule, cluster.faster(times), "d0").latency_s
    assert after <= before * (1 + 1e-9)


def longest_way(schedule: TimedSchedule, message_s: Callable[[int], float]) -> float:
    """Seconds to the last output, if no message ever waited for another one."""
    arrived = {n: message_s(n) for n, message in enumerate(schedule.messages) if message.source == GATEWAY}
    local = dict.fromkeys(schedule.steps, 0.0)
    at = dict.fromkeys(schedule.steps, 0)
    while len(arrived) < len(schedule.messages):
        for device, steps in schedule.steps.items():
            while at[device] < len(steps):
                step = steps[at[device]]
                if isinstance(step, Compute):
                    local[device] += step.seconds
                elif isinstance(step, Send):
                    arrived[step.transfer] = local[device] + message_s(step.transfer)
                elif step.transfer not in arrived:
                    break
                else:
                    local[device] = max(local[device], arrived[step.transfer])
                at[device] += 1
    return max(arrived[n] for n, message in enumerate(schedule.messages) if message.target == GATEWAY)


def alone_s(schedule: TimedSchedule, cluster: Cluster, number: int) -> float:
    """Seconds of a message on idle links."""
    message = schedule.messages[number]
    source, target = message.source or "d0", message.target or "d0"
    if source == target:
        return local_transfer_s(message.nbytes)
    link = cluster.link(source, target)
    return 2 * link.message_s + link.latency_s + message.nbytes / link.bytes_per_s
