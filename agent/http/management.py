"""Management: the routes of the management API and the metrics. Door: aiohttp handlers around a Node."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import ClientConnectionResetError, hdrs, web

from edgepart.agent.api.deployment_name import check_name
from edgepart.agent.api.model_card import ModelCard
from edgepart.agent.api.progress import ProgressLines
from edgepart.agent.api.protocol import Node
from edgepart.agent.api.stages import Progress
from edgepart.agent.chronicle.event_log import FAILED
from edgepart.agent.gateway.inference import find_card
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.gateway.metrics import CONTENT_TYPE, Metrics
from edgepart.agent.gateway.rate_limit import ClientGate, Throttled
from edgepart.agent.http.answers import (
    document_response,
    error_document,
    error_response,
    json_line,
    status_of,
)
from edgepart.agent.http.bodies import caller_of
from edgepart.agent.http.page.page_documents import DeploymentTries
from edgepart.agent.http.page.request_timeline import draw_last_request
from edgepart.agent.http.uploads import Upload, receive_upload
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import (
    TrialShare,
    candidate_name,
    check_free_name,
    has_candidate,
    lacks_candidate,
)
from edgepart.planner.errors import ClusterError, EdgepartError, NotAuthorised, RequestError, Unavailable

HEARTBEAT_S = 5.0
"""Seconds without progress after which a client is told that the agent is alive (agent/api/progress.py)."""
TRACE_S = 60.0
"""Seconds after which a trace ends by default."""
UPLOADING = "receiving the model"
"""The stage of a deployment while its files come in."""
REPLACED = "deployed again"
"""The message with which a deploying task is cancelled if the name is deployed again."""

Work = Callable[[], Awaitable[dict[str, Any]]]
"""Does what a user asked for and returns the answer."""

DeployWork = Callable[[Path | str, DeployOptions, Progress], Awaitable[dict[str, Any]]]
"""Deploys the model in a folder, or the stored one of a digest, and returns the answer."""

log = logging.getLogger(__name__)


class ManagementRoutes:
    """The handlers of status, devices, deployments and metrics."""

    def __init__(
        self,
        node: Node,
        gate: ClientGate,
        metrics: Metrics,
        limits: BodyLimits,
        spool: Path | None,
        tries: DeploymentTries | None = None,
    ) -> None:
        self.node = node
        self._gate = gate
        self._metrics = metrics
        self._limits = limits
        self._spool = spool
        self._running: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._tries = tries or DeploymentTries()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/metrics", self.metrics),
            web.get("/api/status", self.status),
            web.get("/api/devices", self.devices),
            web.get("/api/doctor", self.doctor),
            web.get("/api/models", self.models),
            web.get("/api/models/{name}/plan", self.plan),
            web.post("/api/models/{name}/trace", self.trace),
            web.delete("/api/models/{name}/trace", self.end_trace),
            web.post("/api/deployments/{name}", self.deploy, expect_handler=self._answer_expect),
            web.delete("/api/deployments/{name}", self.undeploy),
            web.get("/api/deployments", self.deployments),
            web.post("/api/deployments/{name}/rollback", self.rollback),
            web.post(
                "/api/deployments/{name}/candidate", self.deploy_candidate, expect_handler=self._answer_expect
            ),
            web.delete("/api/deployments/{name}/candidate", self.discard),
            web.post("/api/deployments/{name}/share", self.share),
            web.post("/api/deployments/{name}/promote", self.promote),
        ]

    async def metrics(self, request: web.Request) -> web.Response:
        self._allow(request)
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def status(self, request: web.Request) -> web.Response:
        self._allow(request)
        cards = [card_document(card) for card in self.node.models()]
        return document_response(
            {"deployments": cards} | self.node.status() | {"failed_deployments": self._tries.failures}
        )

    async def devices(self, request: web.Request) -> web.Response:
        self._allow(request)
        return document_response(self.node.devices())

    async def doctor(self, request: web.Request) -> web.Response:
        self._allow(request)
        return document_response(await self.node.doctor())

    async def models(self, request: web.Request) -> web.Response:
        self._allow(request)
        return document_response({"models": [card_document(card) for card in self.node.models()]})

    async def plan(self, request: web.Request) -> web.Response:
        self._allow(request)
        return document_response(self.node.plan(find_card(self.node, request.match_info["name"]).name))

    async def trace(self, request: web.Request) -> web.Response:
        """Begin a trace. `?seconds=` is the time after which it ends by itself; there is no body."""
        self._allow(request, write=True)
        name = find_card(self.node, request.match_info["name"]).name
        text = request.query.get("seconds", str(TRACE_S))
        try:
            seconds = float(text)
        except ValueError:
            raise RequestError(f"seconds={text[:40]!r} is no number") from None
        return document_response(await self.node.trace(name, seconds))

    async def end_trace(self, request: web.Request) -> web.Response:
        """End the trace, and answer with it; with `?drawn=1`, with a drawing of its last request."""
        self._allow(request, write=True)
        document = await self.node.end_trace(find_card(self.node, request.match_info["name"]).name)
        if request.query.get("drawn", "0") in ("1", "true", "yes"):
            return document_response({"request": await asyncio.to_thread(draw_last_request, document)})
        body = await asyncio.to_thread(json_line, document)  # In a thread, because the document may be large.
        headers = {"Cache-Control": "no-store"}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def undeploy(self, request: web.Request) -> web.Response:
        self._allow(request, write=True)
        name = request.match_info["name"]
        noticed = self._tries.dismiss(name)
        if noticed and self.node.model(name) is None:
            return document_response({"dismissed": name})  # There is only a note about a failed try.
        await self.node.undeploy(find_card(self.node, name).name)
        return document_response({"undeployed": name})

    async def deployments(self, request: web.Request) -> web.Response:
        """Answer with what users have deployed, from which `edgepart apply` finds out what differs."""
        self._allow(request)
        return document_response({"deployments": [asdict(one) for one in self.node.deployments()]})

    async def rollback(self, request: web.Request) -> web.StreamResponse:
        """Have an earlier version serve again: `?to=` is its number, else the last one before. There is no body; the answer
        is that of `deploy`."""
        self._allow(request, write=True)
        name, text = find_card(self.node, request.match_info["name"]).name, request.query.get("to")
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 10):
            raise RequestError(f"to={text[:40]!r} is no number of a version")
        await self._give_up(name)
        lines = ProgressLines(HEARTBEAT_S)
        to = None if text is None else int(text)
        return await self._begin(
            request, "rolling back", name, partial(self.node.rollback, name, to, lines.report), lines
        )

    async def deploy(self, request: web.Request) -> web.StreamResponse:
        """Receive the files, or the digest of a stored model, then stream the deployment's progress as JSON lines. The last
        line is {"result": ...} or {"error": ..., "kind": ..., "status": ...}. With `?wait=0` the answer comes when the
        files have arrived, and the deployment continues by itself."""
        self._allow(request, write=True)
        name = check_name(request.match_info["name"])
        if (known := self.node.model(name)) is None or known.candidate_of:
            check_free_name(name)
        elif known.candidate is not None:
            raise has_candidate(name, known.candidate.version)  # Before a model is sent in vain.

        async def work(given: Path | str, options: DeployOptions, progress: Progress) -> dict[str, Any]:
            if isinstance(given, str):
                return await self.node.deploy_stored(name, given, options, progress)
            return await self.node.deploy(name, given, options, progress)

        return await self._receive(request, name, work)

    async def deploy_candidate(self, request: web.Request) -> web.StreamResponse:
        """Deploy as `deploy` does, but a candidate of the deployment: with `?share=` percent of its requests, or with
        `?shadow=1`."""
        self._allow(request, write=True)
        name, share = find_card(self.node, request.match_info["name"]).name, _read_share(request)

        async def work(given: Path | str, options: DeployOptions, progress: Progress) -> dict[str, Any]:
            return await self.node.deploy_candidate(name, given, options, share, progress)

        return await self._receive(request, candidate_name(name), work)

    async def share(self, request: web.Request) -> web.Response:
        """Give the deployment's candidate another share, which `?share=` or `?shadow=1` says. There is no body."""
        self._allow(request, write=True)
        name, share = find_card(self.node, request.match_info["name"]).name, _read_share(request)
        return document_response({"name": name, "candidate": asdict(await self.node.share(name, share))})

    async def promote(self, request: web.Request) -> web.StreamResponse:
        """Let the deployment's candidate serve in its place. There is no body; the answer is that of `deploy`."""
        self._allow(request, write=True)
        card = find_card(self.node, request.match_info["name"])
        if card.candidate is None:
            raise lacks_candidate(card.name)
        name = card.name
        await self._give_up(name)
        lines = ProgressLines(HEARTBEAT_S)
        return await self._begin(
            request, "promoting", name, partial(self.node.promote, name, lines.report), lines
        )

    async def discard(self, request: web.Request) -> web.Response:
        """Undeploy the deployment's candidate, or dismiss the note of one that failed."""
        self._allow(request, write=True)
        name = find_card(self.node, request.match_info["name"]).name
        await self._give_up(candidate_name(name))
        noticed = self._tries.dismiss(candidate_name(name))
        if noticed and self.node.model(candidate_name(name)) is None:
            return document_response({"dismissed": candidate_name(name)})
        return document_response({"discarded": name, "version": await self.node.discard(name)})

    async def _receive(self, request: web.Request, name: str, work: DeployWork) -> web.StreamResponse:
        """Receive the files of a model, and stream the progress of their deployment under that name."""
        folder = Path(tempfile.mkdtemp(prefix="upload-", dir=self._spool))
        total = request.content_length or 0
        try:
            received = lambda nbytes: self._tries.reached(name, UPLOADING, nbytes, total)  # noqa: E731
            upload = await receive_upload(request, folder, self._limits, received, self.node.admit)
            await self._give_up(name)
        except BaseException:
            self._tries.under_way.pop(name, None)
            await asyncio.to_thread(shutil.rmtree, folder)
            raise
        lines = ProgressLines(HEARTBEAT_S)
        return await self._begin(
            request, "deploying", name, partial(self._deploy, name, folder, upload, lines, work), lines
        )

    async def _begin(
        self, request: web.Request, doing: str, name: str, work: Work, lines: ProgressLines
    ) -> web.StreamResponse:
        """Do the work in a task of its own, so that it continues if the client goes away, and answer with its progress.
        With `?wait=0`, answer that it was accepted."""
        self._running[name] = asyncio.create_task(self._finish(doing, name, work, lines))
        if request.query.get("wait", "1") in ("0", "false", "no"):
            return document_response({"result": {"name": name, "state": "accepted"}}, 202)
        return await self._stream(request, lines)

    async def _give_up(self, name: str) -> None:
        """Cancel the task of an earlier deployment of that name, which the new one replaces."""
        while (task := self._running.get(name)) is not None:
            await asyncio.sleep(0)  # A task that is cancelled before it begins could not clean up.
            task.cancel(REPLACED)
            await asyncio.wait([task])

    async def stop(self) -> None:
        """Cancel the deployments that are running here; those that the node has acknowledged stay."""
        await asyncio.sleep(0)  # As in _give_up.
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _deploy(
        self, name: str, folder: Path, upload: Upload, lines: ProgressLines, work: DeployWork
    ) -> dict[str, Any]:
        loop = asyncio.get_running_loop()

        def report(stage: str, done: float, total: float) -> None:
            lines.report(stage, done, total)
            loop.call_soon_threadsafe(self._reached, name, stage, done, total)

        try:
            return await work(upload.stored or folder, upload.options, report)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _finish(self, doing: str, name: str, work: Work, lines: ProgressLines) -> dict[str, Any]:
        """Do the work, and end its progress with its result or its error. `doing` says what it is, in words."""
        failure = ""
        try:
            last: dict[str, Any] = {"result": await work()}
        except asyncio.CancelledError as cancelled:
            why: EdgepartError = Unavailable(f"this agent stops; another member says what became of {name!r}")
            if REPLACED in cancelled.args:
                why = ClusterError(f"{name!r} was deployed again meanwhile; that deployment goes on instead")
            lines.end(error_document(why) | {"status": status_of(why)})
            raise
        except Exception as error:
            last = error_document(error) | {"status": status_of(error)}
            failure = str(last["error"])
            self.node.event_log.tell(time.time(), FAILED, name, f"{doing} {name} failed", failure)
            log.warning("%s %r failed: %s", doing, name, error, exc_info=status_of(error) == 500)
        finally:
            del self._running[name]
            self._tries.ended(name, failure)
        lines.end(last)
        return last

    def _reached(self, name: str, stage: str, done: float, total: float) -> None:
        if name in self._running:  # A thread may report what is over by now.
            self._tries.reached(name, stage, done, total)

    async def _stream(self, request: web.Request, lines: ProgressLines) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={hdrs.CONTENT_TYPE: "application/jsonl", hdrs.CACHE_CONTROL: "no-store"}
        )
        await response.prepare(request)
        try:
            async for document in lines:
                await response.write(json_line(document))
            await response.write_eof()
        except ClientConnectionResetError:
            log.info("the client of a deployment went away; the deployment goes on")
        return response

    async def _answer_expect(self, request: web.Request) -> web.StreamResponse | None:
        """Answer a client that asks with `Expect: 100-continue` whether it may send its body."""
        try:
            if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
                raise web.HTTPExpectationFailed(text="Expect: only 100-continue is known")
            self._allow(request, write=True)
        except (NotAuthorised, Throttled, web.HTTPException) as error:
            response = error_response(error)  # Made here, because middlewares do not see this handler.
            if isinstance(error, Throttled):
                response.set_status(429)
            return response
        if request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None

    def _allow(self, request: web.Request, *, write: bool = False) -> None:
        self._gate.allow(caller_of(request), write=write)


def _read_share(request: web.Request) -> TrialShare:
    """The share that the request's query asks for. Raises RequestError if it asks for none, and UsageError."""
    share, shadow = request.query.get("share"), request.query.get("shadow", "0") in ("1", "true", "yes")
    if share is None and not shadow:
        raise RequestError("give ?share=, a number of percent, or ?shadow=1")
    if share is not None and not (share.isascii() and share.isdigit() and len(share) < 10):
        raise RequestError(f"share={share[:40]!r} is no number of percent")
    return TrialShare(int(share or 0), shadow)


def card_document(card: ModelCard) -> dict[str, Any]:
    return asdict(card)
