"""Lowering keeps the answer: random models under random layouts against one session over the whole model."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.access import accesses
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.errors import InternalError
from edgepart.planner.layout.strategy import Layout, Problem, Strategy, Sync
from edgepart.planner.lowering.lower import lower, make_plan
from edgepart.planner.lowering.schedule import NoCost
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import GATEWAY, Plan
from edgepart.planner.region import Array, Region, span
from tests.planner.random_plans import NAMES, inputs_of, models, problem_of, rows, strategies_for

QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


class Slow(NoCost):
    """Makes every operator cost more than a segment, so that what can be put off is put off."""

    def compute_s(self, op: Any, access: Any, outputs: Any, device: str, engine: str | None = None) -> float:
        return 1.0


def assert_same(found: dict[str, Any], expected: dict[str, Array]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4 * max(1e-6, np.abs(value).max()))


def plan_of(graph: Graph, strategy: Strategy, **options: Any) -> Plan:
    return check_plan(make_plan(problem_of(graph), strategy, model_digest="m", **options), graph)


@QUICK
@given(st.data())
def test_any_layouts_of_any_model_give_the_answer_of_one_session(data: st.DataObject) -> None:
    model = data.draw(models()).SerializeToString()
    graph = load_graph(model)
    strategy = data.draw(strategies_for(graph))
    cost = data.draw(st.sampled_from([NoCost(), Slow()]))
    optimised = data.draw(st.booleans())
    plan = plan_of(graph, strategy, cost=cost, optimised=optimised)
    inputs = inputs_of(graph)
    assert_same(LocalRun(plan, graph).run(inputs), run_alone(model, inputs))


@QUICK
@given(st.data())
def test_no_device_is_sent_the_same_element_twice(data: st.DataObject) -> None:
    graph = load_graph(data.draw(models()).SerializeToString())
    plan = plan_of(graph, data.draw(strategies_for(graph, [Sync.NEEDED])), sketch=True)
    for target in NAMES:
        for name in graph.tensors:
            regions = [
                piece.region
                for transfer in plan.transfers
                if transfer.target == target and transfer.source != GATEWAY
                for piece in transfer.pieces
                if piece.tensor == name
            ]
            for n, region in enumerate(regions):
                assert all(region.intersect(other).is_empty for other in regions[:n]), (target, name)


@QUICK
@given(st.data())
def test_a_sketch_moves_and_computes_what_the_plan_does(data: st.DataObject) -> None:
    graph = load_graph(data.draw(models()).SerializeToString())
    strategy = data.draw(strategies_for(graph))
    plan = plan_of(graph, strategy)
    sketch = plan_of(graph, strategy, sketch=True, accesses=accesses(graph))
    assert sketch.transfers == plan.transfers
    for name, program in plan.programs.items():
        light = sketch.programs[name]
        assert light.steps == program.steps
        assert [s.operators for s in light.segments] == [s.operators for s in program.segments]
        assert [s.inputs for s in light.segments] == [s.inputs for s in program.segments]
        assert not any(s.model for s in light.segments)


@pytest.fixture(scope="module")
def chain() -> Graph:
    return load_graph(chain_model())


def chain_model(channels: int = 4) -> bytes:
    """x -> Conv 3x3 -> Relu -> Conv 3x3 -> y, 12 rows."""
    rng = np.random.default_rng(1)
    shapes = {"u": (channels, 2, 3, 3), "v": (channels, channels, 3, 3)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype("f"), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "u"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "v"], ["y"], "second", pads=[1] * 4),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, 12, 6))]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, channels, 12, 6))]
    graph = helper.make_graph(nodes, "chain", given, made, weights)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())


def test_a_row_split_sends_one_border_row_each_way(chain: Graph) -> None:
    plan = plan_of(chain, rows(chain, NAMES))
    inner = {
        (t.source, t.target): [(p.tensor, str(p.region)) for p in t.pieces]
        for t in plan.transfers
        if GATEWAY not in (t.source, t.target)
    }
    assert inner == {
        ("ada", "bob"): [("b", "0:1x0:4x3:4x0:6")],
        ("bob", "ada"): [("b", "0:1x0:4x4:5x0:6")],
        ("bob", "cyd"): [("b", "0:1x0:4x7:8x0:6")],
        ("cyd", "bob"): [("b", "0:1x0:4x8:9x0:6")],
    }
    assert plan.syncs == 4
    inputs = {t.target: str(t.pieces[0].region) for t in plan.transfers if t.source == GATEWAY}
    assert inputs == {"ada": "0:1x0:2x0:5x0:6", "bob": "0:1x0:2x3:9x0:6", "cyd": "0:1x0:2x7:12x0:6"}
    assert all(len(program.segments) == 2 for program in plan.programs.values())
    assert plan.programs["ada"].segments[0].operators == ("first", "relu")


def test_a_recomputed_halo_needs_no_transfer(chain: Graph) -> None:
    strategy = rows(chain, NAMES)
    wider = {"ada": (0, 5), "bob": (3, 9), "cyd": (7, 12)}
    layouts = dict(strategy.layouts)
    for name in ("a", "b"):
        full = chain.region_of(name)
        layouts[name] = Layout(
            {d: full.intersect(Region.box((0, 1), (0, 4), r, (0, 6))) for d, r in wider.items()}
        )
    plan = plan_of(chain, replace(strategy, layouts=layouts))
    assert plan.syncs == 0
    assert all(len(program.segments) == 1 for program in plan.programs.values())


def test_what_nobody_reads_is_not_computed(chain: Graph) -> None:
    full = {name: chain.region_of(name) for name in "aby"}
    layouts = {name: Layout(dict.fromkeys(NAMES, full[name])) for name in "ab"}
    plan = plan_of(chain, Strategy("s", layouts | {"y": Layout({"bob": full["y"]})}))
    assert set(plan.programs) == {"bob"}


def test_replicas_share_the_sending(chain: Graph) -> None:
    """Two devices have "a", two need it: on equal links each serves one."""
    names = ("p", "q", "r", "s")
    cluster = Cluster(tuple(Device(name, "test", 1e9, 1e9, 1e9) for name in names))
    full = {name: chain.region_of(name) for name in "aby"}
    layouts = {
        "a": Layout({"p": full["a"], "q": full["a"]}),
        "b": Layout({"r": full["b"], "s": full["b"]}),
        "y": Layout({"r": full["y"].replace(2, span((0, 6))), "s": full["y"].replace(2, span((6, 12)))}),
    }
    plan = make_plan(Problem(chain, cluster, "p"), Strategy("s", layouts), model_digest="m")
    inner = {
        (t.source, t.target) for t in check_plan(plan, chain).transfers if GATEWAY not in (t.source, t.target)
    }
    assert len(inner) == 2
    assert {source for source, _ in inner} == {"p", "q"}


def test_parts_come_from_whoever_has_them(chain: Graph) -> None:
    full = {name: chain.region_of(name) for name in "aby"}
    halves = {"ada": full["a"].replace(1, span((0, 2))), "cyd": full["a"].replace(1, span((2, 4)))}
    layouts = {"a": Layout(halves), "b": Layout({"bob": full["b"]}), "y": Layout({"bob": full["y"]})}
    plan = plan_of(chain, Strategy("s", layouts))
    assert {t.source for t in plan.transfers if t.target == "bob"} == {"ada", "cyd"}


def test_the_quicker_link_is_preferred(chain: Graph) -> None:
    """From bob or ada to cyd: the link from ada is the slow one."""
    full = {name: chain.region_of(name) for name in "aby"}
    layouts = {
        "a": Layout({"ada": full["a"], "bob": full["a"]}),
        "b": Layout({"cyd": full["b"]}),
        "y": Layout({"cyd": full["y"]}),
    }
    plan = plan_of(chain, Strategy("s", layouts))
    assert {t.source for t in plan.transfers if t.target == "cyd"} == {"bob"}


def test_through_a_hub_everything_goes_through_it(chain: Graph) -> None:
    plan = plan_of(chain, rows(chain, NAMES[:2], sync=Sync.HUB))  # The hub is bob.
    inner = [(t.source, t.target) for t in plan.transfers if GATEWAY not in (t.source, t.target)]
    assert set(inner) == {("ada", "bob"), ("bob", "ada")}
    away = plan_of(chain, replace(rows(chain, NAMES[:2], sync=Sync.HUB), hub="cyd"))
    inner = [(t.source, t.target) for t in away.transfers if GATEWAY not in (t.source, t.target)]
    assert set(inner) == {("ada", "cyd"), ("bob", "cyd"), ("cyd", "ada"), ("cyd", "bob")}
    assert away.programs["cyd"].segments == ()


def test_layouts_that_are_no_strategy_are_refused(chain: Graph) -> None:
    good = rows(chain, NAMES)
    full = chain.region_of("a")

    def refused(**layouts: Layout | None) -> str:
        changed = {name: layout for name, layout in (dict(good.layouts) | layouts).items() if layout}
        messages = set()
        for sync in Sync:
            with pytest.raises(InternalError) as error:
                lower(problem_of(chain), replace(good, layouts=changed, sync=sync))
            messages.add(str(error.value))
        assert len(messages) == 1
        return messages.pop()

    assert "no device computes" in refused(b=None)
    holes = Layout({"ada": Region.box((0, 1), (0, 4), (0, 5), (0, 6))})
    assert "0:1x0:4x5:12x0:6 of 'y'" in refused(y=holes)
    assert "not in the cluster" in refused(a=Layout({"zoe": full}))
    beside = Region.box((0, 1), (0, 4), (1, 13), (0, 6))
    assert "not inside the tensor" in refused(a=Layout({"ada": beside}))
    assert "not inside the tensor" in refused(a=Layout({"ada": Region.box((0, 1))}))


def test_a_hub_must_have_a_name(chain: Graph) -> None:
    with pytest.raises(InternalError, match="names none"):
        lower(problem_of(chain), replace(rows(chain, NAMES, sync=Sync.HUB), hub=None))


def test_weights_are_sliced_and_their_digests_remembered() -> None:
    """Output channels split over two devices: each refers to its half of the weights, hashed once."""
    graph, digests = load_graph(chain_model(channels=16)), dict[tuple[str, str, Region], str]()
    strategy = rows(graph, NAMES[:2], "channel")
    plan = plan_of(graph, strategy, digests=digests)
    refs = {device: [r for s in p.segments for r in s.weights] for device, p in plan.programs.items()}
    assert {device: [(r.source, r.shape) for r in found] for device, found in refs.items()} == {
        device: [("v", (8, 16, 3, 3))] for device in NAMES[:2]
    }
    for found in refs.values():
        for ref in found:
            part = np.ascontiguousarray(ref.region.crop(graph.constants[ref.source].load()))
            assert ref.digest == hashlib.sha256(part.tobytes()).hexdigest()
            assert (ref.nbytes, digests["m", ref.source, ref.region]) == (part.nbytes, ref.digest)
    known = dict.fromkeys(digests, "remembered")
    again = plan_of(graph, strategy, digests=known)
    assert {r.digest for p in again.programs.values() for s in p.segments for r in s.weights} == {
        "remembered"
    }


def test_outputs_that_no_operator_writes_are_left_to_the_gateway() -> None:
    """One output is a weight, one is an input: no device is asked for them."""
    model = onnx.load_from_string(chain_model())
    model.graph.output.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, (4, 2, 3, 3)))
    model.graph.output.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, 12, 6)))
    graph = load_graph(model.SerializeToString())
    plan = plan_of(graph, rows(graph, NAMES))
    assert plan.constant_outputs == ("u", "x")
    assert {p.tensor for t in plan.transfers if t.target == GATEWAY for p in t.pieces} == {"y"}
