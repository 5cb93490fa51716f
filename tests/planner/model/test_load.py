"""Loading: order, shapes, folding, branches, notes; compared with what ONNX Runtime computes where there is a doubt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from edgepart.planner.errors import ModelError
from edgepart.planner.model.graph import Graph, broken_graph_rules
from edgepart.planner.model.load import load_constants, load_graph

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, shape: tuple[int | str, ...] | None, elem_type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def graph_of(
    nodes: list[NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    **arrays: Any,
) -> GraphProto:
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    return helper.make_graph(nodes, "g", inputs, results, initializers)


def model_of(graph: GraphProto, opset: int = 17, **more: Any) -> ModelProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **more)


def load(model: ModelProto, **shapes: tuple[int, ...]) -> Graph:
    graph = load_graph(model.SerializeToString(), shapes=shapes)
    assert list(broken_graph_rules(graph)) == []
    return graph


def run(model: ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def test_nodes_out_of_order_are_put_in_order() -> None:
    nodes = [node("Neg", "b", "c"), node("Relu", "a", "b"), node("Abs", "x", "a")]
    graph = load(model_of(graph_of(nodes, [value("x", (2, 3))], ["c"])))
    assert [op.op_type for op in graph.operators] == ["Abs", "Relu", "Neg"]
    assert [graph.shape_of(name) for name in ("a", "b", "c")] == [(2, 3)] * 3


def test_operators_without_names_get_their_own() -> None:
    nodes = [node("Abs", "x", "a"), node("Abs", "a", "b", name="Abs_0"), node("Relu", "b", "c")]
    graph = load(model_of(graph_of(nodes, [value("x", (1,))], ["c"])))
    assert len(graph.by_name) == 3


def test_two_nodes_of_one_name_are_refused_as_the_runtime_does() -> None:
    nodes = [node("Abs", "x", "a", name="n"), node("Neg", "a", "b", name="n")]
    with pytest.raises(ModelError, match="a Abs and a Neg are both called 'n'"):
        load(model_of(graph_of(nodes, [value("x", (1,))], ["b"])))


def test_what_no_output_depends_on_is_dropped() -> None:
    nodes = [node("Abs", "x", "y"), node("Add", "x w", "unused")]
    graph = load(model_of(graph_of(nodes, [value("x", (2,))], ["y"], w=np.ones(2, np.float32))))
    assert [op.op_type for op in graph.operators] == ["Abs"]
    assert graph.constants == {}


def test_an_unread_optional_output_is_left_out() -> None:
    nodes = [node("Dropout", "x", "y mask")]
    (dropout,) = load(model_of(graph_of(nodes, [value("x", (2,))], ["y"]))).operators
    assert dropout.outputs == ("y",)


def test_initializers_listed_as_inputs_are_constants() -> None:
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    model = model_of(
        graph_of([node("MatMul", "x w", "y")], [value("x", (4, 3)), value("w", (3, 2))], ["y"], w=weight)
    )
    model.ir_version = 3
    graph = load(model)
    assert graph.inputs == ("x",)
    np.testing.assert_array_equal(graph.constants["w"].load(), weight)
    assert graph.shape_of("y") == (4, 2)


def test_weights_made_by_nodes_are_constants_that_take_no_memory() -> None:
    nodes = [
        node("ConstantOfShape", "shape", "w", value=numpy_helper.from_array(np.array([0.5], np.float32))),
        node("Transpose", "w", "wt"),
        node("MatMul", "x wt", "y"),
    ]
    huge = np.array([1 << 20, 1 << 14])
    graph = load(model_of(graph_of(nodes, [value("x", (1, 1 << 14))], ["y"], shape=huge)))
    assert [op.op_type for op in graph.operators] == ["MatMul"]
    assert set(graph.constants) == {"wt"}
    assert graph.constants["wt"].nbytes == 4 << 34
    assert graph.constants["wt"].load()[5, 7] == 0.5
    assert graph.shape_of("y") == (1, 1 << 20)


def test_shape_arithmetic_is_folded() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axes", "n1"),
        node("Concat", "n1 rest", "target", axis=0),
        node("Reshape", "x target", "y"),
    ]
    arrays = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1, 2])}
    model = model_of(graph_of(nodes, [value("x", ("n", 3, 4))], ["y"], **arrays))
    graph = load(model, x=(5, 3, 4))
    assert [op.op_type for op in graph.operators] == ["Reshape"]
    np.testing.assert_array_equal(graph.constants["target"].load(), [5, -1, 2])
    assert graph.shape_of("y") == (5, 6, 2)


def test_quantised_weights_stay_in_their_group() -> None:
    nodes = [node("DequantizeLinear", "q scale", "w"), node("MatMul", "x w", "y")]
    arrays = {"q": np.ones((3, 2), np.int8), "scale": np.float32(0.1)}
    graph = load(model_of(graph_of(nodes, [value("x", (1, 3))], ["y"], **arrays)))
    assert [op.op_type for op in graph.operators] == ["DequantizeLinear", "MatMul"]
    assert graph.constants["q"].dtype == "int8"


def test_chance_is_not_folded() -> None:
    graph = load(
        model_of(
            graph_of(
                [node("RandomNormal", "", "r", shape=[2]), node("Add", "x r", "y")], [value("x", (2,))], ["y"]
            )
        )
    )
    assert [op.op_type for op in graph.operators] == ["RandomNormal", "Add"]


FOLDABLE = {
    "transpose": node("Transpose", "w", "c", perm=[1, 0]),
    "slice": node("Slice", "w starts ends axes steps", "c"),
    "gather": node("Gather", "w rows", "c", axis=0),
    "concat": node("Concat", "w w", "c", axis=1),
    "cast": node("Cast", "w", "c", to=TensorProto.FLOAT16),
    "tile": node("Tile", "w twice", "c"),
    "pad": node("Pad", "w pads", "c"),
    "where": node("Where", "mask w other", "c"),
    "trilu": node("Trilu", "w", "c", upper=0),
    "div": node("Div", "w other", "c"),
    "integer_div": node("Div", "minus three", "c"),
    "flatten": node("Flatten", "w", "c", axis=0),
    "expand": node("Expand", "other row", "c"),
    "onehot": node("OneHot", "rows depth off_on", "c"),
    "range": node("Range", "zero three one", "c"),
    "nonzero": node("NonZero", "w", "c"),
    "cumsum": node("CumSum", "w zero", "c"),
    "reduce": node("ReduceMean", "w", "c", axes=[0]),
}
ARRAYS: dict[str, Any] = {
    "w": np.random.default_rng(0).standard_normal((200, 300)).astype(np.float32),
    "other": np.random.default_rng(1).standard_normal((200, 300)).astype(np.float32) + 3,
    "mask": np.random.default_rng(2).random((200, 300)) < 0.5,
    "starts": np.array([190, 2]),
    "ends": np.array([-1000, 290]),
    "axes": np.array([0, 1]),
    "steps": np.array([-3, 1]),
    "rows": np.array([3, -1, 7]),
    "twice": np.array([2, 1]),
    "pads": np.array([1, 0, 0, 2]),
    "minus": np.array([-7, 7, -9]),
    "zero": np.array(0),
    "one": np.array(1),
    "three": np.array(3),
    "row": np.array([2, 1, 1]),
    "depth": np.array(5),
    "off_on": np.array([-1.0, 2.0], np.float32),
}


@pytest.mark.parametrize("name", FOLDABLE)
def test_folded_constants_are_what_the_runtime_computes(name: str) -> None:
    one = FOLDABLE[name]
    arrays = {key: ARRAYS[key] for key in dict.fromkeys(one.input)}
    model = model_of(graph_of([one], [value("x", (1,))], ["c"], **arrays))
    graph = load(model)
    if name in ("pad", "cumsum", "nonzero"):  # only small ones of these are folded
        small = {key: array[:3, :4] if array.shape == (200, 300) else array for key, array in arrays.items()}
        assert [op.op_type for op in graph.operators] == ([one.op_type] if name != "nonzero" else [])
        model = model_of(graph_of([one], [value("x", (1,))], ["c"], **small))
        graph = load(model)
    assert graph.operators == ()
    (expected,) = run(model, {"x": np.zeros(1, np.float32)})
    found = graph.constants["c"]
    assert (found.shape, found.nbytes) == (expected.shape, expected.nbytes)
    np.testing.assert_array_equal(found.load(), expected)


def branches(condition: list[NodeProto], inputs: list[onnx.ValueInfoProto], **arrays: Any) -> ModelProto:
    """y = (x + w) * inner where the condition holds, x + x otherwise; the branches' names clash on purpose."""
    inner = numpy_helper.from_array(np.array(3, np.float32), "inner")
    then = helper.make_graph(
        [node("Mul", "t inner", "out"), node("Add", "x w", "t")], "then", [], [value("out", None)], [inner]
    )
    other = helper.make_graph([node("Add", "x x", "out")], "else", [], [value("out", None)])
    nodes = [*condition, node("If", "cond", "t", then_branch=then, else_branch=other), node("Neg", "t", "y")]
    arrays |= {"w": np.ones(2, np.float32)}
    return model_of(graph_of(nodes, [value("x", (2,)), *inputs], ["y"], **arrays))


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_that_is_always_taken_replaces_its_if(taken: bool) -> None:
    shape = [node("Size", "x", "n"), node("Equal", "n two", "cond")]
    model = branches(shape, [], two=np.array(2 if taken else 3))
    graph = load(model)
    assert [op.op_type for op in graph.operators] == (["Add", "Mul", "Neg"] if taken else ["Add", "Neg"])
    assert graph.shape_of("t") == (2,)


def test_a_branch_that_hangs_on_the_request_is_one_operator_with_what_it_captures() -> None:
    graph = load(branches([], [value("cond", (), TensorProto.BOOL)]))
    branch, _ = graph.operators
    assert branch.op_type == "If"
    assert set(branch.captured) == {"x", "w"}
    assert set(graph.constants) == {"w"}
    assert [type(a).__name__ for a in branch.attributes.values()] == ["GraphProto", "GraphProto"]


def test_an_if_reads_what_an_if_of_unknown_rank_gives() -> None:
    """ONNX's checker wants a shape of whatever a graph inside a node reads; ONNX Runtime does not."""

    def branch(op: str, **how: Any) -> GraphProto:
        untold = onnx.ValueInfoProto(name=f"{op} gives")
        untold.type.tensor_type.elem_type = TensorProto.FLOAT
        reads = "x" if how.pop("first", False) else "t"
        return helper.make_graph([helper.make_node(op, [reads], [untold.name], **how)], op, [], [untold])

    nodes = [
        node(
            "If",
            "cond",
            "t",
            then_branch=branch("ReduceSum", first=True, keepdims=0),
            else_branch=branch("Abs", first=True),
        ),
        node("If", "cond", "y", then_branch=branch("Neg"), else_branch=branch("Exp")),
    ]
    model = model_of(graph_of(nodes, [value("x", (2,)), value("cond", (), TensorProto.BOOL)], ["y"]))
    graph = load(model)
    assert [op.op_type for op in graph.operators] == ["If", "If"]
    assert graph.shape_of("t") is None
    (found,) = run(model, {"x": np.ones(2, np.float32), "cond": np.array(True)})
    np.testing.assert_array_equal(found, -2)


def test_a_captured_folded_constant_is_kept() -> None:
    body = helper.make_graph([node("Mul", "x scale", "out")], "body", [], [value("out", None)])
    nodes = [
        node("Neg", "one", "scale"),
        node("If", "cond", "y", then_branch=body, else_branch=body),
    ]
    inputs = [value("x", (2,)), value("cond", (), TensorProto.BOOL)]
    graph = load(model_of(graph_of(nodes, inputs, ["y"], one=np.float32(1))))
    assert graph.operators[0].captured == ("x", "scale")
    assert graph.constants["scale"].load() == -1


def test_a_loop_and_a_scan_have_shapes_and_say_what_they_capture() -> None:
    def body(count: list[onnx.ValueInfoProto], outputs: list[str]) -> GraphProto:
        nodes = [node("Add", "state w", "next"), node("Identity", "next", "seen")]
        nodes += [node("Identity", "go", "again")] if count else []
        return helper.make_graph(
            nodes, "body", [*count, value("state", None)], [value(n, None) for n in outputs]
        )

    count = [value("i", (), INT64), value("go", (), TensorProto.BOOL)]
    nodes = [
        node("Loop", "times  x", "last all"),
        node("Scan", "x rows", "y z", num_scan_inputs=1),
    ]
    nodes[0].input[:] = ["times", "", "x"]
    nodes[0].attribute.append(helper.make_attribute("body", body(count, ["again", "next", "seen"])))
    scanned = body([], ["next", "seen"])
    scanned.input.append(value("row", None))
    nodes[1].attribute.append(helper.make_attribute("body", scanned))
    arrays = {"times": np.array(4), "w": np.ones(3, np.float32), "rows": np.ones((5, 3), np.float32)}
    graph = load(model_of(graph_of(nodes, [value("x", (3,))], ["last", "all", "y", "z"], **arrays)))
    assert [op.captured for op in graph.operators] == [("w",), ("w",)]
    assert [graph.shape_of(name) for name in ("y", "z")] == [(3,), (5, 3)]
    assert graph.shape_of("last") is None  # a loop may change its state's shape


def test_local_functions_are_inlined() -> None:
    body = [node("Mul", "a b", "t"), node("Relu", "t", "r")]
    function = helper.make_function("mine", "MulRelu", ["a", "b"], ["r"], body, [helper.make_opsetid("", 17)])
    call = helper.make_node("MulRelu", ["x", "w"], ["y"], domain="mine")
    model = model_of(
        graph_of([call], [value("x", (2, 2))], ["y"], w=np.ones(2, np.float32)), functions=[function]
    )
    model.opset_import.append(helper.make_opsetid("mine", 1))
    graph = load(model)
    assert [op.op_type for op in graph.operators] == ["Mul", "Relu"]
    assert graph.shape_of("y") == (2, 2)


def test_a_function_that_calls_itself_is_refused() -> None:
    again = helper.make_node("Again", ["a"], ["r"], domain="mine")
    function = helper.make_function("mine", "Again", ["a"], ["r"], [again], [helper.make_opsetid("mine", 1)])
    call = helper.make_node("Again", ["x"], ["y"], domain="mine")
    model = model_of(graph_of([call], [value("x", (2,))], ["y"]), functions=[function])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises(ModelError, match="'Again' calls itself"):
        load(model)


def test_inputs_that_do_not_fit_each_other_are_refused_with_what_was_assumed() -> None:
    model = model_of(
        graph_of([node("MatMul", "x w", "y")], [value("x", ("n", "k"))], ["y"], w=np.ones((3, 2), np.float32))
    )
    with pytest.raises(ModelError, match=r"MatMul 'y'.*k taken as 1"):
        load(model)
    assert load(model, x=(2, 3)).shape_of("y") == (2, 2)


def test_data_dependent_shapes_are_unknown_and_what_follows_still_loads() -> None:
    nodes = [
        node("NonZero", "x", "i"),
        node("Cast", "i", "f", to=FLOAT),
        node("ReduceSum", "f", "y", keepdims=0),
    ]
    graph = load(model_of(graph_of(nodes, [value("x", (4,))], ["y"])))
    assert [graph.shape_of(name) for name in ("i", "f", "y")] == [None, None, ()]
    assert graph.tensors["i"].dtype == "int64"


def test_what_is_no_tensor_has_its_kind() -> None:
    nodes = [node("SequenceConstruct", "x x", "s"), node("SequenceAt", "s zero", "y")]
    graph = load(model_of(graph_of(nodes, [value("x", (2,))], ["y", "s"], zero=np.array(0))))
    assert (graph.tensors["s"].dtype, graph.tensors["s"].shape) == ("sequence", None)


def test_contrib_operators_have_shapes_where_a_rule_or_the_file_gives_them() -> None:
    def contrib(op_type: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
        return helper.make_node(
            op_type, inputs.split(), outputs.split(), domain="com.microsoft", **attributes
        )

    nodes = [
        contrib("FusedConv", "x w", "c", activation="Relu", pads=[1, 1, 1, 1]),
        contrib("Gelu", "c", "g"),
        contrib("NoSuchThing", "g", "n"),
        contrib("NoSuchThing", "n", "y"),
    ]
    proto = graph_of(nodes, [value("x", (1, 3, 8, 8))], ["y"], w=np.ones((4, 3, 3, 3), np.float32))
    proto.value_info.append(value("n", (1, 4)))
    graph = load(model_of(proto))
    assert [graph.shape_of(name) for name in "cgny"] == [(1, 4, 8, 8), (1, 4, 8, 8), (1, 4), None]
    assert graph.tensors["y"].dtype == "unknown"


def test_outputs_may_be_inputs_and_constants() -> None:
    graph = load(
        model_of(graph_of([node("Neg", "w", "y")], [value("x", (2,))], ["x", "y"], w=np.ones(2, np.float32)))
    )
    assert graph.outputs == ("x", "y")
    assert graph.operators == ()
    np.testing.assert_array_equal(graph.constants["y"].load(), [-1, -1])


def test_attributes_are_plain_values() -> None:
    nodes = [
        node("Conv", "x w", "c", auto_pad="SAME_UPPER", strides=[2, 2]),
        node("LeakyRelu", "c", "y", alpha=0.5),
    ]
    graph = load(
        model_of(graph_of(nodes, [value("x", (1, 1, 5, 5))], ["y"], w=np.ones((1, 1, 3, 3), np.float32)))
    )
    assert dict(graph.operators[0].attributes) == {"auto_pad": "SAME_UPPER", "strides": [2, 2]}
    assert dict(graph.operators[1].attributes) == {"alpha": 0.5}


def test_a_sparse_initializer_is_a_dense_constant() -> None:
    dense = np.zeros((3, 4), np.float32)
    dense[1, 2], dense[2, 0] = 5, 7
    proto = graph_of([node("Add", "x w", "y")], [value("x", (3, 4))], ["y"])
    for indices in (np.array([6, 8]), np.array([[1, 2], [2, 0]])):
        values = numpy_helper.from_array(np.array([5, 7], np.float32), "w")
        del proto.sparse_initializer[:]
        proto.sparse_initializer.append(
            helper.make_sparse_tensor(values, numpy_helper.from_array(indices), [3, 4])
        )
        np.testing.assert_array_equal(load(model_of(proto)).constants["w"].load(), dense)


def test_constants_without_shapes_are_those_with() -> None:
    nodes = [
        node("Transpose", "w", "wt"),
        node("MatMul", "x wt", "m"),
        node("Shape", "x", "s"),
        node("ConstantOfShape", "s", "z"),
        node("Concat", "m z", "y", axis=0),
    ]
    model = model_of(graph_of(nodes, [value("x", ("n", 300))], ["y"], w=ARRAYS["w"][:300].repeat(2, 0)[:300]))
    data = model.SerializeToString()
    bound, free = load_graph(data, shapes={"x": (2, 300)}).constants, load_constants(data)
    assert set(bound) == {"wt", "z"}
    assert set(free) == {"wt"}
    np.testing.assert_array_equal(bound["wt"].load(), free["wt"].load())


def test_twenty_thousand_nodes_load_in_one_pass() -> None:
    """No timed assertion: what is quadratic would not end within a test run's patience."""
    nodes = [node("Relu" if i % 2 else "Neg", f"t{i}", f"t{i + 1}") for i in range(20_000)]
    start = time.perf_counter()
    graph = load(model_of(graph_of(nodes[::-1], [value("t0", (1, 8))], ["t20000"])))
    assert len(graph.operators) == 20_000
    assert graph.shape_of("t20000") == (1, 8)
    print(f"{time.perf_counter() - start:.1f} s")


def test_opsets_and_versions_are_the_models_own() -> None:
    model = model_of(graph_of([node("Relu", "x", "y")], [value("x", (1,))], ["y"]), opset=9)
    graph = load(model)
    assert graph.opset_imports == {"": 9, "com.microsoft": 1}
    assert graph.operators[0].version == 9
    assert graph.ir_version == 8


def test_a_missing_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        load_graph(tmp_path / "none.onnx")
