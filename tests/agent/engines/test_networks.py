"""Networks of placers from files: those that can be used, and what is said of the others."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepart.agent.engines import networks as module
from edgepart.agent.engines.networks import networks_of
from edgepart.planner.errors import ModelError, NotInstalled
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.families import HELD_OUT
from edgepart.planner.placing.guided.decode import PLAIN, SampleDecoder
from edgepart.planner.placing.guided.features import describe
from edgepart.planner.placing.problem.networks import KEY, NetworkCard

CARD = NetworkCard("gdp", 4, ("cells",), 7, "abc", "2026-01-01", "edgepart train", {"x": 1.0}, {"k": 8})


def network(metadata: dict[str, str]) -> bytes:
    """A model that doubles."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, metadata)
    return bytes(model.SerializeToString())


def test_a_file_is_run_and_its_card_read(tmp_path: Path) -> None:
    path = tmp_path / "gdp.onnx"
    path.write_bytes(network(CARD.metadata))
    found = networks_of({"gdp": path})("gdp")
    assert found.card == CARD
    assert found.run({"x": np.array([1, 2], np.float32)})[0].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not a model", "not a network that ONNX Runtime can run"),
        (b"", "not a network that ONNX Runtime can run"),
        (network({}), "it has no card"),
        (network({KEY: "{"}), "cannot be read"),
        (network({KEY: "[]"}), "cannot be read"),
        (network({KEY: '{"placer": "gdp"}'}), "cannot be read"),
        (network({KEY: '{"families": []}'}), "cannot be read"),
        (network({KEY: CARD.metadata[KEY].replace('"machines": 4', '"machines": "4"')}), "wrong types"),
        (
            network({KEY: CARD.metadata[KEY].replace('"gdp"', '"placeto"')}),
            "a network of placeto, not of gdp",
        ),
    ],
)
def test_what_is_no_network_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "n.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        networks_of({"gdp": path})("gdp")


def test_files_that_are_missing_or_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        networks_of({"gdp": tmp_path / "none.onnx"})("gdp")
    path = tmp_path / "n.onnx"
    path.write_bytes(network(CARD.metadata))
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    with pytest.raises(ModelError, match="at most"):
        networks_of({"gdp": path})("gdp")


def test_a_placer_without_a_network_says_how_to_make_one() -> None:
    with pytest.raises(NotInstalled, match="edgepart train --placer other"):
        networks_of({})("other")


def test_a_card_survives_onnx(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(network(CARD.metadata))
    assert {prop.key for prop in model.metadata_props} == {KEY}


def test_the_network_that_comes_with_the_package_is_better_than_none() -> None:
    network = networks_of({})("learned")
    assert network.card.placer == "learned" and network.card.machines == 0 and network.card.scores
    assert network.card.families and HELD_OUT not in network.card.families
    gained = []
    for number, family in enumerate(network.card.families):
        features = describe(graph := draw_workload(family, Random(f"shipped {family}"), 80, 2 + number % 5))
        tasks, machines = features.flat.compute_s.shape
        decoder, noise = SampleDecoder(graph, features), np.zeros((1, tasks, machines))
        plain = decoder.decode(np.zeros((tasks, machines)), np.tile(PLAIN, (tasks, 1)), noise)
        bias, weights = network.run(features.inputs)
        gained.append(decoder.decode(bias, weights, noise).makespan_s[0] / plain.makespan_s[0])
    assert np.log(gained).mean() < np.log(0.99)
