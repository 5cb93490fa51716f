"""Placeto as a placer: it does what its network says, within the rules, and says what it cannot do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgepart.planner.errors import Infeasible, ModelError, NotInstalled
from edgepart.planner.placing.placers.best import find
from edgepart.planner.placing.problem.checker import check
from edgepart.planner.placing.problem.networks import NetworkCard, Networks, NeuralNetwork
from edgepart.planner.placing.problem.schedule import Asked
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.workloads import workload, workloads

Inputs = Mapping[str, NDArray[Any]]
APART = workload([(2.0, 2.0), (2.0, 2.0), (2.0, 2.0)], [])


def network(machines: int, decide: Callable[[Inputs], int], **options: Any) -> Networks:
    """A network that is a function: the machine that it decides on has the largest logit."""
    card = NetworkCard("placeto", machines, ("toys",), 0, "", "2026-01-01", "", options=options)
    return lambda placer: NeuralNetwork(
        card, lambda inputs: [np.eye(1, machines, decide(inputs), dtype=np.float32)]
    )


def asked(networks: Networks | None, objective: str = "latency", **more: Any) -> Asked:
    return Asked(**{"clock": lambda: 0.0, "objective": objective, "networks": networks, **more})


@given(workloads(6, 3, memory=True, partial=True, groups=True), st.randoms(use_true_random=False))
def test_whatever_the_network_says_the_answer_keeps_the_rules(drawn: Workload, random: Any) -> None:
    machines = len(drawn.machines)
    networks = network(machines, lambda inputs: random.randrange(machines))
    for objective in ("latency", "throughput"):
        try:
            found = find(drawn, "placeto", asked(networks, objective))
        except Infeasible:
            with pytest.raises(Infeasible):
                find(drawn, "heft", asked(None, objective))
        else:
            check(drawn, found, objective)


def test_the_best_placement_that_the_pass_visits_is_the_answer() -> None:
    placed = count()
    found = find(APART, "placeto", asked(network(2, lambda inputs: [1, 0, 0][next(placed)])))
    assert found.value_s == 4.0 and found.placement == (1, 0, 0)
    assert "toys" in found.why and "3 groups" in found.why
    everything = find(APART, "placeto", asked(network(2, lambda inputs: 1)))
    assert everything.value_s == 4.0  # On the way from one machine to the other it passes by a good one.


def test_the_card_says_how_many_groups_there_are() -> None:
    chain = workload([(1.0, 2.0)] * 6, [(n, (n + 1,), 1.0) for n in range(5)])
    seen: list[int] = []

    def decide(inputs: Inputs) -> int:
        seen.append(len(inputs["state"]))
        return 0

    assert "2 groups" in find(chain, "placeto", asked(network(2, decide, groups=2))).why
    assert seen == [2, 2]


def test_it_ends_when_the_time_is_over() -> None:
    clock = count()
    found = find(
        APART, "placeto", asked(network(2, lambda inputs: 1), clock=lambda: float(next(clock)), budget_s=1.0)
    )
    assert "it came to 1 in the time" in found.why


def test_what_it_lacks_is_said() -> None:
    with pytest.raises(NotInstalled, match="needs a trained network"):
        find(APART, "placeto", asked(None))
    with pytest.raises(NotInstalled, match="places on 5 machines, and this workload has 2"):
        find(APART, "placeto", asked(network(5, lambda inputs: 0)))
    with pytest.raises(ModelError, match="'many'"):
        find(APART, "placeto", asked(network(2, lambda inputs: 0, groups="many")))
