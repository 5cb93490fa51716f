"""OpenAI's routes on real sockets: streams, refusals, clients that hang up or do not read, keys, and metrics."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgepart.agent.http import v1
from edgepart.agent.http.event_streams import paced
from edgepart.agent.wire.vocabulary import CLOSED, OPEN
from edgepart.planner.errors import ContextExceeded, InternalError, RequestError, Unavailable
from tests.agent.http.conftest import ADMIN, LIMITS, Reply, Served, serving
from tests.agent.http.fake_text import TEXT, FakeText
from tests.agent.http.test_http import _event, wait

CHAT = "/v1/chat/completions"
HELLO = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}]}
STREAM = HELLO | {"stream": True}
ONCE = {"model": "chat", "prompt": "Hello"}
FOREIGN = {"X-Forwarded-For": "192.0.2.7"}
WRONG = {"Authorization": "Bearer none"}


def data_of(reply: Reply) -> list[Any]:
    """The data of a stream's events. Checks that it has nothing but events and comments, and ends as it should."""
    events = reply.body.decode().split("\n\n")
    assert events.pop() == "" and events.pop() == "data: [DONE]"
    assert all(event.startswith(("data: ", ": ")) and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: ")]


def opened(served: Served, body: Any, path: str = CHAT) -> socket.socket:
    """A connection on which the request was sent."""
    connection = socket.create_connection(served.address, timeout=20)
    data = json.dumps(body).encode()
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    )
    return connection


def read_until(connection: socket.socket, words: bytes) -> bytes:
    found = b""
    while words not in found:
        chunk = connection.recv(65536)
        assert chunk, found
        found += chunk
    return found


def test_a_stream_has_its_headers_and_its_end(talking: Served) -> None:
    reply = talking.ask("POST", CHAT, STREAM)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["Cache-Control"].startswith("no-cache")
    assert reply.headers["X-Accel-Buffering"] == "no"
    documents = data_of(reply)
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in documents) == TEXT
    assert len({one["id"] for one in documents}) == 1 and documents[0]["id"].startswith("chatcmpl-")
    assert documents[-1]["edgepart"]["devices"] == ["pi-a", "pi-b"]


def test_a_whole_answer(talking: Served, text: FakeText) -> None:
    reply = talking.ask("POST", "/v1/completions", ONCE | {"max_tokens": 3})
    document = reply.json()
    assert (
        document["choices"][0]["text"] == "Once upon a"
        and document["choices"][0]["finish_reason"] == "length"
    )
    assert document["id"].startswith("cmpl-") and abs(document["created"] - time.time()) < 600
    assert document["system_fingerprint"] == "edgepart-0.0"
    assert reply.headers["Cache-Control"] == "no-store" and text.closed == 1


def test_the_models(talking: Served) -> None:
    assert [one["id"] for one in talking.ask("GET", "/v1/models").json()["data"]] == ["chat", "small"]
    assert talking.ask("GET", "/v1/models/small").json()["context"] == 64
    error = talking.ask("GET", "/v1/models/none").json()["error"]
    assert error["code"] == "model_not_found" and "'chat', 'small'" in error["message"]


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (ContextExceeded("300 tokens do not fit 256"), 400, "context_length_exceeded"),
        (RequestError("the template refuses"), 400, None),
        (Unavailable("no room", 2.5), 503, "unavailable"),
        (ZeroDivisionError("secret"), 500, None),
        (ConnectionResetError("secret"), 500, None),
    ],
)
@pytest.mark.parametrize("body", [HELLO, STREAM])
def test_a_refusal_before_the_first_event_has_a_status(
    talking: Served, text: FakeText, body: Any, failure: Exception, status: int, code: str | None
) -> None:
    text.failure = failure
    reply = talking.ask("POST", CHAT, body)
    assert reply.status == status and reply.json()["error"]["code"] == code
    assert b"secret" not in reply.body
    assert reply.headers["Content-Type"].startswith("application/json")
    assert reply.headers.get("Retry-After") == ("3" if status == 503 else None)
    assert text.closed == 1


@pytest.mark.parametrize("failure", [Unavailable("all devices are lost"), ZeroDivisionError("secret")])
def test_a_failure_in_the_middle_comes_as_an_event(
    talking: Served, text: FakeText, failure: Exception
) -> None:
    text.failure, text.whole_until = failure, 2
    reply = talking.ask("POST", CHAT, STREAM)
    assert reply.status == 200 and b"[DONE]" not in reply.body and b"secret" not in reply.body
    *events, last = [json.loads(event[6:]) for event in reply.body.decode().split("\n\n")[:-1]]
    assert last["error"]["type"] == "server_error"
    assert "".join(one["choices"][0]["delta"]["content"] for one in events) == "Once upon"
    assert text.closed == 1


def test_an_answer_without_its_last_event_is_our_fault(talking: Served, text: FakeText) -> None:
    text.unfinished = True
    assert talking.ask("POST", CHAT, HELLO).status == 500
    last = talking.ask("POST", CHAT, STREAM).body.decode().split("\n\n")[-2]
    assert "without its last event" in last


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", CHAT, HELLO | {"temperature": "hot"}, 400, "temperature"),
        ("POST", CHAT, HELLO | {"model": "none"}, 404, "model"),
        ("POST", CHAT, b"{", 400, None),
        ("POST", "/v1/completions", {"model": "chat"}, 400, "prompt"),
        ("GET", CHAT, None, 405, None),
        ("GET", "/v1/nowhere", None, 404, None),
        ("POST", CHAT, b" " * (5 << 20), 413, None),
    ],
)
def test_errors_have_the_form_of_openai(
    talking: Served, method: str, path: str, body: Any, status: int, param: str | None
) -> None:
    reply = talking.ask(method, path, body)
    assert reply.status == status
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert reply.json()["error"]["param"] == param


def test_a_large_prompt_is_read_as_a_small_one(talking: Served, text: FakeText) -> None:
    prompt = "word " * 20_000
    assert talking.ask("POST", "/v1/completions", ONCE | {"prompt": prompt}).status == 200
    assert text.requests[0].prompt == prompt


def test_silence_is_filled_with_comments(
    talking: Served, text: FakeText, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before the first event: the status is then sent, and a refusal comes as an event."""
    monkeypatch.setattr(v1, "KEEP_ALIVE_S", 0.01)
    text.gate, text.failure = talking.on_loop(_event), Unavailable("no room")
    with opened(talking, STREAM) as connection:
        said = read_until(connection, b": waiting\n\n")
        assert said.startswith(b"HTTP/1.1 200") and b"data:" not in said
        talking.loop.call_soon_threadsafe(text.gate.set)
        assert b"no room" in read_until(connection, b"data: ")
    text.gate, text.failure, text.whole_until = talking.on_loop(_event), None, 3
    with opened(talking, STREAM) as connection:
        read_until(connection, b": waiting\n\n")
        talking.loop.call_soon_threadsafe(text.gate.set)
        read_until(connection, b"[DONE]")


@pytest.mark.parametrize("body", [HELLO, STREAM])
@pytest.mark.parametrize("tokens", [-1, 2])
def test_hanging_up_ends_the_work(talking: Served, text: FakeText, body: Any, tokens: int) -> None:
    """Before the first event, and in the middle."""
    text.gate, text.whole_until = talking.on_loop(_event), tokens
    connection = opened(talking, body)
    if body is STREAM and tokens > 0:
        read_until(connection, b"upon")
    wait(talking, lambda: text.requests)
    assert text.closed == 0
    connection.close()
    wait(talking, lambda: text.closed == 1)
    wait(talking, lambda: talking.server._bodies._intake.places.taken == 0)
    assert 'edgepart_text_answers_total{model="chat",outcome="cancelled"} 1.0' in metrics(talking)


@pytest.fixture
def impatient_text(tmp_path: Path, text: FakeText) -> Iterator[Served]:
    with serving(tmp_path, replace(LIMITS, stall_s=0.5), text) as found:
        yield found


def test_a_client_that_does_not_read_is_cut_off_and_its_answer_ends(
    impatient_text: Served, text: FakeText
) -> None:
    text.floods = True
    with opened(impatient_text, STREAM) as connection:
        wait(impatient_text, lambda: text.requests)
        wait(impatient_text, lambda: text.closed == 1)
        wait(impatient_text, lambda: impatient_text.server._bodies._intake.places.taken == 0)
        assert impatient_text.server._v1._deliveries.held_bytes == 0
        connection.close()


def test_a_paused_answer_is_not_held_against_its_client(
    impatient_text: Served, text: FakeText, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause is longer than a client may stand still, as the comments in it show."""
    monkeypatch.setattr(v1, "KEEP_ALIVE_S", 0.1)
    text.gate, text.whole_until = impatient_text.on_loop(_event), 2
    with opened(impatient_text, STREAM) as connection:
        said = b""
        while said.count(b": waiting") < 8:
            said += read_until(connection, b": waiting")
        impatient_text.loop.call_soon_threadsafe(text.gate.set)
        read_until(connection, b"[DONE]")


def test_without_a_service_it_is_said_what_to_install(served: Served) -> None:
    for method, path in (("GET", "/v1/models"), ("POST", CHAT)):
        reply = served.ask(method, path, HELLO if method == "POST" else None)
        assert reply.status == 501 and "edgepart[text]" in reply.json()["error"]["message"]
        assert reply.headers["X-Should-Retry"] == "false"
    assert "edgepart_text" not in metrics(served)


@pytest.mark.parametrize(
    ("openness", "headers", "status"),
    [
        ("local", {}, 200),
        ("local", WRONG, 200),
        ("local", FOREIGN, 401),
        ("local", FOREIGN | WRONG, 401),
        ("local", FOREIGN | ADMIN, 200),
        ("local", WRONG | {"Origin": "http://evil.example"}, 401),
        (OPEN, FOREIGN | WRONG, 200),
        (OPEN, FOREIGN | WRONG | {"Origin": "http://evil.example"}, 401),
        (CLOSED, WRONG, 401),
        (CLOSED, ADMIN, 200),
    ],
)
def test_any_key_counts_as_none_where_none_is_needed(
    talking: Served, openness: str, headers: dict[str, str], status: int
) -> None:
    talking.server._v1._gate._inference = openness
    assert talking.ask("GET", "/v1/models", headers=headers).status == status
    reply = talking.ask("POST", CHAT, HELLO, headers)
    assert reply.status == status
    if status == 401:
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")


def test_a_wrong_key_gives_no_other_right(talking: Served) -> None:
    assert talking.ask("GET", "/v2", headers=WRONG).status == 401
    assert talking.ask("DELETE", "/api/deployments/add", headers=WRONG).status == 401


def metrics(served: Served) -> str:
    return served.ask("GET", "/metrics").body.decode()


def test_metrics_count_texts_by_model(talking: Served, text: FakeText) -> None:
    talking.ask("POST", CHAT, HELLO)
    talking.ask("POST", CHAT, STREAM | {"model": "small", "max_tokens": 2})
    text.failure = Unavailable("no room")
    talking.ask("POST", CHAT, HELLO)
    talking.ask("POST", CHAT, HELLO | {"model": "made-up"})
    found = metrics(talking)
    for line in (
        'edgepart_text_answers_total{model="chat",outcome="stop"} 1.0',
        'edgepart_text_answers_total{model="small",outcome="length"} 1.0',
        'edgepart_text_answers_total{model="chat",outcome="Unavailable"} 1.0',
        'edgepart_text_prompt_tokens_total{model="chat"} 5.0',
        'edgepart_text_cached_tokens_total{model="chat"} 2.0',
        'edgepart_text_generated_tokens_total{model="chat"} 7.0',
        'edgepart_text_replays_total{model="small"} 1.0',
        'edgepart_text_first_token_seconds_bucket{le="0.25",model="chat"} 1.0',
        'edgepart_text_token_seconds_sum{model="chat"} 0.08',
    ):
        assert line in found.splitlines(), line
    assert "made-up" not in found


def collected(work: Callable[[], Any]) -> Any:
    async def story() -> Any:
        async with asyncio.timeout(20):
            return await work()

    return asyncio.run(story())


def test_events_are_taken_ahead_of_the_reader_by_one_and_closed_with_it() -> None:
    made: list[int] = []

    async def numbers() -> Any:
        try:
            async with asyncio.timeout(60):
                for number in range(100):
                    made.append(number)
                    yield number
        finally:
            made.append(-1)

    async def story() -> None:
        events = paced(numbers(), 60)
        assert await anext(events) == 0
        for _ in range(20):
            await asyncio.sleep(0)
        assert made == [0, 1, 2]  # One is ahead, and one was made for the place behind it.
        await events.aclose()
        assert made == [0, 1, 2, -1]

    collected(story)


def test_all_events_come_and_then_the_error() -> None:
    async def numbers() -> Any:
        yield 1
        yield 2
        raise InternalError("three")

    async def story() -> None:
        found = []
        with pytest.raises(InternalError, match="three"):
            async for event in paced(numbers(), 60):
                found.append(event)
        assert found == [1, 2]

    collected(story)
