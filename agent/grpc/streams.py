"""Streams: answers the requests of ModelStreamInfer, several at a time, and in their order. Door: the event loop's tasks.

An error is the answer to its request, and the stream goes on. A step of a sequence waits for the step before it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from edgepart.agent.gateway import statuses
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.gateway.inference import RequestStages
from edgepart.agent.grpc.calls import Call
from edgepart.agent.grpc.infer_messages import InferMessage
from edgepart.agent.grpc.messages import CLASSES, STREAM_RESPONSE
from edgepart.agent.grpc.raw_contents import wrap_message
from edgepart.agent.grpc.requests import InferRequests
from edgepart.planner.errors import EdgepartError, Unavailable

log = logging.getLogger(__name__)

MOST_STREAMS = 64
"""The most streams at once. Each may bring a message of the largest size at any time, before it can be counted."""
REQUESTS_AT_ONCE = 32
"""The most requests of one stream that are under way; the next one is read when the oldest is answered. It is the number of
requests of a lane that the agent has at once."""
LAST = {"triton_final_response": True}
"""What Triton's server says of a response after which no other comes for its request. Each request has one response."""

Pieces = list[bytes | memoryview]
"""A message in pieces."""


class InferStreams:
    """Serves the streams of one agent's clients."""

    def __init__(self, gateway: Gateway, requests: InferRequests) -> None:
        self._gateway = gateway
        self._requests = requests
        self._open = 0

    async def serve(self, call: Call) -> None:
        """Answer a stream to its end. Raises NotAuthorised, also where inference is open to all: what an idle stream may
        bring at any moment cannot be bounded, so that streams are for this machine and for those with the credential."""
        self._gateway.gate.allow(call.caller, infer=True)
        self._gateway.gate.allow(call.caller)
        if self._open >= MOST_STREAMS:
            raise Unavailable(f"{self._open} streams are open here, and no more are taken now")
        self._open += 1
        try:
            await _Stream(call, self._gateway, self._requests).run()
        finally:
            self._open -= 1


class _Stream:
    """One stream: a reader that starts a task for each request, and a writer that waits for the tasks in their order."""

    def __init__(self, call: Call, gateway: Gateway, requests: InferRequests) -> None:
        self._call = call
        self._begin = gateway.service.begin
        self._intake = gateway.intake
        self._requests = requests
        self._answers: asyncio.Queue[asyncio.Task[Pieces] | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._steps: dict[tuple[str, str], asyncio.Task[Pieces]] = {}
        """The last step of each sequence that is under way."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            await self._room.acquire()
            while (data := await self._call.next()) is not None:
                await self._start(group, data)
                await self._room.acquire()
            self._answers.put_nowait(None)

    async def _start(self, group: asyncio.TaskGroup, data: bytes) -> None:
        """Begin to answer a request."""
        stages = self._begin()
        stages.read()
        read: InferMessage | EdgepartError
        try:
            read = await self._requests.read(data)
        except EdgepartError as error:
            read = error
        key = read.sequence if isinstance(read, InferMessage) else None
        before = None if key is None else self._steps.get(key)
        answer = group.create_task(self._answer(read, stages, before))
        if key is not None:
            self._steps[key] = answer
            answer.add_done_callback(partial(self._forget, key))
        self._answers.put_nowait(answer)

    def _forget(self, key: tuple[str, str], step: asyncio.Task[Pieces]) -> None:
        if self._steps.get(key) is step:
            del self._steps[key]

    async def _answer(
        self, read: InferMessage | EdgepartError, stages: RequestStages, before: asyncio.Task[Pieces] | None
    ) -> Pieces:
        """Return the answer to a request, or to what could not be read, when `before` is done."""
        if before is not None:
            await asyncio.wait((before,))
        try:
            if isinstance(read, EdgepartError):
                raise read
            with self._intake.place(self._call.client):
                answer = await self._requests.answer(self._call, read, stages, LAST)
            return wrap_message(STREAM_RESPONSE, answer)
        except EdgepartError as error:
            return _failure(read, error)
        except Exception as error:
            log.exception("a request of a stream failed")
            return _failure(read, error)

    async def _write(self) -> None:
        while (answer := await self._answers.get()) is not None:
            try:
                await self._call.write(await answer)
            except Unavailable as error:
                await self._call.write(_failure(error, error))
            self._room.release()


def _failure(read: InferMessage | EdgepartError, error: Exception) -> Pieces:
    """Return the answer to a request that failed, with the request's id if that is known."""
    known = read.document["id"] if isinstance(read, InferMessage) else None
    answer = CLASSES["ModelStreamInferResponse"](
        error_message=statuses.error_document(error)["error"], infer_response={"id": known or ""}
    )
    return [answer.SerializeToString()]
