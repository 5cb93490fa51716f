"""One gateway with both of its doors on loopback, on an event loop in a thread of its own, so that blocking clients can
talk to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from tritonclient import grpc as triton

from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.grpc.door import GrpcDoor
from edgepart.agent.grpc.messages import SERVICE
from edgepart.agent.http.server import HttpServer
from edgepart.agent.net.endpoints import bind, reachable_text
from edgepart.agent.wire.vocabulary import LOCAL
from tests.agent.http.conftest import CREDENTIAL, LIMITS
from tests.agent.http.fakes import FakeNode

T = TypeVar("T")
Metadata = tuple[tuple[str, str], ...]
ADMIN: Metadata = (("authorization", f"Bearer {CREDENTIAL}"),)
FOREIGN: Metadata = (("x-forwarded-for", "192.0.2.7"),)
"""As a proxy adds it: the call is somebody else's."""


@dataclass
class Doors:
    """A gateway, its doors, and the loop that they live on."""

    node: FakeNode
    gateway: Gateway
    url: str
    door: GrpcDoor
    loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> str:
        return self.door.address

    def on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(20)

    @contextmanager
    def client(self) -> Iterator[Any]:
        with triton.InferenceServerClient(self.address) as made:
            yield made

    def call(
        self, method: str, message: bytes = b"", metadata: Metadata = (), timeout_s: float = 20
    ) -> tuple[str, bytes, dict[str, str]]:
        """The status code, the answer's bytes (or the status's text), and the trailers, of a call by bytes."""
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(self.address, options=options) as channel:
            try:
                answer, done = channel.unary_unary(f"/{SERVICE}/{method}").with_call(
                    message, timeout=timeout_s, metadata=metadata
                )
            except grpc.RpcError as error:
                return error.code().name, error.details().encode(), dict(error.trailing_metadata() or ())
            return "OK", answer, dict(done.trailing_metadata() or ())


def make_door(gateway: Gateway, address: tuple[str, int] | None = ("127.0.0.1", 0)) -> GrpcDoor:
    return GrpcDoor(gateway, address, partial(bind, option="--grpc"), reachable_text)


@contextmanager
def opened(folder: Path, limits: BodyLimits = LIMITS, inference: str = LOCAL) -> Iterator[Doors]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    node = FakeNode()

    async def start() -> tuple[Gateway, HttpServer, GrpcDoor]:
        gateway = Gateway(node, CREDENTIAL, limits, inference=inference)
        server, door = HttpServer(gateway, spool=folder), make_door(gateway)
        await server.start()
        await door.open()
        return gateway, server, door

    async def stop() -> None:
        await door.close()
        await server.stop()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=5)

    try:
        gateway, server, door = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
        assert not door.trouble
        yield Doors(node, gateway, server.url, door, loop)
        asyncio.run_coroutine_threadsafe(stop(), loop).result(20)
        assert gateway.intake.held_bytes == gateway.intake.places.taken == 0
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """Doors for tests that change nothing of them."""
    with opened(tmp_path_factory.mktemp("doors")) as doors:
        yield doors


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    with opened(tmp_path) as found:
        yield found


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Doors]:
    """Doors that wait half a second for a message."""
    with opened(tmp_path, replace(LIMITS, stall_s=0.25, body_s=0.5)) as found:
        yield found
