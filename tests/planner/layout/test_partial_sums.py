"""Partial sums: operators that are parted along a reduced axis, and what then has to travel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.errors import InternalError, UsageError
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole
from edgepart.planner.layout.strategy import Parted, Problem, Strategy
from edgepart.planner.lowering.lower import lower, make_plan
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import Plan
from edgepart.planner.region import Interval
from edgepart.planner.search.dense_pairs import pair_dense_layers
from edgepart.planner.search.force_axis import axes_of, axis_names, force
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from tests.planner.random_plans import inputs_of
from tests.planner.small_models import model, random, residual
from tests.planner.small_transformers import attention, mlp, shuffled

SHARES = (("a", 0.5), ("b", 0.3), ("c", 0.2))
CLUSTER = Cluster(tuple(Device(name, "k", 1e9, 1e11, 1e9) for name, _ in SHARES))
MODELS = {"mlp": mlp(), "attention": attention(), "shuffled": shuffled(), "residual": residual()}


def study_of(model: bytes) -> Study:
    return Study(Problem(load_graph(model), CLUSTER, "a"))


def planned(memo: Memo, strategy: Strategy) -> Plan:
    plan = make_plan(memo.problem, strategy, model_digest="m", cost=memo.cost)
    return check_plan(plan, memo.graph)


def assert_same(memo: Memo, model: bytes, plan: Plan) -> None:
    inputs = inputs_of(memo.graph)
    whole, parts = run_alone(model, inputs), LocalRun(plan, memo.graph).run(inputs)
    for name, value in whole.items():
        assert np.abs(parts[name] - value).max() <= 1e-4 * np.abs(value).max(), name


def chosen(study: Study, by_name: Mapping[str, Choice], otherwise: Choice) -> Strategy:
    """A strategy from the choice of each layer that holds a named operator."""
    layer_of = study.memo.coarse.layer_of
    named = {layer_of[name]: choice for name, choice in by_name.items()}
    return study.candidates.make(
        "chosen", {x.number: named.get(x.number, otherwise) for x in study.memo.layers}, ""
    )


WAYS = [(name, axis) for name, model in MODELS.items() for axis in (None, *axis_names(study_of(model).memo))]


@pytest.mark.parametrize(("name", "axis"), WAYS)
def test_every_axis_of_small_models_can_be_forced(name: str, axis: str | None) -> None:
    study = study_of(MODELS[name])
    plan = planned(study.memo, force(study, axis, SHARES))
    assert len(plan.programs) > 1
    assert_same(study.memo, MODELS[name], plan)


@settings(max_examples=40)
@given(st.data())
def test_any_choices_with_reduced_axes_give_the_same_answer(data: st.DataObject) -> None:
    model = MODELS[data.draw(st.sampled_from(sorted(MODELS)))]
    study = study_of(model)
    choices: dict[int, Choice] = {}
    for layer in study.memo.layers:
        shares = tuple((name, data.draw(st.sampled_from([0.5, 1.0, 2.0]))) for name, _ in SHARES)
        written = [Divide((a.name,), shares, aligned=data.draw(st.booleans())) for a in layer.axes]
        plain: list[Divide | Whole] = [
            *written,
            Whole((data.draw(st.sampled_from("abc")),)),
            Whole(("a", "c")),
        ]
        reduced = [Reduce(a.name, shares, then) for _, a in layer.reduced for then in plain]
        choices[layer.number] = data.draw(st.sampled_from([*plain, *reduced]))
    assert_same(study.memo, model, planned(study.memo, study.candidates.make("drawn", choices, "")))


def test_a_pair_of_dense_layers_needs_one_sum_and_nothing_else() -> None:
    """The first is split by its columns, the second by the rows that these feed (what Megatron-LM does)."""
    study = study_of(MODELS["mlp"])
    shares = SHARES[:2]
    strategy = chosen(
        study,
        {"up": Divide(("feature",), shares), "down": Reduce("inner", shares, Whole(("a",)))},
        Whole(("a",)),
    )
    plan = planned(study.memo, strategy)
    (only,) = [t for t in plan.transfers if t.source and t.target]
    assert (only.source, only.target) == ("b", "a")
    assert only.nbytes == 6 * 12 * 4
    refs = {
        (device, ref.source): ref.region.shape
        for device, p in plan.programs.items()
        for s in p.segments
        for ref in s.weights
    }
    assert all(shape != study.memo.graph.shape_of(source) for (_, source), shape in refs.items())
    assert_same(study.memo, MODELS["mlp"], plan)


def test_combining_in_pieces_moves_pieces() -> None:
    """A reduce-scatter: each device makes some rows of the sum, and is sent only those rows of the others' addends."""
    study = study_of(MODELS["mlp"])
    shares = (("a", 1.0), ("b", 1.0))
    then = Divide(("sequence",), shares)
    strategy = chosen(
        study, {"down": Reduce("inner", shares, then), "up": Divide(("feature",), shares)}, then
    )
    plan = planned(study.memo, strategy)
    sizes = [t.nbytes for t in plan.transfers if t.source and t.target]
    assert sizes == [3 * 12 * 4] * 2
    assert_same(study.memo, MODELS["mlp"], plan)


def test_heads_need_one_sum_at_the_output_projection() -> None:
    study = study_of(MODELS["attention"])
    shares = (("a", 1.0), ("b", 1.0))
    heads = Divide(("head",), shares)
    by_name: dict[str, Choice] = dict.fromkeys(("scores", "softmax", "mixed"), heads)
    by_name |= dict.fromkeys(("q_projection", "k_projection", "v_projection"), Divide(("feature",), shares))
    by_name["output_projection"] = Reduce("inner", shares, Whole(("a",)))
    plan = planned(study.memo, chosen(study, by_name, Whole(("a",))))
    assert [(t.source, t.target) for t in plan.transfers if t.source and t.target] == [("b", "a")]
    assert_same(study.memo, MODELS["attention"], plan)


def test_query_rows_gather_keys_and_values_once() -> None:
    study = study_of(MODELS["attention"])
    shares = (("a", 1.0), ("b", 1.0))
    choices: dict[int, Choice] = {}
    for layer in study.memo.layers:
        axis = "sequence" if layer.splits("sequence") else "height"
        choices[layer.number] = Divide((axis,), shares)
    plan = planned(study.memo, study.candidates.make("rows", choices, ""))
    moved = {p.tensor for t in plan.transfers if t.source and t.target for p in t.pieces}
    assert moved <= {"k0", "k1", "k", "v0", "v1", "v"} and len(moved) == 2
    assert_same(study.memo, MODELS["attention"], plan)


def test_shuffled_and_concatenated_channels_stay_where_they_are() -> None:
    """Regions with several intervals: the pool's channels are those of a grouped convolution's groups and of the input."""
    study = study_of(MODELS["shuffled"])
    shares = (("a", 1.0), ("b", 1.0))
    aligned = Divide(("channel",), shares, aligned=True)
    last = {"pool": Divide(("channel",), shares)}
    plan = planned(study.memo, chosen(study, last, aligned))
    assert [t for t in plan.transfers if t.source and t.target] == []
    assert len(plan.programs) == 2
    assert_same(study.memo, MODELS["shuffled"], plan)


def test_addends_cost_what_a_part_costs() -> None:
    study = study_of(mlp(rows=32, width=64, hidden=512))
    whole = study.scorer.forecast(force(study, "sequence", SHARES[:1]))
    parted = study.scorer.forecast(force(study, "inner", (("a", 1.0), ("b", 1.0))))
    assert parted.compute_s["b"] < 0.6 * whole.compute_s["a"]


def test_a_device_without_a_part_computes_nothing() -> None:
    study = study_of(mlp(width=2, hidden=2))
    strategy = force(study, "inner", SHARES)
    assert all(len(parted.parts) == 2 for parted in strategy.parted.values())
    programs = planned(study.memo, strategy).programs
    assert not [
        op
        for p in programs.values()
        if p.device == "c"
        for s in p.segments
        for op in s.operators
        if "[" in op
    ]


def test_parts_that_do_not_make_up_the_axis_are_refused() -> None:
    study = study_of(MODELS["mlp"])
    strategy = force(study, "inner", SHARES[:1])
    holes = Parted("inner", (("a", Interval(0, 5)), ("b", Interval(6, 12))))
    with pytest.raises(InternalError, match="are not the parts of"):
        lower(study.memo.problem, Strategy("x", strategy.layouts, parted={"up": holes}))
    with pytest.raises(InternalError, match="no reduced axis 'outer'"):
        lower(
            study.memo.problem, Strategy("x", strategy.layouts, parted={"up": Parted("outer", holes.parts)})
        )


def test_an_axis_that_is_not_there_is_refused_with_those_that_are() -> None:
    study = study_of(MODELS["mlp"])
    assert axis_names(study.memo) == ("sequence", "feature", "inner")
    assert all(axes_of(layer) for layer in study.memo.layers)
    with pytest.raises(UsageError, match="sequence, feature, inner"):
        force(study, "height", SHARES)


def test_pairs_are_found_and_need_one_sum_each() -> None:
    """An all-reduce over three devices is six transfers; attention and dense layers are one pair each."""
    study = study_of(MODELS["attention"])
    choices = pair_dense_layers(study.memo, SHARES)
    assert choices is not None
    plan = planned(study.memo, study.candidates.make("paired", choices, ""))
    assert plan.syncs <= 2 * 6 and all(
        p.tensor.startswith(("o#", "d#")) for t in plan.transfers if t.source and t.target for p in t.pieces
    )
    assert_same(study.memo, MODELS["attention"], plan)
    assert pair_dense_layers(study_of(MODELS["shuffled"]).memo, SHARES) is None


def test_rows_stay_where_they_are_through_norms_and_global_pools() -> None:
    """A norm over rows sends its parts' moments, a global pool its parts' means: nothing is gathered."""
    make, weights = (
        helper.make_node,
        {"w": random(1, 4, 4, 3, 3), "scale": random(2, 4), "bias": random(3, 4)},
    )
    nodes = [
        make("Conv", ["x", "w"], ["a"], "before", pads=[1] * 4),
        make("InstanceNormalization", ["a", "scale", "bias"], ["n"], "norm"),
        make("Relu", ["n"], ["r"], "relu"),
        make("Conv", ["r", "w"], ["d"], "after", pads=[1] * 4),
        make("GlobalAveragePool", ["d"], ["y"], "pool"),
    ]
    built = model(nodes, {"x": (1, 4, 12, 12)}, ["y"], weights)
    study = study_of(built)
    plan = planned(study.memo, force(study, "height", SHARES))
    moved = [piece for t in plan.transfers if t.source and t.target for piece in t.pieces]
    assert {piece.tensor.partition("#")[0] for piece in moved} == {"n", "r", "y"}
    assert all(piece.region.shape[2] == 1 for piece in moved)
    assert_same(study.memo, built, plan)
