"""Layouts of candidate after candidate, with what earlier ones left behind, are those of the plain twin."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.layers.coarsen import Coarse, Layer, coarsen
from edgepart.planner.layout.choices import Choice, Divide, Pull, Reduce, Whole
from edgepart.planner.layout.propagate import LayoutPropagator
from edgepart.planner.model.load import load_graph
from tests.planner.layout.plain_layouts import lay_out
from tests.planner.small_models import residual
from tests.planner.small_transformers import attention, mlp, shuffled

MODELS = {"mlp": mlp(), "attention": attention(), "shuffled": shuffled(), "residual": residual()}
COARSE = {name: coarsen(load_graph(model)) for name, model in MODELS.items()}
NAMES = ("a", "b", "c", "d")


def options(coarse: Coarse, layer: Layer, shares: tuple[tuple[str, float], ...]) -> list[Choice]:
    written: list[Divide | Whole] = [Whole(("a",)), Whole(("b", "d"))]
    for axis in layer.axes:
        written += [Divide((axis.name,), shares), Divide((axis.name,), shares, aligned=True)]
        written.append(Divide((axis.name,), shares, widened=True))
    if len(layer.axes) > 1:
        pair = tuple(axis.name for axis in layer.axes[-2:])
        written += [Divide(pair, shares), Divide(pair, shares, (2, 2), widened=True)]
    found: list[Choice] = [*written]
    found += [Reduce(axis.name, shares, then) for _, axis in layer.reduced for then in written]
    if not layer.opaque and not any(name in coarse.graph.outputs for name in layer.exits):
        found += [Pull()] * 3
    return found


@settings(max_examples=40)
@given(st.data())
def test_candidates_after_one_another_are_laid_out_as_each_alone(data: st.DataObject) -> None:
    coarse = COARSE[data.draw(st.sampled_from(sorted(COARSE)))]
    propagator = LayoutPropagator(coarse)
    layers = [layer for layer in coarse.layers if layer.exits]
    shares = [
        tuple((name, data.draw(st.sampled_from([0.5, 1.0, 3.0]))) for name in NAMES),
        tuple((name, 1.0) for name in NAMES),
    ]
    choices: dict[int, Choice] = {}
    for _ in range(4):
        for layer in layers if not choices else data.draw(st.lists(st.sampled_from(layers), max_size=3)):
            choices[layer.number] = data.draw(
                st.sampled_from(options(coarse, layer, data.draw(st.sampled_from(shares))))
            )
        found, plain = propagator.lay_out(choices), lay_out(coarse, choices)
        assert found.layouts == plain.layouts
        assert found.parted == plain.parted
        assert found.reads == plain.reads
        for name, layout in found.layouts.items():
            assert list(layout.regions) == list(plain.layouts[name].regions)


def test_an_unchanged_layer_has_the_very_same_layout() -> None:
    coarse = COARSE["residual"]
    propagator, shares = LayoutPropagator(coarse), (("a", 1.0), ("b", 1.0))
    choices: dict[int, Choice] = {
        layer.number: Divide(("height",), shares) if layer.splits("height") else Whole(("a",))
        for layer in coarse.layers
        if layer.exits
    }
    before = propagator.lay_out(choices).layouts
    first = min(choices)
    after = propagator.lay_out({**choices, first: Whole(("b",))}).layouts
    changed = {name for name, layout in after.items() if layout is not before[name]}
    assert changed and changed <= {n for op in coarse.layers[first].operators for n in op.outputs}


def test_an_output_cannot_be_left_to_its_readers_however_often_that_is_asked() -> None:
    propagator = LayoutPropagator(COARSE["residual"])
    for _ in range(2):
        with pytest.raises(ValueError, match="output"):
            propagator.lay_out({})
