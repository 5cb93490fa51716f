"""A request is answered by another member when its own is lost, in whatever way; what changes the cluster is sent once."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepart.agent.api.deployed_model import DeployedModel, DeployedVersion
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.http.server import HttpServer
from edgepart.client.async_client import AsyncClient
from edgepart.client.connecting import connect_async
from edgepart.client.deploying import SENDING, STORED
from edgepart.client.members import AGAIN_S
from edgepart.planner.errors import (
    Infeasible,
    NotAuthorised,
    RequestError,
    StillGoing,
    Unavailable,
    UnknownDeployment,
    UsageError,
)
from tests.agent.http.conftest import CREDENTIAL, LIMITS
from tests.agent.http.fake_text import PARTS, TEXT, FakeText
from tests.agent.http.fakes import NO_ROOM, A, FakeNode, add_model
from tests.client.pairs import client_of, failing, introduce, well

INPUTS = {"a": A, "b": A}
NOBODY = "http://127.0.0.1:1"
"""A port at which nobody listens."""


def tell(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


async def right(client: AsyncClient) -> int:
    """Checks an answer, and returns how often the client sent the request again."""
    answer = await client.infer("add", INPUTS)
    np.testing.assert_array_equal(answer["total"], 2 * A)
    return answer.retries


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf of it",
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 60\r\nConnection: close\r\n\r\n"
        + b'{"kind": "UnknownDeployment", "error": "no deployment"}'.ljust(60),
        None,
    ],
    ids=["hangs up", "half an answer", "busy", "knows nothing yet", "silent"],
)
def test_a_request_goes_on_with_another_member(reply: bytes | None, tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            failing(reply) as bad,
            well(tmp_path) as (_, url),
            client_of(tmp_path, NOBODY, bad.url, url) as client,
        ):
            assert await right(client) == 2 and client.url == url
            assert bad.requests >= 1
            assert await right(client) == 0

    tell(story)


def test_reading_goes_on_too_from_an_agent_that_is_silent(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            failing(None) as frozen,
            well(tmp_path) as (_, url),
            client_of(tmp_path, frozen.url, url) as client,
        ):
            assert (await client.status())["name"] == "pi-a"

    tell(story)


def test_a_member_that_has_no_plan_is_believed_by_who_asks_for_the_plan(tmp_path: Path) -> None:
    async def story() -> None:
        async with well(tmp_path) as (node, url), well(tmp_path) as (_, other):
            node.unready["add"] = "planning"
            async with client_of(tmp_path, url, other) as client:
                with pytest.raises(Unavailable, match="no plan of 'add' is active"):
                    await client.plan("add")

    tell(story)


def test_a_long_computation_is_waited_for_and_its_loss_is_noticed(tmp_path: Path) -> None:
    """The first agent computes for ever, and is stopped meanwhile; the other one has the answer."""

    async def story() -> None:
        node = FakeNode()
        node.gate = asyncio.Event()
        lost = HttpServer(Gateway(node, CREDENTIAL, LIMITS), "127.0.0.1", 0, spool=tmp_path)
        url = await lost.start()
        async with well(tmp_path) as (_, other), client_of(tmp_path, url, other) as client:
            asked = asyncio.create_task(right(client))
            await asyncio.sleep(0.3)
            assert not asked.done()
            node.failure = Unavailable("this agent stops")
            node.gate.set()
            await lost.stop()
            assert await asked == 1

    tell(story)


def test_all_members_are_gone_and_one_comes_back_at_another_address(tmp_path: Path) -> None:
    """The agent of a state folder writes down its address; the client looks there again."""

    async def story() -> None:
        first = HttpServer(Gateway(FakeNode(), CREDENTIAL, LIMITS), "127.0.0.1", 0, spool=tmp_path)
        (tmp_path / "agent.json").write_text(json.dumps({"http": await first.start()}))
        async with connect_async(state=tmp_path) as client:
            assert await right(client) == 0
            await first.stop()
            asked = asyncio.create_task(right(client))
            await asyncio.sleep(3 * AGAIN_S)
            async with well(tmp_path) as (_, url):
                (tmp_path / "agent.json").write_text(json.dumps({"http": url}))
                assert await asked >= 1

    tell(story)


def test_members_are_known_from_the_state_folder_if_its_agent_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
        async with well(tmp_path) as (_, url):
            (tmp_path / "agent.json").write_text(json.dumps({"http": NOBODY}))
            (tmp_path / "http.json").write_text(json.dumps({"members": [url, "nonsense", 7]}))
            async with connect_async(state=tmp_path) as client:
                assert client.url == url and await right(client) == 0

    tell(story)


def test_a_request_moves_on_when_its_agent_dies(tmp_path: Path) -> None:
    """The second member is known from the first one's status, before that one is gone."""

    async def story() -> None:
        second = HttpServer(Gateway(FakeNode(), CREDENTIAL, LIMITS), "127.0.0.1", 0, spool=tmp_path)
        node = FakeNode()
        first = HttpServer(Gateway(node, CREDENTIAL, LIMITS), "127.0.0.1", 0, spool=tmp_path)
        status = node.status()
        status["members"].append({"name": "pi-b", "state": "alive", "http": await second.start()})
        node.status = lambda: status  # type: ignore[method-assign]
        async with client_of(tmp_path, await first.start()) as client:
            await client.learn()
            assert (await client.infer("add", {"a": A, "b": A})).retries == 0
            await first.stop()
            answer = await client.infer("add", {"a": A, "b": A})
            np.testing.assert_array_equal(answer.outputs["total"], 2 * A)
            assert answer.retries == 1
            await second.stop()
            with pytest.raises(Unavailable, match="cannot be reached"):
                await client.infer("add", {"a": A, "b": A}, None, 0.5)

    asyncio.run(story())


def test_a_request_waits_for_a_plan(tmp_path: Path) -> None:
    class Late(FakeNode):
        tries = 0

        async def infer(self, *arguments: Any, **named: Any) -> Any:
            self.tries += 1
            if self.tries < 3:
                raise Unavailable("no plan yet", 0.01)
            return await super().infer(*arguments, **named)

    async def story() -> None:
        server = HttpServer(Gateway(Late(), CREDENTIAL, LIMITS), "127.0.0.1", 0, spool=tmp_path)
        async with client_of(tmp_path, await server.start()) as client:
            assert (await client.infer("add", {"a": A, "b": A})).retries == 2
        await server.stop()

    asyncio.run(story())


def test_who_the_members_are_is_learned_again_after_a_loss(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            well(tmp_path) as (node, url),
            well(tmp_path) as (_, newer),
            client_of(tmp_path, NOBODY, url) as client,
        ):
            await client.learn()
            introduce(node, url, newer)
            client.door.members.failed(NOBODY, 0.0)
            for _ in range(100):
                await right(client)
                if newer in client.door.members.urls:
                    break
            else:
                pytest.fail("the newer member is not known")

    tell(story)


def test_one_array_is_enough_for_a_model_with_one_input(tmp_path: Path) -> None:
    async def story() -> None:
        async with well(tmp_path) as (_, url), client_of(tmp_path, url) as client:
            answer = await client.infer("same-float", A)
            np.testing.assert_array_equal(answer.array, A)
            assert dict(answer) == answer.outputs and len(answer) == 1 and answer.url == url
            with pytest.raises(RequestError, match="'add' has inputs \\['a', 'b'\\]"):
                await client.infer("add", A)
            both = await client.infer("add", INPUTS)
            with pytest.raises(RequestError, match="outputs"):
                _ = both.array
            assert list(await client.infer("add", INPUTS, ["less"])) == ["less"]

    tell(story)


@pytest.mark.parametrize(
    ("model", "inputs", "error"),
    [
        ("nothing", INPUTS, UnknownDeployment),
        ("../status", INPUTS, UsageError),
        ("add", {"a": A}, RequestError),
        ("add", {"a": A, "b": np.zeros((1, 1), np.complex64)}, RequestError),
    ],
)
def test_wrong_requests_are_refused_at_once(
    model: str, inputs: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    async def story() -> None:
        async with well(tmp_path) as (_, url), client_of(tmp_path, url, NOBODY) as client:
            with pytest.raises(error):
                await client.infer(model, inputs)

    tell(story)


def test_a_request_ends_when_its_time_is_up(tmp_path: Path) -> None:
    async def story() -> None:
        async with well(tmp_path) as (node, url), client_of(tmp_path, url) as client:
            node.gate = asyncio.Event()
            with pytest.raises(Unavailable, match=r"gave no answer in the 0.2 s"):
                await client.infer("add", INPUTS, timeout_s=0.2)

    tell(story)


def test_a_wrong_address_is_told_soon(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
            async with connect_async([NOBODY], state=tmp_path):
                pass

    tell(story)


def test_a_wrong_credential_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with well(tmp_path) as (_, url), client_of(tmp_path, url, secret="wrong" * 8) as client:
            with pytest.raises(NotAuthorised):
                await client.undeploy("add")

    tell(story)


def test_a_deployment_goes_to_the_first_member_that_can_be_connected_to(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(add_model())
    seen: list[str] = []

    async def story() -> None:
        async with well(tmp_path) as (node, url), client_of(tmp_path, NOBODY, url) as client:
            found = await client.deploy(
                path, progress=lambda stage, done, total: seen.append(stage), objective="throughput"
            )
            assert (found.name, found.devices, found.why) == ("m", ("pi-a",), "")
            files, options = node.deployed["m"]
            assert files == {"m.onnx": add_model()} and options.objective == "throughput"
            assert seen[0] == "sending the model" and seen[-1] == "sending weights"
            assert await client.undeploy("add") == {"undeployed": "add"}
            node.failure = NO_ROOM
            with pytest.raises(Infeasible) as refused:
                await client.deploy(path, "again")
            assert refused.value.short_bytes == {"pi-a": 12}

    tell(story)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_model_that_the_cluster_stores_is_not_sent_again(
    tmp_path: Path, earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is called there; an agent of an earlier release that wants the files gets them."""
    path = tmp_path / "m.onnx"
    path.write_bytes(add_model())
    digest = hashlib.sha256(add_model()).hexdigest()
    seen: list[str] = []

    async def story() -> None:
        async with well(tmp_path) as (node, url), client_of(tmp_path, url) as client:
            kept = DeployedVersion(1, digest, {})
            node.described["add"] = DeployedModel("add", DeployedVersion(2, "0" * 64, {}), (kept,))
            if earlier:
                told = RequestError("the form holds a part 'model'; parts are `options` and `file`")
                monkeypatch.setattr(node, "deploy_stored", refuse(told))
            await client.deploy(path, progress=lambda stage, *_: seen.append(stage), objective="throughput")
            files, options = node.deployed["m"]
            assert options.objective == "throughput"
            assert files == ({"m.onnx": add_model()} if earlier else {"model": digest.encode()})
            assert seen[0] == STORED and (SENDING in seen) == earlier
            node.described.clear()
            await client.deploy(path, "other")
            assert node.deployed["other"][0] == {"m.onnx": add_model()}

    tell(story)


def refuse(error: Exception) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def refusing(*_: Any) -> dict[str, Any]:
        raise error

    return refusing


def test_a_deployment_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(add_model())

    async def story() -> None:
        async with well(tmp_path) as (node, url), client_of(tmp_path, url) as client:
            node.gate = asyncio.Event()
            with pytest.raises(StillGoing, match=r"after 0.1 s \(planning\)"):
                await client.deploy(path, timeout_s=0.1)
            with pytest.raises(UsageError, match="colour"):
                await client.deploy(path, colour="red")  # type: ignore[call-arg]

    tell(story)


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STAGE = b'{"stage": "planning", "done": 0, "total": 0}\n'
PROGRESS = (
    CONTINUE
    + b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + f"{len(STAGE):x}\r\n".encode()
    + STAGE
    + b"\r\n"
)


@pytest.mark.parametrize(
    ("reply", "name", "known"),
    [
        (b"", "m", "It had not got the whole model: nothing was deployed"),
        (PROGRESS, "m", "knows no deployment m"),
        (PROGRESS, "add", r"knows add \(serving\)"),
    ],
    ids=["before the model", "after it", "after it, and others know"],
)
def test_a_deployment_whose_agent_is_lost_is_not_repeated_and_the_error_says_what_is_known(
    reply: bytes, name: str, known: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(add_model())

    async def story() -> None:
        async with (
            failing(reply) as bad,
            well(tmp_path) as (node, url),
            client_of(tmp_path, bad.url, url) as client,
        ):
            with pytest.raises(Unavailable, match=known):
                await client.deploy(path, name)
            assert not node.deployed and bad.requests == 1

    tell(story)


def test_a_deployment_whose_agent_falls_silent_is_lost_and_not_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(add_model())

    async def story() -> None:
        async with (
            failing(PROGRESS, hangs_up=False) as frozen,
            well(tmp_path) as (_, url),
            client_of(tmp_path, frozen.url, url) as client,
        ):
            monkeypatch.setattr(client.door, "change", partial(client.door.change, silent_s=0.1))
            with pytest.raises(Unavailable, match=f"{url} knows no deployment m"):
                await client.deploy(path)

    tell(story)


def test_undeploying_is_not_repeated_either(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            failing(b"") as bad,
            well(tmp_path) as (node, url),
            client_of(tmp_path, bad.url, url) as client,
        ):
            with pytest.raises(Unavailable, match=rf"{url} knows add \(serving\)"):
                await client.undeploy("add")
            assert "add" in node.sessions

    tell(story)


def test_a_whole_answer_is_made_anew_and_a_stream_ends_with_an_error(tmp_path: Path) -> None:
    begun = b'data: {"choices": [{"delta": {"content": "Half"}}]}\n\n'
    half = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(begun), begun)

    async def story() -> None:
        async with failing(half) as bad, well(tmp_path, text=FakeText()) as (_, url):
            async with client_of(tmp_path, bad.url, url) as client:
                assert (await client.chat("chat", "Hello", temperature=0)).text == TEXT
            async with client_of(tmp_path, bad.url, url) as client:
                parts = client.stream_chat("chat", [{"role": "user", "content": "Hello"}])
                assert await anext(parts) == "Half"
                with pytest.raises(Unavailable, match="the answer is not complete"):
                    await anext(parts)
                again = client.stream_chat("chat", "Hello")
                assert [part async for part in again] == [part for part in PARTS if part]

    tell(story)


def test_a_trace_is_complete_after_its_block(tmp_path: Path) -> None:
    async def story() -> None:
        async with well(tmp_path) as (node, url), client_of(tmp_path, url) as client:
            node.trace_document = {"model": "add", "gateway": "pi-a", "began_s": 1.0, "ended_s": 3.0,
                                   "devices": [], "plans": [], "missing": {}}  # fmt: skip
            async with client.trace("add", 5.0) as recording:
                assert node.traced_s == 5.0 and recording.handle.devices == ("pi-a",)
                with pytest.raises(UsageError, match="still being recorded"):
                    recording.save(tmp_path / "t.json")
            assert recording.trace.seconds == 2.0
            recording.save(tmp_path / "t.json")
            assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == []

    tell(story)
