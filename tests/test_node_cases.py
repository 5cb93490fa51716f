"""The ONNX project's node cases, divided: one for each operator, chosen by seed; `make cases` runs them all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, cast

import pytest
from benchmarks.case_trial import Trial, all_cases, trial
from benchmarks.node_cases import counts, exceptions

from edgepart.planner.access import registry
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Whole
from edgepart.planner.search import force_axis

SEED = 3
TRIES = 3
"""Cases of an operator that are tried until one passes in one session: the runtime lacks some types."""


def chosen() -> Iterator[list[str]]:
    """Yield some cases for each operator type that is the only node of a case."""
    by_type: dict[str, list[str]] = {}
    for name, case in all_cases().items():
        if len(case.model.graph.node) == 1:
            by_type.setdefault(case.model.graph.node[0].op_type, []).append(name)
    draw = random.Random(SEED)
    for names in by_type.values():
        yield draw.sample(names, min(TRIES, len(names)))


def first_that_passes(names: list[str]) -> Trial:
    found = trial(names[0])
    for name in names[1:]:
        if found.alone:
            found = trial(name)
    return found


def test_one_case_of_each_operator_passes_along_every_axis_it_has() -> None:
    found = [first_that_passes(names) for names in chosen()]
    wrong, unsplit = exceptions(found)
    assert wrong == []
    assert unsplit == []
    made = counts(found, (2, 3))
    assert made["cases"] > 190
    assert made["passed in one session"] > 160
    assert made["passed on 2 devices"] == made["passed on 3 devices"] == made["passed in one session"]
    assert made["really split along every such axis"] == made["with an axis of an extent over 1"] > 120


def test_a_wrong_declaration_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax is declared as if it were element-wise."""
    declared = cast(dict[tuple[str, str], Any], registry.DECLARED)
    monkeypatch.setitem(declared, ("", "Softmax"), declared["", "Relu"])
    found = trial("test_softmax_axis_1", devices=(2,))
    assert [one.axis for one in found.faults] == ["sequence"]
    assert "differs" in found.faults[0].fault
    wrong, _ = exceptions([found])
    assert len(wrong) == 1


def test_what_is_quietly_not_split_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(layer: Layer, axis: str | None, shares: Any) -> Choice:
        return Whole((shares[0][0],))

    monkeypatch.setattr(force_axis, "_choice", whole)
    found = trial("test_relu", devices=(2,))
    assert not found.faults
    assert {one.axis for one in found.unsplit} == {"batch", "sequence", "feature"}
    assert counts([found], (2,))["really split along every such axis"] == 0


def test_inputs_as_constants_make_axes_that_the_case_alone_lacks() -> None:
    """A Pad whose pads are an input stays whole; one with constant pads is split."""
    found = trial("test_constant_pad", devices=(2,))
    assert {form for form, _ in found.wanted} == {"constants"}
    assert not found.faults and not found.unsplit


@pytest.mark.parametrize(
    "name",
    [
        "test_affine_grid_2d_expanded",  # a Range whose bounds are one-element constants, not scalars
        "test_linear_attention_decode_step_expanded",  # a Scan, whose inputs need shapes
        "test_resize_tf_crop_and_resize",  # a region of interest that is an input of the request
        "test_sequence_map_identity_1_sequence_1_tensor",  # a free dimension
    ],
)
def test_cases_that_were_wrong_once(name: str) -> None:
    found = trial(name, devices=(2,))
    assert not found.alone
    assert not found.faults
