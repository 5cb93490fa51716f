"""Methods: those of the protocol's service, which encode what the gateway's service answers. Door: the library's calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from google.protobuf.json_format import ParseDict

from edgepart.agent.api.model_card import ModelCard
from edgepart.agent.gateway import oip_models
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.grpc.arrivals import Arrivals
from edgepart.agent.grpc.calls import Call, make_handler
from edgepart.agent.grpc.infer_messages import parse
from edgepart.agent.grpc.messages import CLASSES
from edgepart.agent.grpc.requests import InferRequests
from edgepart.agent.grpc.streams import InferStreams
from edgepart.agent.grpc.unread_answers import UnreadAnswers
from edgepart.planner.errors import Unavailable, UnknownDeployment

QUESTIONS, REQUESTS = "questions", "requests"
"""The lanes of arriving messages: a question about a model need not wait for tensors."""


class InferenceMethods:
    """The service's methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._gate = gateway.gate
        self._service = gateway.service
        self._intake = gateway.intake
        self._arrivals = Arrivals(gateway.limits)
        self._answers = UnreadAnswers(gateway.limits.all_answers_bytes)
        self._requests = InferRequests(gateway)
        self._streams = InferStreams(gateway, self._requests)

    def handlers(self) -> dict[str, Any]:
        """Return the library's handlers by the methods' names."""
        works: dict[str, Callable[[Call], Awaitable[None]]] = {
            "ServerLive": self.live,
            "ServerReady": self.ready,
            "ServerMetadata": self.server,
            "ModelReady": self.model_ready,
            "ModelMetadata": self.metadata,
            "ModelConfig": self.config,
            "RepositoryIndex": self.index,
            "ModelInfer": self.infer,
            "ModelStreamInfer": self._streams.serve,
            **{name: partial(self._refuse, name) for name in oip_models.NOT_OFFERED},
        }
        return {name: make_handler(name, work, self._arrivals, self._answers) for name, work in works.items()}

    async def live(self, call: Call) -> None:
        """Answer whether the agent is alive. All clients may ask, because load balancers do."""
        self._gate.knock(call.caller)
        await _write(call, "ServerLiveResponse", {"live": self._service.node.live()})

    async def ready(self, call: Call) -> None:
        """Answer whether the agent is ready. All clients may ask, and get no reason, as over HTTP."""
        self._gate.knock(call.caller)
        await _write(call, "ServerReadyResponse", {"ready": self._service.node.ready(None)[0]})

    async def server(self, call: Call) -> None:
        self._allow(call)
        await _write(call, "ServerMetadataResponse", self._service.server())

    async def model_ready(self, call: Call) -> None:
        """Answer whether a deployment serves; one that does not exist is not ready, as in Triton's server."""
        self._allow(call)
        asked = await _question(call, "ModelReadyRequest")
        try:
            self._service.check_ready(self._card(asked))
            good = True
        except (UnknownDeployment, Unavailable):
            good = False
        await _write(call, "ModelReadyResponse", {"ready": good})

    async def metadata(self, call: Call) -> None:
        self._allow(call)
        card = self._card(await _question(call, "ModelMetadataRequest"))
        await _write(call, "ModelMetadataResponse", oip_models.metadata(card))

    async def config(self, call: Call) -> None:
        self._allow(call)
        card = self._card(await _question(call, "ModelConfigRequest"))
        await _write(call, "ModelConfigResponse", {"config": oip_models.configuration(card)})

    async def index(self, call: Call) -> None:
        self._allow(call)
        asked = await _question(call, "RepositoryIndexRequest")
        models = [one for one in self._service.index() if one["state"] == "READY" or not asked.ready]
        await _write(call, "RepositoryIndexResponse", {"models": models})

    async def infer(self, call: Call) -> None:
        self._allow(call)
        self._intake.places.check(call.client)
        stages = self._service.begin()
        data = await call.read(REQUESTS)
        stages.read()
        message = await self._requests.read(data)
        # The place is kept until the answer is read, so that a client that does not read has no place for more.
        with self._intake.place(call.client):
            await call.write(await self._requests.answer(call, message, stages))

    async def _refuse(self, name: str, call: Call) -> None:
        self._allow(call)
        oip_models.refuse_operation(name)

    def _allow(self, call: Call) -> None:
        self._gate.allow(call.caller, infer=True)

    def _card(self, asked: Any) -> ModelCard:
        return self._service.card(asked.name, asked.version)


async def _question(call: Call, name: str) -> Any:
    return parse(name, await call.read(QUESTIONS))


async def _write(call: Call, name: str, document: Mapping[str, Any]) -> None:
    """Answer with the message of the class `name` that has the document's fields. A datatype that Triton does not have
    stays out of it."""
    message = ParseDict(document, CLASSES[name](), ignore_unknown_fields=True)
    await call.write([message.SerializeToString()])
