"""Drift: how it is found, told and remembered; and that what was measured is counted once."""

from __future__ import annotations

from dataclasses import replace
from math import isclose, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.cluster.state.drift import (
    MAX_DEPLOYMENTS,
    MIN_CALIBRATED_S,
    STEPS_PER_OCTAVE,
    DriftBook,
    compute_drift,
    is_news,
    round_to_step,
)
from edgepart.agent.wire.control import MOST_DRIFT, Drift
from edgepart.planner.cost.cost import Cost
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.devices.cluster_json import cluster_from_json, cluster_to_json
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import Program, Segment

DEVICE = Device("a", "box", 3e9, 2e9, 1e9, 2, families={"conv": 5e9}, moves={"lrn": 1e8}, kernel_s=1e-5)
drifts = st.floats(1 / MOST_DRIFT, MOST_DRIFT).map(round_to_step)
seconds = st.floats(1e-3, 10.0)


def segment(digest: str, calibrated_s: float) -> Segment:
    return Segment(digest, b"", (), (), (), (), 2 * calibrated_s, 0.0, 0, calibrated_s)


def program(*segments: Segment, flops_per_s: float = 0.0) -> Program:
    return Program("a", (), segments, 0, 0, flops_per_s=flops_per_s)


def cost(device: Device, profiles: dict[tuple[str, str, int], float] | None = None) -> Cost:
    graph = Graph("g", (), (), {}, {}, (), {}, 8)
    return Cost(Cluster((device,)), graph, profiles or {})


@given(st.lists(seconds, min_size=1, max_size=9), st.floats(1e-3, 1e3))
def test_all_segments_that_take_so_many_times_as_long_are_a_drift_within_bounds(
    calibrated: list[float], factor: float
) -> None:
    made = [segment(str(n), one) for n, one in enumerate(calibrated)]
    found = compute_drift(program(*made), DEVICE, {one.digest: factor * one.calibrated_s for one in made})
    assert found is not None and isclose(found, min(max(factor, 1 / MOST_DRIFT), MOST_DRIFT))


def test_the_drift_of_an_engine_is_not_that_of_its_device() -> None:
    cpu, engine = segment("cpu", 1.0), replace(segment("engine", 1.0), engine="npu")
    took_s = {cpu.timed_as: 2.0, engine.timed_as: 6.0}
    both = program(cpu, engine)
    assert compute_drift(both, DEVICE, took_s, lambda one: 3.0 if one.engine else 1.0) == 2.0
    assert compute_drift(both, DEVICE, took_s, lambda one: None if one.engine else 1.0) == 2.0
    assert compute_drift(program(engine), DEVICE, took_s, lambda one: None) is None


def test_what_was_not_run_and_too_little_tell_nothing() -> None:
    made = [segment("run", MIN_CALIBRATED_S), segment("not run", 1.0)]
    assert compute_drift(program(*made), DEVICE, {"run": 3 * MIN_CALIBRATED_S}) == pytest.approx(3.0)
    assert compute_drift(program(*made), DEVICE, {"other": 1.0}) is None
    assert compute_drift(program(segment("run", MIN_CALIBRATED_S / 2)), DEVICE, {"run": 1.0}) is None
    assert compute_drift(program(segment("run", 0.0)), DEVICE, {"run": 1.0}) is None


@given(st.floats(1 / MOST_DRIFT, MOST_DRIFT))
def test_a_step_is_near_is_no_news_and_is_told(factor: float) -> None:
    step = round_to_step(factor)
    assert abs(log2(step / factor)) <= 0.5001 / STEPS_PER_OCTAVE
    assert round_to_step(step) == step
    assert not is_news(factor, step)
    assert Drift("net", step).factor == step


@pytest.mark.parametrize("factor", [0.0, -1.0, 17.0, float("nan"), float("inf")])
def test_what_is_no_drift_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="drift"):
        Drift("net", factor)


@given(drifts, drifts)
def test_a_device_that_comes_back_is_what_it_was(there: float, back: float) -> None:
    slow = DEVICE.with_drift(there).with_drift(back)
    direct = DEVICE.with_drift(back)
    assert isclose(slow.flops_per_s, direct.flops_per_s) and isclose(slow.kernel_s, direct.kernel_s)
    assert slow.pace == direct.pace
    assert DEVICE.with_drift(there).with_drift(1.0).pace == DEVICE.pace
    assert DEVICE.with_drift(1.0) is DEVICE


@given(drifts, seconds)
def test_a_drift_stretches_what_was_calibrated_once_and_what_was_measured_never(
    factor: float, took: float
) -> None:
    slow, one = DEVICE.with_drift(factor), segment("d", 0.5)
    made = program(one, flops_per_s=DEVICE.flops_per_s)
    assert isclose(cost(slow).running_s(made, one), factor * cost(DEVICE).running_s(made, one))
    assert isclose(cost(slow).segment_s("a"), factor * cost(DEVICE).segment_s("a"))
    assert isclose(cost(slow).copy_s("a", 1e6), factor * cost(DEVICE).copy_s("a", 1e6))
    known = {("d", slow.pace, 2): took}
    assert cost(slow, known).running_s(made, one) == took


@given(drifts)
def test_a_box_that_was_calibrated_anew_while_it_is_slow_has_not_drifted(factor: float) -> None:
    one = segment("d", 0.5)
    made = program(one, flops_per_s=DEVICE.flops_per_s)
    anew = replace(DEVICE, flops_per_s=DEVICE.flops_per_s / factor)
    found = compute_drift(made, anew, {"d": 0.5 * factor})
    assert found is not None and isclose(found, 1.0)
    assert isclose(cost(anew).running_s(made, one), 0.5 * factor)
    assert isclose(cost(anew.with_drift(2.0)).running_s(made, one), 2 * 0.5 * factor)


@given(st.sampled_from([2.0, 4.0, 1 / 4]), seconds)
def test_what_a_drifting_box_takes_is_no_profile_of_its_twin_nor_of_itself_before(
    factor: float, took: float
) -> None:
    known = {("d", DEVICE.with_drift(factor).pace, 2): took}
    assert cost(DEVICE, known).profiled_s("d", "a") is None


def test_a_drift_is_in_the_document_of_a_cluster_only_where_there_is_one() -> None:
    assert "drift" not in cluster_to_json(Cluster((DEVICE,)))["devices"][0]
    slow = Cluster((DEVICE.with_drift(2.0),))
    assert cluster_from_json(cluster_to_json(slow)) == slow


def test_a_deployment_that_nobody_ran_drifts_as_the_others_of_its_device() -> None:
    book = DriftBook()
    assert book.factor("a", "net") == 1.0
    for name, factor in (("one", 1.0), ("two", 2.0), ("three", 4.0)):
        book.learn("a", Drift(name, factor), 5.0)
    assert book.factor("a", "net") == 2.0
    assert book.factor("b", "net") == 1.0
    book.learn("a", Drift("net", 8.0), 6.0)
    assert (book.factor("a", "net"), book.told_at("a", "net")) == (8.0, 6.0)
    assert Drift("net", 8.0) in book.of("a")
    book.undeployed("net")
    assert book.factor("a", "net") == 2.0
    book.forget("a")
    assert book.factor("a", "net") == 1.0


def test_the_book_is_bounded() -> None:
    book = DriftBook()
    for n in range(1000):
        book.learn("a", Drift(str(n), 2.0), float(n))
    assert len(book.of("a")) == MAX_DEPLOYMENTS
