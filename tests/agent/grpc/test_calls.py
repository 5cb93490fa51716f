"""Calls: who gets through the gate, limits on size, time and places, deadlines, and clients that hang up."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient import grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from edgepart.agent.grpc.calls import refuse
from edgepart.agent.grpc.messages import SERVICE
from edgepart.agent.host.token_bucket import Buckets
from edgepart.agent.wire.vocabulary import CLOSED, LOCAL, OPEN
from edgepart.planner.errors import (
    DeadlinePassed,
    Infeasible,
    PeerError,
    RunError,
    StateLost,
    Unavailable,
)
from tests.agent.grpc.conftest import ADMIN, FOREIGN, Doors, Metadata, opened
from tests.agent.http.conftest import CREDENTIAL, LIMITS
from tests.agent.http.fakes import A
from tests.agent.http.test_http import wait

METHODS = [method.name for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]
FOR_ALL = {"ServerLive", "ServerReady"}


def infer_message(model: str = "add", a: Any = A, b: Any = A, **parameters: int) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, array in (("a", a), ("b", b)):
        message.inputs.add(name=name, datatype="FP32", shape=list(array.shape))
        message.raw_input_contents.append(array.tobytes())
    for key, value in parameters.items():
        message.parameters[key].int64_param = value
    return bytes(message.SerializeToString())


ADD = infer_message()
CLIENT_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def bearer(credential: str) -> Metadata:
    return (("authorization", f"Bearer {credential}"),)


@pytest.mark.parametrize("inference", [OPEN, LOCAL, CLOSED])
@pytest.mark.parametrize("credential", [None, "wrong" * 10, CREDENTIAL[:-1], ""])
def test_every_method_asks_for_the_credential(
    shared: Doors, monkeypatch: pytest.MonkeyPatch, inference: str, credential: str | None
) -> None:
    monkeypatch.setattr(shared.gateway.gate, "_inference", inference)
    monkeypatch.setattr(shared.gateway.gate, "_buckets", Buckets(1e3, 1e3))
    metadata = FOREIGN + (() if credential is None else bearer(credential))
    for method in METHODS:
        free = method in FOR_ALL or (
            inference == OPEN and credential is None and method != "ModelStreamInfer"
        )
        code, text, trailers = shared.call(method, ADD if method == "ModelInfer" else b"", metadata)
        assert (code == "UNAUTHENTICATED") is not free, (method, code, text)
        assert free or trailers["edgepart-kind"] == "NotAuthorised"
        assert CREDENTIAL.encode() not in text


@pytest.mark.parametrize("metadata", [ADMIN, FOREIGN + ADMIN, ()])
def test_the_credential_and_this_machine_get_through(shared: Doors, metadata: Metadata) -> None:
    assert shared.call("ModelInfer", ADD, metadata)[0] == "OK"
    assert shared.call("ServerMetadata", b"", metadata)[0] == "OK"


@pytest.mark.parametrize("header", ["Forwarded", "Via", "x-real-ip"])
def test_behind_a_proxy_loopback_is_not_this_machine(shared: Doors, header: str) -> None:
    assert shared.call("ServerMetadata", b"", ((header.lower(), "192.0.2.7"),))[0] == "UNAUTHENTICATED"


def test_a_closed_agent_wants_the_credential_of_this_machine_too(
    shared: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared.gateway.gate, "_inference", CLOSED)
    assert shared.call("ModelInfer", ADD)[0] == "UNAUTHENTICATED"
    assert shared.call("ModelStreamInfer", ADD)[0] == "UNAUTHENTICATED"
    assert shared.call("ModelInfer", ADD, ADMIN)[0] == "OK"


def test_who_asks_too_often_is_told_when_to_come_back(doors: Doors) -> None:
    doors.gateway.gate._buckets = Buckets(1e-3, 1.0)
    assert doors.call("ServerLive", b"", FOREIGN)[0] == "OK"
    code, text, trailers = doors.call("ServerLive", b"", FOREIGN)
    assert code == "RESOURCE_EXHAUSTED" and b"asks more often" in text
    assert int(trailers["retry-after"]) > 900 and trailers["edgepart-kind"] == "Unavailable"
    assert doors.call("ServerLive")[0] == "OK"


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (Unavailable("no plan", 7.2), "UNAVAILABLE", "Unavailable"),
        (StateLost("begin it again"), "ABORTED", "StateLost"),
        (DeadlinePassed("too late"), "DEADLINE_EXCEEDED", "DeadlinePassed"),
        (Infeasible("no room"), "FAILED_PRECONDITION", "Infeasible"),
        (PeerError("nonsense"), "INTERNAL", "PeerError"),
        (RunError("it broke"), "INTERNAL", "RunError"),
    ],
)
def test_errors_of_the_agent_have_their_codes(doors: Doors, error: Exception, code: str, kind: str) -> None:
    doors.node.failure = error
    found, text, trailers = doors.call("ModelInfer", ADD)
    assert (found, text.decode(), trailers["edgepart-kind"]) == (code, str(error), kind)
    assert trailers.get("retry-after") == ("8" if kind == "Unavailable" else None)
    assert f'outcome="{kind}"' in doors.gateway.metrics.text().decode()


def test_a_fault_stays_in_the_log(doors: Doors, caplog: pytest.LogCaptureFixture) -> None:
    doors.node.failure = ZeroDivisionError("a secret")
    code, text, _ = doors.call("ModelInfer", ADD)
    assert code == "INTERNAL" and b"failed inside (ZeroDivisionError)" in text and b"secret" not in text
    (record,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert record.exc_info is not None
    doors.node.failure = None
    assert doors.call("ModelInfer", ADD)[0] == "OK"


def test_what_is_no_message_is_refused(shared: Doors) -> None:
    assert shared.call("ModelInfer", b"\x0b")[:2] == (
        "INVALID_ARGUMENT",
        b"the message is damaged: byte 0 begins no field",
    )
    assert shared.call("ModelMetadata", b"\xff")[:2] == (
        "INVALID_ARGUMENT",
        b"the bytes are no ModelMetadataRequest",
    )
    assert shared.call("Nothing")[0] == "UNIMPLEMENTED"


def test_messages_over_the_limit(shared: Doors) -> None:
    array = np.zeros((LIMITS.request_bytes // 8, 1), np.float32)
    code, text, _ = shared.call("ModelInfer", infer_message(a=array, b=array))
    assert code == "RESOURCE_EXHAUSTED" and str(LIMITS.request_bytes).encode() in text


def test_all_requests_together_have_limits(tmp_path: Path) -> None:
    with opened(tmp_path, replace(LIMITS, all_requests_bytes=LIMITS.request_bytes)) as doors:
        doors.gateway.intake.hold(LIMITS.request_bytes)  # as over HTTP
        code, text, trailers = doors.call("ModelInfer", ADD)
        assert code == "UNAVAILABLE" and b"all the memory" in text and trailers["retry-after"] == "1"
        doors.gateway.intake.release(LIMITS.request_bytes)
        doors.gateway.intake.places.total = 0
        code, text, _ = doors.call("ModelInfer", ADD)
        assert code == "UNAVAILABLE" and b"0 requests are in flight here" in text


def held(doors: Doors) -> asyncio.Event:
    """Have requests wait; the event lets them go on."""

    async def hold() -> asyncio.Event:
        doors.node.gate = asyncio.Event()
        return doors.node.gate

    return doors.on_loop(hold)


def test_a_client_that_hangs_up_ends_its_request(doors: Doors) -> None:
    held(doors)
    with grpc.insecure_channel(doors.address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer").future(ADD)
        wait_for(doors, lambda: doors.gateway.intake.places.taken == 1)
        call.cancel()
    wait_for(doors, lambda: doors.node.cancelled == 1 and doors.gateway.intake.places.taken == 0)


def wait_for(doors: Doors, condition: Any) -> None:
    wait(doors, condition)  # type: ignore[arg-type]


def test_the_deadline_of_the_call_is_that_of_the_request(doors: Doors) -> None:
    deadlines: queue.Queue[float] = queue.Queue()
    infer = doors.node.infer

    async def watched(
        model: str, inputs: Any, outputs: Any, deadline_s: float, sequence: Any = None, *, drawn: bool = True
    ) -> Any:
        deadlines.put(deadline_s)
        return await infer(model, inputs, outputs, deadline_s, sequence)

    doors.node.infer = watched  # type: ignore[method-assign]
    for message, timeout_s, least, most in (
        (ADD, 9.0, 1.0, 9.1),
        (infer_message(timeout=7_000_000), 300.0, 1.0, 7.0),
        (infer_message(timeout=900_000_000), 300.0, 60.0, 302.0),  # the library rounds it up
    ):
        assert doors.call("ModelInfer", message, timeout_s=timeout_s)[0] == "OK"
        assert least < deadlines.get() <= most
    held(doors)
    assert doors.call("ModelInfer", ADD, timeout_s=0.1)[0] == "DEADLINE_EXCEEDED"
    wait_for(doors, lambda: doors.node.cancelled == 1)


@pytest.mark.parametrize(
    ("left_s", "code"),
    [(None, "UNAVAILABLE"), (5.0, "UNAVAILABLE"), (0.0, "DEADLINE_EXCEEDED"), (1e-5, "DEADLINE_EXCEEDED")],
)
def test_an_error_after_the_deadline_is_the_deadline(left_s: float | None, code: str) -> None:
    """The agent may notice it before the client does."""
    ended: list[str] = []

    class Context:
        def time_remaining(self) -> float | None:
            return left_s

        async def abort(self, code: grpc.StatusCode, details: str, trailers: Any) -> None:
            ended.append(code.name)

    asyncio.run(refuse(Context(), Unavailable("it waited for its turn")))
    assert ended == [code]


def test_without_a_deadline_it_is_that_of_http(doors: Doors) -> None:
    asked: list[float] = []
    infer = doors.node.infer

    async def watched(
        model: str, inputs: Any, outputs: Any, deadline_s: float, sequence: Any = None, *, drawn: bool = True
    ) -> Any:
        asked.append(deadline_s)
        return await infer(model, inputs, outputs, deadline_s, sequence)

    doors.node.infer = watched  # type: ignore[method-assign]
    with doors.client() as client:
        inputs = [triton.InferInput(name, [2, 3], "FP32").set_data_from_numpy(A) for name in ("a", "b")]
        client.infer("add", inputs)
    assert 50 < asked[0] <= LIMITS.deadline_s


@pytest.fixture
def silent() -> Iterator[Any]:
    """Requests that never come."""
    done = threading.Event()

    def nothing() -> Iterator[bytes]:
        done.wait(20)
        yield from ()

    yield nothing
    done.set()


def test_where_there_is_no_place_no_message_is_read(doors: Doors, silent: Any) -> None:
    doors.gateway.intake.places.total = 0
    with grpc.insecure_channel(doors.address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/ModelInfer")(silent(), timeout=20)
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_message_that_does_not_come_is_given_up(impatient: Doors, silent: Any) -> None:
    with grpc.insecure_channel(impatient.address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/ModelInfer")(silent(), timeout=20)
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "has not arrived" in refused.value.details()


def test_a_call_without_a_message(shared: Doors) -> None:
    with grpc.insecure_channel(shared.address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/ModelInfer")(iter(()), timeout=20)
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the call has no message" in refused.value.details()


def test_a_client_that_does_not_read_its_answers_gets_no_more(tmp_path: Path) -> None:
    """The answers stay in memory, and keep their requests' places, until it reads them or is gone."""
    array = np.zeros((4096, 1024), np.float32)
    message = service_pb2.ModelInferRequest(model_name="same-float", raw_input_contents=[array.tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=list(array.shape))
    data = message.SerializeToString()
    limits = replace(LIMITS, request_bytes=20 << 20, all_requests_bytes=80 << 20, all_answers_bytes=40 << 20)
    with opened(tmp_path, limits) as doors, grpc.insecure_channel(doors.address, CLIENT_OPTIONS) as channel:
        calls = [channel.stream_stream(f"/{SERVICE}/ModelInfer")(iter((data,)))]
        wait_for(doors, lambda: 'outcome="answered"} 1.0' in doors.gateway.metrics.text().decode())
        code, text, _ = doors.call("ModelInfer", data)
        assert code == "UNAVAILABLE" and b"answers wait for clients to read them" in text
        assert doors.gateway.intake.places.taken == 1 and doors.gateway.intake.held_bytes == 0
        assert doors.call("ModelInfer", ADD)[0] == "OK"
        assert len(next(calls[0])) > array.nbytes
        wait_for(doors, lambda: doors.gateway.intake.places.taken == 0)
        assert doors.call("ModelInfer", data)[0] == "OK"


def test_requests_of_both_doors_are_counted_together(doors: Doors) -> None:
    with doors.client() as client:
        inputs = [triton.InferInput(name, [2, 3], "FP32").set_data_from_numpy(A) for name in ("a", "b")]
        client.infer("add", inputs)
        with pytest.raises(InferenceServerException):
            client.infer("add", inputs[:1])
    text = doors.gateway.metrics.text().decode()
    assert 'edgepart_requests_total{model="add",outcome="answered"} 1.0' in text
    assert 'edgepart_requests_total{model="add",outcome="RequestError"} 1.0' in text
    assert 'nv_inference_request_success{model="add",version="1"} 1.0' in text
