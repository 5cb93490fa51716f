"""Links with two directions: plans send what is big the quick way, and two equal directions are one link."""

from __future__ import annotations

import pytest

from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.plan import Plan
from edgepart.planner.strategies.registry import strategies
from edgepart.planner.vocabulary import GUIDED
from tests.planner.small_models import residual

HOME, FAR = Device("home", "slow", 1e8, 1e9, 1e9), Device("far", "quick", 1e10, 1e10, 1e9)
QUICK, SLOW = Link(1e8, 1e-4), Link(1e5, 1e-4)
MODEL = load_graph(residual(48))
"""A request of 27 kB, an answer of 40 bytes."""


def planned(links: dict[tuple[str, str], Link], strategy: str = "auto") -> tuple[Plan, float]:
    plan, simulation, _ = choose_plan(Problem(MODEL, Cluster((HOME, FAR), links), "home"), strategy)
    return plan, simulation.latency_s


@pytest.mark.parametrize("strategy", ["auto", "single"])
def test_the_request_goes_away_where_it_goes_quickly(strategy: str) -> None:
    away, away_s = planned({("home", "far"): QUICK, ("far", "home"): SLOW}, strategy)
    here, here_s = planned({("home", "far"): SLOW, ("far", "home"): QUICK}, strategy)
    assert {name for name, program in away.programs.items() if program.segments} == {"far"}
    assert {name for name, program in here.programs.items() if program.segments} == {"home"}
    assert away_s < here_s / 5
    assert planned({("home", "far"): SLOW}, strategy)[1] == pytest.approx(here_s)


@pytest.mark.parametrize("strategy", sorted(set(strategies()) - {"auto", "moirai", "m-sct", "getf", *GUIDED}))
@pytest.mark.parametrize("link", [QUICK, SLOW])
def test_two_equal_directions_are_one_link(strategy: str, link: Link) -> None:
    one = planned({("home", "far"): link}, strategy)
    assert planned({("home", "far"): link, ("far", "home"): link}, strategy) == one
    assert planned({("far", "home"): link}, strategy) == one
