"""Requests: answers inference requests, one by one or of a stream, by the gateway's service. Door: threads for what takes
long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from edgepart.agent.gateway import oip
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.gateway.inference import RequestStages
from edgepart.agent.grpc.calls import Call
from edgepart.agent.grpc.infer_messages import InferMessage, build_answer, read_message, read_tensors
from edgepart.agent.trace.spans import GRPC

T = TypeVar("T")
NOTHING: Mapping[str, Any] = {}


class InferRequests:
    """Answers requests."""

    def __init__(self, gateway: Gateway) -> None:
        self._service = gateway.service
        self._intake = gateway.intake

    async def read(self, data: bytes) -> InferMessage:
        """Parse a message. Raises RequestError."""
        return await _aside(partial(read_message, data), quick=len(data) <= oip.QUICK_BYTES)

    async def answer(
        self, call: Call, message: InferMessage, stages: RequestStages, also: Mapping[str, Any] = NOTHING
    ) -> list[bytes | memoryview]:
        """Return the pieces of the answer to a request, whose bytes are accounted for meanwhile. The answer's parameters
        hold `also`. Raises RequestError, Unavailable, and what InferenceService.run raises."""
        service = self._service
        self._intake.hold(message.nbytes)
        try:
            card = service.card(message.model, message.version)
            with service.counted(card) as count:
                asked = await _aside(partial(read_tensors, message), quick=message.is_quick)
                result = await service.run(card, call.client, asked, stages, call.left_s, message.version)
                parameters = oip.answer_parameters(asked, result) | dict(also)
                build = partial(
                    build_answer, card.name, asked, result.outputs, parameters, version=result.version
                )
                pieces = await _aside(build, quick=oip.is_quick_answer(asked, result.outputs))
                service.trace(GRPC, card, result, stages, message.nbytes)
                count(result)
            return pieces
        finally:
            self._intake.release(message.nbytes)


async def _aside(work: Callable[[], T], *, quick: bool) -> T:
    """Do the work here if it is quick, and else in a thread, so that the event loop's heartbeats are not late."""
    return work() if quick else await asyncio.to_thread(work)
