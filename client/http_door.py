"""HTTP door: sends a client's requests to the members that it knows. Door: aiohttp, and the event loop's clock.

Reading and inference change nothing, so they are sent to another member when one is gone, until their time is up. An agent
that is silent while it should answer counts as gone (liveness.py). What changes the cluster is sent to another member only
as long as no byte of it has been sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp

from edgepart.agent.http.buffers import Buffer, Buffers
from edgepart.client.failures import describe_loss, error_from
from edgepart.client.liveness import ProbeTiming, while_alive
from edgepart.client.members import KnownMembers, RequestTries
from edgepart.client.target import AgentTarget
from edgepart.planner.errors import (
    EdgepartError,
    InternalError,
    NotAuthorised,
    Unavailable,
    UnknownDeployment,
)

CONNECT_S = 5.0
"""Seconds that opening a connection may take."""
SILENT_S = 30.0
"""Seconds of silence after which a connection is lost: agents report progress every few seconds during a deployment."""
LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
"""The errors of a request whose agent is gone."""
NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Those of them after which it is certain that no byte of the request was sent."""

Body = Callable[[float], Sequence[Buffer]]
"""Makes the pieces of a request's body, for the seconds that the request may still take."""


class HttpDoor:
    """The HTTP connections of one client. `async with` opens and closes them."""

    def __init__(self, target: AgentTarget, timing: ProbeTiming) -> None:
        """`timing` says when to give up on a silent agent."""
        self.members = KnownMembers((target.url,) if target.announced else target.urls)
        self.members.add(target.others)
        self._target = target
        self._timing = timing
        self._credentials: dict[str, str | None] = {}
        """What each agent is shown; reading it takes a file."""
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        # Agents set no cookies, and looking for cookies takes time with every request.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=timeout,
            headers={"Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def read(self, path: str, timeout_s: float) -> Any:
        """The document at `path`, from the first member that answers. Raises Unavailable at once if a member says so,
        because that is what the caller wants to know."""
        once = partial(self._document, path)
        return (await self._again(once, timeout_s, until_available=False))[0]

    async def infer(
        self, path: str, body: Body, deadline_s: float
    ) -> tuple[tuple[bytes, str | None], str, int]:
        """The answer's body with the length of its JSON part, the URL that gave it, and the number of tries that failed
        before."""
        (answer, url), tries = await self._again(
            partial(self._tensors, path, body), deadline_s, until_available=True
        )
        return answer, url, tries

    async def _again(
        self, once: Callable[[str, float], Any], deadline_s: float, *, until_available: bool
    ) -> tuple[Any, int]:
        """The result of `once(url, seconds left)`, and the number of tries that failed before it. Raises the last failure
        when the rules of RequestTries end the request."""
        now = time.monotonic
        tries = RequestTries(self.members, now() + deadline_s)
        while True:
            url, left_s = tries.url, max(tries.until_s - now(), 0.1)
            failure: EdgepartError
            try:
                probe = partial(self._probe, url)
                found = await while_alive(once(url, left_s), probe, LOST, self._timing, tries.patience)
                self.members.answered(url)
                return found, tries.failures
            except Unavailable as error:
                if not until_available:
                    raise
                failure, pause_s = error, tries.busy(url, error.retry_after_s, now())
            except (UnknownDeployment, NotAuthorised) as error:
                self._credentials.clear()  # The cluster may have a new one by now.
                failure, pause_s = error, tries.refused(url, now())
            except LOST as error:
                failure, pause_s = (
                    _lost(url, error, deadline_s, now() - tries.until_s),
                    tries.lost(url, now()),
                )
            if pause_s is None:
                raise failure
            if pause_s:
                await asyncio.sleep(pause_s)
                self.members.add(self._target.urls_now())

    async def _document(self, path: str, url: str, left_s: float) -> Any:
        timeout = aiohttp.ClientTimeout(total=left_s, sock_connect=CONNECT_S)
        async with self._opened().get(url + path, headers=self.reading(url), timeout=timeout) as response:
            await raise_for(response)
            return await response.json()

    async def _tensors(
        self, path: str, body: Body, url: str, left_s: float
    ) -> tuple[tuple[bytes, str | None], str]:
        pieces = body(left_s)
        headers = {"Inference-Header-Content-Length": str(len(pieces[0])), **self.reading(url)}
        data = Buffers(pieces, "application/octet-stream")
        timeout = aiohttp.ClientTimeout(total=left_s, sock_connect=CONNECT_S)
        async with self._opened().post(url + path, data=data, headers=headers, timeout=timeout) as response:
            await raise_for(response)
            found = await response.read(), response.headers.get("Inference-Header-Content-Length")
            return found, url

    async def _probe(self, url: str, seconds: float) -> None:
        """Raises one of LOST if the agent does not answer within `seconds`; any answer will do."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with self._opened().get(f"{url}/v2/health/live", timeout=timeout):
            pass

    @asynccontextmanager
    async def change(
        self, method: str, path: str, *, silent_s: float = SILENT_S, url: str | None = None, **given: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends what changes the cluster, and yields the response. The member in use gets it, or the first one that can be
        connected to; if `url` is given, that agent alone. `given` goes to aiohttp; `data` makes the body, for
        each try. Raises one of LOST if the agent is lost, and Unavailable if nobody can be connected to."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silent_s)
        make = given.pop("data", lambda: None)
        for number, asked in enumerate(urls := (url,) if url else self.members.urls, 1):
            headers = {"Authorization": f"Bearer {self._target.credential()}"}
            request = self._opened().request(
                method, asked + path, data=make(), headers=headers, timeout=timeout, **given
            )
            try:
                response = await request
            except NOT_SENT as error:
                self.members.failed(asked, time.monotonic())
                if number == len(urls):
                    raise Unavailable(f"{describe_loss(asked, error)} Nothing was changed") from error
                continue
            async with response:
                await raise_for(response)
                yield response
            return

    @asynccontextmanager
    async def post(self, url: str, path: str, document: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a document to this agent alone, and yields the response. Raises one of LOST if the agent is lost."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        async with self._opened().post(
            url + path, json=document, headers=self.reading(url), timeout=timeout
        ) as response:
            await raise_for(response)
            yield response

    def reading(self, url: str) -> dict[str, str]:
        """The headers of a request for reading or inference."""
        if url not in self._credentials:
            self._credentials[url] = self._target.credential_for(url)
        credential = self._credentials[url]
        return {} if credential is None else {"Authorization": f"Bearer {credential}"}

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            raise InternalError("the client is used outside its `async with`")
        return self._session


async def raise_for(response: aiohttp.ClientResponse) -> None:
    """Raises the error that the agent reports, if it does."""
    if response.status < 400:
        return
    try:
        document = await response.json(content_type=None)
    except ValueError:
        document = None
    response.release()
    raise error_from(document if isinstance(document, dict) else {}, response.status)


def _lost(url: str, error: BaseException, deadline_s: float, over_s: float) -> Unavailable:
    if isinstance(error, TimeoutError) and over_s >= 0:
        return Unavailable(f"the agent at {url} gave no answer in the {deadline_s:g} s that the request had")
    return Unavailable(describe_loss(url, error))
