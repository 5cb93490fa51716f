"""Request balancing: chooses the replica of a plan that a request goes to. Pure rules, which the gateway
(agent/serving/request_state.py) and the simulator (throughput.py) both use, so that predictions hold.

A request goes to the replica that is expected to answer it first. An idle replica answers after its latency,
and a busy replica after it has answered all its requests, one after another. A replica that is slower than
predicted keeps its requests for longer, and therefore gets fewer requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgepart.planner.plans.plan import Replica


def expected_answer_s(replica: Replica, in_flight: int) -> float:
    """The expected seconds until the replica answers one more request, if it has `in_flight` requests already."""
    return max(replica.latency_s, (in_flight + 1) * replica.between_s)


def choose_replica(
    replicas: Sequence[Replica], in_flight: Sequence[int], among: Iterable[int] | None = None
) -> int:
    """The number of the replica that would answer first; among equals, the replica with fewer requests, then
    the first. `among` holds the numbers of the replicas to choose from (at least one); None stands for all.

    >>> choose_replica([Replica(("a",), 1.0, 1.0), Replica(("b",), 3.0, 3.0)], [1, 0])
    0
    >>> choose_replica([Replica(("a",), 1.0, 1.0), Replica(("b",), 3.0, 3.0)], [3, 0])
    1
    """
    numbers = range(len(replicas)) if among is None else among
    return min(numbers, key=lambda n: (expected_answer_s(replicas[n], in_flight[n]), in_flight[n], n))


def balance_requests(replicas: Sequence[Replica], count: int) -> list[int]:
    """The number of requests that each replica gets if `count` requests arrive and none is answered
    meanwhile. In whatever order requests arrive and are answered, no replica ever has more requests than this
    while at most `count` are in flight."""
    found = [0] * len(replicas)
    for _ in range(count):
        found[choose_replica(replicas, found)] += 1
    return found
