"""OpenVINO's provider, where the installed ONNX Runtime has it: a convolution and attention are admitted, and what it does
not take is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnxruntime as ort
import pytest
from onnx import helper

from edgepart.agent.engines.verdicts import ADMITTED, FAILS
from edgepart.agent.storage.store import Store
from edgepart.agent.verify.engine_trials import EngineTrials
from edgepart.planner.plans.plan import Piece, Port, Segment
from edgepart.planner.region import Region
from tests.agent import handmade

pytestmark = pytest.mark.skipif(
    "OpenVINOExecutionProvider" not in ort.get_available_providers(),
    reason="needs onnxruntime-openvino (docs/install.md)",
)
ENGINE = "openvino-cpu"


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[EngineTrials]:
    store = Store(tmp_path / "store")
    store.put_bytes(handmade.weight("w1").tobytes())
    made = EngineTrials(store.root, 1)
    yield made
    made.stop()


def port(name: str, *shape: int) -> Port:
    return Port(name, Piece(name, Region.full(shape)))


def attention() -> Segment:
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    return handmade.segment(nodes, [port(name, 4, 16, 8) for name in "qkv"], [port("y", 4, 16, 8)])


def test_a_convolution_with_its_weights_in_a_file_and_attention_are_admitted(trials: EngineTrials) -> None:
    for segment in (handmade.split_plan().programs["a"].segments[0], attention()):
        found = trials.verdict(replace(segment, engine=ENGINE))
        assert found.outcome == ADMITTED, found.why


def test_an_operator_that_it_does_not_take_is_named(trials: EngineTrials) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="Relu_0"),
        helper.make_node("Det", ["r"], ["y"], name="Det_1"),
    ]
    segment = handmade.segment(nodes, [port("x", 2, 3, 3)], [port("y", 2)])
    found = trials.verdict(replace(segment, engine=ENGINE))
    assert (
        found.outcome == FAILS and found.why.endswith("does not take Det, Relu")
    ) or "Det_1" in found.lacks
