"""The Open Inference Protocol's rules: round trips of every datatype, and what is refused."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgepart.agent.api.model_card import ModelCard
from edgepart.agent.gateway import oip, oip_models
from edgepart.agent.gateway.oip_elements import (
    BINARY_ONLY,
    DATATYPES,
    binary_of,
    datatype_of_array,
    datatype_of_element,
    numpy_dtype,
)
from edgepart.agent.http import oip_bodies
from edgepart.agent.http.json_bodies import MAX_JSON_BYTES
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.errors import RequestError
from edgepart.planner.plans.plan import ValueInfo

Array = np.ndarray[Any, np.dtype[Any]]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, Array]:
    """A datatype and an array of it."""
    datatype = draw(st.sampled_from(sorted(DATATYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    if datatype == "BYTES":
        texts = draw(
            st.lists(st.text(max_size=5), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
        )
        array = np.empty(len(texts), dtype=object)
        array[:] = texts
        return datatype, array.reshape(shape)
    kind = np.dtype(np.float16) if datatype == "BF16" else numpy_dtype(datatype)
    made = draw(hnp.arrays(kind, shape))
    return datatype, made.astype(numpy_dtype(datatype))


def binary_request(datatype: str, array: Array) -> tuple[bytes, int]:
    data = bytes(binary_of(array, datatype))
    entry: dict[str, Any] = {"name": "x", "datatype": datatype, "shape": list(array.shape)}
    entry["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"id": "7", "inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return head + data, len(head)


def one(data: Any, datatype: str = "FP32", shape: Any = (2,), **more: Any) -> bytes:
    entry = {"name": "x", "datatype": datatype, "shape": list(shape) if isinstance(shape, tuple) else shape}
    return json.dumps({"inputs": [entry | {"data": data} | more]}).encode()


@given(tensors())
@settings(max_examples=150)
def test_binary_there_and_back(tensor: tuple[str, Array]) -> None:
    datatype, array = tensor
    body, head = binary_request(datatype, array)
    request = oip_bodies.read_request(body, head)
    found = request.inputs["x"]
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes() or found.tolist() == array.tolist()
    text, buffers = oip_bodies.build_answer("m", request, {"x": found}, {}, version="1")
    answer = json.loads(text)
    assert answer["id"] == "7"
    assert answer["outputs"][0]["datatype"] == datatype
    assert b"".join(buffers) == body[head:]
    assert answer["outputs"][0]["parameters"]["binary_data_size"] == len(body) - head


@given(tensors())
@settings(max_examples=150)
def test_json_there_and_back(tensor: tuple[str, Array]) -> None:
    datatype, array = tensor
    request = oip.InferRequest(None, {}, None, binary_output=False, timeout_s=None)
    finite = array.dtype.kind == "O" or np.isfinite(array.astype(np.float64)).all()
    if datatype in BINARY_ONLY or not finite:
        with pytest.raises(RequestError, match="binary"):
            oip_bodies.build_answer("m", request, {"x": array}, {}, version="1")
        return
    text, buffers = oip_bodies.build_answer("m", request, {"x": array}, {}, version="1")
    assert not buffers
    entry = json.loads(text)["outputs"][0]
    back = oip_bodies.read_request(json.dumps({"inputs": [entry]}).encode(), None).inputs["x"]
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@given(tensors())
@settings(max_examples=100)
def test_nested_data_is_as_good_as_flat(tensor: tuple[str, Array]) -> None:
    datatype, array = tensor
    if datatype in BINARY_ONLY or array.ndim == 0 or 0 in array.shape[:-1]:
        return  # a scalar has no nesting, and [] says nothing of the extents inside it
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return
    flat = oip_bodies.read_request(one(array.ravel().tolist(), datatype, array.shape), None)
    nested = oip_bodies.read_request(one(array.tolist(), datatype, array.shape), None)
    np.testing.assert_array_equal(flat.inputs["x"], nested.inputs["x"])


@given(st.binary(max_size=200), st.none() | st.integers(-5, 300))
@example(b"{", None)
@example(b"[]", None)
@example(b"\xff\xfe", None)
@example(b'{"inputs": [{}]}', 3)
@settings(max_examples=200)
def test_random_bytes_are_refused_and_nothing_else(body: bytes, head: int | None) -> None:
    with pytest.raises(RequestError):
        oip_bodies.read_request(body, head)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            key: values | st.sampled_from(["x", "FP32", "INT64", "BYTES", [1], [2, 2], [0]])
            for key in ("name", "datatype", "shape", "data", "parameters")
        },
    ),
    values,
    values,
)
@settings(max_examples=200)
def test_any_json_is_read_or_refused(entry: Any, outputs: Any, parameters: Any) -> None:
    document = {"inputs": [entry], "outputs": outputs, "parameters": parameters}
    try:
        request = oip_bodies.read_request(json.dumps(document).encode(), None)
    except RequestError as error:
        assert str(error)
    else:
        assert all(isinstance(array, np.ndarray) for array in request.inputs.values())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (one([1.0]), "2 elements"),
        (one([[1, 2], [3]], shape=(2, 2)), "ragged"),
        (one([[1, 2], 3], shape=(3,)), "nested deeper|ragged"),
        (one([[1, 2, 3]], shape=(3, 1)), "nested as"),
        (one([1, 2], shape=(-2,)), "no extent"),
        (one([1, 2], shape=(True, 2)), "no extent"),
        (one([1, 2], shape=(2.0,)), "no extent"),
        (one([], shape=(0, 2**41)), "no extent"),
        (one([], shape=(2**40, 2**40, 0)), "cannot be"),
        (one([1], shape=[1] * 33), "at most 32"),
        (one([1, 2], shape="2"), "must be a list"),
        (one([1, 2], "FP8"), "none of"),
        (one([1, 2], "FP16"), "binary only"),
        (one([1, True]), "bool"),
        (one(["1", 2]), "str"),
        (one([1.5, 2], "INT32"), "float"),
        (one([1, 256], "UINT8"), "outside"),
        (one([1, -1], "UINT8"), "outside"),
        (one([2**63, 0], "INT64"), "outside"),
        (one([1e39, 0]), "too large"),
        (one([10**400, 0]), "no JSON"),
        (one([0, 1], "BOOL"), "int"),
        (one([None, 1]), "NoneType"),
        (one(["\ud800", ""], "BYTES"), "surrogate"),
        (one({"a": 1}), "must be a list"),
        (one([1, 2], parameters={"binary_data_size": 8}), "either"),
        (one([1, 2], parameters=[]), "JSON object"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}', "either"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [NaN]}]}', "NaN"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1e999]}]}', "no JSON"),
        (b'{"inputs": ' + b"[" * 100_000, "depth limit"),
        (b'{"inputs": [], "id": 3}', "`id`"),
        (b'{"inputs": [], "parameters": {"timeout": -1}}', "timeout"),
        (b'{"inputs": [], "parameters": {"binary_data_output": 1}}', "true or false"),
        (b'{"inputs": [], "outputs": [{"name": "y"}, {"name": "y"}]}', "twice"),
        (
            b'{"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": 3}}]}',
            "classification",
        ),
        (b'{"inputs": [{"name": ""}]}', "name"),
        (b"", "no JSON"),
        (b"\x1f\x8b\x08", "no JSON"),
    ],
)
def test_what_is_wrong_is_named(body: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        oip_bodies.read_request(body, None)


@pytest.mark.parametrize(
    ("datatype", "shape", "size", "data", "words"),
    [
        ("FP32", [2], 8, b"\0" * 7, "7 bytes are left"),
        ("FP32", [2], 8, b"\0" * 9, "1 bytes follow"),
        ("FP32", [3], 8, b"\0" * 8, "takes 12 bytes"),
        ("FP32", [2], -8, b"\0" * 8, "binary_data_size"),
        ("FP32", [2], 2**70, b"\0" * 8, "binary_data_size"),
        ("FP32", [2], "8", b"\0" * 8, "binary_data_size"),
        ("BOOL", [2], 2, b"\0\2", "neither 0 nor 1"),
        ("BYTES", [1], 8, struct.pack("<I", 2**32 - 1) + b"abcd", "claims 4294967295"),
        ("BYTES", [2**38], 4, b"\0" * 4, "at least"),
        ("BYTES", [1], 6, struct.pack("<I", 1) + b"ab", "follow the last"),
        ("BYTES", [2], 8, struct.pack("<I", 4) + b"abcd", "after the end"),
        ("BYTES", [1], 5, struct.pack("<I", 1) + b"\xff", "UTF-8"),
    ],
)
def test_binary_sizes_do_not_lie(datatype: str, shape: list[int], size: Any, data: bytes, words: str) -> None:
    entry = {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [entry]}).encode()
    with pytest.raises(RequestError, match=words):
        oip_bodies.read_request(head + data, len(head))


def test_a_header_length_beyond_the_body() -> None:
    with pytest.raises(RequestError, match="Inference-Header"):
        oip_bodies.read_request(b"{}", 3)


def test_json_has_a_limit() -> None:
    with pytest.raises(RequestError, match="binary data"):
        oip_bodies.read_request(b" " * (MAX_JSON_BYTES + 1), None)


def test_unaligned_binary_is_made_aligned() -> None:
    for spaces in range(8):
        array = np.arange(3, dtype=np.float64)
        body, head = binary_request("FP64", array)
        found = oip_bodies.read_request(b" " * spaces + body, head + spaces).inputs["x"]
        assert found.flags.aligned
        np.testing.assert_array_equal(found, array)


def test_outputs_choose_their_form_one_by_one() -> None:
    body = {
        "inputs": [],
        "outputs": [{"name": "b", "parameters": {"binary_data": True}}, {"name": "a"}],
    }
    request = oip_bodies.read_request(json.dumps(body).encode(), None)
    text, buffers = oip_bodies.build_answer(
        "m", request, {"a": np.zeros(1), "b": np.ones(1), "c": np.ones(1)}, {}, version="1"
    )
    first, second = json.loads(text)["outputs"]
    assert (first["name"], second["name"]) == ("b", "a")
    assert "data" not in first and second["data"] == [0.0]
    assert b"".join(buffers) == np.ones(1).tobytes()


def test_maps_and_sequences_travel_as_json() -> None:
    request = oip_bodies.read_request(b'{"inputs": []}', None)
    value = [{0: np.float32(0.25), 1: 0.75}]
    entry = json.loads(oip_bodies.build_answer("m", request, {"p": value}, {}, version="1")[0])["outputs"][0]
    assert (entry["datatype"], entry["shape"]) == ("BYTES", [1])
    assert json.loads(entry["data"][0]) == [{"0": 0.25, "1": 0.75}]
    with pytest.raises(RequestError, match="NaN"):
        oip_bodies.build_answer("m", request, {"p": [{0: float("nan")}]}, {}, version="1")


CARD = ModelCard(
    "m",
    "serving",
    (ValueInfo("x", "float", (-1, 3)), ValueInfo("k", "int64", None)),
    (ValueInfo("y", "float", (1,)),),
    Epoch(1, 1),
)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ({"x": np.zeros((2, 3), np.float32)}, None, "missing"),
        ({"x": np.zeros((2, 3), np.float64), "k": np.zeros(1, np.int64)}, None, "FP64"),
        ({"x": np.zeros((2, 4), np.float32), "k": np.zeros(1, np.int64)}, None, r"\[2, 4\]"),
        ({"x": np.zeros(3, np.float32), "k": np.zeros(1, np.int64)}, None, "shape"),
        ({"z": np.zeros(3, np.float32)}, None, "no input 'z'"),
        ({"x": np.zeros((2, 3), np.float32), "k": np.zeros(1, np.int64)}, {"z": None}, "no outputs"),
    ],
)
def test_what_does_not_fit_the_deployment(inputs: Any, outputs: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        oip_models.check_fit(CARD, oip.InferRequest(None, inputs, outputs, False, None))


def test_what_fits_passes() -> None:
    inputs: dict[str, Array] = {"x": np.zeros((9, 3), np.float32), "k": np.zeros((1, 1), np.int64)}
    oip_models.check_fit(CARD, oip.InferRequest(None, inputs, {"y": None}, False, None))


def test_metadata() -> None:
    document = oip_models.metadata(CARD)
    assert document["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    assert document["inputs"][1]["shape"] == [-1]
    assert (document["platform"], document["versions"]) == ("onnxruntime_onnx", ["1"])


def test_every_datatype_has_both_names() -> None:
    assert datatype_of_array(np.dtype("<U3")) == "BYTES"
    assert datatype_of_array(np.dtype(np.complex64)) is None
    assert datatype_of_element("bfloat16") == "BF16"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[" * (31 << 20), "lists"),
        (b'{"inputs": [' + b"[]," * (1 << 20) + b"[]]}", "lists"),
        (b'{"inputs": [' + b"0," * (5 << 20) + b"0]}", "items"),
        (b'{"inputs": ' + b'{"a":' * 2000, "no JSON"),
        (b'{"inputs": [{"name": "a", "datatype": "FP32", "shape": [1], "data": [NaN]}]}', "binary"),
    ],
    ids=["brackets", "lists", "items", "depth", "NaN"],
)
def test_json_that_takes_long_or_asks_for_what_is_not_there_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        oip_bodies.read_request(body, None)
