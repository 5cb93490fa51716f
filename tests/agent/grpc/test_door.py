"""The door: where it listens, what it says if it cannot, and that HTTP serves then as before."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from dataclasses import asdict

import pytest
from tritonclient import grpc as triton

from edgepart.agent.doctor.checkup import BAD, GOOD, judge_grpc
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.grpc.door import GrpcDoor
from edgepart.agent.wire.address import Address, parse_address
from tests.agent.grpc.conftest import make_door
from tests.agent.http.conftest import CREDENTIAL
from tests.agent.http.fakes import FakeNode


def open_door(address: Address | None) -> tuple[GrpcDoor, str, bool]:
    """Open and close a door; return it, its address while it was open, and whether a client got through."""

    async def main() -> tuple[GrpcDoor, str, bool]:
        door = make_door(Gateway(FakeNode(), CREDENTIAL), address)
        await door.open()
        try:
            reached = door.address
            return door, reached, bool(reached) and await asyncio.to_thread(is_live, reached)
        finally:
            await door.close()
            assert door.address == ""

    return asyncio.run(main())


def is_live(address: str) -> bool:
    with triton.InferenceServerClient(address) as client:
        return bool(client.is_server_live())


@pytest.mark.parametrize("where", ["127.0.0.1:0", "*:0", "0.0.0.0:0"])
def test_it_listens(where: str) -> None:
    door, reached, live = open_door(parse_address(where, option="--grpc", default_port=1))
    assert live and not door.trouble
    assert not reached.endswith(":0") and not reached.startswith("0.0.0.0")


def test_a_door_that_is_off_stays_closed() -> None:
    door, reached, _ = open_door(None)
    assert (reached, door.trouble) == ("", "")
    assert judge_grpc(reached, door.trouble).level == GOOD
    assert "--grpc off" in judge_grpc(reached, door.trouble).text


def test_a_taken_port_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = taken.getsockname()[:2]
        door, reached, _ = open_door(where)
    assert reached == ""
    assert door.trouble.startswith(
        f"--grpc 127.0.0.1:{where[1]}: cannot listen there (Address already in use)"
    )
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert record.getMessage() == f"no gRPC, HTTP serves: {door.trouble}"
    check = judge_grpc(reached, door.trouble)
    assert asdict(check)["level"] == BAD and door.trouble == check.text and "--grpc" in check.do


def test_two_agents_do_not_share_a_port() -> None:
    """The library would let them, and each would get some of the calls."""

    async def main() -> str:
        first = make_door(Gateway(FakeNode(), CREDENTIAL))
        await first.open()
        second = make_door(Gateway(FakeNode(), CREDENTIAL), parse_address(first.address))
        await second.open()
        await first.close()
        await second.close()
        return second.trouble

    assert "cannot listen there" in asyncio.run(main())


def test_a_port_that_is_taken_at_the_last_moment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        door = make_door(Gateway(FakeNode(), CREDENTIAL), taken.getsockname()[:2])
        monkeypatch.setattr(door, "_bind", lambda _: socket.socket())
        asyncio.run(door.open())
    assert "cannot listen there" in door.trouble and door.address == ""


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "edgepart.agent.grpc.server", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    door, reached, _ = open_door(("127.0.0.1", 0))
    assert (
        reached == ""
        and "grpcio cannot be used here" in door.trouble
        and "pip install grpcio" in door.trouble
    )


def test_the_library_is_imported_only_when_the_door_is_opened() -> None:
    import subprocess

    code = "import sys, edgepart.agent.service; sys.exit('grpc' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
