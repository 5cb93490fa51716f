"""V2: the routes of the Open Inference Protocol v2. Door: aiohttp handlers that encode what the gateway answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from edgepart.agent.api.inference_request import InferResult
from edgepart.agent.api.model_card import ModelCard
from edgepart.agent.gateway import oip, oip_models
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.http import oip_bodies
from edgepart.agent.http.answers import choose_coding, document_response, tensor_response
from edgepart.agent.http.bodies import Bodies, caller_of, client_of
from edgepart.agent.http.deliveries import Deliveries
from edgepart.agent.trace.spans import HTTP
from edgepart.planner.errors import RequestError

NOT_OFFERED = (
    ("POST", "/v2/repository/models/{model}/load", "RepositoryModelLoad"),
    ("POST", "/v2/repository/models/{model}/unload", "RepositoryModelUnload"),
    ("GET", "/v2/models/{model}/stats", "ModelStatistics"),
    ("GET", "/v2/models/{model}/versions/{version}/stats", "ModelStatistics"),
    *(
        (method, f"/v2/{kind.lower()}sharedmemory{path}", f"{kind}SharedMemory{what}")
        for kind in ("System", "Cuda")
        for method, path, what in (
            ("GET", "/status", "Status"),
            ("GET", "/region/{region}/status", "Status"),
            ("POST", "/region/{region}/register", "Register"),
            ("POST", "/region/{region}/unregister", "Unregister"),
            ("POST", "/unregister", "Unregister"),
        )
    ),
    ("GET", "/v2/trace/setting", "TraceSetting"),
    ("POST", "/v2/trace/setting", "TraceSetting"),
    ("GET", "/v2/logging", "LogSettings"),
    ("POST", "/v2/logging", "LogSettings"),
)
"""The routes of Triton's server that are not offered here, and the names of their operations."""


class InferenceRoutes:
    """The protocol's handlers."""

    def __init__(self, gateway: Gateway, bodies: Bodies, deliveries: Deliveries) -> None:
        self._gate = gateway.gate
        self._service = gateway.service
        self._bodies = bodies
        self._deliveries = deliveries

    def routes(self) -> list[web.RouteDef]:
        one = "/v2/models/{model}"
        found = [
            web.get("/v2", self.server),
            web.get("/v2/", self.server),
            web.get("/v2/health/live", self.live),
            web.get("/v2/health/ready", self.ready),
            web.get("/v2/models", self.index),
            web.post("/v2/repository/index", self.index),
        ]
        for path in (one, one + "/versions/{version}"):
            found += [
                web.get(path, self.metadata),
                web.get(path + "/ready", self.model_ready),
                web.get(path + "/config", self.config),
                web.post(path + "/infer", self.infer),
            ]
        return found + [web.route(method, path, self._refuse(what)) for method, path, what in NOT_OFFERED]

    async def server(self, request: web.Request) -> web.Response:
        self._allow(request)
        return document_response(self._service.server())

    async def live(self, request: web.Request) -> web.Response:
        """Answer whether the agent is alive. All clients may ask, because load balancers do."""
        self._gate.knock(caller_of(request))
        good = self._service.node.live()
        return document_response({"live": good}, 200 if good else 503)

    async def ready(self, request: web.Request) -> web.Response:
        """Answer whether the agent is ready. All clients may ask, because load balancers do. The reason why the agent is
        not ready is left out, because only clients with the right to read get it."""
        self._gate.knock(caller_of(request))
        good = self._service.node.ready(None)[0]
        return document_response({"ready": good}, 200 if good else 503)

    async def index(self, request: web.Request) -> web.Response:
        self._allow(request)
        return document_response(self._service.index())

    async def metadata(self, request: web.Request) -> web.Response:
        self._allow(request)
        return document_response(oip_models.metadata(self._card(request)))

    async def config(self, request: web.Request) -> web.Response:
        self._allow(request)
        return document_response(oip_models.configuration(self._card(request)))

    async def model_ready(self, request: web.Request) -> web.Response:
        self._allow(request)
        card = self._card(request)
        self._service.check_ready(card)
        return document_response({"name": card.name, "ready": True})

    async def infer(self, request: web.Request) -> web.Response:
        self._allow(request)
        card = self._card(request)
        stages = self._service.begin()
        with self._service.counted(card) as count:
            length = _header_length(request)
            async with self._bodies.read(request, length) as body:
                stages.read()
                asked = await _read(body, length)
                version = request.match_info.get("version", "")
                result = await self._service.run(card, client_of(request), asked, stages, version=version)
                response = await self._answer(request, card, asked, result)
                self._service.trace(HTTP, card, result, stages, len(body))
            count(result)
        return response

    async def _answer(
        self, request: web.Request, card: ModelCard, asked: oip.InferRequest, result: InferResult
    ) -> web.Response:
        accepted = request.headers.get("Accept-Encoding", "")

        def encode() -> web.Response:
            parameters = oip.answer_parameters(asked, result)
            head, buffers = oip_bodies.build_answer(
                card.name, asked, result.outputs, parameters, version=result.version
            )
            return tensor_response(head, buffers, accepted, self._deliveries)

        if oip.is_quick_answer(asked, result.outputs) and not choose_coding(accepted):
            return encode()
        return await asyncio.to_thread(encode)

    def _refuse(self, operation: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def refuse(request: web.Request) -> web.StreamResponse:
            self._allow(request)
            oip_models.refuse_operation(operation)

        return refuse

    def _allow(self, request: web.Request) -> None:
        self._gate.allow(caller_of(request), infer=True)

    def _card(self, request: web.Request) -> ModelCard:
        return self._service.card(request.match_info["model"], request.match_info.get("version", ""))


async def _read(body: bytearray | memoryview, length: int | None) -> oip.InferRequest:
    if (len(body) if length is None else length) >= oip.ASIDE_FROM_BYTES:
        return await asyncio.to_thread(oip_bodies.read_request, body, length)
    envelope = oip_bodies.read_envelope(body, length)
    if envelope.is_quick or len(body) < oip.ASIDE_FROM_BYTES:
        return oip_bodies.read_tensors(envelope)
    return await asyncio.to_thread(oip_bodies.read_tensors, envelope)


def _header_length(request: web.Request) -> int | None:
    text = request.headers.get("Inference-Header-Content-Length")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise RequestError(f"Inference-Header-Content-Length {text[:40]!r} is no number of bytes")
    return int(text)
