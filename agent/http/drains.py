"""Drains: the routes that drain and remove devices. Door: aiohttp handlers around a Node."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import ClientConnectionResetError, hdrs, web

from edgepart.agent.api.progress import ProgressLines
from edgepart.agent.api.protocol import Node
from edgepart.agent.gateway.rate_limit import ClientGate
from edgepart.agent.http.answers import document_response, error_document, json_line, status_of
from edgepart.agent.http.bodies import caller_of

log = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
"""Seconds without progress after which a client is told that the agent is alive (agent/api/progress.py)."""


class DrainRoutes:
    """The handlers of drains, which always need the credential."""

    def __init__(self, node: Node, gate: ClientGate) -> None:
        self._node = node
        self._gate = gate
        self._running: set[asyncio.Task[None]] = set()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/members/{name}/drain", self.drain),
            web.delete("/api/members/{name}/drain", self.undrain),
            web.delete("/api/members/{name}", self.remove),
        ]

    async def drain(self, request: web.Request) -> web.StreamResponse:
        """Drain a device, and stream the progress as JSON lines. The last line is {"result": ...} or {"error": ...,
        "kind": ..., "status": ...}; with `?wait=0` there is only the first. Draining goes on if the client goes away."""
        return await self._stream(request, remove=False)

    async def remove(self, request: web.Request) -> web.StreamResponse:
        """Drain a device as `drain` does, and then remove it for good."""
        return await self._stream(request, remove=True)

    async def undrain(self, request: web.Request) -> web.Response:
        self._allow(request)
        return document_response({"result": await self._node.undrain(request.match_info["name"])})

    async def stop(self) -> None:
        """End all answers that wait here; draining and removing continue."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _stream(self, request: web.Request, *, remove: bool) -> web.StreamResponse:
        self._allow(request)
        lines = ProgressLines(HEARTBEAT_S)
        task = asyncio.create_task(self._work(request.match_info["name"], lines, remove))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        response = web.StreamResponse(
            headers={hdrs.CONTENT_TYPE: "application/jsonl", hdrs.CACHE_CONTROL: "no-store"}
        )
        await response.prepare(request)
        wait = request.query.get("wait", "1") not in ("0", "false", "no")
        try:
            async for document in lines:
                await response.write(json_line(document))
                if not wait:
                    break
            await response.write_eof()
        except ClientConnectionResetError:
            log.info("the client that waited for a device to be drained went away; draining goes on")
        finally:
            task.cancel()  # The task only watches the progress.
        return response

    async def _work(self, name: str, lines: ProgressLines, remove: bool) -> None:
        last: dict[str, Any]
        try:
            last = {"result": await self._node.drain(name, lines.report, remove=remove)}
        except asyncio.CancelledError:
            raise
        except Exception as error:
            last = error_document(error) | {"status": status_of(error)}
            if status_of(error) == 500:
                log.warning("draining %r failed", name, exc_info=True)
        lines.end(last)

    def _allow(self, request: web.Request) -> None:
        self._gate.allow(caller_of(request), write=True)
