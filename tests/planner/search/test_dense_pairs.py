"""Dense layers in pairs need one sum for each pair, also where several heads of queries share a head of keys."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from onnx import helper

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.layout.choices import Shares
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import Plan
from edgepart.planner.search.dense_pairs import pair_dense_layers
from edgepart.planner.search.study import Study
from tests.planner.random_plans import inputs_of
from tests.planner.small_models import model, random

HEADS, GROUPS, SIZE, HIDDEN, INNER, PAST = 9, 3, 8, 24, 48, 4


@cache
def decoder() -> bytes:
    """A layer with three heads of keys, each for three heads of queries, and a dense pair."""
    make, constants = (
        helper.make_node,
        {
            "q.w": random(1, HIDDEN, HEADS * SIZE),
            "k.w": random(2, HIDDEN, GROUPS * SIZE),
            "v.w": random(3, HIDDEN, GROUPS * SIZE),
            "o.w": random(4, HEADS * SIZE, HIDDEN),
            "up.w": random(5, HIDDEN, INNER),
            "down.w": random(6, INNER, HIDDEN),
            "seqlens": np.array([PAST - 1], np.int32),
            "total": np.array(PAST, np.int32),
        },
    )
    nodes = [
        make("MatMul", ["x", "q.w"], ["q"], "q"),
        make("MatMul", ["x", "k.w"], ["k"], "k"),
        make("MatMul", ["x", "v.w"], ["v"], "v"),
        make(
            "GroupQueryAttention",
            ["q", "k", "v", "past_key", "past_value", "seqlens", "total"],
            ["attended", "present_key", "present_value"],
            "attend",
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=GROUPS,
        ),
        make("MatMul", ["attended", "o.w"], ["o"], "o"),
        make("Add", ["x", "o"], ["sum"], "sum"),
        make("MatMul", ["sum", "up.w"], ["u"], "up"),
        make("Relu", ["u"], ["r"], "relu"),
        make("MatMul", ["r", "down.w"], ["d"], "down"),
        make("Add", ["sum", "d"], ["y"], "last"),
    ]
    past = (1, GROUPS, PAST, SIZE)
    inputs = {"x": (1, 1, HIDDEN), "past_key": past, "past_value": past}
    return model(nodes, inputs, ["y", "present_key", "present_value"], constants)


def planned(shares: Shares, *, heads: bool) -> tuple[Study, Plan]:
    cluster = Cluster(tuple(Device(name, "k", 1e9, 1e11, 1e9) for name, _ in shares))
    study = Study(Problem(load_graph(decoder()), cluster, shares[0][0]))
    choices = pair_dense_layers(study.memo, shares, heads=heads)
    assert choices is not None
    strategy = study.candidates.make("paired", choices, "")
    plan = make_plan(study.memo.problem, strategy, model_digest="m", cost=study.memo.cost)
    return study, check_plan(plan, study.memo.graph)


@pytest.mark.parametrize("parts", [(0.5, 0.5), (0.7, 0.3), (0.4, 0.3, 0.3)], ids=str)
@pytest.mark.parametrize("heads", [True, False])
def test_only_sums_move_between_devices(parts: tuple[float, ...], heads: bool) -> None:
    """Cut in the middle of a group of heads, attention moved queries and keys, and took longer than one device."""
    shares = tuple(zip("abc", parts, strict=False))
    study, plan = planned(shares, heads=heads)
    moved = {p.tensor.partition("#")[0] for t in plan.transfers if t.source and t.target for p in t.pieces}
    assert moved == ({"o", "d"} if heads else {"d"})
    inputs = inputs_of(study.memo.graph)
    whole, found = run_alone(decoder(), inputs), LocalRun(plan, study.memo.graph).run(inputs)
    for name, value in whole.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5 * np.abs(value).max())


def test_without_heads_attention_is_whole_with_everybody_and_fewer_sums_are_needed() -> None:
    shares = (("a", 0.5), ("b", 0.5))
    (_, with_heads), (study, without) = planned(shares, heads=True), planned(shares, heads=False)
    assert without.syncs < with_heads.syncs
    present = study.memo.graph.region_of("present_key")
    made = [
        port.piece.region
        for program in without.programs.values()
        for segment in program.segments
        for port in segment.outputs
        if port.piece.tensor == "present_key"
    ]
    assert present in made
