"""A server on loopback, on an event loop in a thread of its own, so that blocking clients can talk to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.http.server import HttpServer
from tests.agent.http.fake_text import FakeText
from tests.agent.http.fakes import FakeNode

T = TypeVar("T")
CREDENTIAL = "open-sesame-" + "0" * 32
ADMIN = {"Authorization": f"Bearer {CREDENTIAL}"}
LIMITS = BodyLimits(
    request_bytes=4 << 20,
    all_requests_bytes=6 << 20,
    upload_bytes=1 << 20,
    linger_s=0.1,
)
"""They have the product's own seconds: on a busy machine a test, too, pauses between connecting and asking."""


@dataclass
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A running server, its node, and the loop that both live on."""

    node: FakeNode
    server: HttpServer
    url: str
    loop: asyncio.AbstractEventLoop
    spool: Path
    text: FakeText | None = None

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    def on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(20)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        """One request on a connection of its own; a body that is no bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(*self.address, timeout=20)
        try:
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()


@contextmanager
def serving(folder: Path, limits: BodyLimits, text: FakeText | None = None) -> Iterator[Served]:
    """A server with these limits."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    node = FakeNode()
    node.texts = tuple(model.name for model in text.models()) if text else ()

    async def start() -> tuple[HttpServer, str]:
        server = HttpServer(Gateway(node, CREDENTIAL, limits), "127.0.0.1", 0, spool=folder, text=text)
        return server, await server.start()

    try:
        server, url = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
        yield Served(node, server, url, loop, folder, text)
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, LIMITS) as found:
        yield found


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Served]:
    """A server whose clients may not pause within a body."""
    with serving(tmp_path, replace(LIMITS, stall_s=0.5)) as found:
        yield found


@pytest.fixture
def text() -> FakeText:
    return FakeText()


@pytest.fixture
def talking(tmp_path: Path, text: FakeText) -> Iterator[Served]:
    """A server that generates text."""
    with serving(tmp_path, LIMITS, text) as found:
        yield found
