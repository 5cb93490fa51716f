"""The model that is written: it answers nearly the same, and its chosen weights are gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from edgepart.agent.quantise.choice import choose_weights
from edgepart.agent.quantise.rewriting import rewrite
from edgepart.agent.quantise.work import DATA, MODEL
from edgepart.agent.quantise.writing import write_quantised
from edgepart.agent.verify.same_answer import relative_difference
from edgepart.planner.errors import UsageError
from edgepart.planner.model.load import load_constants, load_graph
from edgepart.planner.region import Array
from tests.agent.quantise.models import SIDE, matrix, mixed, model_of, saved

ALLOWED = {"int8": 0.03, "int4": 0.35}
"""What untrained weights, whose errors no other weight evens out, are off by at most."""


def answer(path: Path, feed: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    wanted = {one.name for one in session.get_inputs()}
    found: Array = session.run(["y"], {name: value for name, value in feed.items() if name in wanted})[0]
    return found


def feed(rows: int, dtype: type = np.float32) -> dict[str, Array]:
    draw = np.random.default_rng(rows)
    return {"x": draw.standard_normal((rows, SIDE)).astype(dtype), "ids": draw.integers(0, 100, rows)}


def written(model: ModelProto, folder: Path, kind: str, *, external: bool = False) -> tuple[Path, Path]:
    """The model's file and the quantised one's."""
    before = saved(model, folder / "before.onnx", external=external)
    after = folder / "after"
    after.mkdir()
    write_quantised(before, kind, after)
    assert {path.name for path in after.iterdir()} == {MODEL, DATA}
    return before, after / MODEL


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_model_answers_nearly_the_same(tmp_path: Path, kind: str, external: bool) -> None:
    before, after = written(mixed(), tmp_path, kind, external=external)
    for rows in (1, 5):
        off = relative_difference(answer(after, feed(rows)), answer(before, feed(rows)))
        assert 0 < off < ALLOWED[kind]
    found = onnx.load(after)
    kinds = [node.op_type for node in found.graph.node]
    assert kinds.count("MatMulNBits") == 3 and not {"MatMul", "Gemm", "Transpose"} & set(kinds)
    floats = [one for one in found.graph.initializer if one.data_type == TensorProto.FLOAT]
    largest = max(int(np.prod(one.dims)) for one in floats)
    assert largest <= 200 * SIDE // 32, "Only scales and the bias are floats."
    assert load_graph(after).constants, "The planner takes it."


def test_weights_that_others_read_stay(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["h", "w"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ReduceSum", ["h"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=body, else_branch=body),
    ]
    model = model_of(nodes, {"w": matrix(), "zero": np.zeros((), np.float32)})
    before, after = written(model, tmp_path, "int8")
    assert relative_difference(answer(after, feed(SIDE)), answer(before, feed(SIDE))) < ALLOWED["int8"]
    assert "w" in {one.name for one in onnx.load(after).graph.initializer}


def test_constant_nodes_and_names_that_are_taken(tmp_path: Path) -> None:
    value = numpy_helper.from_array(matrix(), "value")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=value),
        helper.make_node("MatMul", ["x", "w"], ["w.int8"]),
        helper.make_node("MatMul", ["w.int8", "w"], ["g"]),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(matrix(seed=9), "value")),
        helper.make_node("Add", ["g", "c"], ["y"]),
    ]
    before, after = written(model_of(nodes, {}), tmp_path, "int8")
    assert relative_difference(answer(after, feed(SIDE)), answer(before, feed(SIDE))) < ALLOWED["int8"]
    names = [one.name for one in onnx.load(after).graph.initializer]
    assert "w.int8" not in names and names.count("w.int8.2") == 1, "Both products read the same weights."


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (model_of([helper.make_node("Relu", ["x"], ["y"])], {}), "0 B of weights"),
        (
            model_of(
                [
                    helper.make_node("Unsqueeze", ["x", "axes"], ["picture"]),
                    helper.make_node("Conv", ["picture", "k"], ["y"]),
                ],
                {"k": matrix()[None].repeat(2, 0), "axes": np.array([0])},
            ),
            "no others can be quantised",
        ),
        (
            model_of([helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], {}),
            "weights of few bits already (DynamicQuantizeLinear)",
        ),
    ],
    ids=["nothing", "convolution", "quantised before"],
)
def test_a_model_with_nothing_to_quantise_is_refused(tmp_path: Path, model: ModelProto, says: str) -> None:
    before = saved(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="Nothing was deployed") as refused:
        write_quantised(before, "int8", tmp_path)
    assert says in str(refused.value)
    assert not (tmp_path / MODEL).exists()


@st.composite
def chains(draw: st.DrawFn) -> ModelProto:
    """A chain of products and other operators, in which weights are shared at random."""
    weights = {f"w{n}": matrix(seed=n) for n in range(2)}
    weights |= {"v": matrix(SIDE, 33, seed=4), "b": matrix(1, SIDE, 5)[0]}
    nodes, at = [], "x"
    for step in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["MatMul", "Gemm", "turned", "bias", "Relu", "swapped"]))
        weight, out = draw(st.sampled_from(["w0", "w1"])), f"h{step}"
        if kind == "swapped":
            nodes.append(helper.make_node("Transpose", [weight], [f"t{step}"], perm=[1, 0]))
            nodes.append(helper.make_node("MatMul", [at, f"t{step}"], [out]))
        elif kind == "Relu":
            nodes.append(helper.make_node("Relu", [at], [out]))
        elif kind == "MatMul":
            nodes.append(helper.make_node("MatMul", [at, weight], [out]))
        else:
            bias = ["b"] if kind == "bias" else []
            nodes.append(helper.make_node("Gemm", [at, weight, *bias], [out], transB=int(kind == "turned")))
        at = out
    nodes.append(helper.make_node("Add", [at, "b"], ["y"]))
    return model_of(nodes, weights)


@settings(deadline=None)
@given(chains())
def test_a_rewritten_graph_has_the_same_ports_and_reads_only_what_is_there(model: ModelProto) -> None:
    constants = load_constants(model.SerializeToString())
    choice = choose_weights(model, constants)
    ports = [value.name for value in (*model.graph.input, *model.graph.output)]
    unread = {"w0", "w1", "v"} - {name for node in model.graph.node for name in node.input}
    made = rewrite(model, choice, constants, "int4")
    new = {name for one in made.matrices.values() for name in (one.packed, one.scales, one.middles)}
    assert len(new) == 3 * len(made.matrices)
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ports
    there = {one.name for one in model.graph.initializer} | new | {"x"}
    assert unread <= there, "What nothing read before is none of ours."
    for node in model.graph.node:
        assert {*node.input} <= there
        assert node.op_type not in ("MatMul", "Gemm")
        there |= {*node.output}
    assert not new & {one.name for one in model.graph.initializer}
