"""Which models may be deployed with batches: a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper, save_model

from edgepart.agent.planwork.batches import check_batches
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import UsageError
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.stateful import load_with_states

Dimension = str | int
BATCHED = DeployOptions(batch_rows=8)


def saved(path: Path, a: Dimension, b: Dimension, y: Dimension) -> Path:
    """y = a + b, with these first dimensions; a model that broadcasts may have 1 in one of them."""
    infos = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [first, 3])
        for name, first in {"a": a, "b": b, "y": y}.items()
    }
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"])], "g", [infos["a"], infos["b"]], [infos["y"]]
    )
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("firsts", "options", "says"),
    [
        (("n", "n", "n"), BATCHED, ""),
        (("n", 1, "n"), BATCHED, "first dimension of 'b' is fixed"),
        ((1, 1, 1), BATCHED, "first dimension of 'a', 'b', 'y' is fixed"),
        (("n", "m", "n"), BATCHED, "'n' in 'a', 'm' in 'b'"),
        ((1, 1, 1), DeployOptions(), ""),
        ((1, 1, 1), DeployOptions(batch_rows=1), ""),
        (("n", "n", "n"), DeployOptions(batch_rows=8, bindings=0), "--bindings 1 or more"),
    ],
)
def test_the_first_dimension_has_to_be_free_and_one(
    tmp_path: Path, firsts: tuple[Dimension, Dimension, Dimension], options: DeployOptions, says: str
) -> None:
    path = saved(tmp_path / "m.onnx", *firsts)
    graph = load_graph(path, shapes={"a": (1, 3), "b": (1, 3)})
    if not says:
        check_batches(graph, options)
        return
    with pytest.raises(UsageError, match=says):
        check_batches(graph, options)


def test_models_with_states_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", "n", "n", "n")
    graph, _ = load_with_states(path, {"a": (1, 3), "b": (1, 3)}, (("y", "b"),), None)
    with pytest.raises(UsageError, match="keeps states"):
        check_batches(graph, BATCHED)
