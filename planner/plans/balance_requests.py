"""Dealing: which replica of a plan a request goes to. Rules only; the gateway deals by them
(agent/serving/request_state.py), and so does the simulator (throughput.py), so that what is predicted is what happens.

A request goes where it will be done first, as far as is known: a replica that is alone with it takes its latency; one
that has others takes as long as it needs for all of them, one after another. A replica that is slower than predicted
keeps its requests for longer, and so gets fewer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgepart.planner.plans.plan import Replica


def done_s(replica: Replica, in_flight: int) -> float:
    """In how many seconds a request would be done that comes to the `in_flight` ones that are there, about."""
    return max(replica.latency_s, (in_flight + 1) * replica.between_s)


def deal(replicas: Sequence[Replica], in_flight: Sequence[int], among: Iterable[int] | None = None) -> int:
    """The number of the replica that is done first; of equals the one that has fewer requests, then the first one.
    `among` are those that may be taken, one at least; None: all.

    >>> deal([Replica(("a",), 1.0, 1.0), Replica(("b",), 3.0, 3.0)], [1, 0])
    0
    >>> deal([Replica(("a",), 1.0, 1.0), Replica(("b",), 3.0, 3.0)], [3, 0])
    1
    """
    numbers = range(len(replicas)) if among is None else among
    return min(numbers, key=lambda n: (done_s(replicas[n], in_flight[n]), in_flight[n], n))


def dealt(replicas: Sequence[Replica], count: int) -> list[int]:
    """By replica, how many of `count` requests it gets where none is answered meanwhile. However requests come and go,
    no replica ever has more than that while `count` of them are in flight at most."""
    found = [0] * len(replicas)
    for _ in range(count):
        found[deal(replicas, found)] += 1
    return found
