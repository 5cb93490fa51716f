"""Two members that lose each other while others reach both: which pairs count, and what a cluster makes of it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.cluster.leader.contingency import MIN_CUT_S, LastingCuts
from tests.agent.cluster.simnet import node_id
from tests.agent.cluster.test_cluster_stories import calm

A, B, C = map(node_id, range(1, 4))
PAIRS = [(A, B), (A, C), (B, C)]


@given(st.lists(st.tuples(st.floats(0, 1), st.sets(st.sampled_from(PAIRS))), max_size=20))
def test_a_pair_counts_when_it_was_broken_at_every_look_for_long_enough(
    looks: list[tuple[float, set[tuple[str, str]]]],
) -> None:
    apart, now = LastingCuts(), 0.0
    seen: list[tuple[float, set[tuple[str, str]]]] = []
    for wait_s, broken in looks:
        now += wait_s
        seen.append((now, broken))
        found = apart.look(broken, now)
        for pair in PAIRS:
            whole = [number for number, (_, some) in enumerate(seen) if pair not in some]
            began = (whole[-1] + 1) if whole else 0
            assert (pair in found) == (began < len(seen) and now >= seen[began][0] + MIN_CUT_S)
        waits = {pair for pair in broken if pair not in found}
        assert (apart.wake_at(now) < math.inf) == bool(waits)


def test_a_link_that_stays_cut_is_done_without_by_a_plan_that_is_ready() -> None:
    for seed in range(3):
        net = calm(3, seed)
        net.run(20)  # spare plans are ready
        net.plan_error = lambda order: ("it is busy with something else", False)
        net.cut(B, C)
        net.until(lambda net=net: net.devices(net.boxes[A], "net") in ({A, B}, {A, C}), 6)  # type: ignore[misc]
        net.plan_error = lambda order: ("", False)
        net.run(5)
        assert net.boxes[A].members == {A, B, C}
        net.heal()
        net.until(lambda net=net: net.devices(net.boxes[A], "net") == {A, B, C}, 60)  # type: ignore[misc]


def test_a_link_that_is_back_at_once_moves_nothing() -> None:
    net = calm(3, 4)
    net.run(20)
    before = dict(net.boxes[A].active)
    net.cut(B, C)
    net.run(0.5)
    net.heal()
    net.run(20)
    assert net.boxes[A].active == before
