"""Who gets through the gate: every route without the credential, wrong ones, busy ones, and a law for the buckets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.gateway.access import authorise
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.host.token_bucket import Buckets
from edgepart.agent.http.server import HttpServer
from edgepart.agent.wire.vocabulary import CLOSED, LOCAL, OPEN
from edgepart.planner.errors import NotAuthorised
from tests.agent.http.conftest import ADMIN, CREDENTIAL, LIMITS, Served
from tests.agent.http.fakes import FakeNode

FOREIGN = {"X-Forwarded-For": "192.0.2.7"}
"""As a proxy adds it: the request is somebody else's."""
FOR_ALL = {
    ("GET", "/"),
    ("GET", "/page/add"),
    ("GET", "/api"),
    ("GET", "/openapi.json"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"),
}
"""The files of the page, which show nothing by themselves, and health."""


def every_route(server: HttpServer) -> list[tuple[str, str]]:
    """(method, path), with names of things filled in. All of them: one that is added later is here as well."""
    found = [route for route in server.routes() if isinstance(route, web.RouteDef)]
    assert len(found) == len(server.routes()) > 20
    return [(route.method, re.sub(r"\{(\w+)\}", "add", route.path)) for route in found]


@pytest.mark.parametrize("inference", [OPEN, LOCAL, CLOSED])
@pytest.mark.parametrize("credential", [None, "wrong" * 10, CREDENTIAL[:-1], CREDENTIAL + "0", ""])
def test_every_route_asks_for_the_credential(served: Served, inference: str, credential: str | None) -> None:
    served.server._v2._gate._inference = inference
    headers = FOREIGN | ({} if credential is None else {"Authorization": f"Bearer {credential}"})
    for method, path in every_route(served.server):
        reply = served.ask(method, path, headers=headers)
        free = (method, path) in FOR_ALL or (
            inference == OPEN and (path.startswith("/v1/") or (credential is None and path.startswith("/v2")))
        )
        assert (reply.status == 401) is not free, (method, path, reply.status)
        assert CREDENTIAL not in reply.body.decode()
    assert served.node.deployed == {} and "add" in served.node.sessions


@pytest.mark.parametrize(
    ("inference", "headers", "local", "elsewhere"),
    [
        (LOCAL, {"Host": "localhost"}, True, False),
        (OPEN, {"Host": "pi-a.local"}, True, True),
        (OPEN, {"Host": "pi-a.local", "Origin": "http://evil.example"}, False, False),
        (OPEN, {"Host": "pi-a.local", "Origin": "http://pi-a.local"}, True, True),
        (CLOSED, {"Host": "localhost"}, False, False),
    ],
)
def test_inference_is_open_or_closed_by_choice(
    inference: str, headers: dict[str, str], local: bool, elsewhere: bool
) -> None:
    for peer, expected in (("127.0.0.1", local), ("192.0.2.7", elsewhere)):
        try:
            authorise(peer, headers, CREDENTIAL, write=False, openness=inference)
            found = True
        except NotAuthorised:
            found = False
        assert found is expected
    for peer in ("127.0.0.1", "192.0.2.7"):
        with pytest.raises(NotAuthorised):
            authorise(peer, headers, CREDENTIAL, write=True, openness=inference)


def test_a_new_credential_counts_at_once(tmp_path: Path, served: Served) -> None:
    held = [CREDENTIAL]
    served.server._v2._gate._credential = lambda: held[0]
    assert served.ask("GET", "/v2", headers=FOREIGN | ADMIN).status == 200
    held[0] = "n" * 40
    assert served.ask("GET", "/v2", headers=FOREIGN | ADMIN).status == 401
    assert served.ask("GET", "/v2", headers=FOREIGN | {"Authorization": "Bearer " + "n" * 40}).status == 200


def test_who_asks_too_often_is_told_when_to_come_back(served: Served) -> None:
    now = [0.0]
    gate = served.server._v2._gate
    gate._buckets, gate._clock = Buckets(2.0, 3.0), lambda: now[0]
    statuses = [served.ask("GET", "/v2", headers=FOREIGN).status for _ in range(5)]
    assert statuses == [401] * 3 + [429] * 2
    reply = served.ask("GET", "/", headers=FOREIGN)
    assert (
        reply.status == 429 and reply.headers["Retry-After"] == "1" and reply.json()["kind"] == "Unavailable"
    )
    # The credential, and this machine's own programs, come through.
    assert served.ask("GET", "/v2", headers=FOREIGN | ADMIN).status == 200
    assert served.ask("GET", "/v2").status == 200
    now[0] += 0.5
    assert [served.ask("GET", "/v2/health/live", headers=FOREIGN).status for _ in range(2)] == [200, 429]


def test_a_deployment_that_is_announced_too_often_is_refused_before_its_body(served: Served) -> None:
    served.server._management._gate._buckets = Buckets(1e-3, 1.0)
    headers = FOREIGN | {"Expect": "100-continue"}
    assert [served.ask("POST", "/api/deployments/m", headers=headers).status for _ in range(2)] == [401, 429]


def plain_bucket(rate: float, burst: float) -> Callable[[float], bool]:
    """One client's bucket as one would write it down: all that ever came counts."""
    taken: list[float] = []

    def take(now: float) -> bool:
        tokens, before = burst, taken[0] if taken else now
        for at in [*taken, now]:
            tokens = min(burst, tokens + (at - before) * rate)
            before = at
            if at is not now:
                tokens -= 1
        if tokens >= 1 - 1e-9:
            taken.append(now)
            return True
        return False

    return take


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20)), max_size=60))
def test_buckets_do_as_the_plain_one(arrivals: list[tuple[str, int]]) -> None:
    buckets, plain = Buckets(0.25, 3.0), {name: plain_bucket(0.25, 3.0) for name in "ab"}
    now = 0.0
    for client, pause in arrivals:
        now += pause / 4
        wait_s = buckets.take(client, now)
        assert (wait_s == 0.0) is plain[client](now)
        assert 0 <= wait_s <= 4


@given(st.integers(1, 300), st.integers(1, 8))
def test_many_addresses_take_no_more_memory(clients: int, most: int) -> None:
    buckets = Buckets(1.0, 2.0, most)
    free = sum(buckets.take(f"client {n}", 0.0) == 0.0 for n in range(clients))
    assert len(buckets) <= most + 1
    # Whoever has no bucket of its own shares one.
    assert free == min(clients, most) + min(max(clients - most, 0), 2)
    assert buckets.take("much later", 100.0) == 0.0 and len(buckets) == 1


def test_a_server_takes_a_credential_that_stays(tmp_path: Path) -> None:
    async def story() -> None:
        server = HttpServer(Gateway(FakeNode(), CREDENTIAL, LIMITS, inference=CLOSED), spool=tmp_path)
        assert server._v2._gate._credential() == CREDENTIAL and server._v2._gate._inference == CLOSED

    asyncio.run(story())
