"""V1: the routes of OpenAI's API for text. Door: aiohttp handlers around a TextService, the clock, chance.

An answer that is streamed gets its HTTP status when the service accepts the prompt, so that a refusal has a status of its
own. If that takes longer than KEEP_ALIVE_S, the status is sent before, and a refusal comes as an event.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import orjson
from aiohttp import hdrs, web

from edgepart.agent.gateway.oip import ASIDE_FROM_BYTES
from edgepart.agent.gateway.rate_limit import ClientGate
from edgepart.agent.http.answers import document_response, status_of
from edgepart.agent.http.bodies import Bodies, caller_of
from edgepart.agent.http.deliveries import Deliveries
from edgepart.agent.http.event_streams import ClientLeft, EventStream, paced
from edgepart.agent.http.openai_answers import (
    AnswerForm,
    AnswerHead,
    ChatForm,
    CompletionForm,
    model_document,
    model_list,
)
from edgepart.agent.http.openai_errors import openai_error_document
from edgepart.agent.http.openai_requests import TextRequest, read_chat, read_completion
from edgepart.agent.http.text_metrics import TextMetrics
from edgepart.agent.text.generation import Ended, GenerationEvent, TextModel, TextService
from edgepart.planner.errors import EdgepartError, InternalError, UnknownDeployment

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 10.0
"""Seconds of silence after which a comment is sent. Proxies end connections that are silent for a minute or so; a shorter
time finds out sooner that a client is gone, and sends more."""
MISSING = "this agent generates no text: run `pip install 'edgepart[text]'` on its device, and start it again"


class TextRoutes:
    """The handlers of texts."""

    def __init__(
        self,
        text: TextService | None,
        gate: ClientGate,
        bodies: Bodies,
        deliveries: Deliveries,
        metrics: TextMetrics | None,
        version: str,
    ) -> None:
        """`text` and `metrics` are None if this agent cannot generate text. `version` is that of the agent."""
        self._text = text
        self._gate = gate
        self._bodies = bodies
        self._deliveries = deliveries
        self._metrics = metrics
        self._fingerprint = f"edgepart-{version}"

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.models),
            web.get("/v1/models/{model}", self.model),
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.complete),
        ]

    async def models(self, request: web.Request) -> web.Response:
        return document_response(model_list(self._allow(request).models()))

    async def model(self, request: web.Request) -> web.Response:
        found = find_text_model(self._allow(request), request.match_info["model"])
        return document_response(model_document(found))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, read_chat, ChatForm, "chatcmpl")

    async def complete(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, read_completion, CompletionForm, "cmpl")

    def _allow(self, request: web.Request) -> TextService:
        """Return the service, if the request may be served. Any key will do where inference is free (access.py)."""
        self._gate.allow(caller_of(request), infer=True, any_key=True)
        if self._text is None:
            raise web.HTTPNotImplemented(text=MISSING)
        return self._text

    async def _answer(
        self,
        request: web.Request,
        read: Callable[[bytearray | memoryview], TextRequest],
        make_form: Callable[[AnswerHead], AnswerForm],
        prefix: str,
    ) -> web.StreamResponse:
        text = self._allow(request)
        async with self._bodies.read(request) as body:
            asked = await asyncio.to_thread(read, body) if len(body) >= ASIDE_FROM_BYTES else read(body)
            find_text_model(text, asked.model)
            head = AnswerHead(
                id=f"{prefix}-{secrets.token_hex(12)}",
                created_s=int(time.time()),
                model=asked.model,
                fingerprint=self._fingerprint,
                include_usage=asked.include_usage,
                logprobs=asked.generation.logprobs is not None,
            )
            events = self._generate(text, asked)
            if not asked.stream:
                return await self._send_whole(make_form(head), events)
            stream = EventStream(request, self._deliveries)
            try:
                await self._send_stream(stream, make_form(head), events)
            except ClientLeft as error:
                log.info("%s: the client left in the middle of an answer: %s", request.path, error)
            return stream.response

    async def _generate(self, text: TextService, asked: TextRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Yield the events of an answer, and count it."""
        assert self._metrics is not None
        outcome = "InternalError"
        try:
            async with aclosing(text.generate(asked.model, asked.generation)) as events:
                async for event in events:
                    if isinstance(event, Ended):
                        outcome = ""
                        self._metrics.ended(asked.model, event)
                    yield event
            if outcome:
                raise InternalError(f"the text of {asked.model!r} ended without its last event")
        except (asyncio.CancelledError, GeneratorExit):
            outcome = outcome and "cancelled"
            raise
        except EdgepartError as error:
            outcome = type(error).__name__
            raise
        except ConnectionError as error:  # The server's middleware would take it for the client's connection.
            log.warning("the text of %r broke off", asked.model, exc_info=True)
            why = f"the text of {asked.model!r} broke off; the agent's log says where"
            raise InternalError(why) from error
        finally:
            if outcome:
                self._metrics.broken_off(asked.model, outcome)

    async def _send_whole(
        self, form: AnswerForm, events: AsyncGenerator[GenerationEvent, None]
    ) -> web.Response:
        async with aclosing(events):
            document = form.whole([event async for event in events])
        body = self._deliveries.answer((orjson.dumps(document),), "application/json")
        return web.Response(body=body, headers={hdrs.CACHE_CONTROL: "no-store"})

    async def _send_stream(
        self, stream: EventStream, form: AnswerForm, events: AsyncGenerator[GenerationEvent, None]
    ) -> None:
        """Send the events as they come. Raises ClientLeft, and errors that came before anything was sent."""
        try:
            async with aclosing(paced(events, KEEP_ALIVE_S)) as paced_events:
                async for event in paced_events:
                    if event is None:
                        await stream.comment("waiting")
                        continue
                    for document in form.chunks(event):
                        await stream.send(document)
            await stream.send_mark("[DONE]")
        except ClientLeft:
            raise
        except Exception as error:
            if not stream.begun:
                raise
            if status_of(error) == 500:
                log.exception("an answer failed in its middle")
            await stream.send(openai_error_document(error))


def find_text_model(text: TextService, name: str) -> TextModel:
    """Return a deployment that generates text. Raises UnknownDeployment, which names those that exist."""
    models = text.models()
    for model in models:
        if model.name == name:
            return model
    there = ", ".join(repr(model.name) for model in models[:20]) or "none yet"
    raise UnknownDeployment(f"no deployment {name[:200]!r} generates text; those that do: {there}")
