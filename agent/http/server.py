"""HttpServer: one agent's HTTP side, started and stopped on the running event loop. Door: listening
sockets."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from aiohttp import hdrs, web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler

from edgepart.agent.api.protocol import Node
from edgepart.agent.http.answers import error_response
from edgepart.agent.http.bodies import Bodies, BodyLimits, TooLarge
from edgepart.agent.http.drains import Residency
from edgepart.agent.http.idle import Silence
from edgepart.agent.http.management import Management
from edgepart.agent.http.metrics import Metrics
from edgepart.agent.http.rate_limit import Gate, Throttled
from edgepart.agent.http.v2 import V2
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.wire.address import format_address
from edgepart.agent.wire.vocabulary import LOCAL
from edgepart.planner.errors import EdgepartError, UsageError

log = logging.getLogger(__name__)
_http_log = logging.getLogger(f"{__name__}.aiohttp")
"""aiohttp's own."""

READ_AHEAD_BYTES = 512 << 10
"""A connection holds up to twice as much that nobody has read yet, and is then left to wait. An image of 224 x 224 in
float32 comes in without a pause; more lets a client take more memory that no limit counts."""
BACKLOG = 1024
"""Connections that the system takes before this process does; a flood of newcomers waits there for a moment."""

SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class HttpServer:
    """Serves `node`. `admin_credential` may change while it runs: then a function gives it. `inference`: to whom it is free
    (access.py). `listener` is a socket that listens already, in place of `host` and `port`; `spool` is
    where uploads wait, None takes the system's folder for temporary files."""

    def __init__(
        self,
        node: Node,
        admin_credential: str | Callable[[], str],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        listener: socket.socket | None = None,
        limits: BodyLimits | None = None,
        spool: Path | None = None,
        recorder: Recorder | None = None,
        inference: str = LOCAL,
    ) -> None:
        if listener is not None:
            host, port = listener.getsockname()[:2]
        self._host = host
        self._port = port
        self._listener = listener
        self._limits = limits or BodyLimits()
        self._bodies = Bodies(self._limits)
        metrics = Metrics(node, self._bodies)
        current = admin_credential if callable(admin_credential) else (lambda: admin_credential)
        gate = Gate(current, self._limits, inference)
        self._v2 = V2(node, gate, self._bodies, metrics, recorder)
        self._management = Management(node, gate, metrics, self._limits, spool)
        self._residency = Residency(node, gate)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listens, and gives the URL; UsageError where the address cannot be had."""
        silence = Silence(self._limits)
        app = web.Application(middlewares=[silence.middleware, _errors])
        routes = self.routes()
        for route in routes:
            route.kwargs.setdefault("expect_handler", _expected)
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
        """Takes connections one by one, so that room is made for each before the next: asyncio takes as many at once as
        may wait, and all files that this process may open with them."""
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
        """All that there are."""
        return self._v2.routes() + self._management.routes() + self._residency.routes()

    @property
    def port(self) -> int:
        """The one in use, once started."""
        return self._port

    @property
    def url(self) -> str:
        """As a program on this machine reaches it."""
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self._host, self._host)
        return f"http://{format_address((reachable, self._port))}"

    async def stop(self) -> None:
        """Takes no more, lets what is under way end (a few seconds at most), and closes."""
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
    """aiohttp logs a traceback for whatever is no HTTP; strangers could fill the disk with those."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # The latter: what aiohttp itself answers to an `Expect` that it cannot repeat, where there is no such path.
        if isinstance(error, HttpProcessingError | UnicodeEncodeError):
            log.debug("what a client sent is no HTTP: %s", " ".join(str(error).split()))
            return False
        return True


_http_log.addFilter(_Quiet())


class _Scarce(logging.Filter):
    """asyncio logs a traceback when a connection cannot be taken for want of files or memory, which strangers can bring
    about; it tries again after a second."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError) and error.errno in SCARCE and "accept" in record.getMessage():
            log.warning("no connection could be taken for a second: %s", error.strerror)
            return False
        return True


logging.getLogger("asyncio").addFilter(_Scarce())


async def _guard(request: web.Request, response: web.StreamResponse) -> None:
    """On every answer: a browser takes it for what it says it is, and shows it in no page of others."""
    response.headers["X-Content-Type-Options"] = "nosniff"
    policy = response.headers.get("Content-Security-Policy")
    own = "frame-ancestors 'none'"
    response.headers["Content-Security-Policy"] = f"{policy}; {own}" if policy else own


async def _expected(request: web.Request) -> web.StreamResponse | None:
    """A client asks before it sends its body; whether it may, it is told when it has."""
    if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        return error_response(web.HTTPExpectationFailed(text="Expect: only 100-continue is known"))
    if request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return None


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error leaves as JSON; one that nobody foresaw is logged, and the server stays up."""
    try:
        return await handler(request)
    except TooLarge as error:
        response = error_response(error)
        response.set_status(413)
    except Throttled as error:
        response = error_response(error)
        response.set_status(429)
    except web.RequestPayloadError as error:
        text = " ".join(str(error).split())
        response = error_response(web.HTTPBadRequest(text=f"the body is damaged: {text}"))
    except (web.HTTPException, EdgepartError) as error:
        response = error_response(error)
    except ConnectionError as error:
        log.info("%s %s: the client went away", request.method, request.path)
        response = error_response(web.HTTPBadRequest(text=f"the connection was lost: {error}"))
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        response = error_response(error)
    if request.can_read_body and not request.content.at_eof():
        response.force_close()  # what is left of the body is not worth reading
    return response
