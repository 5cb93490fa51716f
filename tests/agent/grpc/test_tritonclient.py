"""NVIDIA's tritonclient over gRPC, unmodified, against our server; and the same answers as over HTTP."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tritonclient import grpc as triton
from tritonclient import http as triton_http
from tritonclient.grpc import aio as triton_aio
from tritonclient.utils import InferenceServerException

from edgepart.agent.api.model_card import CandidateCard
from tests.agent.grpc.conftest import Doors
from tests.agent.http.fakes import A

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def client(shared: Doors) -> Iterator[Any]:
    shared.node.unready.clear()
    with shared.client() as made:
        yield made


def tensor(name: str, array: Any, datatype: str = "FP32", module: Any = triton) -> Any:
    made = module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def test_health_metadata_and_the_index_are_those_of_http(client: Any, shared: Doors) -> None:
    with triton_http.InferenceServerClient(shared.url.removeprefix("http://")) as other:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("add") and client.is_model_ready("add", "1")
        assert not client.is_model_ready("nothing") and not client.is_model_ready("add", "2")
        server = client.get_server_metadata(as_json=True)
        assert server == other.get_server_metadata()
        for name in ("add", "same-string", "same-float16"):
            assert numbers(client.get_model_metadata(name, as_json=True)) == other.get_model_metadata(name)
            known = other.get_model_config(name)
            assert not known.pop("max_batch_size")  # protobuf leaves zeros out
            assert numbers(client.get_model_config(name, as_json=True)["config"]) == known
        shared.node.unready = {"add": "planning", None: "no leader"}
        assert not client.is_model_ready("add") and not client.is_server_ready()
        index = client.get_model_repository_index(as_json=True)["models"]
        assert [{"reason": "", **one} for one in index] == other.get_model_repository_index()
        assert {"name": "add", "version": "1", "state": "UNAVAILABLE", "reason": "planning"} in index


def numbers(document: Any) -> Any:
    """The document with 64-bit numbers as numbers, which protobuf's JSON has as texts."""
    if isinstance(document, dict):
        return {
            key: [int(one) for one in value] if key in ("shape", "dims") else numbers(value)
            for key, value in document.items()
        }
    return [numbers(one) for one in document] if isinstance(document, list) else document


def test_the_index_of_what_is_ready(shared: Doors) -> None:
    from edgepart.agent.grpc.messages import CLASSES

    shared.node.unready = {"add": "planning"}
    code, answer, _ = shared.call(
        "RepositoryIndex", CLASSES["RepositoryIndexRequest"](ready=True).SerializeToString()
    )
    shared.node.unready.clear()
    models = CLASSES["RepositoryIndexResponse"].FromString(answer).models
    assert code == "OK" and "same-float" in [one.name for one in models]
    assert "add" not in [one.name for one in models]


def test_infer(client: Any) -> None:
    answer = client.infer(
        "add",
        [tensor("a", A), tensor("b", 2 * A)],
        outputs=[triton.InferRequestedOutput("total")],
        request_id="r1",
        compression_algorithm="gzip",
    )
    np.testing.assert_array_equal(answer.as_numpy("total"), 3 * A)
    assert answer.as_numpy("less") is None
    assert answer.get_response().id == "r1"
    assert answer.get_response().parameters["epoch"].string_param == "3.1"


def test_the_answer_says_which_version_gave_it_and_a_candidate_is_asked_by_its_number(
    client: Any, shared: Doors
) -> None:
    node = shared.node
    node.sessions["add.candidate"], node.numbers["add.candidate"] = node.sessions["add"], "2"
    node.trials["add"] = CandidateCard("add.candidate", "2", 10, False, "")
    try:
        for version in ("1", "2"):
            answer = client.infer(
                "add", [tensor("a", A), tensor("b", A)], model_version=version
            ).get_response()
            assert (answer.model_name, answer.model_version) == ("add", version)
            assert client.is_model_ready("add", version)
        assert node.drawn[-2:] == [False, False]
        client.infer("add", [tensor("a", A), tensor("b", A)])
        assert node.drawn[-1] is True
        with pytest.raises(InferenceServerException, match="with the candidate '2', not '3'"):
            client.infer("add", [tensor("a", A), tensor("b", A)], model_version="3")
    finally:
        del node.trials["add"], node.sessions["add.candidate"], node.numbers["add.candidate"]


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
        ("string", "BYTES", np.zeros((2, 0), dtype=object)),
        ("float", "FP32", np.zeros((0, 3), np.float32)),
        ("float", "FP32", np.arange(2_000_000, dtype=np.float32).reshape(2, -1)[:, :500_000].copy()),
    ],
    ids=lambda value: "" if isinstance(value, np.ndarray) else value,
)
def test_datatypes(client: Any, element: str, datatype: str, array: Any) -> None:
    answer = client.infer(f"same-{element}", [tensor("x", array, datatype)])
    np.testing.assert_array_equal(answer.as_numpy("y"), array)


def test_bfloat16_travels(client: Any) -> None:
    """The fake node has no such model; but the datatype is read, and the refusal names it."""
    with pytest.raises(InferenceServerException, match="input 'x' is BF16; 'same-float' takes FP32"):
        client.infer("same-float", [tensor("x", np.ones((1, 2), ml_dtypes.bfloat16), "BF16")])


def test_several_at_once(client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    for n in range(20):
        inputs = [tensor("a", A * n), tensor("b", A)]
        client.async_infer(
            "add", inputs, lambda result, error: answers.put((result, error)), request_id=str(n)
        )
    for _ in range(20):
        result, error = answers.get(timeout=20)
        assert error is None
        n = int(result.get_response().id)
        np.testing.assert_array_equal(result.as_numpy("total"), A * n + A)


ERRORS: list[tuple[str, Any]] = [
    ("NOT_FOUND", lambda c, m: c.infer("nothing", [tensor("a", A, module=m)])),
    ("INVALID_ARGUMENT", lambda c, m: c.infer("add", [tensor("a", A, module=m)])),
    (
        "INVALID_ARGUMENT",
        lambda c, m: c.infer("add", [tensor(n, A.astype(np.float64), "FP64", m) for n in ("a", "b")]),
    ),
    (
        "INVALID_ARGUMENT",
        lambda c, m: c.infer("add", [tensor(n, A, module=m) for n in ("a", "b")], sequence_id=5),
    ),
    (
        "INVALID_ARGUMENT",
        lambda c, m: c.infer(
            "add",
            [tensor(n, A, module=m) for n in ("a", "b")],
            outputs=[m.InferRequestedOutput("no")],
        ),
    ),
    (
        "INVALID_ARGUMENT",
        lambda c, m: c.infer(
            "add",
            [tensor(n, A, module=m) for n in ("a", "b")],
            outputs=[m.InferRequestedOutput("total", class_count=3)],
        ),
    ),
    ("NOT_FOUND", lambda c, m: c.get_model_metadata("add", "2")),
    ("NOT_FOUND", lambda c, m: c.get_model_config("nothing")),
    ("UNIMPLEMENTED", lambda c, m: c.load_model("add")),
    ("UNIMPLEMENTED", lambda c, m: c.unload_model("add")),
    ("UNIMPLEMENTED", lambda c, m: c.get_inference_statistics("add")),
    ("UNIMPLEMENTED", lambda c, m: c.get_system_shared_memory_status()),
    ("UNIMPLEMENTED", lambda c, m: c.register_system_shared_memory("r", "/k", 8)),
    ("UNIMPLEMENTED", lambda c, m: c.unregister_system_shared_memory()),
    ("UNIMPLEMENTED", lambda c, m: c.get_cuda_shared_memory_status()),
    ("UNIMPLEMENTED", lambda c, m: c.unregister_cuda_shared_memory("r")),
    ("UNIMPLEMENTED", lambda c, m: c.get_trace_settings()),
    ("UNIMPLEMENTED", lambda c, m: c.update_log_settings({"log_info": False})),
]


@pytest.mark.parametrize(("code", "ask"), ERRORS)
def test_errors_are_those_of_http(client: Any, shared: Doors, code: str, ask: Any) -> None:
    with triton_http.InferenceServerClient(shared.url.removeprefix("http://")) as other:
        with pytest.raises(InferenceServerException) as ours:
            ask(client, triton)
        with pytest.raises(InferenceServerException) as theirs:
            ask(other, triton_http)
    assert ours.value.status() == f"StatusCode.{code}"
    assert ours.value.message() == theirs.value.message()


def test_the_asynchronous_client(shared: Doors) -> None:
    shared.node.unready.clear()

    async def main() -> None:
        async with triton_aio.InferenceServerClient(shared.address) as client:
            assert await client.is_model_ready("add")
            answers = await asyncio.gather(
                *(client.infer("add", [tensor("a", A * n), tensor("b", A)]) for n in range(5))
            )
            for n, answer in enumerate(answers):
                np.testing.assert_array_equal(answer.as_numpy("total"), A * n + A)
            with pytest.raises(InferenceServerException, match="no deployment 'nothing'"):
                await client.infer("nothing", [tensor("a", A)])

            async def requests() -> Any:
                for n in range(3):
                    inputs = [tensor("a", A * n), tensor("b", A)]
                    yield {"model_name": "add", "inputs": inputs, "request_id": str(n)}

            found = [one async for one in client.stream_infer(requests())]
            assert [result.get_response().id for result, error in found] == ["0", "1", "2"]
            assert all(error is None for _, error in found)

    asyncio.run(main())
