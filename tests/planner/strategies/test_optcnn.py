"""Layer-wise parallelism and its three baselines."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf

import numpy as np
import pytest
from benchmarks.models import light, sample_inputs
from benchmarks.optcnn_graphs import alexnet, gpus, vgg16
from benchmarks.optcnn_table5 import IMAGES, SPACE, is_along, sooner
from benchmarks.optcnn_training import READINGS, Reading, baselines, make_step

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.errors import UsageError
from edgepart.planner.layerwise.configurations import list_configurations, make_space
from edgepart.planner.layerwise.elimination import cost_of
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.optcnn import describe_choice, explain_choices, solve
from edgepart.planner.strategies.registry import get
from tests.planner.small_models import batched, residual
from tests.planner.small_transformers import attention, mlp, shuffled

LAN = Link(1.17e8, 2e-4)


def study(
    graph: Graph,
    *speeds: float,
    link: Link = LAN,
    axis: str | None = None,
    links: dict[tuple[str, str], Link] | None = None,
) -> Study:
    devices = tuple(Device(f"d{n}", "k", speed, speed / 4, 4e9) for n, speed in enumerate(speeds))
    return Study(Problem(graph, Cluster(devices, links or {}, link), "d0", axis=axis))


def chosen(asked: Study) -> dict[str, Choice]:
    """By name of the operator that a layer is known by."""
    _, problem, found = solve(asked)
    taken = problem.choices_of(found.choice)
    return {layer.anchor.name: taken[layer.number] for layer in asked.memo.layers}


def devices(choice: Choice) -> int:
    match choice:
        case Whole(names):
            return len(names)
        case Divide(_, shares) | Reduce(_, shares):
            return len(shares)
    return 0


def test_the_solution_is_the_least_of_all() -> None:
    asked = study(load_graph(mlp()), 2e6, 1e6, link=Link(1e8, 1e-5, 1e-5))
    _, problem, found = solve(asked)
    everything = product(*(range(len(table)) for table in problem.unary))
    assert found.exact
    assert found.cost == pytest.approx(
        min(cost_of(problem.unary, problem.edges, choice) for choice in everything)
    )


@pytest.mark.parametrize("make", [residual, attention, shuffled])
def test_no_other_choice_costs_less(make: object) -> None:
    assert callable(make)
    asked = study(load_graph(make()), 3e6, 2e6, 1e6)
    _, problem, found = solve(asked)
    rng = random.Random(0)
    assert found.exact and found.cost == cost_of(problem.unary, problem.edges, found.choice)
    for _ in range(300):
        other = list(found.choice)
        for n in rng.sample(range(len(other)), rng.randint(1, min(4, len(other)))):
            other[n] = rng.randrange(len(problem.choices[n]))
        assert cost_of(problem.unary, problem.edges, other) >= found.cost * (1 - 1e-12)


@pytest.mark.parametrize("make", [residual, attention, shuffled])
def test_every_device_alone_is_a_choice_so_the_solution_costs_no_more(make: object) -> None:
    assert callable(make)
    asked = study(load_graph(make()), 3e6, 2e6, 1e6)
    _, problem, found = solve(asked)
    for device in asked.memo.by_speed[:1]:
        whole = [choices.index(Whole((device,))) for choices in problem.choices]
        assert found.cost <= cost_of(problem.unary, problem.edges, whole) < inf


@cache
def vgg_on_gpus() -> Study:
    """The paper's model on the paper's machines: VGG-16 with 32 images on four GPUs of one host."""
    return Study(Problem(vgg16(32), gpus(4), "gpu0"))


def by_kind(asked: Study, found: Mapping[str, Choice]) -> dict[str, list[Choice]]:
    """The configurations of all layers, by the type of their main operator."""
    kinds: dict[str, list[Choice]] = {}
    for layer in asked.memo.layers:
        kinds.setdefault(layer.anchor.op_type, []).append(found[layer.anchor.name])
    return kinds


def test_vgg_is_divided_as_in_the_paper() -> None:
    """Table 5 and section 6.3, with the paper's cost of training: by images at the beginning, by two dimensions
    at the end of the convolutions, dense layers by channels. The paper's two dimensions are height and width,
    and its last dense layer has fewer devices than the others."""
    step = make_step(vgg_on_gpus())
    found = step.solve()
    assert found.exact and sum(one.kind == "enumerate" for one in found.steps) == 1
    kinds = by_kind(step.study, step.choices_of(found))
    assert len(kinds["Conv"]) == 13 and len(kinds["Gemm"]) == 3
    for choice in kinds["Conv"][:7] + kinds["MaxPool"][:3]:
        assert isinstance(choice, Divide) and (choice.axes, len(choice.shares)) == (("batch",), 4)
    for choice in kinds["Conv"][-3:]:
        assert isinstance(choice, Divide) and choice.grid == (2, 2)
    for choice in kinds["Gemm"]:
        assert isinstance(choice, Divide) and choice.axes == ("channel",)
    others = {name: step.seconds_along(axis_of) for name, axis_of in baselines(step.study).items()}
    assert found.cost < others["owt"] < others["model"] < others["data"]


def test_as_the_paper_s_words_have_it_dense_layers_are_those_of_table_5() -> None:
    """t_X is bytes over bandwidth, of inputs only: {c=4}, {c=4} and {c=2}, and images before the last convolutions."""
    step = make_step(vgg_on_gpus(), READINGS[-1])
    kinds = by_kind(step.study, step.choices_of(step.solve()))
    assert [(choice.axes, devices(choice)) for choice in kinds["Gemm"] if isinstance(choice, Divide)] == [
        (("channel",), count) for count in (4, 4, 2)
    ]
    for choice in kinds["Conv"][:10] + kinds["MaxPool"][:4]:
        assert isinstance(choice, Divide) and (choice.axes, devices(choice)) == (("batch",), 4)


@pytest.mark.parametrize("reading", READINGS)
def test_height_and_width_gain_nothing_over_images_where_all_layers_compute_at_one_rate(
    reading: Reading,
) -> None:
    """Table 5 has {h=2, w=2} at the end. Each device has the same weights to synchronise as with {n=4}, and as much to
    compute. So only what the paper measured of its kernels can make the difference."""
    step = make_step(vgg_on_gpus(), reading)
    for node, choices, unary in zip(step.problem.nodes, step.choices, step.unary, strict=True):
        if node.layer.anchor.op_type == "Conv":
            (images,) = (n for n, choice in enumerate(choices) if is_along(choice, *IMAGES))
            (space,) = (n for n, choice in enumerate(choices) if is_along(choice, *SPACE))
            assert unary[space] >= unary[images] * (1 - 1e-9)
    to_best, to_images = sooner(step)
    assert to_best >= to_images > 0


def test_weights_that_are_not_synchronised_leave_convolutions_to_the_batch() -> None:
    """The same question for inference: nothing has to move between convolutions then."""
    _, problem, _ = solve(vgg_on_gpus())
    kinds = by_kind(vgg_on_gpus(), chosen(vgg_on_gpus()))
    assert problem.is_whole
    for choice in kinds["Conv"] + kinds["MaxPool"]:
        assert isinstance(choice, Divide) and (choice.axes, len(choice.shares)) == (("batch",), 4)
    for choice in kinds["Gemm"]:
        axes = (
            choice.axes
            if isinstance(choice, Divide)
            else (choice.axis,)
            if isinstance(choice, Reduce)
            else ()
        )
        assert axes in (("channel",), ("inner",))


def test_one_image_is_divided_in_space_and_its_dense_layers_by_channels_or_sums() -> None:
    """On slow links: in space throughout the convolutions, the last ones in both directions; Softmax on one device.
    A quick search, which leaves configurations out, misses the best."""
    asked = study(load_graph(light("vgg19")), *[5e10] * 4, link=Link(1.17e7, 1e-3))
    kinds = by_kind(asked, chosen(asked))
    assert all(isinstance(c, Divide) and set(c.axes) <= {"height", "width"} for c in kinds["Conv"][:4])
    last = kinds["Conv"][-1]
    assert isinstance(last, Divide) and last.axes == ("height", "width") and last.grid == (2, 2)
    for choice in kinds["Gemm"]:
        if isinstance(choice, Divide):
            assert choice.axes == ("channel",)
        else:
            assert isinstance(choice, Reduce | Whole) and getattr(choice, "axis", "inner") == "inner"
    counts = [devices(choice) for choice in (*kinds["Gemm"], *kinds["Softmax"])]
    assert counts == sorted(counts, reverse=True) and counts[-1] == 1 < counts[0]
    _, quick, found = solve(asked, budget_s=0.0)
    assert not quick.is_whole and found.cost > solve(asked)[2].cost


@pytest.mark.parametrize("name", ["squeezenet", "AlexNet", "VGG-16"])
def test_chains_and_modules_reduce_to_two_nodes_as_in_the_paper(name: str) -> None:
    """Table 3: K = 2 for all its networks; `make optcnn` has Inception-v3."""
    if name == "squeezenet":
        asked = study(load_graph(light(name)), *[1.2e10] * 4)
    else:
        asked = vgg_on_gpus() if name == "VGG-16" else Study(Problem(alexnet(32), gpus(4), "gpu0"))
    _, problem, found = solve(asked)
    assert [step.kind for step in found.steps if step.kind not in ("node", "edge")] == ["enumerate"]
    assert len(found.steps[-1].nodes) == 2
    assert sum(step.kind == "node" for step in found.steps) == len(problem.nodes) - 2


def test_equal_questions_have_equal_answers() -> None:
    graph = load_graph(residual())
    first, second = (solve(study(graph, 3e6, 3e6, 1e6)) for _ in range(2))
    assert first[0] == second[0] and first[2] == second[2]


def test_the_faster_device_computes_more() -> None:
    asked = study(load_graph(residual(rows=48)), 4e6, 1e6)
    strategy = solve(asked)[0]
    busy = asked.scorer.forecast(strategy).compute_s
    flops = {
        d: sum(layout.regions[d].size for layout in strategy.layouts.values() if d in layout.regions)
        for d in busy
    }
    assert flops["d0"] > 2 * flops["d1"] > 0


def test_who_is_behind_a_slow_link_is_left_out() -> None:
    slow = {("d0", "d2"): Link(1e4, 0.2), ("d1", "d2"): Link(1e4, 0.2)}
    asked = study(load_graph(residual(rows=48)), 2e6, 2e6, 2e6, links=slow)
    used = {d for layout in solve(asked)[0].layouts.values() for d in layout.regions}
    assert used == {"d0", "d1"}


def test_one_device_does_it_all() -> None:
    asked = study(load_graph(residual()), 1e9)
    (only,) = get("optcnn")(asked)
    assert "whole model on d0" in only.why


def test_links_that_cost_too_much_leave_the_model_whole() -> None:
    asked = study(load_graph(residual()), 1e9, 1e9, link=Link(1e4, 0.5))
    assert set(chosen(asked).values()) == {Whole(("d0",))}


@pytest.mark.parametrize("axis", ["height", "channel", "inner"])
def test_a_forced_axis_is_kept_and_the_answer_with_it(axis: str) -> None:
    graph = load_graph(residual())
    asked = study(graph, 3e6, 2e6, axis=axis, link=Link(1e9, 1e-6, 1e-6))
    found = set(chosen(asked).values())
    used = {
        a
        for c in found
        for a in (c.axes if isinstance(c, Divide) else (c.axis,) if isinstance(c, Reduce) else ())
    }
    assert used == {axis}
    assert_same(residual(), graph, asked)


def test_an_axis_that_is_not_there_is_refused() -> None:
    asked = study(load_graph(residual()), 1e9, 1e9, axis="diagonal")
    for name in ("optcnn", "data", "model", "owt"):
        with pytest.raises(UsageError, match=r"diagonal.*height"):
            list(get(name)(asked))


def assert_same(source: bytes, graph: Graph, asked: Study, name: str = "optcnn") -> None:
    made, _, _ = choose_plan(asked.memo.problem, name, "m", study=asked)
    inputs = sample_inputs(graph, 3)
    whole, parts = run_alone(source, inputs), LocalRun(made, graph).run(inputs)
    for output, value in whole.items():
        assert np.abs(parts[output] - value).max() <= 1e-4 * np.abs(value).max(), output


@pytest.mark.parametrize("make", [mlp, attention, shuffled])
def test_transformers_and_shuffles_give_the_same_answer(make: object) -> None:
    assert callable(make)
    source = make()
    graph = load_graph(source)
    boxes = tuple(Device(f"d{n}", "k", speed, 1e9, 4e9) for n, speed in enumerate((3e5, 2e5, 1e5)))
    asked = Study(Problem(graph, Cluster(boxes, {}, LAN), "d0"))
    assert len(asked.scorer.forecast(solve(asked)[0]).compute_s) > 1
    assert_same(source, graph, asked)


PRODUCTS = [
    (("batch", "channel", "height"), (2, 2, 2)),
    (("channel", "height", "width"), (2, 2, 2)),
    (("batch", "height", "width"), (4, 1, 2)),
    (("batch", "channel", "height", "width"), (1, 2, 2, 2)),
]


@pytest.mark.parametrize(("axes", "grid"), PRODUCTS)
def test_a_product_of_three_axes_or_more_gives_the_same_answer(
    axes: tuple[str, ...], grid: tuple[int, ...]
) -> None:
    """Convolution and pooling are divided, over devices of which each is faster than the next."""
    source = batched(6)
    graph = load_graph(source)
    asked = study(graph, *(1e5 / (1 + n) for n in range(8)))
    shares = tuple(asked.memo.shares(asked.memo.by_speed))
    choices: dict[int, Choice] = {
        layer.number: Divide(axes, shares, grid)
        if layer.anchor.op_type == "Conv"
        else Divide(("channel",), shares)
        for layer in asked.memo.layers
    }
    strategy = asked.candidates.make("optcnn", choices, "")
    made = make_plan(asked.memo.problem, strategy, model_digest="m")
    regions = strategy.layouts["c"].regions
    assert len(regions) == 8 and sum(one.size for one in regions.values()) == graph.region_of("c").size
    assert len(made.programs) == 8 and asked.scorer.forecast(strategy).latency_s < inf
    inputs = sample_inputs(graph, 3)
    whole, parts = run_alone(source, inputs), LocalRun(made, graph).run(inputs)
    assert np.abs(parts["y"] - whole["y"]).max() <= 1e-4 * np.abs(whole["y"]).max()


def axes_of(memo: Memo, strategy: Strategy) -> dict[str, set[int]]:
    """By tensor that is divided, the axes on which devices differ."""
    found = {}
    for layer in memo.layers:
        for name in layer.exits:
            regions = list(strategy.layouts[name].regions.values())
            columns = zip(*(region.spans for region in regions), strict=True)
            found[name] = {n for n, spans in enumerate(columns) if len(set(spans)) > 1}
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("data", {"c": {0}, "p": {0}, "g": {0}, "y": {0}}),
        ("model", {"c": {1}, "p": {1}, "g": {1}, "y": {1}}),
        ("owt", {"c": {0}, "p": {0}, "g": {1}, "y": {1}}),
    ],
)
def test_baselines_divide_a_batch_as_the_paper_says(name: str, expected: dict[str, set[int]]) -> None:
    graph = load_graph(batched(6))
    asked = study(graph, 3e4, 2e4, 1e4)
    (strategy,) = get(name)(asked)
    assert axes_of(asked.memo, strategy) == expected
    assert strategy.name == name and "over 3 devices" in strategy.why
    assert_same(batched(6), graph, asked, name)


def test_a_batch_of_one_is_said() -> None:
    asked = study(load_graph(batched(1)), 3e4, 2e4)
    for strategy in get("data")(asked):
        assert strategy.why.startswith("no layer has a batch of more than one") and not any(
            axes_of(asked.memo, strategy).values()
        )
    spread = list(get("owt")(asked))
    assert [axes_of(asked.memo, one) for one in spread] == [{"c": set(), "p": set(), "g": {1}, "y": {1}}] * 2
    assert all(one.why.startswith("the batch is 1") for one in spread)


def test_baselines_on_one_device_say_so() -> None:
    for name in ("data", "model", "owt"):
        (only,) = get(name)(study(load_graph(batched(4)), 1e9))
        assert only.why.startswith("there is only one device")


def test_configurations_have_words() -> None:
    shares = (("a", 0.5), ("b", 0.5))
    assert describe_choice(Divide(("height", "width"), shares, (2, 1))) == "height x width over 2"
    assert describe_choice(Reduce("inner", shares, Whole(("a",)))) == "sums along inner over 2, then whole"
    assert (
        describe_choice(Whole(("a",))) == "whole on a"
        and describe_choice(Whole(("a", "b"))) == "whole on each of 2"
    )


def test_nothing_costs_less_is_said_of_the_whole_space_only() -> None:
    asked = study(load_graph(residual()), *[3e6] * 8)
    (strategy, problem, found), (other, fewer, chosen_of_fewer) = solve(asked), solve(asked, budget_s=0.0)
    assert problem.is_whole and "none costs less by its model" in strategy.why
    assert found.exact and chosen_of_fewer.exact and found.cost <= chosen_of_fewer.cost
    most, listed = max(map(len, fewer.choices)), max(fewer.listed)
    assert not fewer.is_whole and most < listed == max(map(len, problem.choices))
    assert f"not proven best: at most {most} of up to {listed} configurations of a layer" in other.why
    among = make_space(asked.memo, whole=True)
    for node, choices in zip(problem.nodes, problem.choices, strict=True):
        divided = {c for c in list_configurations(node.layer, among, among.shares) if isinstance(c, Divide)}
        assert {(c.axes, c.grid, len(c.shares)) for c in divided} == {
            (c.axes, c.grid, len(c.shares)) for c in choices if isinstance(c, Divide)
        }


def test_an_unproven_solution_says_why() -> None:
    asked = study(load_graph(mlp()), 3e6, 2e6)
    _, problem, found = solve(asked)
    assert "none costs less by its model" in explain_choices(asked.memo, problem, found)
    other = replace(found, exact=False, why="7 nodes remain")
    assert "not proven best: 7 nodes remain" in explain_choices(asked.memo, problem, other)
