"""Draining and removing over HTTP: who may, what is streamed, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.agent.http.conftest import ADMIN, Reply, Served


def lines(reply: Reply) -> list[Any]:
    return [json.loads(line) for line in reply.body.splitlines()]


@pytest.mark.parametrize(
    ("method", "path", "state"),
    [("POST", "/api/members/pi-a/drain", "drained"), ("DELETE", "/api/members/pi-a", "removed")],
)
def test_progress_and_then_the_result(served: Served, method: str, path: str, state: str) -> None:
    reply = served.ask(method, path, headers=ADMIN)
    assert reply.status == 200
    first, last = lines(reply)
    assert first["stage"] == "net still runs on it"
    assert last == {"result": {"name": "pi-a", "node": "0" * 16, "state": state}}


def test_who_does_not_wait_gets_one_line(served: Served) -> None:
    served.node.gate = asyncio.Event()
    assert len(lines(served.ask("POST", "/api/members/pi-a/drain?wait=0", headers=ADMIN))) == 1


def test_back_again(served: Served) -> None:
    reply = served.ask("DELETE", "/api/members/pi-a/drain", headers=ADMIN)
    assert reply.json() == {"result": {"name": "pi-a", "node": "0" * 16, "state": "in"}}


def test_an_unknown_device_is_named(served: Served) -> None:
    (only,) = lines(served.ask("POST", "/api/members/nobody/drain", headers=ADMIN))
    assert (only["kind"], only["status"]) == ("UsageError", 400)
    assert "nobody" in only["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/members/pi-a/drain"),
        ("DELETE", "/api/members/pi-a/drain"),
        ("DELETE", "/api/members/pi-a"),
    ],
)
def test_nobody_may_without_the_credential(served: Served, method: str, path: str) -> None:
    assert served.ask(method, path).status == 401
