"""Two agents that know each other, and agents that fail in a certain way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.http.server import HttpServer
from edgepart.client.async_client import AsyncClient
from edgepart.client.liveness import ProbeTiming
from edgepart.client.target import AgentTarget
from tests.agent.http.conftest import CREDENTIAL, LIMITS, Served, serving
from tests.agent.http.fake_text import FakeText
from tests.agent.http.fakes import FakeNode

NOTHING_DEPLOYED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: 19\r\n\r\n"
    b'{"deployments": []}'
)
QUICK = ProbeTiming(0.05, 0.05)
"""For agents that are to be found silent soon."""


def introduce(node: FakeNode, *urls: str) -> None:
    """Makes the node tell clients of members at these URLs."""
    status = node.status()
    status["members"] += [{"name": f"pi-{n}", "state": "alive", "http": url} for n, url in enumerate(urls)]
    node.status = lambda: status  # type: ignore[method-assign]


@contextmanager
def pair(folder: Path) -> Iterator[tuple[Served, Served]]:
    """Two members, each with a loop of its own, that tell of each other."""
    with serving(folder, LIMITS, FakeText()) as one, serving(folder, LIMITS, FakeText()) as other:
        introduce(one.node, one.url, other.url)
        introduce(other.node, one.url, other.url)
        yield one, other


@dataclass
class Failing:
    """An agent that takes requests and then fails."""

    url: str
    requests: int = 0


@asynccontextmanager
async def failing(reply: bytes | None, *, hangs_up: bool = True) -> AsyncIterator[Failing]:
    """An agent that sends `reply` once it has got the head of a request, and then hangs up or is silent for ever. None is
    silent from the beginning. It only answers what a client asks before it deploys: nothing is deployed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /api/deployments "):
                writer.write(NOTHING_DEPLOYED)
                await writer.drain()
                return
            found.requests += 1
            if reply is not None:
                writer.write(reply)
                await writer.drain()
                if hangs_up:
                    return
            while await reader.read(1 << 16):
                continue
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    found = Failing(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield found
    finally:
        server.close()


@asynccontextmanager
async def well(folder: Path, **given: Any) -> AsyncIterator[tuple[FakeNode, str]]:
    """An agent that works, in this loop."""
    node = given.pop("node", None) or FakeNode()
    server = HttpServer(Gateway(node, CREDENTIAL, LIMITS), "127.0.0.1", 0, spool=folder, **given)
    url = await server.start()
    try:
        yield node, url
    finally:
        await server.stop()


def client_of(folder: Path, *urls: str, secret: str | None = CREDENTIAL) -> AsyncClient:
    return AsyncClient(AgentTarget(urls[0], folder, urls[1:], secret=secret), QUICK)
