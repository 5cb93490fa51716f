"""ModelStreamInfer: answers come in the order of their requests, whatever fails; steps of a sequence follow each other."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as triton

from edgepart.agent.api.inference_request import SequenceTurn
from edgepart.agent.grpc import streams
from edgepart.agent.wire.vocabulary import OPEN
from edgepart.planner.errors import Unavailable
from tests.agent.grpc.conftest import ADMIN, FOREIGN, Doors
from tests.agent.grpc.test_calls import ADD, held, wait_for
from tests.agent.http.fakes import A

Answers = queue.Queue[tuple[Any, Any]]


def tensor(name: str, array: Any) -> Any:
    return triton.InferInput(name, list(array.shape), "FP32").set_data_from_numpy(array)


@contextmanager
def streaming(doors: Doors, **options: Any) -> Iterator[tuple[Any, Answers]]:
    """A client with an open stream, and what comes of it."""
    answers: Answers = queue.Queue()
    with doors.client() as client:
        client.start_stream(lambda result, error: answers.put((result, error)), **options)
        yield client, answers


def test_answers_come_in_order_and_an_error_is_one_of_them(shared: Doors) -> None:
    with streaming(shared) as (client, answers):
        for n in range(50):
            inputs = [tensor("a", A * n), tensor("b", A)][: 1 if n == 7 else 2]
            client.async_stream_infer("nothing" if n == 9 else "add", inputs, request_id=str(n))
        for n in range(50):
            result, error = answers.get(timeout=20)
            if n in (7, 9):
                assert ("inputs ['b']" if n == 7 else "no deployment 'nothing'") in error.message()
                continue
            assert error is None and result.get_response().id == str(n)
            assert result.get_response().parameters["triton_final_response"].bool_param
            np.testing.assert_array_equal(result.as_numpy("total"), A * n + A)


def test_requests_of_a_stream_are_under_way_together_up_to_a_limit(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "REQUESTS_AT_ONCE", 3)
    gate = held(doors)
    with streaming(doors) as (client, answers):
        for n in range(8):
            client.async_stream_infer("add", [tensor("a", A), tensor("b", A)], request_id=str(n))
        wait_for(doors, lambda: doors.gateway.intake.places.taken == 3)
        assert answers.empty()
        doors.loop.call_soon_threadsafe(gate.set)
        assert [answers.get(timeout=20)[0].get_response().id for _ in range(8)] == list("01234567")


def test_steps_of_a_sequence_follow_each_other(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    doors.node.states["add"] = {"b": np.ones((2, 3), np.float32)}
    under_way: dict[str, int] = {"7": 0, "beside": 0}
    infer, both = doors.node.infer, asyncio.Event()

    async def watched(
        model: str, inputs: Any, outputs: Any, deadline_s: float, sequence: Any = None, *, drawn: bool = True
    ) -> Any:
        assert under_way[sequence.id] == 0
        under_way[sequence.id] += 1
        if all(under_way.values()):
            both.set()
        await both.wait()  # The two sequences go on beside each other.
        answer = await infer(model, inputs, outputs, deadline_s, sequence)
        under_way[sequence.id] -= 1
        return answer

    doors.node.infer = watched  # type: ignore[method-assign]
    with streaming(doors) as (client, answers):
        for n in range(4):
            for sequence in (7, "beside"):
                client.async_stream_infer(
                    "add",
                    [tensor("a", A * n)],
                    sequence_id=sequence,
                    sequence_start=n == 0,
                    sequence_end=n == 3,
                )
        for n in range(8):
            result, error = answers.get(timeout=20)
            assert error is None
            told = result.get_response().parameters["sequence_id"].string_param
            assert told == ("7", "beside")[n % 2]
            np.testing.assert_array_equal(result.as_numpy("total"), A * (n // 2) + 1)
    assert [turn for turn in doors.node.turns if turn and turn.id == "7"] == [
        SequenceTurn("7", start=n == 0, end=n == 3) for n in range(4)
    ]
    assert not any(under_way.values())


def test_a_client_that_hangs_up_ends_its_requests(doors: Doors) -> None:
    held(doors)
    with streaming(doors) as (client, _):
        for _n in range(3):
            client.async_stream_infer("add", [tensor("a", A), tensor("b", A)])
        wait_for(doors, lambda: doors.gateway.intake.places.taken == 3)
        client.stop_stream(cancel_requests=True)
        wait_for(doors, lambda: doors.node.cancelled == 3 and doors.gateway.intake.places.taken == 0)


def test_a_failure_of_the_agent_ends_its_request_and_not_the_stream(doors: Doors) -> None:
    doors.node.failure = ZeroDivisionError("a secret")
    with streaming(doors) as (client, answers):
        client.async_stream_infer("add", [tensor("a", A), tensor("b", A)])
        assert "failed inside" in answers.get(timeout=20)[1].message()
        doors.node.failure = Unavailable("no plan")
        client.async_stream_infer("add", [tensor("a", A), tensor("b", A)])
        assert answers.get(timeout=20)[1].message() == "no plan"
        doors.node.failure = None
        client.async_stream_infer("add", [tensor("a", A), tensor("b", A)])
        assert answers.get(timeout=20)[1] is None


def test_streams_are_few(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_STREAMS", 1)
    with streaming(doors) as (client, answers):
        client.async_stream_infer("add", [tensor("a", A), tensor("b", A)])
        assert answers.get(timeout=20)[1] is None
        code, text, _ = doors.call("ModelStreamInfer", ADD)
        assert code == "UNAVAILABLE" and b"1 streams are open here" in text
    while doors.call("ModelStreamInfer")[0] == "UNAVAILABLE":
        pass  # The stream ends when its client has left.


def test_open_inference_opens_no_streams(shared: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.gateway.gate, "_inference", OPEN)
    assert shared.call("ModelInfer", ADD, FOREIGN)[0] == "OK"
    assert shared.call("ModelStreamInfer", ADD, FOREIGN)[0] == "UNAUTHENTICATED"
    assert shared.call("ModelStreamInfer", ADD, FOREIGN + ADMIN)[0] == "OK"
