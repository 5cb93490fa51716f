"""Routes of the page: its files, its live feed, the events of the cluster and the lines of the log. Door: aiohttp handlers.

The files are for everybody: they show nothing by themselves, and ask for their data with the rights of their reader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TypeVar

from aiohttp import web

from edgepart.agent.api.protocol import Node
from edgepart.agent.chronicle.numbered_log import NumberedLog
from edgepart.agent.chronicle.request_history import RequestHistory
from edgepart.agent.gateway.inference import find_card
from edgepart.agent.gateway.rate_limit import ClientGate
from edgepart.agent.http.answers import document_response
from edgepart.agent.http.bodies import caller_of
from edgepart.agent.http.deliveries import Deliveries
from edgepart.agent.http.event_streams import ClientLeft, EventStream
from edgepart.agent.http.page.live_feed import LiveFeed
from edgepart.agent.http.page.openapi import describe_api
from edgepart.agent.http.page.page_documents import DeploymentTries, PageDocuments
from edgepart.agent.http.page.static_files import static_response
from edgepart.agent.http.page.streams import HEARTBEAT_S, follow, log_response, place_of, send_page
from edgepart.planner.errors import Unavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_FOLLOWERS = 64
"""The most readers that follow events or lines of the log at once."""


class PageRoutes:
    """The handlers of the page of one agent."""

    def __init__(
        self,
        node: Node,
        gate: ClientGate,
        deliveries: Deliveries,
        history: RequestHistory,
        tries: DeploymentTries,
        talking: Callable[[], Collection[str]],
    ) -> None:
        """`talking` returns the names of deployments that generate text."""
        self._node = node
        self._gate = gate
        self._deliveries = deliveries
        self._feed = LiveFeed(PageDocuments(node, history, tries, talking).compose)
        tries.changed = self._feed.hint
        self._ended = asyncio.Event()
        self._followers = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self.page),
            web.get("/page/{file}", self.file),
            web.get("/api", self.api),
            web.get("/openapi.json", self.openapi),
            web.get("/api/live", self.live),
            web.get("/api/events", self.events),
            web.get("/api/events/stream", self.event_stream),
            web.get("/api/logs", self.logs),
            web.get("/api/logs/stream", self.log_stream),
            web.get("/api/models/{name}/drawing", self.drawing),
        ]

    def stop(self) -> None:
        """End all streams, which would go on for ever."""
        self._ended.set()
        self._feed.stop()

    async def page(self, request: web.Request) -> web.Response:
        self._gate.knock(caller_of(request))
        return static_response(request, "index.html")

    async def file(self, request: web.Request) -> web.Response:
        self._gate.knock(caller_of(request))
        return static_response(request, request.match_info["file"])

    async def api(self, request: web.Request) -> web.Response:
        """Answer with the page that describes the API."""
        self._gate.knock(caller_of(request))
        return static_response(request, "api.html")

    async def openapi(self, request: web.Request) -> web.Response:
        self._gate.knock(caller_of(request))
        return document_response(describe_api(self._node.version))

    async def drawing(self, request: web.Request) -> web.Response:
        """Answer with the pictures of the active plan."""
        self._gate.allow(caller_of(request))
        return document_response(
            await self._node.drawing(find_card(self._node, request.match_info["name"]).name)
        )

    async def events(self, request: web.Request) -> web.Response:
        self._gate.allow(caller_of(request))
        return log_response(request, self._node.event_log, "events")

    async def event_stream(self, request: web.Request) -> web.StreamResponse:
        self._gate.allow(caller_of(request))
        return await self._follow(request, self._node.event_log, "event")

    async def logs(self, request: web.Request) -> web.Response:
        self._gate.allow(caller_of(request))
        return log_response(request, self._node.log_lines, "lines")

    async def log_stream(self, request: web.Request) -> web.StreamResponse:
        self._gate.allow(caller_of(request))
        return await self._follow(request, self._node.log_lines, "line")

    async def _follow(self, request: web.Request, entries: NumberedLog[T], kind: str) -> web.StreamResponse:
        """Stream the entries after the reader's place, and then each new one."""
        if self._followers >= MOST_FOLLOWERS:
            raise Unavailable(f"{MOST_FOLLOWERS} readers follow this agent already; end one of them")
        stream = EventStream(request, self._deliveries)
        self._followers += 1
        try:
            await stream.comment("following")
            async for page in follow(entries, place_of(request, entries), self._ended):
                if page is None:
                    await stream.comment("waiting")
                else:
                    await send_page(stream, entries, kind, page)
        except ClientLeft as error:
            log.debug("%s: the reader left: %s", request.path, error)
        finally:
            self._followers -= 1
        return stream.response

    async def live(self, request: web.Request) -> web.StreamResponse:
        """Stream the page's documents: each as it is, and again when it changes; and the events of the cluster."""
        self._gate.allow(caller_of(request))
        entries, place = self._node.event_log, place_of(request, self._node.event_log)
        loop = asyncio.get_running_loop()
        async with self._feed.reading() as reader:
            stream = EventStream(request, self._deliveries)

            def told() -> None:
                reader.wake()
                self._feed.hint()

            with entries.listening(lambda: loop.call_soon_threadsafe(told)):
                try:
                    while (changed := await reader.take(HEARTBEAT_S)) is not None:
                        for name, document in changed.items():
                            await stream.send_event(name, document)
                        page = entries.after(place)
                        await send_page(stream, entries, "event", page)
                        place = page.entries[-1][0] if page.entries else place
                        if not changed and not page.entries:
                            await stream.comment("waiting")
                except ClientLeft as error:
                    log.debug("%s: the reader left: %s", request.path, error)
        return stream.response
