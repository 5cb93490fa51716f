"""Engines: stages are divided where it pays, the answers stay the same, and a device without engines is planned as ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from benchmarks.models import light
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepart.agent.verify.local_run import LocalRun
from edgepart.planner.access import accesses
from edgepart.planner.cost.cost import Cost
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.devices.engine import Engine
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering import engines
from edgepart.planner.lowering.engines import choose_engines
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.stateful import load_with_states
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import Plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.search.study import Study
from tests.planner.model.test_stateful import grouped
from tests.planner.random_plans import inputs_of, models, problem_of, strategies_for
from tests.planner.small_models import convolution

QUICK = settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
CONVOLUTIONS = Engine("npu", "FakeExecutionProvider", {"conv": 4e9, "pointwise": 4e9}, segment_s=1e-5)
FAMILIES = ("conv", "pointwise", "depthwise", "gemm", "move", "reduce", "pool", "attention")
KINDS = ("elementwise", "reduce", "pool", "softmax", "norm", "move", "transpose", "lrn")
EVERYTHING = replace(CONVOLUTIONS, families=dict.fromkeys(FAMILIES, 4e9), moves=dict.fromkeys(KINDS, 4e9))


def problem(graph: Graph, *engines: Engine, count: int = 1, dtype: str = "float32") -> Problem:
    boxes = tuple(Device(f"d{n}", "k", 1e9, 1e9, 8e9, engines=engines) for n in range(count))
    return Problem(graph, Cluster(boxes), "d0", transfer_dtype=dtype)


def planned(graph: Graph, *engines: Engine, dtype: str = "float32", strategy: str = "single") -> Plan:
    plan = choose_plan(problem(graph, *engines, dtype=dtype), strategy, digests={})[0]
    return check_plan(plan, graph)


def engines_of(plan: Plan) -> list[str]:
    return [segment.engine for program in plan.programs.values() for segment in program.segments]


@pytest.fixture(scope="module")
def squeezenet() -> Graph:
    return load_graph(light("squeezenet"))


steps = st.lists(
    st.tuples(st.floats(0, 9), st.none() | st.floats(0, 9), st.none() | st.floats(0, 9)),
    min_size=1,
    max_size=6,
)


@given(steps, st.floats(0, 5))
def test_the_engines_chosen_are_the_best_of_all_combinations(
    rows: list[tuple[float, float | None, float | None]], switch: float
) -> None:
    names = ("", "npu", "gpu")
    run_s = [{n: s for n, s in zip(names, row, strict=True) if s is not None} for row in rows]

    def switch_s(n: int, last: str, engine: str) -> float:
        return switch * (n + len(last + engine))

    def total_s(chosen: tuple[str, ...]) -> float:
        switches = (n for n in range(1, len(rows)) if chosen[n] != chosen[n - 1])
        return sum(run_s[n][e] for n, e in enumerate(chosen)) + sum(
            switch_s(n, chosen[n - 1], chosen[n]) for n in switches
        )

    least, chosen = choose_engines(run_s, switch_s)
    assert least == pytest.approx(min(total_s(each) for each in product(*run_s)))
    assert least == pytest.approx(total_s(tuple(chosen)))


@QUICK
@given(st.data())
def test_a_plan_with_engines_gives_the_answers_of_one_without(data: st.DataObject) -> None:
    graph = load_graph(data.draw(models()).SerializeToString())
    plain = problem_of(graph)
    strategy = data.draw(strategies_for(graph))
    engine = data.draw(st.sampled_from([CONVOLUTIONS, EVERYTHING, replace(EVERYTHING, segment_s=0.0)]))
    having = tuple(
        replace(device, engines=(engine,)) if data.draw(st.booleans()) else device
        for device in plain.cluster.devices
    )
    mixed = replace(plain, cluster=replace(plain.cluster, devices=having))
    inputs = inputs_of(graph)
    expected, found = (
        LocalRun(check_plan(made, graph), graph).run(inputs)
        for made in (
            make_plan(one, strategy, model_digest="m", cost=Cost(one.cluster, graph))
            for one in (plain, mixed)
        )
    )
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4 * np.abs(value).max(initial=1e-6))


def test_convolutions_run_on_an_engine_that_computes_nothing_else(squeezenet: Graph) -> None:
    alone, plan = planned(squeezenet), planned(squeezenet, CONVOLUTIONS)
    used = engines_of(plan)
    assert {"", "npu"} == set(used), "what the engine lacks is computed by the CPU"
    assert plan.predicted_latency_s < 0.6 * alone.predicted_latency_s
    by_engine = {
        e: {op for p in plan.programs.values() for s in p.segments if s.engine == e for op in s.operators}
        for e in used
    }
    kinds = {op.name: op.op_type for op in squeezenet.operators}
    assert not {kinds[name] for name in by_engine["npu"]} & {"Softmax", "MaxPool", "Concat"}


def test_plans_are_predicted_no_slower_with_an_engine(squeezenet: Graph) -> None:
    alone = planned(squeezenet).predicted_latency_s
    for factor in (0.1, 1.0, 4.0):
        for start in (0.0, 1e-4, 1.0):
            engine = replace(
                EVERYTHING.slowed(1 / factor), segment_s=start, copy_s=start, copy_bytes_per_s=1e8
            )
            assert planned(squeezenet, engine).predicted_latency_s <= alone * (1 + 1e-9)


@pytest.mark.parametrize(
    "engine",
    [
        EVERYTHING.slowed(8.0),
        replace(EVERYTHING, segment_s=10.0),
        replace(EVERYTHING, copy_s=1.0, copy_bytes_per_s=1e9),
        replace(EVERYTHING, copy_bytes_per_s=1e3),
        replace(EVERYTHING, precision="float16"),
    ],
    ids=["slower", "a dear start", "dear copies", "slow copies", "rounding"],
)
def test_an_engine_that_does_not_pay_or_rounds_changes_nothing(engine: Engine, squeezenet: Graph) -> None:
    plan, alone = planned(squeezenet, engine), planned(squeezenet)
    assert plan.programs == alone.programs and plan.predicted_latency_s == alone.predicted_latency_s


def test_an_engine_that_rounds_is_used_where_rounding_is_allowed(squeezenet: Graph) -> None:
    rounding = replace(EVERYTHING, precision="float16")
    assert "npu" in engines_of(planned(squeezenet, rounding, dtype="float16"))


def test_copies_to_an_engine_and_back_are_counted(squeezenet: Graph) -> None:
    near = planned(squeezenet, EVERYTHING)
    far = planned(squeezenet, replace(EVERYTHING, copy_s=1e-3, copy_bytes_per_s=1e9))
    assert far.predicted_latency_s > near.predicted_latency_s + 2e-3
    assert engines_of(far).count("npu") <= engines_of(near).count("npu")


def test_a_segment_for_which_the_engine_is_refused_runs_on_the_cpu(squeezenet: Graph) -> None:
    plan = planned(squeezenet, CONVOLUTIONS)
    (program,) = plan.programs.values()
    refused = next(segment for segment in program.segments if segment.engine)
    again = planned(squeezenet, replace(CONVOLUTIONS, refused=frozenset({refused.digest})))
    (then,) = again.programs.values()
    assert next(one for one in then.segments if one.digest == refused.digest).engine == ""
    assert (
        sum(one.engine == "npu" for one in then.segments)
        == sum(one.engine == "npu" for one in program.segments) - 1
    )


def test_a_measured_time_is_that_of_its_engine(squeezenet: Graph) -> None:
    task = problem(squeezenet, CONVOLUTIONS)
    plan = choose_plan(task, "single", digests={})[0]
    (program,) = plan.programs.values()
    segment = next(one for one in program.segments if one.engine)
    device = task.cluster.devices[0]
    for timed_as, seconds in ((segment.digest, segment.compute_s), (f"{segment.digest}@npu", 7.0)):
        study = Study(task, {(timed_as, device.pace, device.threads): 7.0})
        found = choose_plan(task, "single", digests={}, study=study)[0].programs["d0"].segments
        assert next(one for one in found if one.digest == segment.digest).compute_s == pytest.approx(seconds)


def test_the_bytes_of_a_plan_say_the_engine_and_only_where_there_is_one(squeezenet: Graph) -> None:
    alone, plan = planned(squeezenet), planned(squeezenet, CONVOLUTIONS)
    assert b"engine" not in plan_to_bytes(alone)
    assert plan_from_bytes(plan_to_bytes(plan)) == plan and plan_from_bytes(plan_to_bytes(alone)) == alone


def test_an_outline_is_the_plan_that_is_made(squeezenet: Graph) -> None:
    task = problem(squeezenet, CONVOLUTIONS, count=3)
    study = Study(task)
    for name in ("single", "bbgrap", "pipeline"):
        plan, simulation, strategy = choose_plan(task, name, digests={}, study=study)
        again = Study(task)  # The first one has a forecast of the strategy, which is the plan's own.
        assert again.scorer.outline(strategy).latency_s == pytest.approx(simulation.latency_s)
        assert "npu" in engines_of(check_plan(plan, squeezenet))


def test_a_start_is_counted_for_the_engine_that_begins() -> None:
    graph = load_graph(convolution(40_000, 3))
    alone_s = planned(graph).predicted_latency_s
    dear = replace(CONVOLUTIONS, segment_s=alone_s)
    assert engines_of(planned(graph, CONVOLUTIONS)) == ["npu"]
    assert engines_of(planned(graph, dear)) == [""]


def test_what_is_written_in_place_stays_on_the_cpu() -> None:
    graph, _ = load_with_states(grouped(), {})
    assert graph.in_place
    task = problem(graph, replace(EVERYTHING, families=dict.fromkeys(FAMILIES, 1e15), segment_s=0.0))
    cost, (op,) = Cost(task.cluster, graph), graph.operators
    outputs = {n: graph.region_of(name) for n, name in enumerate(op.outputs)}
    assert cost.compute_s(op, accesses(graph)[op.name], outputs, "d0", "npu") < float("inf")
    assert engines_of(choose_plan(task, "single", digests={})[0]) == [""]


def test_an_engine_that_starts_quickly_is_chosen_before_one_that_computes_more_quickly() -> None:
    graph = load_graph(convolution(40_000, 3))
    alone_s = planned(graph).predicted_latency_s
    dear = replace(CONVOLUTIONS.slowed(0.1), name="dear", segment_s=alone_s)
    assert engines_of(planned(graph, dear, CONVOLUTIONS)) == ["npu"]


@pytest.mark.parametrize(("gain", "used"), [(1.15, {""}), (1.5, {"", "npu"})])
def test_a_stage_is_divided_only_where_that_pays_clearly(
    gain: float, used: set[str], squeezenet: Graph
) -> None:
    free = replace(CONVOLUTIONS, families=dict.fromkeys(("conv", "pointwise"), 1e9 * gain), segment_s=0.0)
    assert set(engines_of(planned(squeezenet, free))) == used


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_an_engine_computes_what_fits_into_its_own_memory(share: float, squeezenet: Graph) -> None:
    (alone,) = planned(squeezenet).programs["d0"].segments
    total = sum(constant.nbytes for constant in squeezenet.constants.values())
    memory = share * total + alone.workspace_bytes
    quick = replace(EVERYTHING.slowed(0.01), segment_s=0.0, memory_bytes=memory)
    (program,) = planned(squeezenet, quick).programs.values()
    held = sum(ref.nbytes for one in program.segments if one.engine for ref in one.weights)
    assert held <= memory
    assert held >= 0.7 * share * total
    if share == 1.0:
        assert [one.engine for one in program.segments] == ["npu"]


def test_an_engine_that_is_hardly_quicker_than_the_cpu_is_not_used(squeezenet: Graph) -> None:
    alone_s = planned(squeezenet).predicted_latency_s
    gains = []
    for quicker in (1.0, 1.07, 1.3):
        engine = EVERYTHING.slowed(4.0 / quicker)
        tried = planned(squeezenet, replace(engine, untried=True))  # Is given the whole stage.
        gains.append(alone_s / tried.predicted_latency_s)
        used = ["npu"] if gains[-1] > engines.WHOLE_GAIN else [""]
        assert (engines_of(tried), engines_of(planned(squeezenet, engine))) == (["npu"], used)
    assert gains[0] < 1 < gains[1] < engines.WHOLE_GAIN < gains[2]


def test_an_engine_that_was_not_tried_gets_whole_stages_within_a_limit(squeezenet: Graph) -> None:
    slower = EVERYTHING.slowed(4.0 * 1.2)
    assert engines_of(planned(squeezenet, slower)) == [""]
    assert engines_of(planned(squeezenet, replace(slower, untried=True))) == ["npu"]
    assert engines_of(planned(squeezenet, replace(slower.slowed(2.0), untried=True))) == [""]


def test_a_drift_slows_the_engine_and_what_is_calibrated_stays(squeezenet: Graph) -> None:
    (plain,) = planned(squeezenet, EVERYTHING).programs["d0"].segments
    (drifted,) = planned(squeezenet, EVERYTHING.with_drift(0.5)).programs["d0"].segments
    assert (plain.engine, drifted.engine) == ("npu", "npu")
    assert drifted.compute_s < 0.6 * plain.compute_s
    assert drifted.calibrated_s == pytest.approx(plain.calibrated_s, rel=0.1), "but for what is no engine's"
    assert drifted.times_cpu == pytest.approx(plain.times_cpu, rel=0.1)
    (cpu,) = planned(squeezenet).programs["d0"].segments
    assert plain.times_cpu == pytest.approx(plain.calibrated_s / cpu.calibrated_s)
    assert cpu.times_cpu == 0.0
    assert engines_of(planned(squeezenet, EVERYTHING.with_drift(9.0))) == [""]


def test_a_division_that_is_predicted_to_be_slower_is_not_made(
    squeezenet: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose_badly(run_s: Sequence[Mapping[str, float]], switch_s: object) -> tuple[float, list[str]]:
        return 0.0, ["npu" if "npu" in each else "" for each in run_s]

    monkeypatch.setattr(engines, "choose_engines", choose_badly)
    assert "npu" in engines_of(planned(squeezenet, EVERYTHING))
    assert set(engines_of(planned(squeezenet, EVERYTHING.slowed(9.0)))) == {""}
