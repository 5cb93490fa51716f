"""OptCNN's table 5: how VGG-16 with 32 images is divided over the 4 GPUs of one host, and what that depends on.

The paper leaves open how much of what moves passes at the same time, and whether gradients of inputs count. Each reading
(benchmarks/optcnn_training.py) is a row, with the paper's configurations beside it. None gives height and width: a device
has the same weights to synchronise as with images, computes as much at a given rate, and fetches borders besides. The paper
measured each configuration on its GPUs. So the table says by how much of t_C the last layers would have to be computed
sooner along height and width than at the rate of our model, for the step to be as short as the best one, and as one with
images there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.optcnn_graphs import BATCH, gpus, study_of, vgg16
from benchmarks.optcnn_training import READINGS, Reading, TrainingStep, baselines, make_step
from edgepart.cli.output import table
from edgepart.planner.layers.search_nodes import SearchNode
from edgepart.planner.layerwise.elimination import minimise
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.search.study import Study

if TYPE_CHECKING:
    from rich.table import Table

TABLE_5: Mapping[str, tuple[int, str]] = {
    "2 x Conv + Pooling (64)": (3, "{n=4, h=1, w=1, c=1}"),
    "2 x Conv + Pooling (128)": (3, "{n=4, h=1, w=1, c=1}"),
    "3 x Conv + Pooling (256)": (4, "{n=4, h=1, w=1, c=1}"),
    "3 x Conv + Pooling (512)": (4, "{n=4, h=1, w=1, c=1}"),
    "3 x Conv + Pooling (512), the last": (4, "{n=1, h=2, w=2, c=1}"),
    "Fully-connected (25,088)": (1, "{n=1, c=4}"),
    "Fully-connected (4,096)": (1, "{n=1, c=4}"),
    "Fully-connected (4,096), the last": (1, "{n=1, c=2}"),
    "Softmax": (1, "{n=1, c=1}"),
}
"""The paper's groups of layers, how many layers each has, and their configuration."""

SCALING = {"AlexNet": (12.2, 6.1), "VGG-16": (14.8, 10.2), "Inception-v3": (15.5, 11.2)}
"""The paper's speed-ups of 16 GPUs over one (section 6.1): layer-wise, and the best other."""

IMAGES, SPACE = (("batch",), 4), (("height", "width"), 4)
"""Axes and number of devices: {n=4} and {h=2, w=2}."""


HOSTS = 16
"""The GPUs of all hosts."""


def vgg_on_one_host() -> Study:
    return Study(Problem(vgg16(BATCH), gpus(4), "gpu0"))


def configurations() -> Iterator[tuple[str, ...]]:
    """Yields each group of layers of VGG-16, with its configuration in the paper, for training and for inference."""
    study = vgg_on_one_host()
    step = make_step(study)
    trained, problem = step.choices_of(step.solve()), step.problem
    by_number = problem.choices_of(minimise(problem.unary, problem.edges).choice)
    served = {layer.anchor.name: by_number[layer.number] for layer in study.memo.layers}
    ours = zip(in_groups(study, trained), in_groups(study, served), strict=True)
    for (group, (_, paper)), (training, inference) in zip(TABLE_5.items(), ours, strict=True):
        yield group, paper, training, inference


def in_groups(study: Study, found: Mapping[str, Choice]) -> Iterator[str]:
    """Yields the configurations of each group of layers, as the paper writes them."""
    layers = iter(study.memo.layers)
    for count, paper in TABLE_5.values():
        mine = [found[next(layers).anchor.name] for _ in range(count)]
        yield ", ".join(dict.fromkeys(degrees(one, "h=" not in paper) for one in mine))


def last_layers(step: TrainingStep) -> list[SearchNode]:
    """The last three convolutions, and the pooling behind them."""
    picture = [node for node in step.problem.nodes if node.layer.anchor.op_type in ("Conv", "MaxPool")]
    return picture[-4:]


def is_along(choice: Choice, axes: tuple[str, ...], devices: int) -> bool:
    """Whether a configuration is along these axes, over so many devices, with as many parts along each."""
    if not isinstance(choice, Divide) or len(choice.shares) != devices:
        return False
    return choice.axes == axes and len(set(choice.grid)) <= 1


def sooner(step: TrainingStep) -> tuple[float, float]:
    """The part of t_C of the last layers by which they would have to be computed sooner along height and width, for the
    step to be as short as the best one, and as the best one with images there."""
    last = last_layers(step)

    def takes(node: SearchNode, choice: Choice, way: tuple[tuple[str, ...], int]) -> bool:
        return node not in last or is_along(choice, *way)

    space_s, images_s = (step.least_s(partial(takes, way=way)) for way in (SPACE, IMAGES))
    compute_s = sum(
        float(seconds[n])
        for node, choices, seconds in zip(step.problem.nodes, step.choices, step.compute, strict=True)
        for n, choice in enumerate(choices)
        if node in last and is_along(choice, *SPACE)
    )
    return (space_s - step.solve().cost) / compute_s, (space_s - images_s) / compute_s


def speed_ups(network: str, reading: Reading) -> tuple[float, float]:
    """How many times as many images a second as one GPU the GPUs of all hosts train: layer by layer, and the best other."""
    one_s = make_step(study_of(network, 1), reading).solve().cost
    study = study_of(network, HOSTS)
    step = make_step(study, reading)
    other_s = min(step.seconds_along(axis_of) for axis_of in baselines(study).values())
    return HOSTS * one_s / step.solve().cost, HOSTS * one_s / other_s


def readings_table(networks: Sequence[str]) -> Table:
    """A row for each reading: VGG-16 on one host, and what these networks gain from all hosts."""
    columns = (
        "what passes at once", "gradients of inputs", "3 x Conv + Pooling (512)", "the last", "dense layers", "Softmax",
        "{h=2, w=2} is best if sooner by", "is better than {n=4} if sooner by",
        *(f"{network} on {HOSTS}, best other" for network in networks),
    )  # fmt: skip
    paper = [configuration for _, configuration in TABLE_5.values()]
    rows = [("the paper", "", *_shown(paper), "", "", *(_times(SCALING[network]) for network in networks))]
    for reading in READINGS:
        study = vgg_on_one_host()
        step = make_step(study, reading)
        found = list(in_groups(study, step.choices_of(step.solve())))
        counted = "count" if reading.directions == 2 else "do not count"
        gains = (_times(speed_ups(network, reading)) for network in networks)
        rows.append(
            (reading.passes, counted, *_shown(found), *(f"{part:.0%}" for part in sooner(step)), *gains)
        )
    made = table(columns, rows, right=columns[6:])
    made.title = "The same under each reading of what moves"
    return made


def _times(found: tuple[float, float]) -> str:
    return f"{found[0]:.1f}x, {found[1]:.1f}x"


def _shown(groups: Sequence[str]) -> tuple[str, str, str, str]:
    return groups[3], groups[4], ", ".join(groups[5:8]), groups[8]


def degrees(choice: Choice, dense: bool) -> str:
    """A configuration as the paper writes it.

    >>> degrees(Divide(("batch", "channel"), (("a", 1.0),) * 4, (2, 2)), dense=True)
    '{n=2, c=2}'
    """
    letters = (
        {"n": "batch", "c": "channel"}
        if dense
        else {"n": "batch", "h": "height", "w": "width", "c": "channel"}
    )
    match choice:
        case Divide(axes, shares, grid):
            parts = dict(zip(axes, grid or (len(shares),), strict=True))
            return f"{{{', '.join(f'{letter}={parts.get(name, 1)}' for letter, name in letters.items())}}}"
        case Reduce(_, shares):
            return f"{len(shares)} parts of each sum"
        case Whole((_,)):
            return f"{{{', '.join(f'{letter}=1' for letter in letters)}}}"
    return "whole on each"
