"""Requests and answers as messages: every datatype raw and typed, as the client's own classes read and write them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from tritonclient.grpc import service_pb2

from edgepart.agent.api.inference_request import SequenceTurn
from edgepart.agent.gateway.oip import InferRequest
from edgepart.agent.gateway.oip_elements import BINARY_ONLY, binary_of, texts_of
from edgepart.agent.grpc import infer_messages
from edgepart.agent.grpc.infer_messages import TYPED_FIELDS, build_answer, read_message, read_tensors
from edgepart.planner.errors import RequestError
from tests.agent.http.test_oip import Array, tensors


def read(message: Any) -> InferRequest:
    return read_tensors(read_message(message.SerializeToString()))


def request(datatype: str, shape: Any, raw: bytes | None = None, **typed: Any) -> Any:
    """A message with one input."""
    message = service_pb2.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=list(shape))
    for field, values in typed.items():
        getattr(tensor.contents, field).extend(values)
    if raw is not None:
        message.raw_input_contents.append(raw)
    return message


def answer(asked: InferRequest, outputs: dict[str, Any], **parameters: Any) -> Any:
    return service_pb2.ModelInferResponse.FromString(
        b"".join(build_answer("m", asked, outputs, parameters, version="1"))
    )


@given(tensors())
@settings(max_examples=100)
def test_raw_there_and_back(tensor: tuple[str, Array]) -> None:
    datatype, array = tensor
    data = bytes(binary_of(array, datatype))
    asked = read(request(datatype, array.shape, data))
    found = asked.inputs["x"]
    assert found.shape == array.shape and found.dtype == array.dtype and found.flags.aligned
    assert found.tobytes() == array.tobytes() or found.tolist() == array.tolist()
    told = answer(asked, {"x": found})
    assert told.raw_output_contents == [data]
    assert (told.outputs[0].datatype, tuple(told.outputs[0].shape)) == (datatype, array.shape)
    assert not told.outputs[0].HasField("contents")


@given(tensors())
@settings(max_examples=100)
def test_typed_there_and_back(tensor: tuple[str, Array]) -> None:
    datatype, array = tensor
    if datatype in BINARY_ONLY:
        with pytest.raises(RequestError, match=f"{datatype} raw only"):
            read(request(datatype, array.shape, fp32_contents=[0.0]))
        return
    values: list[Any] = texts_of(array) if datatype == "BYTES" else array.ravel().tolist()
    typed: Any = {TYPED_FIELDS[datatype]: values}
    asked = read(request(datatype, array.shape, **typed))
    found = asked.inputs["x"]
    assert found.shape == array.shape and found.dtype == array.dtype
    assert found.tolist() == array.tolist() or np.array_equal(found, array, equal_nan=True)
    told = answer(asked, {"x": found})
    assert not told.raw_output_contents
    back = getattr(told.outputs[0].contents, TYPED_FIELDS[datatype])
    assert list(back) == values or np.array_equal(back, values, equal_nan=True)


def test_an_answer_with_a_datatype_that_goes_raw_only_is_raw() -> None:
    asked = read(request("FP32", [1], fp32_contents=[1.5]))
    told = answer(asked, {"y": np.ones(1, np.float32), "h": np.ones(2, ml_dtypes.bfloat16)})
    assert [len(one) for one in told.raw_output_contents] == [4, 4]
    assert [output.datatype for output in told.outputs] == ["FP32", "BF16"]
    assert not any(output.HasField("contents") for output in told.outputs)


def test_a_request_without_inputs_is_answered_raw() -> None:
    asked = read(service_pb2.ModelInferRequest(model_name="m"))
    assert len(answer(asked, {"y": np.ones(1, np.float32)}).raw_output_contents) == 1


def test_parameters_there_and_back() -> None:
    message = request("FP32", [0], b"")
    message.id = "r1"
    message.parameters["sequence_id"].int64_param = 7
    message.parameters["sequence_start"].bool_param = True
    message.parameters["timeout"].int64_param = 2_500_000
    message.parameters["nothing"].SetInParent()
    message.outputs.add(name="y")
    asked = read(message)
    assert (asked.id, asked.timeout_s, list(asked.outputs or ())) == ("r1", 2.5, ["y"])
    assert asked.sequence == SequenceTurn("7", start=True)
    told = answer(asked, {"y": np.ones(1)}, epoch="1.2", seconds=0.5, replays=3, last=True)
    assert told.id == "r1" and told.model_name == "m" and told.model_version == "1"
    assert told.parameters["epoch"].string_param == "1.2" and told.parameters["seconds"].double_param == 0.5
    assert told.parameters["replays"].int64_param == 3 and told.parameters["last"].bool_param is True


def test_the_sequence_of_a_step_is_known_before_its_tensors_are_read() -> None:
    message = request("FP32", [0], b"")
    assert read_message(message.SerializeToString()).sequence is None
    message.parameters["sequence_id"].string_param = "a"
    assert read_message(message.SerializeToString()).sequence == ("m", "a")
    message.parameters["sequence_id"].string_param = ""
    assert read_message(message.SerializeToString()).sequence is None


def shared_memory() -> Any:
    message = request("FP32", [1])
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"
    return message


def classified() -> Any:
    message = request("FP32", [1], bytes(4))
    message.outputs.add(name="y").parameters["classification"].int64_param = 3
    return message


def shared_output() -> Any:
    message = request("FP32", [1], bytes(4))
    message.outputs.add(name="y").parameters["shared_memory_region"].string_param = "r"
    return message


def twice_raw() -> Any:
    message = request("FP32", [1], bytes(4))
    message.raw_input_contents.append(bytes(4))
    return message


def one_missing() -> Any:
    message = request("FP32", [1], bytes(4))
    message.inputs.add(name="z", datatype="FP32", shape=[1])
    return message


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (request("FP32", [2], bytes(7)), "takes 8 bytes; 7 came"),
        (request("FP32", [2], bytes(8), fp32_contents=[1, 2]), "give either `contents` or"),
        (twice_raw(), "1 tensors more than there are inputs"),
        (one_missing(), "input 'z': `raw_input_contents` has 1 tensors, none for this input"),
        (request("FP32", [2]), "shape \\[2\\] has 2 elements, `fp32_contents` has 0"),
        (request("FP32", [2], int_contents=[1, 2]), "`fp32_contents` has 0"),
        (request("INT8", [1], int_contents=[128]), "outside INT8's -128 to 127"),
        (request("UINT16", [1], uint_contents=[65536]), "outside UINT16's 0 to 65535"),
        (request("BYTES", [1], bytes_contents=[b"\xff"]), "element 0 is no UTF-8"),
        (request("FP33", [1], bytes(4)), "datatype 'FP33' is none of"),
        (request("FP32", [-1], bytes(4)), "-1 in `shape`"),
        (request("FP32", [1] * 40, bytes(4)), "at most 32 extents"),
        (shared_memory(), "input 'x': this server has no shared memory"),
        (shared_output(), "no `shared_memory_region`"),
        (classified(), "no `classification`"),
    ],
)
def test_what_is_wrong_is_named(message: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read(message)


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(RequestError, match="no ModelInferRequest"):
        read_message(b"\x0a\x02\xff\xff")  # its name is no text


def test_many_typed_elements_are_to_go_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_messages, "MAX_TYPED_ELEMENTS", 3)
    assert read(request("BOOL", [3], bool_contents=[True] * 3)).inputs["x"].all()
    with pytest.raises(RequestError, match="over 3 typed elements; send `raw_input_contents`"):
        read(request("BOOL", [4], bool_contents=[True] * 4))


def test_what_takes_a_while_is_not_quick() -> None:
    def quick(message: Any) -> bool:
        return read_message(message.SerializeToString()).is_quick

    assert quick(request("FP32", [1 << 18], bytes(1 << 20)))
    assert quick(request("BYTES", [1], bytes(4)))
    assert not quick(request("BYTES", [1 << 18], bytes(1 << 20)))
    assert not quick(request("INT32", [1 << 17], int_contents=range(1 << 17)))
    assert not quick(request("FP32", [5 << 18], bytes(5 << 20)))
