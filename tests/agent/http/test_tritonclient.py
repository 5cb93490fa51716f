"""NVIDIA's tritonclient, unmodified, against our server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from tests.agent.http.conftest import Served
from tests.agent.http.fakes import A

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    with triton.InferenceServerClient("{}:{}".format(*served.address), concurrency=4) as made:
        yield made


def tensor(name: str, array: Any, datatype: str = "FP32", binary: bool = True) -> Any:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def test_health_and_metadata(client: Any, served: Served) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("add") and client.is_model_ready("add", "1")
    assert not client.is_model_ready("nothing")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata("add")["inputs"][0]["shape"] == [2, 3]
    assert client.get_model_config("add")["input"][0]["data_type"] == "TYPE_FP32"
    assert {
        "name": "add",
        "version": "1",
        "state": "READY",
        "reason": "",
    } in client.get_model_repository_index()
    served.node.unready = {"add": "planning", None: "no leader"}
    assert not client.is_model_ready("add") and not client.is_server_ready()


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_infer_in_every_form(client: Any, binary_in: bool, binary_out: bool, coding: str | None) -> None:
    answer = client.infer(
        "add",
        [tensor("a", A, binary=binary_in), tensor("b", 2 * A, binary=binary_in)],
        outputs=[triton.InferRequestedOutput("total", binary_data=binary_out)],
        request_id="r1",
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    np.testing.assert_array_equal(answer.as_numpy("total"), 3 * A)
    assert answer.as_numpy("less") is None
    assert answer.get_response()["id"] == "r1"


def test_a_large_answer_is_compressed_when_asked_for(client: Any) -> None:
    array = np.zeros((100, 100), np.float32)
    answer = client.infer("same-float", [tensor("x", array)], response_compression_algorithm="gzip")
    np.testing.assert_array_equal(answer.as_numpy("y"), array)


@pytest.mark.parametrize(
    ("element", "datatype", "array"),
    [
        ("float16", "FP16", np.array([[1.5, np.nan]], np.float16)),
        ("double", "FP64", np.array([[1.5, np.inf]])),
        ("int8", "INT8", np.array([[-128, 127]], np.int8)),
        ("int64", "INT64", np.array([[2**62]])),
        ("uint16", "UINT16", np.array([[65535]], np.uint16)),
        ("bool", "BOOL", np.array([[True, False]])),
        ("string", "BYTES", np.array([["é".encode(), b""]], dtype=object)),
        ("float", "FP32", np.zeros((0, 3), np.float32)),
    ],
)
def test_datatypes(client: Any, element: str, datatype: str, array: Any) -> None:
    answer = client.infer(f"same-{element}", [tensor("x", array, datatype)])
    np.testing.assert_array_equal(answer.as_numpy("y"), array)


def test_several_at_once(client: Any) -> None:
    waiting = [
        client.async_infer("add", [tensor("a", A * n), tensor("b", A)], request_id=str(n)) for n in range(20)
    ]
    for n, request in enumerate(waiting):
        answer = request.get_result()
        assert answer.get_response()["id"] == str(n)
        np.testing.assert_array_equal(answer.as_numpy("total"), A * n + A)


def test_errors_say_what_is_wrong(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="no deployment 'nothing'"):
        client.infer("nothing", [tensor("a", A)])
    with pytest.raises(InferenceServerException, match=r"inputs \['b'\]"):
        client.infer("add", [tensor("a", A)])
    with pytest.raises(InferenceServerException, match="FP64"):
        client.infer("add", [tensor("a", A), tensor("b", A.astype(np.float64), "FP64")])
    with pytest.raises(InferenceServerException, match="version"):
        client.get_model_metadata("add", "2")
