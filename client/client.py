"""Client: a client of the cluster for programs without asyncio. Door: it runs an AsyncClient in a thread.

It may be used by several threads at once, and where an event loop runs already, as in a notebook.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from edgepart.client.async_client import INFER_S, AsyncClient
from edgepart.client.changes import DEPLOY_S
from edgepart.client.loop_thread import LoopThread

if TYPE_CHECKING:
    from edgepart.client.conversation import ChatReply, Messages
    from edgepart.client.deploying import DeployKeywords, Progress
    from edgepart.client.records import Answer, Deployed, TraceRecording
    from edgepart.client.target import AgentTarget
    from edgepart.planner.region import Array
    from edgepart.planner.tdl.description import OperatorDescription


class Client:
    """A client of the cluster, as `edgepart.connect` makes it. Its calls are those of AsyncClient; they wait for the
    result, and return it. `close`, the end of a `with` block and the end of the program end its connections and its
    thread."""

    def __init__(self, target: AgentTarget) -> None:
        self._loop = LoopThread()
        self._client = client = AsyncClient(target)
        # Neither the thread nor its loop may outlive a client that nobody closed.
        self._closing = weakref.finalize(self, _close, self._loop, client)
        self._loop.run(client.door.open())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections. Calls that are under way in other threads raise UsageError."""
        self._closing()

    @property
    def url(self) -> str:
        """The agent that is asked next."""
        return self._client.url

    def learn(self) -> None:
        """Learns who the members are. `edgepart.connect` has done so, and it is repeated from time to time."""
        self._loop.run(self._client.learn())

    def get(self, path: str, *, timeout_s: float = 10.0) -> Any:
        """The document at a path of the HTTP API."""
        return self._loop.run(self._client.get(path, timeout_s=timeout_s))

    def status(self) -> dict[str, Any]:
        """Members, leader and deployments, as `edgepart status --json` prints them."""
        return self._loop.run(self._client.status())

    def devices(self) -> dict[str, Any]:
        """The speeds of devices and links: a cluster.json, which `edgepart.plan` takes."""
        return self._loop.run(self._client.devices())

    def models(self) -> list[dict[str, Any]]:
        """The deployments, with their states, inputs and outputs."""
        return self._loop.run(self._client.models())

    def plan(self, model: str) -> dict[str, Any]:
        """Who computes what of a deployment, what travels, and why. Raises UnknownDeployment."""
        return self._loop.run(self._client.plan(model))

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array] | Array,
        outputs: Sequence[str] | None = None,
        timeout_s: float = INFER_S,
    ) -> Answer:
        """The answer to one request, as AsyncClient.infer gives it: numpy arrays in, numpy arrays out."""
        return self._loop.run(self._client.infer(model, inputs, outputs, timeout_s))

    def chat(self, model: str, messages: Messages, **fields: Any) -> ChatReply:
        """A language model's whole answer, as AsyncClient.chat gives it."""
        return self._loop.run(self._client.chat(model, messages, **fields))

    def stream_chat(self, model: str, messages: Messages, **fields: Any) -> Iterator[str]:
        """A language model's answer in parts, as it grows. Raises Unavailable if the agent is lost in the middle."""
        return self._loop.iterate(self._client.stream_chat(model, messages, **fields))

    def deploy(
        self,
        model: str | Path,
        name: str | None = None,
        *,
        wait: bool = True,
        timeout_s: float = DEPLOY_S,
        progress: Progress | None = None,
        inputs: Mapping[str, Array] | None = None,
        share: int | None = None,
        shadow: bool = False,
        operators: Sequence[OperatorDescription] = (),
        **options: Unpack[DeployKeywords],
    ) -> Deployed:
        """Deploys a model, as AsyncClient.deploy does. `progress` is called in the client's thread."""
        return self._loop.run(
            self._client.deploy(
                model,
                name,
                wait=wait,
                timeout_s=timeout_s,
                progress=progress,
                inputs=inputs,
                share=share,
                shadow=shadow,
                operators=operators,
                **options,
            )
        )

    def share(self, name: str, percent: int = 0, *, shadow: bool = False) -> dict[str, Any]:
        """Gives a deployment's candidate another share of the requests, as AsyncClient.share does."""
        return self._loop.run(self._client.share(name, percent, shadow=shadow))

    def promote(
        self,
        name: str,
        *,
        wait: bool = True,
        timeout_s: float = DEPLOY_S,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Has a deployment's candidate serve in its place, as AsyncClient.promote does."""
        return self._loop.run(self._client.promote(name, wait=wait, timeout_s=timeout_s, progress=progress))

    def rollback(
        self,
        name: str,
        to: int | None = None,
        *,
        wait: bool = True,
        timeout_s: float = DEPLOY_S,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Has an earlier version of a deployment serve again, as AsyncClient.rollback does."""
        return self._loop.run(
            self._client.rollback(name, to, wait=wait, timeout_s=timeout_s, progress=progress)
        )

    def undeploy(self, name: str, *, candidate: bool = False) -> dict[str, Any]:
        """Undeploys a model, or only its candidate, as AsyncClient.undeploy does."""
        return self._loop.run(self._client.undeploy(name, candidate=candidate))

    @contextmanager
    def trace(self, model: str, seconds: float = 60.0) -> Iterator[TraceRecording]:
        """Within the block, all members record what they do; the recording's trace is complete after it."""
        tracing = self._client.trace(model, seconds)
        recording = self._loop.run(tracing.__aenter__())
        try:
            yield recording
        except BaseException as error:
            self._loop.run(tracing.__aexit__(type(error), error, error.__traceback__))
            raise
        self._loop.run(tracing.__aexit__(None, None, None))


def _close(loop: LoopThread, client: AsyncClient) -> None:
    loop.stop(client.close())
