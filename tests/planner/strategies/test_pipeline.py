"""Stages one after another, and many requests in them."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.models import light
from onnx import TensorProto, helper, numpy_helper

from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.figures import format_figure
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.plan import GATEWAY, Receive, Send
from edgepart.planner.plans.timeline import Compute, MessageTimes, TimedSchedule
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import run_schedule, simulate, time_schedule
from edgepart.planner.simulation.throughput import (
    default_in_flight,
    fitting_in_flight,
    run_requests,
    simulate_stream,
)
from edgepart.planner.strategies.pipeline import place_in_stages
from tests.planner.simulation.random_schedules import Steps

FAST = Link(bytes_per_s=1.17e8, latency_s=1e-4)


def cluster(*flops_per_s: float, memory_bytes: float = 4e9) -> Cluster:
    devices = (Device(f"d{n}", "k", f, f / 4, memory_bytes) for n, f in enumerate(flops_per_s))
    return Cluster(tuple(devices), {}, FAST)


def two_stages() -> TimedSchedule:
    return TimedSchedule(
        {
            "d0": [Receive(0), Compute(2.0, "first"), Send(1)],
            "d1": [Receive(1), Compute(3.0, "second"), Send(2)],
        },
        [MessageTimes(GATEWAY, "d0", 0), MessageTimes("d0", "d1", 0), MessageTimes("d1", GATEWAY, 0)],
    )


def test_stages_work_on_different_requests_at_the_same_time() -> None:
    among = cluster(1.0, 1.0)
    one = run_schedule(two_stages(), among, "d0")
    found = simulate_stream(one, among, "d0", 3)
    assert one.latency_s == pytest.approx(5.0, abs=1e-3)
    assert found.throughput_per_s == pytest.approx(1 / 3, rel=1e-3) == pytest.approx(one.most_per_s, rel=1e-3)
    assert found.most_present == {"d0": 3, "d1": 3}  # The second is slower: they wait for it.


def test_one_at_a_time_is_as_fast_as_one() -> None:
    among = cluster(1.0, 1.0)
    one = run_schedule(two_stages(), among, "d0")
    found = run_requests(two_stages(), among, "d0", 4, 1)
    assert found.answers_s == pytest.approx([n * one.latency_s for n in (1, 2, 3, 4)])
    assert found.most_present == {"d0": 1, "d1": 1}


def test_squeezenet_in_stages_answers_almost_as_many_as_its_devices_could() -> None:
    graph = load_graph(light("squeezenet"))
    for speeds in ((1e9, 1e9), (2e9, 1e9, 0.5e9)):
        problem = Problem(graph, cluster(*speeds), "d0", "throughput", search_budget_s=1.0)
        made, _, _ = choose_plan(problem, "pipeline")
        alone, _, _ = choose_plan(problem, "single")
        best, _, _ = choose_plan(problem, "auto")
        times = made.predicted_throughput_per_s / alone.predicted_throughput_per_s
        assert 0.8 * sum(speeds) / speeds[0] < times <= sum(speeds) / speeds[0] * 1.001
        assert best.predicted_throughput_per_s >= made.predicted_throughput_per_s
        assert f"{format_figure(times)}x as many requests as d0 alone" in made.why


def test_one_device_is_no_reason_to_say_that_the_model_has_no_place_to_part_it() -> None:
    graph = load_graph(light("squeezenet"))
    made, _, _ = choose_plan(Problem(graph, cluster(1e9), "d0", "throughput"), "pipeline")
    assert set(made.programs) == {"d0"} and "no place to part" not in made.why


def test_stages_follow_the_devices_memory() -> None:
    graph = load_graph(light("squeezenet"))
    weights = sum(constant.nbytes for constant in graph.constants.values())
    small = Device("d1", "k", 1e9, 1e9, 0.3 * weights)
    among = Cluster((Device("d0", "k", 1e9, 1e9, 4e9), small), {}, FAST)
    (both,) = place_in_stages(Study(Problem(graph, among, "d0", "throughput")))
    study = Study(Problem(graph, among, "d0"))
    assert study.scorer.forecast(both).kept_bytes["d1"] <= 0.3 * weights


def test_so_many_requests_are_in_flight_as_fit() -> None:
    graph = load_graph(light("squeezenet"))
    among = cluster(1e9, 1e9)
    made, _, _ = choose_plan(Problem(graph, among, "d0"), "single")
    found = simulate(made, among, "d0")
    (device,) = made.programs
    each = found.request_bytes[device]
    roomy, tight = {device: 4e9}, {device: found.kept_bytes[device] + 2.5 * each}
    assert fitting_in_flight(found, among, roomy) == default_in_flight(among) == 4
    assert fitting_in_flight(found, among, tight) == 2
    assert fitting_in_flight(found, among, {device: 0.0}) == 1
    many = simulate_stream(found, among, "d0", 2)
    assert many.peak_memory_bytes[device] <= tight[device]
    most = max(found.peak_memory_bytes[device], found.kept_bytes[device] + 2 * each)
    assert many.peak_memory_bytes[device] == most
    assert time_schedule(made).steps.keys() == {device}


def test_long_plans_are_simulated_with_fewer_requests() -> None:
    steps: Steps = {"d0": [Receive(0), *[Compute(1e-3, "x")] * 30_000, Send(1)]}
    schedule = TimedSchedule(steps, [MessageTimes(GATEWAY, "d0", 0), MessageTimes("d0", GATEWAY, 0)])
    found = simulate_stream(run_schedule(schedule, cluster(1.0), "d0"), cluster(1.0), "d0", 16)
    assert len(found.answers_s) <= 4 and found.throughput_per_s == pytest.approx(1 / 30, rel=1e-3)


def test_what_needs_no_device_is_answered_at_once() -> None:
    """A model whose outputs are its inputs."""
    among = cluster(1.0, 1.0)
    all_steps: list[Steps] = [{}, {"d0": [Compute(1.0, "for nobody")]}]
    for steps in all_steps:
        found = run_requests(TimedSchedule(steps, []), among, "d0", 5, 2)
        assert found.answers_s == (0.0,) * 5


def test_a_model_whose_tensors_have_no_shape_before_the_run_is_weighed_as_any_other() -> None:
    """All that stages would send each other counts nothing then."""
    nodes = [
        helper.make_node("Expand", ["x", "n"], ["wide"]),
        helper.make_node("Neg", ["wide"], ["low"]),
        helper.make_node("ReduceSum", ["low", "axis"], ["y"], keepdims=1),
    ]
    takes = [("x", TensorProto.FLOAT, [1]), ("n", TensorProto.INT64, [1])]
    made = helper.make_graph(
        nodes,
        "unknown",
        [helper.make_tensor_value_info(*port) for port in takes],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.array([0]), "axis")],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    plan, *_ = choose_plan(
        Problem(load_graph(model.SerializeToString()), cluster(1e9, 1e9), "d0"), "pipeline", "0" * 64
    )
    assert set(plan.programs) <= {"d0", "d1"}
