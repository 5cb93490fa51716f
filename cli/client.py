"""Client: talks to an agent's HTTP API, and to another member when that agent is gone. Door: aiohttp.

Requests that may be sent twice without harm (reading, inference) are tried again on the next known member until their
deadline; deploying and undeploying are not. An agent that is silent while it should answer counts as gone (liveness.py).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import aiohttp

from edgepart.agent.http.buffers import Buffer, Buffers
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.event_stream import read_events
from edgepart.cli.liveness import ProbeTiming, while_alive
from edgepart.cli.options import AgentTarget
from edgepart.planner import errors
from edgepart.planner.errors import EdgepartError, Unavailable

CONNECT_S = 5.0
"""Seconds that opening a connection may take."""
SILENT_S = 30.0
"""Seconds of silence after which a connection is lost: agents report progress every few seconds during a deployment."""
TRACE_S = 120.0
"""Seconds that an agent may take to collect a trace."""
AGAIN_S = 0.1
"""Seconds between two tries; the pause grows to ten times this."""
LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
"""The errors of a request whose agent is gone."""


@dataclass(frozen=True)
class Reply:
    """The answer to one inference request."""

    outputs: Mapping[str, Any]
    epoch: str
    seconds: float
    """The time that the agent measured."""
    replays: int
    retries: int
    """Number of times that this client sent the request again."""


@dataclass(frozen=True)
class TraceHandle:
    """A trace that is being recorded."""

    url: str
    """The URL that ends the trace."""
    devices: tuple[str, ...]
    """The devices that record."""
    missing: Mapping[str, str]
    """Maps each device that does not record to the reason."""


class Client:
    """A client of the cluster, to be used as `async with Client(target) as client:`."""

    def __init__(self, target: AgentTarget, timing: ProbeTiming | None = None) -> None:
        """`timing` says when to give up on a silent agent."""
        self._target = target
        self._timing = timing or ProbeTiming()
        self._urls = [target.url]
        """The URLs of known members; the first is that of the agent in use."""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        headers = {"Accept-Encoding": "identity"}
        if not self._target.is_local:
            headers["Authorization"] = f"Bearer {self._target.credential()}"
        connector = aiohttp.TCPConnector(limit=0)
        # Agents set no cookies, and looking for cookies takes time with every request.
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, *, timeout_s: float = 10.0) -> Any:
        """The document at `path`, from the first member that answers."""
        return (await self._again("GET", path, None, {}, timeout_s))[0]

    async def learn(self) -> None:
        """Remembers the addresses of other members, for when this one does not answer."""
        members = (await self.get("/api/status")).get("members", ())
        found = [str(m["http"]).rstrip("/") for m in members if m.get("http") and m.get("state") == "alive"]
        self._urls = list(dict.fromkeys([*self._urls, *found]))

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        deadline_s: float = 60.0,
    ) -> Reply:
        # Imported here, as numpy takes a quarter of the start of the many commands that send no tensors.
        from edgepart.cli.tensors import encode_request, read_answer

        body = encode_request(inputs, outputs, deadline_s)
        headers = {"Inference-Header-Content-Length": str(len(body[0]))}
        path = f"/v2/models/{model}/infer"
        (data, length), retries = await self._again("POST", path, body, headers, deadline_s, binary=True)
        document, arrays = read_answer(data, length)
        about = document.get("parameters", {})
        return Reply(
            outputs=arrays,
            epoch=str(about.get("epoch", "")),
            seconds=float(about.get("seconds", 0.0)),
            replays=int(about.get("replays", 0)),
            retries=retries,
        )

    async def chat(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the documents of a chat's answer as they come. If an agent is gone before it has said anything, the next
        known member is asked. Raises the error that the agent reports."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        begun = False
        for others in reversed(range(len(self._urls))):
            url = self._urls[0]
            try:
                async with self._open().post(
                    f"{url}/v1/chat/completions", json={**body, "stream": True}, timeout=timeout
                ) as response:
                    await _raise_for(response)
                    async for document in read_events(response.content):
                        if "error" in document:
                            raise error_from(document, response.status)
                        begun = True
                        yield document
                    return
            except LOST as error:
                self._next(url)
                if begun or not others:
                    text = _describe_loss(url, error) + ("; the answer is not complete" if begun else "")
                    raise Unavailable(text) from error

    async def deploy(
        self, name: str, files: Mapping[str, Path], options: DeployOptions, wait: bool
    ) -> AsyncIterator[dict[str, Any]]:
        """Yields progress documents, and {"result": ...} at the end. Raises the error that the agent reports."""
        total = sum(path.stat().st_size for path in files.values())
        sent = _Sent()
        reading = asyncio.create_task(self._start_deploy(name, files, options, wait, sent))
        try:
            while not reading.done():
                yield {"stage": "sending the model", "done": sent.nbytes, "total": total}
                await asyncio.wait([reading], timeout=0.1)
            response = await reading
        except LOST as error:
            raise Unavailable(_describe_loss(self._urls[0], error) + "; nothing was deployed") from error
        finally:
            reading.cancel()
        try:
            async with response:
                async for line in response.content:
                    document = json.loads(line)
                    if "error" in document:
                        raise error_from(document, response.status)
                    yield document
        except LOST as error:
            text = (
                _describe_loss(self._urls[0], error)
                + "; `edgepart models` shows whether the deployment goes on"
            )
            raise Unavailable(text) from error

    async def rollback(self, name: str, to: int | None, wait: bool) -> AsyncIterator[dict[str, Any]]:
        """Yields progress documents, and {"result": ...} at the end. Raises the error that the agent reports."""
        url = f"{self._urls[0]}/api/deployments/{name}/rollback"
        query = {"wait": str(int(wait))} | ({} if to is None else {"to": str(to)})
        lost = "`edgepart models` shows whether the rollback goes on"
        async for document in self._follow("POST", url, query, lost):
            yield document

    async def undeploy(self, name: str) -> Mapping[str, Any]:
        """Undeploys a model. Returns {"undeployed": name}, or {"dismissed": name} if there was only the notice of a failed
        attempt."""
        try:
            async with self._open().delete(
                f"{self._urls[0]}/api/deployments/{name}", headers=self._admin()
            ) as response:
                await _raise_for(response)
                document: Mapping[str, Any] = await response.json()
                return document
        except LOST as error:
            raise Unavailable(_describe_loss(self._urls[0], error)) from error

    async def drain(self, name: str, *, remove: bool, wait: bool) -> AsyncIterator[dict[str, Any]]:
        """Yields progress documents and, with `wait`, {"result": ...} at the end. Raises the error that the agent
        reports."""
        url = f"{self._urls[0]}/api/members/{quote(name, safe='')}" + ("" if remove else "/drain")
        lost = "the drain goes on, and `edgepart status` shows its progress"
        method, query = "DELETE" if remove else "POST", {"wait": str(int(wait))}
        async for document in self._follow(method, url, query, lost):
            yield document

    async def _follow(
        self, method: str, url: str, query: Mapping[str, str], lost: str
    ) -> AsyncIterator[dict[str, Any]]:
        """Yields the documents of an answer as they come. `lost` is what to say if the agent is gone before the end."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        try:
            async with self._open().request(
                method, url, params=query, headers=self._admin(), timeout=timeout
            ) as response:
                await _raise_for(response)
                async for line in response.content:
                    document = json.loads(line)
                    if "error" in document:
                        raise error_from(document, response.status)
                    yield document
        except LOST as error:
            raise Unavailable(f"{_describe_loss(self._urls[0], error)}; {lost}") from error

    async def undrain(self, name: str) -> Any:
        url = f"{self._urls[0]}/api/members/{quote(name, safe='')}/drain"
        return (await self._manage("DELETE", url, {}, 30.0))["result"]

    async def trace(self, name: str, seconds: float) -> TraceHandle:
        """Makes the cluster record what it does, for at most that many seconds."""
        url = f"{self._urls[0]}/api/models/{name}/trace"
        document = await self._manage("POST", url, {"seconds": str(seconds)}, 30.0)
        return TraceHandle(url, tuple(document["devices"]), dict(document["missing"]))

    async def end_trace(self, tracing: TraceHandle) -> Any:
        """Ends the trace and returns it. Only the agent that began the trace has it, so that agent is asked."""
        return await self._manage("DELETE", tracing.url, {}, TRACE_S)

    async def _manage(self, method: str, url: str, query: Mapping[str, str], silent_s: float) -> Any:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silent_s)
        try:
            async with self._open().request(
                method, url, params=query, headers=self._admin(), timeout=timeout
            ) as response:
                await _raise_for(response)
                return await response.json()
        except LOST as error:
            raise Unavailable(_describe_loss(url.partition("/api/")[0], error)) from error

    async def _start_deploy(
        self, name: str, files: Mapping[str, Path], options: DeployOptions, wait: bool, sent: _Sent
    ) -> aiohttp.ClientResponse:
        with aiohttp.MultipartWriter("form-data") as form:
            fields = {key: getattr(options, key) for key in DeployOptions.__dataclass_fields__}
            form.append_json(fields).set_content_disposition("form-data", name="options")
            for relative, path in files.items():
                part = form.append(_chunks(path, sent), {"Content-Type": "application/octet-stream"})
                part.set_content_disposition("form-data", name="file", filename=relative)
            response = await self._open().post(
                f"{self._urls[0]}/api/deployments/{name}",
                params={"wait": str(int(wait))},
                data=form,
                headers=self._admin(),
                expect100=True,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S),
            )
        await _raise_for(response)
        return response

    async def _again(
        self,
        method: str,
        path: str,
        body: Sequence[Buffer] | None,
        headers: Mapping[str, str],
        deadline_s: float,
        *,
        binary: bool = False,
    ) -> tuple[Any, int]:
        """The answer, and the number of tries that failed before it. Raises the last failure when the time is up, or when
        no known member could be reached three times in a row. Only inference (`binary`) is tried again when an agent
        answers Unavailable; a read then raises at once, because its answer is what the user wants to see."""
        until = time.monotonic() + deadline_s
        tries = 0
        unreachable = 0
        while True:
            left_s = until - time.monotonic()
            url = self._urls[0]
            failure: EdgepartError
            try:
                once = self._once(method, url, path, body, headers, left_s, binary=binary)
                if not binary:
                    return await once, tries
                probe = partial(self._probe, url)
                return await while_alive(once, probe, LOST, self._timing, tries), tries
            except Unavailable as error:
                failure, pause_s = error, min(error.retry_after_s, 1.0)
                unreachable = 0
                if not binary:
                    raise
            except LOST as error:
                failure, pause_s = Unavailable(_describe_loss(url, error)), 0.0
                unreachable += 1
            tries += 1
            self._next(url)
            if unreachable >= 3 * len(self._urls) or time.monotonic() + pause_s >= until:
                raise failure
            if unreachable % len(self._urls) == 0:
                pause_s = max(pause_s, min(AGAIN_S * tries, AGAIN_S * 10))
            await asyncio.sleep(pause_s)

    async def _once(
        self,
        method: str,
        url: str,
        path: str,
        body: Sequence[Buffer] | None,
        headers: Mapping[str, str],
        left_s: float,
        *,
        binary: bool,
    ) -> Any:
        """Sends the request once. Returns the document; with `binary`, the body and the length of its JSON part."""
        timeout = aiohttp.ClientTimeout(total=max(left_s, 0.1), sock_connect=CONNECT_S)
        data = None if body is None else Buffers(body, "application/octet-stream")
        async with self._open().request(
            method, url + path, data=data, headers=headers, timeout=timeout
        ) as response:
            await _raise_for(response)
            if not binary:
                return await response.json()
            return await response.read(), response.headers.get("Inference-Header-Content-Length")

    async def _probe(self, url: str, seconds: float) -> None:
        """Raises one of LOST if the agent does not answer within `seconds`; any answer will do."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with self._open().get(f"{url}/v2/health/live", timeout=timeout):
            pass

    def _next(self, failed: str) -> None:
        """Switches to the next member, unless another request has already done so."""
        if self._urls[0] == failed:
            self._urls.append(self._urls.pop(0))

    def _admin(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._target.credential()}"}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise errors.InternalError("the client is used outside its `async with`")
        return self._session


class _Sent:
    """The number of bytes of the upload that are sent."""

    nbytes = 0


async def _chunks(path: Path, sent: _Sent) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, 1 << 20):
            yield chunk
            sent.nbytes += len(chunk)


OPENAI_CODES: Mapping[str, type[EdgepartError]] = {
    "context_length_exceeded": errors.ContextExceeded,
    "invalid_api_key": errors.NotAuthorised,
    "model_not_found": errors.UnknownDeployment,
    "rate_limit_exceeded": Unavailable,
    "unavailable": Unavailable,
}
"""The classes of errors by the codes that /v1 gives them."""


def error_from(document: Mapping[str, Any], status: int) -> EdgepartError:
    """The agent's error, as an exception of the same class. /v1 has a form of its own, which is that of OpenAI's server."""
    inner = document.get("error")
    if isinstance(inner, dict):
        named = OPENAI_CODES.get(str(inner.get("code")))
        document = {"error": inner.get("message"), "kind": named and named.__name__}
    text = str(document.get("error") or f"the agent answered with HTTP status {status}")
    if document.get("kind") == "Unavailable" or status == 503:
        wait_s = document.get("retry_after_s")
        return Unavailable(text, float(wait_s) if isinstance(wait_s, int | float) else 1.0)
    kind = getattr(errors, str(document.get("kind")), None)
    if isinstance(kind, type) and issubclass(kind, EdgepartError):
        return kind(text)
    return errors.RequestError(text) if 400 <= status < 500 else EdgepartError(text)


async def _raise_for(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    try:
        document = await response.json(content_type=None)
    except ValueError:
        document = None
    response.release()
    raise error_from(document if isinstance(document, dict) else {}, response.status)


def _describe_loss(url: str, error: BaseException) -> str:
    return f"the agent at {url} cannot be reached ({error or type(error).__name__}); is it running?"
