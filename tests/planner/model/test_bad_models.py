"""Models that are wrong, or absurd: each is refused with one clear error that names the node, in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.scale import transformer
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from edgepart.cli.main import main
from edgepart.planner.access import access_of
from edgepart.planner.errors import EdgepartError, Infeasible, InternalError, ModelError
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model import subgraphs
from edgepart.planner.model.load import load_constants, load_graph
from edgepart.planner.model.model_file import LARGEST_FILE
from edgepart.planner.model.weights import SMALL_BYTES
from edgepart.planner.planner import choose_plan
from tests.planner.model.test_load import branches, graph_of, model_of, node, value
from tests.planner.random_plans import CLUSTER
from tests.planner.small_models import quantised, residual

HUGE = 1 << 40
STRING, INT64, BOOL = TensorProto.STRING, TensorProto.INT64, TensorProto.BOOL


def one(
    made: NodeProto | list[NodeProto], shape: tuple[int, ...] = (1, 4, 8, 8), **arrays: Any
) -> ModelProto:
    """A model of few nodes from x to y."""
    return model_of(
        graph_of(made if isinstance(made, list) else [made], [value("x", shape)], ["y"], **arrays)
    )


def conv(**attributes: Any) -> ModelProto:
    return one(node("Conv", "x w", "y", name="c", **attributes), w=np.ones((4, 4, 3, 3), np.float32))


def plain(op_type: str, **attributes: Any) -> ModelProto:
    return one(node(op_type, "x", "y", name="n", **attributes))


def with_input(
    op_type: str, array: Any, shape: tuple[int, ...] = (1, 4, 8, 8), **attributes: Any
) -> ModelProto:
    return one(node(op_type, "x k", "y", name="n", **attributes), shape, k=np.asarray(array))


def changed(model: ModelProto, change: Callable[[ModelProto], object]) -> ModelProto:
    change(model)
    return model


REFUSED: dict[str, tuple[ModelProto, str]] = {
    # Attributes out of range, of a wrong type, missing or unknown.
    "axis 99": (plain("Softmax", axis=99), "Softmax 'n'.*axis"),
    "axis of a norm": (
        with_input("LayerNormalization", np.ones(8, np.float32), axis=99),
        "LayerNormalization 'n'.*axis 99",
    ),
    "axis of Concat": (one(node("Concat", "x x", "y", name="n", axis=99)), "Concat 'n'.*axis"),
    "reduced axis": (plain("ReduceMean", axes=[99]), "ReduceMean 'n'"),
    "group 0": (conv(group=0), "Conv 'c'.*group 0 must be at least 1"),
    "group -1": (conv(group=-1), "Conv 'c'.*group -1"),
    "group 3": (conv(group=3), "Conv 'c'.*4 channels.*takes 12"),
    "stride 0": (conv(strides=[0, 0]), "Conv 'c'.*strides"),
    "stride -1": (conv(strides=[-1, 1]), "Conv 'c'.*strides"),
    "one stride of two": (conv(strides=[1]), "Conv 'c'.*strides"),
    "pads of three": (conv(pads=[1, 1, 1]), "Conv 'c'.*pads"),
    "dilation 0": (conv(dilations=[0, 1]), "Conv 'c'.*dilations"),
    "kernel of another size": (conv(kernel_shape=[5, 5]), r"Conv 'c'.*kernel_shape \[5, 5\]"),
    "kernel 0": (plain("MaxPool", kernel_shape=[0, 0]), "MaxPool 'n'.*kernel_shape"),
    "no kernel": (plain("MaxPool"), "MaxPool 'n'.*kernel_shape"),
    "strides in words": (conv(strides="ab"), "Conv 'c'.*strides"),
    "padding unknown": (conv(auto_pad="FUNNY"), "Conv 'c'.*'FUNNY' is none of NOTSET"),
    "mode unknown": (with_input("Pad", np.ones(8, np.int64), mode="bogus"), "Pad 'n'.*'bogus' is none of"),
    "attribute unknown": (plain("Relu", bogus=3), "Relu 'n'.*bogus"),
    "short perm": (plain("Transpose", perm=[0, 1]), "Transpose 'n'.*not a permutation"),
    "perm twice": (plain("Transpose", perm=[0, 1, 1, 2]), "Transpose 'n'"),
    "no groups": (
        model_of(
            graph_of(
                [node("GroupNormalization", "x k k", "y", name="n", num_groups=0)],
                [value("x", (1, 4, 8, 8))],
                ["y"],
                k=np.ones(4, np.float32),
            ),
            opset=21,
        ),
        "GroupNormalization 'n'.*num_groups 0",
    ),
    "size 0": (plain("LRN", size=0), "LRN 'n'.*size 0"),
    "block 0": (plain("DepthToSpace", blocksize=0), "DepthToSpace 'n'.*(blocksize|Blocksize)"),
    "letter from nowhere": (plain("Einsum", equation="abcd->Q"), "Einsum 'n'.*'abcd->Q' has Q"),
    "digit in an equation": (plain("Einsum", equation="a9bc->a"), "Einsum 'n'.*is not valid"),
    "batch below 0": (with_input("GatherND", [[0]], batch_dims=-7), "GatherND 'n'.*batch_dims -7"),
    "more parts than outputs": (
        model_of(
            graph_of(
                [node("Split", "x", "y z", name="n", num_outputs=3)], [value("x", (6,))], ["y", "z"]
            ),
            opset=18,
        ),
        "Split 'n'.*num_outputs 3",
    ),
    "cast to nothing": (plain("Cast", to=0), "Cast 'n'"),
    "cast to what is no type": (plain("Cast", to=99), "Cast 'n'"),
    "slope that fits nothing": (with_input("PRelu", np.ones(7, np.float32)), "PRelu 'n' cannot be planned|PRelu 'n'"),
    # Shapes, types and numbers of inputs.
    "inputs that do not fit": (with_input("MatMul", np.ones((4, 5), np.float32), (2, 3)), "MatMul 'n'.*Incompatible"),
    "elements that do not fit": (with_input("Reshape", [3, 3]), "Reshape 'n'.*256 elements"),
    "a step of 0": (
        one(node("Slice", "x a b a c", "y", name="n"), a=np.array([0]), b=np.array([2]), c=np.array([0])),
        "Slice 'n'",
    ),
    "two types": (with_input("Add", np.ones((1,), np.int64)), "Add 'n'.*tensor.float.*tensor.int64"),
    "a type it does not take": (
        model_of(graph_of([node("Relu", "x", "y", name="n")], [value("x", (2,), STRING)], ["y"])),
        "Relu 'n'.*tensor.string",
    ),
    "one input too few": (plain("Add"), "Add 'n'.*input"),
    "too many inputs": (one(node("Relu", "x x x", "y", name="n")), "Relu 'n'.*input"),
    "no input": (one(helper.make_node("Relu", [""], ["y"], "n")), "Relu 'n'"),
    "no such operator": (plain("Bogus"), "Bogus 'n'.*No Op registered"),
    # Absurd extents.
    "an absurd input": (one(node("Relu", "x", "y"), (HUGE, HUGE)), "tensor 'x'.*the file is damaged"),
    "expanded": (with_input("Expand", [HUGE, 1, 1, 1, 1]), "tensor 'y'.*the file is damaged"),
    "tiled": (with_input("Tile", [HUGE, 1, 1, 1]), "tensor 'y'.*the file is damaged"),
    "filled": (
        one([node("ConstantOfShape", "k", "c"), node("Add", "x c", "y")], k=np.array([HUGE, 1 << 20])),
        "tensor 'c'.*the file is damaged",
    ),
    "padded": (conv(pads=[HUGE] * 4), "tensor 'y'.*the file is damaged"),
    # What the file says of itself.
    "opset of the future": (
        changed(plain("Relu"), lambda m: setattr(m.opset_import[0], "version", 999)),
        "version 999 of ai.onnx",
    ),
    "opset 0": (changed(plain("Relu"), lambda m: setattr(m.opset_import[0], "version", 0)), "version 0 of ai.onnx"),
    "only a strange opset": (
        changed(plain("Relu"), lambda m: m.opset_import.__delitem__(0)),
        "Relu 'n'.*No opset import",
    ),
    "format of the future": (changed(plain("Relu"), lambda m: setattr(m, "ir_version", 999)), "ONNX's format"),
    "an output of another type": (
        changed(plain("Relu"), lambda m: m.graph.output[0].CopyFrom(value("y", (1, 4, 8, 8), INT64))),
        "Relu 'n'.*'y' is of int64, but it is of float",
    ),
    "an input without type": (changed(plain("Relu"), lambda m: m.graph.input[0].ClearField("type")), "input 'x'"),
    "an input of no type": (
        changed(plain("Relu"), lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99)),
        "input 'x'.*element type 99",
    ),
    # Sub-graphs and functions.
    "no branch": (
        model_of(graph_of([node("If", "c", "y", name="n")], [value("c", (), BOOL)], ["y"])),
        "If 'n'.*branch",
    ),
    "a part that was compiled elsewhere": (
        one(helper.make_node("EPContext", ["x"], ["y"], "n", domain="com.microsoft", source="QNN")),
        "EPContext 'n'.*compiled by 'QNN' for another accelerator.*export the model without context",
    ),
    "compiled elsewhere, in a branch": (
        changed(
            branches([], [value("cond", (), BOOL)]),
            lambda m: m.graph.node[0].attribute[1].g.node.append(
                helper.make_node("EPContext", ["x"], ["t"], "deep", domain="com.microsoft")
            ),
        ),
        "EPContext 'deep'.*was compiled for another accelerator",
    ),
    "written twice in a branch": (
        changed(
            branches([], [value("cond", (), BOOL)]),
            lambda m: m.graph.node[0].attribute[1].g.node.append(node("Neg", "x", "t")),
        ),
        "'t' is written twice",
    ),
    "a cycle": (
        one([node("Add", "x b", "a", name="n"), node("Relu", "a", "b"), node("Relu", "b", "y")]),
        "depends on its own output",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_model_is_refused_and_its_node_named(name: str) -> None:
    model, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        graph = load_graph(model.SerializeToString())
        for operator in graph.operators:
            access_of(operator, graph)


def lying(name: str, shape: tuple[int, ...], *, operator: str = "Relu") -> ModelProto:
    model = one([node(operator, "x", "h"), node("Cast", "h", "y", to=1)], (4, 6))
    model.graph.value_info.append(value(name, shape, INT64 if operator == "NonZero" else 1))
    return model


@pytest.mark.parametrize(("shape", "left"), [((7, 7), []), ((4, 6), ["h"])])
def test_a_device_that_computes_all_of_it_is_not_told_a_shape_that_is_wrong(
    shape: tuple[int, ...], left: list[str]
) -> None:
    graph = load_graph(lying("h", shape).SerializeToString())
    assert graph.whole is not None
    assert [one.name for one in ModelProto.FromString(graph.whole.model).graph.value_info] == left


def test_an_output_that_the_file_has_wrong_is_planned_as_it_is() -> None:
    model = changed(plain("Relu"), lambda m: m.graph.output[0].CopyFrom(value("y", (3,))))
    graph = load_graph(model.SerializeToString())
    plan, _, _ = choose_plan(Problem(graph, CLUSTER, CLUSTER.devices[0].name), "bbgrap")
    assert plan.outputs[0].shape == (1, 4, 8, 8)


def test_sub_graphs_are_put_in_order_too() -> None:
    (choice, _) = load_graph(branches([], [value("cond", (), BOOL)]).SerializeToString()).operators
    assert [inner.op_type for inner in choice.attributes["then_branch"].node] == ["Add", "Mul"]


def deep(levels: int) -> bytes:
    """If in If, as bytes: no library writes so many."""

    def field(number: int, data: bytes) -> bytes:
        head, size = bytes([number << 3 | 2]), len(data)
        while size > 127:
            head, size = head + bytes([size & 127 | 128]), size >> 7
        return head + bytes([size]) + data

    inner = graph_of([node("Relu", "x", "o")], [], ["o"]).SerializeToString()
    tail = field(1, b"cond") + field(2, b"o") + field(4, b"If")
    for _ in range(levels):
        attribute = field(1, b"then_branch") + field(6, inner) + b"\xa0\x01\x05"
        inner = field(1, field(5, attribute) + tail) + field(12, field(1, b"o"))
    return field(7, inner) + b"\x08\x08" + field(8, b"\x10\x11")


@pytest.mark.parametrize("levels", [100, 3000])
def test_graphs_in_graphs_without_end_are_refused(levels: int) -> None:
    with pytest.raises(ModelError, match="nests its graphs too deep"):
        load_graph(deep(levels))


def functions(count: int, calls: int) -> ModelProto:
    """Each function calls the one before it so often; the first is a Relu."""
    made: list[FunctionProto] = []
    for n in range(count):
        names = ["a", *(f"t{k}" for k in range(calls - 1)), "r"]
        nodes = [
            helper.make_node(f"F{n - 1}" if n else "Relu", [a], [b], domain="mine" if n else "")
            for a, b in pairwise(names)
        ]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
        made.append(helper.make_function("mine", f"F{n}", ["a"], ["r"], nodes, imports))
    call = helper.make_node(f"F{count - 1}", ["x"], ["y"], domain="mine")
    model = model_of(graph_of([call], [value("x", (2,))], ["y"]), functions=made)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    return model


def test_functions_that_multiply_are_refused_before_they_are_written_out() -> None:
    with pytest.raises(ModelError, match=f"would be {2**40} nodes, and {subgraphs.MOST_NODES} is the most"):
        load_graph(functions(40, 2).SerializeToString())
    assert len(load_graph(functions(5, 3).SerializeToString()).operators) == 3**5


def test_functions_deep_in_functions_are_refused() -> None:
    with pytest.raises(ModelError, match="'F100' calls functions more than 100 deep"):
        load_graph(functions(150, 1).SerializeToString())


def test_inlining_leaves_the_weights_where_they_are() -> None:
    model = functions(2, 1)
    model.graph.node.append(node("Add", "y w", "z"))
    model.graph.output[0].name = "z"
    model.graph.initializer.append(helper.make_tensor("w", 1, [2], [3.0, 4.0]))
    np.testing.assert_array_equal(load_graph(model.SerializeToString()).constants["w"].load(), [3, 4])


def test_a_constant_that_grows_is_left_to_the_runtime() -> None:
    wide = SMALL_BYTES // 4
    model = one([node("Expand", "one k", "c"), node("ReduceMax", "c", "m", keepdims=0), node("Add", "x m", "y")],
                one=np.ones((wide, 1), np.float32), k=np.array([wide, wide]))  # fmt: skip
    graph = load_graph(model.SerializeToString())
    assert [op.op_type for op in graph.operators] == ["Expand", "ReduceMax", "Add"]


def test_a_file_of_two_gibibytes_is_not_even_read(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(ModelError, match="weights as external data"):
        load_graph(tmp_path / "m.onnx")


WEIGHT_BYTES = 300_000_000

CHILD = """
import resource, sys
from pathlib import Path
import edgepart.planner.model.load, edgepart.planner.planner, edgepart.planner.lowering.lower
from edgepart.planner.errors import ModelError
from edgepart.planner.layout.strategy import Problem
from tests.planner.random_plans import CLUSTER
from dataclasses import replace
used = int(next(l for l in open("/proc/self/status") if l.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]),) * 2)
devices = tuple(replace(device, memory_bytes=1e12) for device in CLUSTER.devices)
try:
    graph = edgepart.planner.model.load.load_graph(Path(sys.argv[1]))
    problem = Problem(graph, replace(CLUSTER, devices=devices), devices[0].name)
    for name in sys.argv[3:]:
        edgepart.planner.planner.choose_plan(problem, name)
    print("planned")
except ModelError as error:
    print("refused:", error)
"""


def in_child(path: Path, limit_bytes: float, *strategies: str) -> str:
    """What planning the model comes to in a process that may take so much more memory than it has at the start."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(int(limit_bytes)), *strategies],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONPATH": "src:.", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def big_model(folder: Path, external: bool, calls: bool) -> Path:
    """y = x + w with a w of 300 MB, in a file with a hole: no process has to hold it to write it."""
    model = functions(1, 1) if calls else one(node("Relu", "x", "y"), (2,))
    model.graph.node.append(node("Add", "y w", "z"))
    model.graph.input[0].CopyFrom(value("x", (WEIGHT_BYTES // 4,)))
    model.graph.output[0].name = "z"
    weight = TensorProto(name="w", data_type=1, dims=[WEIGHT_BYTES // 4])
    path = folder / "big.onnx"
    if external:
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="w.bin")
        model.graph.initializer.append(weight)
        path.write_bytes(model.SerializeToString())
        with (folder / "w.bin").open("wb") as file:
            file.truncate(WEIGHT_BYTES)
        return path
    # A second `graph` field: a reader merges it into the first.
    head = weight.SerializeToString() + b"\x4a" + varint(WEIGHT_BYTES)
    tensor = b"\x2a" + varint(len(head) + WEIGHT_BYTES) + head
    with path.open("wb") as file:
        file.write(model.SerializeToString() + b"\x3a" + varint(len(tensor) + WEIGHT_BYTES) + tensor)
        file.truncate(file.tell() + WEIGHT_BYTES)
    return path


@pytest.mark.parametrize(
    ("external", "calls"),
    [
        (False, False),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in [(True, False), (False, True)]),
    ],
)
def test_a_big_model_is_planned_in_twice_its_size(tmp_path: Path, external: bool, calls: bool) -> None:
    path = big_model(tmp_path, external, calls)
    found = in_child(path, 2 * WEIGHT_BYTES + 100_000_000, "single", "bbgrap")
    assert found == "planned\n"


def test_too_little_memory_is_a_clear_error_as_well(tmp_path: Path) -> None:
    found = in_child(big_model(tmp_path, False, False), 0.5 * WEIGHT_BYTES)
    assert found.startswith("refused: big.onnx")
    assert "memory" in found


@pytest.mark.parametrize(
    "name", ["group 0", "an absurd input", "a cycle", "two types", "a part that was compiled elsewhere"]
)
def test_the_command_line_gives_one_message(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, cluster = tmp_path / "m.onnx", tmp_path / "cluster.json"
    path.write_bytes(REFUSED[name][0].SerializeToString())
    device = {"name": "a", "kind": "k", "flops_per_s": 1e9, "memory_bytes_per_s": 1e9, "memory_bytes": 1e9}
    cluster.write_text(json.dumps({"devices": [device], "links": []}))
    with pytest.raises(SystemExit) as stopped:
        main(["plan", str(path), "--cluster", str(cluster), "--json"])
    found = capfd.readouterr()
    assert stopped.value.code == 1
    assert json.loads(found.out)["kind"] == "ModelError"
    assert found.err.count("error:") == 1 and "Traceback" not in found.err


SEEDS: dict[str, bytes] = {
    "residual": residual(8, 4),
    "quantised": quantised(),
    "transformer": transformer(30).SerializeToString(),
    "branches": branches([], [value("cond", (), BOOL)]).SerializeToString(),
    "functions": functions(3, 2).SerializeToString(),
}
NUMBERS = (0, 1, -1, 2, 7, 99, 255, HUGE, -HUGE, (1 << 63) - 1, -(1 << 63))
TEXTS = ("", "x", "y", "Relu", "If", "Reshape", "Conv", "SAME_UPPER", "com.microsoft", "nowhere", "\0")


def places(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """Every field that is set in a message, however deep."""
    for descriptor, inside in message.ListFields():
        yield message, descriptor
        if descriptor.message_type is not None:
            for inner in inside if descriptor.is_repeated else [inside]:
                yield from places(inner)


def mutate(model: Message, draw: Callable[..., Any]) -> None:
    """Changes one field: another number, text or length; elements gone, doubled or swapped."""
    message, descriptor = draw(st.sampled_from(list(places(model))))
    name = descriptor.name
    if descriptor.is_repeated:
        elements = list(getattr(message, name))
        at = draw(st.integers(0, len(elements) - 1))
        match draw(st.sampled_from(["drop", "double", "swap", "replace"])):
            case "drop":
                del elements[at]
            case "double":
                elements.append(elements[at])
            case "swap":
                elements[0], elements[at] = elements[at], elements[0]
            case _ if descriptor.message_type is None:
                elements[at] = other(elements[at], draw)
        copies = [
            type(e).FromString(e.SerializeToString()) if isinstance(e, Message) else e for e in elements
        ]
        message.ClearField(name)
        getattr(message, name).extend(copies)
    elif descriptor.message_type is not None or draw(st.booleans()):
        message.ClearField(name)
    elif descriptor.enum_type is not None:
        setattr(message, name, draw(st.sampled_from([v.number for v in descriptor.enum_type.values])))
    else:
        setattr(message, name, other(getattr(message, name), draw))


def other(before: Any, draw: Callable[..., Any]) -> Any:
    if isinstance(before, str):
        return draw(st.sampled_from(TEXTS))
    if isinstance(before, bytes):
        return draw(st.sampled_from([b"", before[:-1], before + b"\xff", b"\xff\xfe"]))
    if isinstance(before, float):
        return draw(st.sampled_from([0.0, -1.0, float("nan"), float("inf")]))
    return draw(st.sampled_from(NUMBERS))


@settings(
    max_examples=120,
    derandomize=True,  # shape inference is native code: what kills it is to be found at leisure, not by chance
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_changed_fields_raise_nothing_but_our_errors(data: st.DataObject) -> None:
    model = ModelProto.FromString(SEEDS[data.draw(st.sampled_from(sorted(SEEDS)))])
    for _ in range(data.draw(st.integers(1, 3))):
        try:
            mutate(model, data.draw)
        except (ValueError, TypeError):  # a number that the field cannot hold
            continue
    try:
        graph = load_graph(model.SerializeToString())
        for name in ("single", "bbgrap"):
            choose_plan(Problem(graph, CLUSTER, CLUSTER.devices[0].name), name)
        load_constants(model.SerializeToString())
    except InternalError:
        raise
    except EdgepartError:
        return


def test_a_sub_graph_is_no_way_around_the_checks() -> None:
    branch: GraphProto = helper.make_graph(
        [node("Einsum", "x", "o", name="inner", equation="ab->Q")], "g", [], [value("o", None)]
    )
    choice = node("If", "cond", "y", then_branch=branch, else_branch=branch)
    inputs = [value("x", (2, 3)), value("cond", (), BOOL)]
    with pytest.raises(ModelError, match="Einsum 'inner'"):
        load_graph(model_of(graph_of([choice], inputs, ["y"])).SerializeToString())


def test_an_operator_of_the_runtimes_own_that_does_not_fit_is_left_whole() -> None:
    """Nothing but the file says what shapes it has."""
    fused = helper.make_node("SkipLayerNormalization", ["x", "s", "g"], ["y"], "n", domain="com.microsoft")
    weights = {"s": np.ones((2, 4, 6, 2), np.float32), "g": np.ones(6, np.float32)}
    graph = load_graph(one(fused, (2, 4, 6), **weights).SerializeToString())
    assert "do not fit" in (access_of(graph.operators[0], graph).opaque or "")


@pytest.mark.parametrize("strategy", ["single", "auto"])
def test_an_input_that_no_device_could_hold_does_not_fit_and_that_is_all(strategy: str) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [HUGE]) for name in "xy"]
    made = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "huge", ports[:1], ports[1:])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(Infeasible, match="does not fit"):
        choose_plan(
            Problem(load_graph(model.SerializeToString()), CLUSTER, CLUSTER.devices[0].name), strategy
        )
