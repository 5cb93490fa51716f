"""HTTP server: starts and stops an agent's HTTP server on the running event loop. Door: listening sockets."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler

from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.http.answers import error_document, error_response
from edgepart.agent.http.bodies import Bodies
from edgepart.agent.http.deliveries import Deliveries
from edgepart.agent.http.drains import DrainRoutes
from edgepart.agent.http.idle import IdleConnections
from edgepart.agent.http.management import ManagementRoutes
from edgepart.agent.http.openai_errors import is_openai_path, openai_error_document
from edgepart.agent.http.page.page_documents import DeploymentTries
from edgepart.agent.http.page.routes import PageRoutes
from edgepart.agent.http.text_metrics import TextMetrics
from edgepart.agent.http.v1 import TextRoutes
from edgepart.agent.http.v2 import InferenceRoutes
from edgepart.agent.text.generation import TextService
from edgepart.agent.wire.address import format_address
from edgepart.planner.errors import EdgepartError, UsageError

log = logging.getLogger(__name__)
_http_log = logging.getLogger(f"{__name__}.aiohttp")
"""The log of aiohttp itself."""

READ_AHEAD_BYTES = 512 << 10
"""A connection buffers up to twice this many unread bytes, and then receives no more. This lets an image of 224 x 224 in
float32 arrive without a pause; a larger buffer would let a client take more memory that no limit counts."""
BACKLOG = 1024
"""The most connections that the system accepts before this process does: a flood of new ones waits there for a moment."""

SCARCITY_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept(2) that mean that files or memory ran out."""


class HttpServer:
    """Serves `gateway` over HTTP. `text` generates the texts of /v1; None if what that needs is not installed. `listener`
    is a socket that already listens, and replaces `host` and `port`. `spool` is the folder for uploads; None stands for the
    system's folder for temporary files."""

    def __init__(
        self,
        gateway: Gateway,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        listener: socket.socket | None = None,
        spool: Path | None = None,
        text: TextService | None = None,
    ) -> None:
        if listener is not None:
            host, port = listener.getsockname()[:2]
        self._host = host
        self._port = port
        self._listener = listener
        self._limits = gateway.limits
        self._bodies = Bodies(gateway.intake)
        node, gate, metrics = gateway.node, gateway.gate, gateway.metrics
        deliveries = Deliveries(gateway.limits)
        self._v2 = InferenceRoutes(gateway, self._bodies, deliveries)
        told = None if text is None else TextMetrics(metrics)
        tries, talking = DeploymentTries(), lambda: [one.name for one in text.models()] if text else []
        self._v1 = TextRoutes(text, gate, self._bodies, deliveries, told, node.version)
        self._management = ManagementRoutes(node, gate, metrics, self._limits, spool, tries)
        self._page = PageRoutes(node, gate, deliveries, metrics.history, tries, talking)
        self._residency = DrainRoutes(node, gate)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen, and return the URL. Raises UsageError if it cannot listen at the address."""
        silence = IdleConnections(self._limits)
        app = web.Application(middlewares=[silence.middleware, _errors])
        routes = self.routes()
        for route in routes:
            route.kwargs.setdefault("expect_handler", _answer_expect)
        app.add_routes(routes)
        app.on_response_prepare.append(_guard)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_http_log,
            handle_signals=False,
            handler_cancellation=True,
            read_bufsize=READ_AHEAD_BYTES,
            keepalive_timeout=self._limits.head_s,
            lingering_time=self._limits.linger_s,
            shutdown_timeout=5.0,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        silence.watch(self._runner.server)
        try:
            self._server = await self._listen(self._runner.server)
        except OSError as error:
            await self._runner.cleanup()
            where = format_address((self._host, self._port))
            raise UsageError(
                f"--http {where}: cannot listen there ({error.strerror}); give another"
            ) from error
        self._port = int(self._server.sockets[0].getsockname()[1])
        self._watch = asyncio.create_task(silence.sweep_for_ever(), name="http-silence")
        return self.url

    async def _listen(self, served: web.Server) -> asyncio.Server:
        """Listen in such a way that connections are accepted one by one, and room is made for each before the next. asyncio
        accepts as many at once as its backlog, which could take all the files that this process may open."""
        loop = asyncio.get_running_loop()
        if self._listener is not None:
            server = await loop.create_server(served, sock=self._listener, backlog=1)
        else:
            server = await loop.create_server(served, self._host or None, self._port, backlog=1)
        for listening in server.sockets:
            with listening.dup() as same:
                same.listen(BACKLOG)
        return server

    def routes(self) -> list[web.RouteDef]:
        """All routes of the server."""
        return [
            route
            for one in (self._v1, self._v2, self._management, self._residency, self._page)
            for route in one.routes()
        ]

    @property
    def port(self) -> int:
        """The port in use, once the server is started."""
        return self._port

    @property
    def url(self) -> str:
        """The URL by which a program on this machine reaches the server."""
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self._host, self._host)
        return f"http://{format_address((reachable, self._port))}"

    async def stop(self) -> None:
        """Accept no further requests, let the running ones end (for a few seconds at most), and close."""
        self._page.stop()
        await self._management.stop()
        await self._residency.stop()
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


class _Quiet(logging.Filter):
    """Drops the tracebacks that aiohttp logs for bytes that are not HTTP, with which strangers could fill the disk."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # UnicodeEncodeError: for an unknown path, aiohttp answers with an `Expect` text that it cannot encode.
        if isinstance(error, HttpProcessingError | UnicodeEncodeError):
            log.debug("a client sent bytes that are no HTTP: %s", " ".join(str(error).split()))
            return False
        return True


_http_log.addFilter(_Quiet())


class _Scarce(logging.Filter):
    """Replaces, by one line, the traceback that asyncio logs if a connection cannot be accepted because files or memory ran
    out, which strangers can cause. asyncio tries again after a second."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError) and error.errno in SCARCITY_ERRNOS and "accept" in record.getMessage():
            log.warning("no connection can be accepted for a second: %s", error.strerror)
            return False
        return True


logging.getLogger("asyncio").addFilter(_Scarce())


async def _guard(request: web.Request, response: web.StreamResponse) -> None:
    """Add headers to every answer: browsers must not guess its type, nor show it in a frame of another page."""
    response.headers["X-Content-Type-Options"] = "nosniff"
    policy = response.headers.get("Content-Security-Policy")
    own = "frame-ancestors 'none'"
    response.headers["Content-Security-Policy"] = f"{policy}; {own}" if policy else own


def _form_of(request: web.Request) -> Callable[[Exception], Mapping[str, Any]]:
    """What makes the document of an error, in the form that clients of the path expect."""
    return openai_error_document if is_openai_path(request.path) else error_document


async def _answer_expect(request: web.Request) -> web.StreamResponse | None:
    """Let a client that asks with `Expect: 100-continue` send its body; the handler then decides about the request."""
    if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        error = web.HTTPExpectationFailed(text="Expect: only 100-continue is known")
        return error_response(error, _form_of(request))
    if request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return None


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error as JSON, in the form that clients of the path expect; an unexpected error is logged, and the
    server continues."""
    describe = _form_of(request)
    try:
        return await handler(request)
    except web.RequestPayloadError as error:
        text = " ".join(str(error).split())
        response = error_response(web.HTTPBadRequest(text=f"the body is damaged: {text}"), describe)
    except (web.HTTPException, EdgepartError) as error:
        response = error_response(error, describe)
    except ConnectionError as error:
        log.info("%s %s: the client went away", request.method, request.path)
        response = error_response(web.HTTPBadRequest(text=f"the connection was lost: {error}"), describe)
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        response = error_response(error, describe)
    if request.can_read_body and not request.content.at_eof():
        response.force_close()  # The rest of the body is not worth reading.
    return response
