"""AsyncClient: a client of the cluster for asyncio. Door: it is made of the HTTP door.

Every member answers every call. A call that reads, infers or chats goes on with another member when one is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgepart.client.addresses import urls_of_members
from edgepart.client.changes import ClusterChanges, checked
from edgepart.client.http_door import HttpDoor
from edgepart.client.liveness import ProbeTiming
from edgepart.client.target import AgentTarget
from edgepart.planner.errors import EdgepartError, NotAuthorised, RequestError

if TYPE_CHECKING:
    from edgepart.client.conversation import ChatReply, Messages
    from edgepart.client.records import Answer
    from edgepart.planner.region import Array

READ_S = 10.0
"""Seconds that reading may take."""
INFER_S = 60.0
"""Seconds that a request may take, if the caller does not say."""


class AsyncClient(ClusterChanges):
    """A client of the cluster, as `edgepart.connect_async` makes it. It is used as `async with`, in one event loop."""

    def __init__(self, target: AgentTarget, timing: ProbeTiming | None = None) -> None:
        """`timing` says when to give up on a silent agent."""
        super().__init__(HttpDoor(target, timing or ProbeTiming()))
        self._learning: asyncio.Task[None] | None = None
        self._only_input: dict[str, str] = {}
        """The name of the only input, by model."""

    async def __aenter__(self) -> AsyncClient:
        await self.door.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connections. Requests under way fail."""
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        await self.door.close()

    @property
    def url(self) -> str:
        """The agent that is asked next."""
        return self.door.members.current

    # Members

    async def learn(self) -> None:
        """Learns who the members are, for when this one is lost; from then on that is repeated from time to time. Without
        the credential, an agent on another machine does not tell: then the URLs that the user named are all there are."""
        with suppress(NotAuthorised):
            status = await self.get("/api/status")
            found = (self.url, *urls_of_members(status, self.url))
            self.door.members.learn(found, time.monotonic())

    def _keep_learning(self) -> None:
        if self.door.members.must_learn(time.monotonic()):
            self._learning = asyncio.create_task(self._learn_again())

    async def _learn_again(self) -> None:
        with suppress(
            EdgepartError
        ):  # The request that is under way finds out by itself, and tells the user.
            await self.learn()

    # Reading

    async def get(self, path: str, *, timeout_s: float = READ_S) -> Any:
        """The document at a path of the HTTP API, from the first member that answers."""
        return await self.door.read(path, timeout_s)

    async def status(self) -> dict[str, Any]:
        """Members, leader and deployments, as `edgepart status --json` prints them."""
        return dict(await self.get("/api/status"))

    async def devices(self) -> dict[str, Any]:
        """The speeds of devices and links: a cluster.json, which `edgepart.plan` takes."""
        return dict(await self.get("/api/devices"))

    async def models(self) -> list[dict[str, Any]]:
        """The deployments, with their states, inputs and outputs."""
        return list((await self.get("/api/models"))["models"])

    async def plan(self, model: str) -> dict[str, Any]:
        """Who computes what of a deployment, what travels, and why. Raises UnknownDeployment."""
        return dict(await self.get(f"/api/models/{checked(model)}/plan"))

    # Inference

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Array] | Array,
        outputs: Sequence[str] | None = None,
        timeout_s: float = INFER_S,
    ) -> Answer:
        """The answer to one request. `inputs` are numpy arrays by name, or one array if the model has one input; `outputs`
        names those that are wanted, None all. The request is sent again, to other members too, until `timeout_s` seconds
        have passed.

        Raises UnknownDeployment, RequestError if the inputs do not fit the model, Unavailable if nobody answers in time,
        and the errors that an agent reports."""
        # Imported here, as numpy takes a quarter of the start of the many commands that send no tensors.
        from edgepart.client.records import Answer
        from edgepart.client.tensors import read_answer, request_body

        self._keep_learning()
        path = f"/v2/models/{checked(model)}/infer"
        named = inputs if isinstance(inputs, Mapping) else {await self._input_name(model): inputs}
        (data, length), url, tries = await self.door.infer(path, request_body(named, outputs), timeout_s)
        document, arrays = read_answer(data, length)
        about = document.get("parameters", {})
        return Answer(
            outputs=arrays,
            epoch=str(about.get("epoch", "")),
            seconds=float(about.get("seconds", 0.0)),
            replays=int(about.get("replays", 0)),
            retries=tries,
            url=url,
        )

    async def _input_name(self, model: str) -> str:
        """The name of the model's only input. Raises RequestError if it has several."""
        if model not in self._only_input:
            names = [entry["name"] for entry in (await self.get(f"/v2/models/{model}"))["inputs"]]
            if len(names) != 1:
                raise RequestError(f"{model!r} has inputs {names}: give a mapping from their names to arrays")
            self._only_input[model] = names[0]
        return self._only_input[model]

    # Text

    def chat_documents(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the documents with which a language model answers the body of a request to /v1/chat/completions."""
        from edgepart.client.texts import chat_documents

        self._keep_learning()
        return chat_documents(self.door, body)

    async def chat(self, model: str, messages: Messages, **fields: Any) -> ChatReply:
        """A language model's whole answer to a message, or to the messages of a chat. `fields` are those of OpenAI's API:
        temperature, max_tokens, seed and others. If an agent is lost in the middle of the answer, another member makes the
        answer anew. Raises UnknownDeployment, RequestError, Unavailable, and the errors that an agent reports."""
        from edgepart.client.conversation import ChatReply, chat_body
        from edgepart.client.texts import Broken

        body = chat_body(model, messages, fields)
        for left in reversed(range(len(self.door.members.urls) + 1)):
            reply = ChatReply()
            try:
                async for document in self.chat_documents(body):
                    reply.take(document)
                break
            except Broken:
                if not left:
                    raise
        return reply

    async def stream_chat(self, model: str, messages: Messages, **fields: Any) -> AsyncGenerator[str, None]:
        """Yields a language model's answer in parts, as it grows. It takes what `chat` takes. Raises Unavailable if the
        agent is lost in the middle of the answer."""
        from edgepart.client.conversation import ChatReply, chat_body

        reply = ChatReply()
        async with aclosing(self.chat_documents(chat_body(model, messages, fields))) as documents:
            async for document in documents:
                if part := reply.take(document):
                    yield part
