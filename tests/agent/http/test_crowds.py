"""Clients that are many, slow or greedy, on real sockets: what they take is bounded, and the others are served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepart.agent.api.inference_request import InferResult
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.http import idle as silence
from edgepart.agent.http.server import HttpServer
from edgepart.agent.wire.inference import Epoch
from tests.agent.http.conftest import CREDENTIAL, LIMITS, Served
from tests.agent.http.fakes import FakeNode
from tests.agent.http.test_http import ADD, _event, wait

FEW = replace(
    LIMITS, connections=6, in_flight=8, reading=3, all_answers_bytes=24 << 20, stall_s=1.5, head_s=60.0
)


class WideNode(FakeNode):
    """Answers with 16 MB where it is told to."""

    wide = False

    async def infer(self, *given: Any, **also: Any) -> InferResult:
        if self.wide:
            return InferResult({"total": np.zeros(4 << 20, np.float32)}, Epoch(3, 1), 0.001)
        return await super().infer(*given, **also)


@pytest.fixture
def few(tmp_path: Path) -> Iterator[Served]:
    """A server with few of everything."""
    loop, node = asyncio.new_event_loop(), WideNode()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[HttpServer, str]:
        server = HttpServer(Gateway(node, CREDENTIAL, FEW), "127.0.0.1", 0, spool=tmp_path)
        return server, await server.start()

    try:
        server, url = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
        yield Served(node, server, url, loop, tmp_path)
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def connect(served: Served, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(served.address, 20, (source, 0))


def post(body: bytes, announced: int | None = None) -> bytes:
    size = len(body) if announced is None else announced
    return (
        f"POST /v2/models/add/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
        + body
    )


BODY = json.dumps(ADD).encode()
BINARY = json.dumps(
    ADD | {"parameters": {"binary_data_output": True}, "outputs": [{"name": "total"}]}
).encode()


def ended(connection: socket.socket) -> bool:
    """Whether the other side closes it without a word."""
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def test_the_connection_that_idles_longest_makes_room(few: Served) -> None:
    idle = [connect(few) for _ in range(6)]
    lively(idle[0])
    assert few.ask("POST", "/v2/models/add/infer", ADD).status == 200
    assert ended(idle[1])
    for connection in (idle[0], *idle[2:]):
        lively(connection)
    close(*idle)


def close(*connections: socket.socket) -> None:
    for connection in connections:
        connection.close()


def lively(connection: socket.socket) -> None:
    """It is there, and answered."""
    connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_connections_that_have_only_just_come_are_not_the_first_to_go(few: Served) -> None:
    modest, many = connect(few, "127.0.0.2"), [connect(few, "127.0.0.3") for _ in range(5)]
    wait(few, lambda: _count(few) == 6)
    late = connect(few, "127.0.0.4")
    assert ended(modest)
    for connection in (late, *many):
        lively(connection)
    close(modest, late, *many)


def test_of_several_clients_the_one_with_most_connections_makes_room(
    few: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    modest, many = connect(few, "127.0.0.2"), [connect(few, "127.0.0.3") for _ in range(5)]
    wait(few, lambda: _count(few) == 6)
    monkeypatch.setattr(silence, "YOUNG_S", 0.0)
    late = connect(few, "127.0.0.4")
    assert ended(many[0])
    for connection in (modest, late, *many[1:]):
        lively(connection)
    close(modest, late, *many)


def _count(served: Served) -> int:
    runner = served.server._runner
    assert runner is not None and runner.server is not None
    return len(runner.server.connections)


def test_while_all_connections_are_busy_a_newcomer_is_sent_away(few: Served) -> None:
    few.node.gate = few.on_loop(_event)
    busy = [connect(few, f"127.0.0.{n + 2}") for n in range(6)]
    for connection in busy:
        connection.sendall(post(BODY))
    wait(few, lambda: few.server._bodies._intake.places.taken == 6)
    with connect(few) as newcomer:
        assert ended(newcomer)
    few.loop.call_soon_threadsafe(few.node.gate.set)
    for connection in busy:
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.close()


def test_bodies_that_come_slowly_take_no_places_and_the_oldest_is_given_up(few: Served) -> None:
    slow = [connect(few, "127.0.0.9") for _ in range(4)]
    for number, connection in enumerate(slow):
        connection.sendall(post(b"{", len(BODY)))
        wait(few, lambda n=number: len(few.server._bodies._reading) == min(n + 1, 3))
    assert b"stood still or took too long" in slow[0].recv(4096)
    assert few.server._bodies._intake.places.taken == 0
    assert few.ask("POST", "/v2/models/add/infer", ADD).status == 200
    for connection in slow:
        connection.close()


def test_a_body_that_trickles_is_cut_off_though_it_never_stands_still() -> None:
    limits = replace(LIMITS, stall_s=20.0, least_bytes_per_s=4096.0, body_s=300.0)
    assert limits.until(0.0, 19.0, 19) < 21.0  # a byte a second
    assert limits.until(0.0, 19.0, 200_000) == 39.0  # 10 KB/s, which goes on
    assert limits.until(0.0, 299.0, 10**9) == 300.0


def test_a_full_gateway_says_when_to_come_again_and_serves_whom_it_took(few: Served) -> None:
    few.node.gate = few.on_loop(_event)
    replies: list[int] = []
    asking = [
        threading.Thread(target=lambda: replies.append(few.ask("POST", "/v2/models/add/infer", ADD).status))
        for _ in range(5)
    ]
    for thread in asking:
        thread.start()
    wait(few, lambda: few.server._bodies._intake.places.taken == 5)
    few.server._bodies._intake.places.total = 5
    refused = few.ask("POST", "/v2/models/add/infer", ADD)
    assert refused.status == 503 and int(refused.headers["Retry-After"]) >= 1
    few.loop.call_soon_threadsafe(few.node.gate.set)
    for thread in asking:
        thread.join()
    assert replies == [200] * 5
    wait(few, lambda: few.server._bodies._intake.places.taken == 0)


def test_clients_that_do_not_read_their_answers_make_room_for_others(few: Served) -> None:
    assert isinstance(few.node, WideNode)
    few.node.wide = True
    deliveries = few.server._v2._deliveries
    slow = [connect(few, "127.0.0.9") for _ in range(3)]
    for number, connection in enumerate(slow):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(post(BINARY))
        if number == 0:
            wait(few, lambda: deliveries.held_bytes > 16 << 20)
    wait(few, lambda: deliveries.held_bytes < 24 << 20)  # one of 16 MB at a time
    reply = few.ask("POST", "/v2/models/add/infer", BINARY)
    assert reply.status == 200 and len(reply.body) > 16 << 20
    wait(few, lambda: deliveries.held_bytes == 0)  # they stand still
    for connection in slow:
        connection.close()


def test_a_request_whose_time_is_up_before_its_turn_is_told_to_come_again(few: Served) -> None:
    few.node.gate = few.on_loop(_event)
    few.server._v2._service._turns._at_once = 1
    first = threading.Thread(target=lambda: few.ask("POST", "/v2/models/add/infer", ADD))
    first.start()
    wait(few, lambda: few.server._bodies._intake.places.taken == 1)
    hurried = few.ask("POST", "/v2/models/add/infer", ADD | {"parameters": {"timeout": 1000}})
    assert hurried.status == 503 and "waited for its turn" in hurried.json()["error"]
    few.loop.call_soon_threadsafe(few.node.gate.set)
    first.join()
