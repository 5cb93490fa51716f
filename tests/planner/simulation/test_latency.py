"""Schedules worked out by hand: what a device, a card and a link do to one request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgepart.planner.devices.cluster import LOCAL, Cluster, Device, Link
from edgepart.planner.errors import InternalError
from edgepart.planner.plans.plan import GATEWAY, Receive, Send
from edgepart.planner.plans.timeline import Compute, CriticalLeg, MessageTimes, TimedSchedule, critical_path
from edgepart.planner.simulation.latency import run_schedule

LINK = Link(bytes_per_s=1000.0, latency_s=0.5, message_s=0.25)
NEAR = 2 * LOCAL.message_s


Steps = dict[str, list[Receive | Compute | Send]]


def cluster(*names: str) -> Cluster:
    return Cluster(tuple(Device(name, "k", 1.0, 1.0, 1e9) for name in names), {}, LINK)


def test_one_device_at_the_gateway() -> None:
    steps: Steps = {"a": [Receive(0), Compute(3.0, "all"), Send(1)]}
    found = run_schedule(
        TimedSchedule(steps, [MessageTimes(GATEWAY, "a", 0), MessageTimes("a", GATEWAY, 0)]),
        cluster("a"),
        "a",
    )
    assert found.latency_s == pytest.approx(3.0 + 2 * NEAR)
    assert found.most_per_s == pytest.approx(1 / 3)
    assert found.compute_s == {"a": 3.0}


def test_a_remote_device_pays_both_ways_and_both_ends() -> None:
    steps: Steps = {"b": [Receive(0), Compute(3.0, "all"), Send(1)]}
    messages = [MessageTimes(GATEWAY, "b", 2000), MessageTimes("b", GATEWAY, 1000)]
    found = run_schedule(TimedSchedule(steps, messages), cluster("a", "b"), "a")
    assert found.arrivals_s[0] == pytest.approx(0.25 + 0.5 + 2.0 + 0.25)
    assert found.latency_s == pytest.approx(3.0 + 3.0 + (0.25 + 0.5 + 1.0 + 0.25))
    assert found.sent_bytes == {"b": 1000} and found.received_bytes == {"b": 2000}
    assert critical_path(found.schedule, found.arrivals_s) == (
        CriticalLeg("transfer", GATEWAY, "b", 3.0),
        CriticalLeg("compute", "b", "b", 3.0),
        CriticalLeg("transfer", "b", GATEWAY, 2.0),
    )


def test_a_card_shares_its_bytes_between_those_it_sends_to() -> None:
    steps: Steps = {
        "a": [Compute(1.0, "x"), Send(0), Send(1), Compute(1.0, "y")],
        "b": [Receive(0)],
        "c": [Receive(1)],
    }
    messages = [MessageTimes("a", "b", 1000), MessageTimes("a", "c", 2000)]
    found = run_schedule(TimedSchedule(steps, messages), cluster("a", "b", "c"), "a")
    assert found.departures_s == (1.0, 1.0)
    # 1250 and 2250 bytes with their fixed cost: both at 500 a second, then the rest of one at 1000.
    assert found.sent_s == pytest.approx((3.5, 4.5))
    assert found.arrivals_s == pytest.approx((4.25, 5.25))
    computing = [(bar.start_s, bar.stop_s) for bar in found.timeline["a"] if bar.kind == "compute"]
    assert computing == [(0.0, 1.0), (1.0, 2.0)]  # Sending does not stop computing.


def test_a_card_shares_its_bytes_between_those_it_receives_from() -> None:
    steps: Steps = {"a": [Send(0)], "b": [Send(1)], "c": [Receive(0), Receive(1), Compute(1.0, "x")]}
    messages = [MessageTimes("a", "c", 1000), MessageTimes("b", "c", 2000)]
    found = run_schedule(TimedSchedule(steps, messages), cluster("a", "b", "c"), "a")
    assert found.arrivals_s == pytest.approx((3.25, 4.25))
    waits = [t for bar in found.timeline["c"] if bar.kind == "wait" for t in (bar.start_s, bar.stop_s)]
    assert waits == pytest.approx([0.0, 3.25, 3.25, 4.25])


def test_a_card_sends_and_receives_at_the_same_time() -> None:
    steps: Steps = {"a": [Send(0), Receive(1)], "b": [Send(1), Receive(0)]}
    messages = [MessageTimes("a", "b", 1000), MessageTimes("b", "a", 1000)]
    found = run_schedule(TimedSchedule(steps, messages), cluster("a", "b"), "a")
    assert found.arrivals_s == pytest.approx((2.0, 2.0))


def test_the_two_directions_of_a_link_may_differ() -> None:
    quick, slow = replace(LINK, message_s=0.0), replace(LINK, bytes_per_s=100.0, message_s=0.0)
    among = replace(cluster("a", "b"), links={("a", "b"): quick, ("b", "a"): slow})
    steps: Steps = {"a": [Send(0), Receive(1)], "b": [Send(1), Receive(0)]}
    messages = [MessageTimes("a", "b", 1000), MessageTimes("b", "a", 1000)]
    found = run_schedule(TimedSchedule(steps, messages), among, "a")
    assert found.arrivals_s == pytest.approx((1.5, 10.5))


def test_a_card_shares_the_rate_of_its_direction() -> None:
    slow = Link(bytes_per_s=100.0, latency_s=0.0, message_s=0.0)
    quick = replace(slow, bytes_per_s=1000.0)
    links = {("a", "b"): slow, ("b", "a"): quick, ("a", "c"): slow, ("c", "a"): quick}
    steps: Steps = {"a": [Send(0), Send(1)], "b": [Receive(0)], "c": [Receive(1)]}
    messages = [MessageTimes("a", "b", 100), MessageTimes("a", "c", 100)]
    found = run_schedule(TimedSchedule(steps, messages), Cluster(cluster("a", "b", "c").devices, links), "a")
    assert found.arrivals_s == pytest.approx((2.0, 2.0))


def test_messages_to_one_device_follow_each_other() -> None:
    steps: Steps = {"a": [Send(1), Send(0)], "b": [Receive(0), Receive(1)]}
    messages = [MessageTimes("a", "b", 1000), MessageTimes("a", "b", 1000)]
    found = run_schedule(TimedSchedule(steps, messages), cluster("a", "b"), "a")
    assert found.departures_s == (1.25, 0.0)
    assert found.arrivals_s == pytest.approx((3.25, 2.0))


def test_what_a_slow_link_cannot_use_is_left_to_the_others() -> None:
    far = Link(bytes_per_s=100.0, latency_s=0.0, message_s=0.0)
    near = Link(bytes_per_s=1000.0, latency_s=0.0, message_s=0.0)
    among = Cluster(cluster("a", "b", "c").devices, {("a", "c"): far}, near)
    steps: Steps = {"a": [Send(0), Send(1)], "b": [Receive(0)], "c": [Receive(1)]}
    found = run_schedule(
        TimedSchedule(steps, [MessageTimes("a", "b", 900), MessageTimes("a", "c", 200)]), among, "a"
    )
    assert found.arrivals_s == pytest.approx((1.0, 2.0))


def test_the_busiest_card_bounds_how_many_requests_there_can_be() -> None:
    steps: Steps = {"a": [Compute(1.0, "x"), Send(0)], "b": [Receive(0), Compute(1.0, "y")]}
    found = run_schedule(TimedSchedule(steps, [MessageTimes("a", "b", 9750)]), cluster("a", "b"), "a")
    assert found.most_per_s == pytest.approx(1 / 10)
    assert found.loads_s["link", "a", "b"] == pytest.approx(10)


def test_waiting_for_what_is_never_sent_is_said() -> None:
    schedule = TimedSchedule({"a": [Receive(0)], "b": []}, [MessageTimes("b", "a", 1)])
    with pytest.raises(InternalError, match=r"does not end.*'a'"):
        run_schedule(schedule, cluster("a", "b"), "a")


def test_many_devices_and_steps_come_to_an_end() -> None:
    names = [f"d{n}" for n in range(50)]
    ring = {n: names[(i + 1) % 50] for i, n in enumerate(names)}
    messages = [MessageTimes(n, ring[n], 10) for _ in range(40) for n in names]
    steps: Steps = {
        n: [
            step
            for turn in range(40)
            for step in (Compute(0.1, "x"), Send(50 * turn + i), Receive(50 * turn + (i - 1) % 50))
        ]
        for i, n in enumerate(names)
    }
    found = run_schedule(TimedSchedule(steps, messages), cluster(*names), "d0")
    each = 0.1 + 0.25 + 0.5 + 0.01 + 0.25
    assert max(found.arrivals_s) == pytest.approx(40 * each)
