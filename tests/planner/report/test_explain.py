"""What a plan's `why` says bounds it, and what it says would help, is what happens."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Cluster, Device, Link, Medium
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.check import broken_plan_rules
from edgepart.planner.report.sentences import headline
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.bbgrap import divide_along
from edgepart.planner.strategies.registry import strategies
from edgepart.planner.vocabulary import GUIDED
from tests.planner.small_models import residual

UNGUIDED = [name for name in strategies() if name not in GUIDED]
GRAPH = load_graph(residual(rows=32, channels=16))
FAST = Link(bytes_per_s=1.17e8, latency_s=1e-4)
SLOW = Link(bytes_per_s=2e4, latency_s=1e-3)


def cluster(*flops_per_s: float, link: Link = FAST, memory_bytes: float = 4e9) -> Cluster:
    devices = (Device(f"d{n}", "k", f, f / 4, memory_bytes) for n, f in enumerate(flops_per_s))
    return Cluster(tuple(devices), {}, link)


def why(among: Cluster, strategy: str = "auto", objective: str = "latency", budget_s: float = 10.0) -> str:
    problem = Problem(GRAPH, among, "d0", objective, search_budget_s=budget_s)
    return choose_plan(problem, strategy)[0].why


def test_one_device_is_bound_by_its_computing_and_another_would_help() -> None:
    said = why(cluster(1e7))
    assert "Bottleneck: computing on d0 (100%)." in said
    assert re.search(r"With one more device like d0: \d+ ms \(1\.[4-9]\d*x faster\)\.", said)
    assert "network" not in said


def test_slow_links_keep_a_model_whole_and_more_devices_would_not_help() -> None:
    said = why(cluster(1e9, 1e9, link=Link(1e4, 0.5)))
    assert "Runs whole on d0: every split loses more to its links than it gains." in said
    assert "Neither a network twice as fast nor one more device like d0 would change much." in said


@pytest.mark.parametrize(
    ("link", "strategy", "objective", "pattern"),
    [
        (FAST, "bbgrap", "latency", r"^1\.[6-9]\d?x faster than d0 alone\. Bottleneck: "),
        (
            Link(1e4, 0.5),
            "bbgrap",
            "latency",
            r"^[\d.]+x slower than d0 alone\. Use auto\? Bottleneck: moving data ",
        ),
        (FAST, "replicas", "throughput", r"^(2|1\.9\d?)x as many requests as d0 alone\. Bottleneck: "),
        (
            Link(1e4, 0.5),
            "bbgrap",
            "throughput",
            r"^0\.\d+x as many requests as d0 alone\. Use auto\? Bottleneck: ",
        ),
    ],
)
def test_the_first_line_says_how_it_compares_with_one_device_and_what_to_do(
    link: Link, strategy: str, objective: str, pattern: str
) -> None:
    assert re.search(pattern, headline(why(cluster(1e7, 1e7, link=link), strategy, objective)))


def test_a_plan_that_waits_for_data_names_the_link_and_gains_by_a_faster_one() -> None:
    among = replace(cluster(1e8, 1e8), links={("d0", "d1"): SLOW})
    said = why(among, "bbgrap")
    assert re.search(r"Bottleneck: moving data between d0 and d1 \(\d\d%\)\.", said)
    gained = re.search(r"With a network twice as fast: ([\d.]+) ms", said)
    assert gained
    faster, _, _ = choose_plan(Problem(GRAPH, among.faster(2.0), "d0"), "bbgrap")
    assert float(gained[1]) == pytest.approx(faster.predicted_latency_s * 1e3, rel=0.02)


def test_the_gain_of_one_more_device_is_what_the_same_division_has_there() -> None:
    among = cluster(1e7, 1e7)
    gained = re.search(r"one more device like d0: ([\d.]+) ms", why(among, "bbgrap"))
    assert gained
    study = Study(Problem(GRAPH, among.with_copy_of("d0", "d2"), "d0"))
    axes = (divide_along(study, axis, ("d0", "d1", "d2")) for axis in study.memo.axis_names)
    assert float(gained[1]) == pytest.approx(min(map(study.scorer.score, axes)) * 1e3, rel=0.02)


def test_many_requests_are_bound_by_what_is_busiest() -> None:
    assert "Neither a network twice as fast nor one more device like d0 would change much." in why(
        cluster(1e7, 1e7), "single", "throughput"
    )
    said = why(cluster(1e7), "auto", "throughput")
    assert "Bottleneck: computing on d0 (100% busy with 4 requests in flight)." in said
    assert re.search(r"With one more device like d0: [\d.]+ requests/s \(2x as many\)\.", said)


def test_a_shared_medium_is_named() -> None:
    wifi = Medium("wifi", 2e4, frozenset({"d0", "d1"}))
    said = why(replace(cluster(1e9, 1e9), media=(wifi,)), "bbgrap", "throughput")
    assert "Bottleneck: the medium wifi (100% busy with " in said


def test_memory_that_keeps_a_faster_plan_away_is_named() -> None:
    weights = sum(constant.nbytes for constant in GRAPH.constants.values())
    devices = (Device("d0", "k", 1e7, 1e7, 4e9), Device("d1", "k", 1e8, 1e8, weights / 2))
    said = why(Cluster(tuple(devices), {}, FAST), "single")
    assert re.search(r"With .* MB more memory on d1, a plan of \d+(\.\d+)? ms would fit\.", said)


def test_a_device_may_have_any_name() -> None:
    devices = tuple(
        replace(device, name="one more" + "!" * n) for n, device in enumerate(cluster(1e7, 1e7).devices)
    )
    problem = Problem(GRAPH, Cluster(devices, {}, FAST), "one more")
    assert "With one more device like one more: " in choose_plan(problem)[0].why


def test_what_there_is_no_budget_for_is_left_out() -> None:
    said = why(cluster(1e7), budget_s=0.01)
    assert "one more" not in said and "Bottleneck: " in said


@pytest.mark.parametrize("strategy", UNGUIDED)
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 5])
def test_every_strategys_plan_is_explained(strategy: str, devices: int) -> None:
    among = cluster(*(1e7 * 0.8**n for n in range(devices)))
    assert "Bottleneck: " in why(among, strategy, budget_s=1.0)


@settings(max_examples=25)
@given(
    st.lists(st.floats(1e6, 1e9), min_size=2, max_size=5),
    st.floats(1e4, 1e9),
    st.floats(1e-5, 1e-1),
    st.sampled_from(UNGUIDED),
    st.sampled_from(["latency", "throughput"]),
)
def test_whatever_the_cluster_there_is_a_sound_plan_and_a_reason(
    speeds: list[float], bytes_per_s: float, latency_s: float, strategy: str, objective: str
) -> None:
    among = cluster(*speeds, link=Link(bytes_per_s, latency_s))
    problem = Problem(GRAPH, among, "d0", objective, search_budget_s=0.5)
    plan, _, _ = choose_plan(problem, strategy)
    assert not list(broken_plan_rules(plan))
    assert "Bottleneck: " in plan.why
