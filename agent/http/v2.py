"""V2: the routes of the Open Inference Protocol v2. Door: aiohttp handlers around oip.py's rules and a Node."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from aiohttp import web

from edgepart.agent.api.protocol import InferResult, ModelCard, Node
from edgepart.agent.http import oip
from edgepart.agent.http.admission import LaneTurns
from edgepart.agent.http.answers import choose_coding, document_response, tensor_response
from edgepart.agent.http.bodies import Bodies, client_of
from edgepart.agent.http.deliveries import Deliveries
from edgepart.agent.http.json_bodies import ASIDE_FROM_BYTES
from edgepart.agent.http.metrics import Metrics
from edgepart.agent.http.oip_elements import datatype_of_element
from edgepart.agent.http.rate_limit import ClientGate
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.trace.spans import BODY, DECODE, ENCODE, HTTP, Subject
from edgepart.planner.errors import EdgepartError, RequestError, Unavailable, UnknownDeployment
from edgepart.planner.plans.plan import ValueInfo


class InferenceRoutes:
    """The protocol's handlers, which serve one node."""

    def __init__(
        self,
        node: Node,
        gate: ClientGate,
        bodies: Bodies,
        deliveries: Deliveries,
        metrics: Metrics,
        recorder: Recorder | None = None,
    ) -> None:
        self.node = node
        self._gate = gate
        self._bodies = bodies
        self._metrics = metrics
        self._recorder = recorder or Recorder()
        self._turns = LaneTurns()
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
        return found

    async def server(self, request: web.Request) -> web.Response:
        self._allow(request)
        extensions = ["binary_tensor_data", "model_configuration", "sequence"]
        return document_response({"name": "edgepart", "version": self.node.version, "extensions": extensions})

    async def live(self, request: web.Request) -> web.Response:
        """Answer whether the agent is alive. All clients may ask, because load balancers do."""
        self._gate.knock(request)
        good = self.node.live()
        return document_response({"live": good}, 200 if good else 503)

    async def ready(self, request: web.Request) -> web.Response:
        """Answer whether the agent is ready. All clients may ask, because load balancers do. The reason why the agent is
        not ready is left out, because only clients with the right to read get it."""
        self._gate.knock(request)
        return document_response({"ready": (good := self.node.ready(None)[0])}, 200 if good else 503)

    async def index(self, request: web.Request) -> web.Response:
        self._allow(request)
        cards = self.node.models()
        entries = []
        for card in cards:
            good, why = self.node.ready(card.name)
            state = "READY" if good else "UNAVAILABLE"
            entries.append({"name": card.name, "version": card.version, "state": state, "reason": why})
        return document_response(entries)

    async def metadata(self, request: web.Request) -> web.Response:
        self._allow(request)
        return document_response(oip.metadata(self._card(request)))

    async def config(self, request: web.Request) -> web.Response:
        """Answer with Triton's model configuration; fields that have no meaning here are left out."""
        self._allow(request)
        card = self._card(request)
        return document_response(
            {
                "name": card.name,
                "platform": "onnxruntime_onnx",
                "backend": "onnxruntime",
                "max_batch_size": 0,
                "input": [_read_configuration(value) for value in card.inputs],
                "output": [_read_configuration(value) for value in card.outputs],
            }
        )

    async def model_ready(self, request: web.Request) -> web.Response:
        self._allow(request)
        card = self._card(request)
        good, why = self.node.ready(card.name)
        if not good:
            raise Unavailable(f"{card.name!r} is not ready: {why}")
        return document_response({"name": card.name, "ready": True})

    async def infer(self, request: web.Request) -> web.Response:
        self._allow(request)
        card = self._card(request)
        began_s = self._recorder.now()
        try:
            length = _header_length(request)
            async with self._bodies.read(request, length) as body:
                response, result = await self._run(request, card, body, length, began_s)
        except EdgepartError as error:
            self._metrics.failed(card.name, type(error).__name__, card.version)
            raise
        except Exception:
            self._metrics.failed(card.name, "InternalError", card.version)
            raise
        self._metrics.answered(card.name, result)
        return response

    async def _run(
        self,
        request: web.Request,
        card: ModelCard,
        body: bytearray | memoryview,
        length: int | None,
        began_s: float,
    ) -> tuple[web.Response, InferResult]:
        now = self._recorder.now
        read_s = now()
        asked = await _read(body, length)
        if card.epoch is not None:
            oip.check_fit(card, asked)
        limits = self._bodies.limits
        decoded_s = now()
        deadline_s = min(asked.timeout_s or limits.deadline_s, limits.longest_deadline_s)
        wanted = None if asked.outputs is None else list(asked.outputs)
        result = await self._in_turn(request, card.name, asked, wanted, deadline_s)
        if result.version != request.match_info.get("version", result.version):
            raise _not_serving(card.name, card.version, result.version)  # Another took over meanwhile.
        answered_s = now()
        accepted = request.headers.get("Accept-Encoding", "")
        if oip.is_quick_answer(asked, result.outputs) and not choose_coding(accepted):
            response = self._answer(card.name, asked, result, accepted)
        else:
            response = await asyncio.to_thread(self._answer, card.name, asked, result, accepted)
        if self._recorder.on:
            about, add = Subject(card.name, request=result.request), self._recorder.add
            add(HTTP, BODY, began_s, about, nbytes=len(body), ended_s=read_s)
            add(HTTP, DECODE, read_s, about, nbytes=len(body), ended_s=decoded_s)
            add(HTTP, ENCODE, answered_s, about)
        return response, result

    async def _in_turn(
        self,
        request: web.Request,
        model: str,
        asked: oip.InferRequest,
        wanted: list[str] | None,
        deadline_s: float,
    ) -> InferResult:
        """Wait for this request's turn, and return the node's answer. Raises Unavailable if the deadline passes before the
        turn comes."""
        now = asyncio.get_running_loop().time
        until = now() + deadline_s
        lane = (model, tuple(array.shape for array in asked.inputs.values()))
        try:
            async with asyncio.timeout_at(until) as timer, self._turns.turn(lane, client_of(request)):
                timer.reschedule(None)  # From here on the node keeps the deadline.
                waited_s = now() - until + deadline_s
                left_s = deadline_s - waited_s
                result = await self.node.infer(model, asked.inputs, wanted, left_s, asked.sequence)
        except TimeoutError:
            why = self.node.ready(model)[1]
            text = f"{deadline_s:g} s have passed while it waited for its turn" + (f": {why}" if why else "")
            raise Unavailable(text) from None
        return replace(result, seconds=result.seconds + waited_s, queue_s=result.queue_s + waited_s)

    def _answer(
        self, model: str, asked: oip.InferRequest, result: InferResult, accepted: str
    ) -> web.Response:
        if missing := [name for name in asked.outputs or () if name not in result.outputs]:
            raise RequestError(f"{model!r} has no outputs {missing}; it has {sorted(result.outputs)}")
        parameters: dict[str, Any] = {
            "epoch": f"{result.epoch.term}.{result.epoch.number}",
            "seconds": round(result.seconds, 6),
            "replays": result.replays,
        }
        if asked.sequence is not None:
            parameters["sequence_id"] = asked.sequence.id
        head, buffers = oip.build_answer(model, asked, result.outputs, parameters, version=result.version)
        return tensor_response(head, buffers, accepted, self._deliveries)

    def _allow(self, request: web.Request) -> None:
        self._gate.allow(request, infer=True)

    def _card(self, request: web.Request) -> ModelCard:
        card = find_card(self.node, request.match_info["model"])
        version = request.match_info.get("version", card.version)
        if version != card.version:
            raise _not_serving(card.name, version, card.version)
        return card


def _not_serving(name: str, version: str, serving: str) -> UnknownDeployment:
    """The error of a request for a version that does not serve."""
    return UnknownDeployment(f"{name!r} serves version {serving!r} only, not {version[:80]!r}")


def find_card(node: Node, name: str) -> ModelCard:
    """Return the card of a deployment. Raises UnknownDeployment, which names those that exist."""
    if (card := node.model(name)) is not None:
        return card
    there = ", ".join(repr(card.name) for card in node.models()[:20]) or "nothing yet"
    raise UnknownDeployment(f"no deployment {name[:200]!r}; deployed: {there}")


async def _read(body: bytearray | memoryview, length: int | None) -> oip.InferRequest:
    if (len(body) if length is None else length) >= ASIDE_FROM_BYTES:
        return await asyncio.to_thread(oip.read_request, body, length)
    envelope = oip.read_envelope(body, length)
    if envelope.is_quick or len(body) < ASIDE_FROM_BYTES:
        return oip.read_tensors(envelope)
    return await asyncio.to_thread(oip.read_tensors, envelope)


def _header_length(request: web.Request) -> int | None:
    text = request.headers.get("Inference-Header-Content-Length")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise RequestError(f"Inference-Header-Content-Length {text[:40]!r} is no number of bytes")
    return int(text)


def _read_configuration(value: ValueInfo) -> dict[str, Any]:
    datatype = datatype_of_element(value.dtype)
    name = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return {"name": value.name, "data_type": name, "dims": [-1] if value.shape is None else list(value.shape)}
