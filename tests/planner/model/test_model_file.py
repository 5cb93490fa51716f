"""What may be wrong with a model file: external data, damage, contradictions; and mutations of a good one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from edgepart.planner.errors import EdgepartError, ModelError
from edgepart.planner.model.digests import joint_digest, model_digest
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.model_file import model_files
from tests.planner.model.test_load import graph_of, load, model_of, node, value


def with_external(folder: Path, size: int = 1000, location: str = "sub/weights.bin") -> Path:
    """A model whose one weight [2, size] lies in another file."""
    weight = np.arange(2 * size, dtype=np.float32).reshape(2, size)
    model = model_of(graph_of([node("Add", "x w", "y")], [value("x", (1, size))], ["y"], w=weight))
    folder.mkdir(exist_ok=True)
    (folder / "sub").mkdir(exist_ok=True)
    onnx.save_model(model, folder / "m.onnx", save_as_external_data=True, location="sub/weights.bin")
    if location != "sub/weights.bin":
        point_to(folder / "m.onnx", location=location)
    return folder / "m.onnx"


def point_to(path: Path, **entries: str) -> None:
    """Changes where the model says that its weight lies."""
    model = onnx.load(path, load_external_data=False)
    (tensor,) = model.graph.initializer
    found = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    tensor.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in found.items())
    path.write_bytes(model.SerializeToString())


def test_external_data_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    path = with_external(tmp_path / "m")
    graph = load_graph(path)
    (tmp_path / "m/sub/weights.bin").write_bytes(np.full((2, 1000), 3, np.float32).tobytes())
    assert graph.constants["w"].load()[1, 999] == 3


def test_half_a_gigabyte_of_weights_is_not_read(tmp_path: Path) -> None:
    path = with_external(tmp_path / "m")
    with (tmp_path / "m/sub/weights.bin").open("r+b") as file:
        file.truncate(500_000_000)  # a hole: reading it would show in the memory peak
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].dims[:] = [1, 125_000_000]
    path.write_bytes(model.SerializeToString())
    point_to(path, length="500000000", offset="0")
    model = onnx.load(path, load_external_data=False)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    path.write_bytes(model.SerializeToString())
    constant = load_graph(path).constants["w"]
    assert constant.nbytes == 500_000_000
    assert isinstance(constant.load()[0, :10], np.ndarray)
    assert not constant.load().flags.owndata


def test_files_of_a_model_are_listed_once(tmp_path: Path) -> None:
    path = with_external(tmp_path / "m")
    assert model_files(path) == (path, tmp_path / "m/sub/weights.bin")


def test_a_digest_changes_with_either_file(tmp_path: Path) -> None:
    path = with_external(tmp_path / "m")
    files = model_files(path)
    before = model_digest(files)
    assert before == joint_digest([model_digest([file]) for file in files])
    data = tmp_path / "m/sub/weights.bin"
    data.write_bytes(b"\1" + data.read_bytes()[1:])
    assert model_digest(files) != before


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("../weights.bin", "not a path inside"),
        ("sub/../../weights.bin", "not a path inside"),
        ("/etc/passwd", "not a path inside"),
        ("", "not a path inside"),
        ("..\\weights.bin", "not a path inside"),
        ("sub", "is not a file"),
        ("sub/other.bin", "is missing"),
        ("link.bin", "leads out"),
        ("loop.bin", "is missing"),
    ],
)
def test_external_data_stays_in_the_folder(tmp_path: Path, location: str, message: str) -> None:
    path = with_external(tmp_path / "m", location=location)
    (tmp_path / "weights.bin").write_bytes(bytes(8000))
    (tmp_path / "m/link.bin").symlink_to(tmp_path / "weights.bin")
    (tmp_path / "m/loop.bin").symlink_to(tmp_path / "m/loop.bin")
    for use in (load_graph, model_files):
        with pytest.raises(ModelError, match=message):
            use(path)


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    path = with_external(tmp_path / "m", location="link.bin")
    (tmp_path / "m/link.bin").symlink_to(tmp_path / "m/sub/weights.bin")
    assert load_graph(path).constants["w"].load()[0, 5] == 5
    assert model_files(path)[1] == tmp_path / "m/link.bin"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "8"}, "ends at 8008, weights.bin has 8000"),
        ({"offset": "-8"}, "at -8"),
        ({"length": "12"}, "has 12 bytes"),
        ({"offset": "many"}, "not a number"),
        ({"length": str(1 << 62)}, "were expected"),
    ],
)
def test_external_data_must_be_there_whole(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    path = with_external(tmp_path / "m")
    point_to(path, **entries)
    with pytest.raises(ModelError, match=message):
        load_graph(path)


def test_external_data_needs_a_path(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="give its path"):
        load_graph(with_external(tmp_path / "m").read_bytes())


def test_external_data_of_a_branch_is_put_into_it(tmp_path: Path) -> None:
    weight = TensorProto(name="w", dims=[2], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    weight.external_data.append(onnx.StringStringEntryProto(key="location", value="w.bin"))
    body = helper.make_graph([node("Mul", "x w", "out")], "body", [], [value("out", None)], [weight])
    choice = node("If", "cond", "y", then_branch=body, else_branch=body)
    inputs = [value("x", (2,)), value("cond", (), TensorProto.BOOL)]
    (tmp_path / "m.onnx").write_bytes(model_of(graph_of([choice], inputs, ["y"])).SerializeToString())
    (tmp_path / "w.bin").write_bytes(np.array([4, 5], np.float32).tobytes())
    (tensor,) = load_graph(tmp_path / "m.onnx").operators[0].attributes["then_branch"].initializer
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), [4, 5])


def small() -> ModelProto:
    nodes = [node("Conv", "x w b", "c", pads=[1, 1, 1, 1], name="conv"), node("Relu", "c", "r")]
    nodes += [
        node("Shape", "r", "s"),
        node("Slice", "s zero two", "n"),
        node("Concat", "n rest", "t", axis=0),
    ]
    nodes += [node("Reshape", "r t", "y")]
    arrays = {
        "w": np.ones((2, 1, 3, 3), np.float32),
        "b": np.zeros(2, np.float32),
        "zero": np.array([0]),
        "two": np.array([2]),
        "rest": np.array([-1]),
    }
    return model_of(graph_of(nodes, [value("x", ("n", 1, 4, 4))], ["y"], **arrays))


def broken(change: str) -> ModelProto:
    model = small()
    graph = model.graph
    match change:
        case "cycle":
            graph.node[0].input[0] = "r"
        case "dangling":
            graph.node[1].input[0] = "nowhere"
        case "written twice":
            graph.node[1].output[0] = graph.node[2].input[0] = graph.node[5].input[0] = "c"
        case "weight twice":
            graph.initializer.append(graph.initializer[0])
        case "no outputs":
            del graph.output[:]
        case "output from nowhere":
            graph.output[0].name = "nowhere"
        case "output twice":
            graph.output.append(graph.output[0])
        case "negative dims":
            graph.initializer[0].dims[0] = -2
        case "absurd dims":
            graph.initializer[0].dims[0] = 1 << 60
        case "short data":
            graph.initializer[0].raw_data = b"1234"
        case "unknown type":
            graph.initializer[0].data_type = 1234
        case "no opset":
            del model.opset_import[:]
        case "bad shapes":
            graph.initializer[0].dims[:] = [18]
    return model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cycle", "depends on its own output"),
        ("dangling", "Relu 'r' reads 'nowhere', which nothing writes"),
        ("written twice", "'c' is written twice"),
        ("weight twice", "'w' is written twice"),
        ("no outputs", "no graph with outputs"),
        ("output from nowhere", "nothing writes the output 'nowhere'"),
        ("output twice", "two outputs share a name"),
        ("negative dims", "negative extent"),
        ("absurd dims", "the file is damaged"),
        ("short data", "holds 4 bytes where 72 were expected"),
        ("unknown type", "element type 1234 is unknown"),
        ("no opset", "which operator set"),
        ("bad shapes", "Conv 'conv': the shapes of its inputs do not fit"),
    ],
)
def test_a_broken_model_is_refused_with_its_fault(change: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(broken(change))


@pytest.mark.parametrize("data", [b"", b"\x08", b"no model at all", bytes(1000)])
def test_bytes_that_are_no_model_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError):
        load_graph(data)


def test_every_truncation_is_refused_or_loads_something_whole() -> None:
    data = small().SerializeToString()
    refused = 0
    for length in range(0, len(data), 7):
        try:
            load_graph(data[:length])
        except EdgepartError:
            refused += 1
    assert refused > len(data) // 7 - 3


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutations_raise_nothing_but_our_errors(changes: list[tuple[int, int]]) -> None:
    data = bytearray(small().SerializeToString())
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        load_graph(bytes(data))
    except EdgepartError:
        return
