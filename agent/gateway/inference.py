"""Inference service: answers what the Open Inference Protocol asks, for every door (HTTP, gRPC), which only encode. Door:
the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from edgepart.agent.api.inference_request import InferResult
from edgepart.agent.api.model_card import ModelCard
from edgepart.agent.api.protocol import Node
from edgepart.agent.gateway import oip_models
from edgepart.agent.gateway.admission import LaneTurns
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.gateway.metrics import Metrics
from edgepart.agent.gateway.oip import InferRequest
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.trace.spans import BODY, DECODE, ENCODE, Subject
from edgepart.planner.errors import EdgepartError, RequestError, Unavailable, UnknownDeployment


@dataclass(slots=True)
class RequestStages:
    """The times at which the stages of a request at its door ended, on the recorder's clock."""

    now: Callable[[], float]
    began_s: float
    read_s: float = 0.0
    """The request's bytes are here."""
    decoded_s: float = 0.0
    answered_s: float = 0.0
    """The node has answered; encoding begins."""

    def read(self) -> None:
        self.read_s = self.now()

    def decoded(self) -> None:
        self.decoded_s = self.now()

    def answered(self) -> None:
        self.answered_s = self.now()


class InferenceService:
    """The protocol's operations, on one node."""

    def __init__(self, node: Node, limits: BodyLimits, metrics: Metrics, recorder: Recorder) -> None:
        self.node = node
        self._limits = limits
        self._metrics = metrics
        self._recorder = recorder
        self._turns = LaneTurns()

    def server(self) -> dict[str, Any]:
        return {
            "name": "edgepart",
            "version": self.node.version,
            "extensions": list(oip_models.EXTENSIONS),
        }

    def index(self) -> list[dict[str, Any]]:
        entries = []
        for card in self.node.models():
            good, why = self.node.ready(card.name)
            state = "READY" if good else "UNAVAILABLE"
            entries.append({"name": card.name, "version": card.version, "state": state, "reason": why})
        return entries

    def card(self, name: str, version: str = "") -> ModelCard:
        """Return the card of a deployment; "" asks for whichever version serves. The number of its candidate returns that
        of the candidate, under the deployment's name. Raises UnknownDeployment."""
        card = find_card(self.node, name)
        if not version or version == card.version:
            return card
        if (trial := card.candidate) is not None and version == trial.version:
            found = find_card(self.node, trial.name)
            return replace(found, name=card.name, deployment=found.name)
        raise _not_serving(card, version, card.version)

    def check_ready(self, card: ModelCard) -> None:
        """Raises Unavailable, which says why, if the deployment does not serve."""
        good, why = self.node.ready(card.deployment or card.name)
        if not good:
            raise Unavailable(f"{card.name!r} is not ready: {why}")

    @contextmanager
    def counted(self, card: ModelCard) -> Iterator[Callable[[InferResult], None]]:
        """Count a request: as answered if the block calls what it gets as its last act, and as failed if it raises."""
        try:
            yield lambda result: self._metrics.answered(card.name, result)
        except EdgepartError as error:
            self._metrics.failed(card.name, type(error).__name__, card.version)
            raise
        except Exception:
            self._metrics.failed(card.name, "InternalError", card.version)
            raise

    def begin(self) -> RequestStages:
        return RequestStages(self._recorder.now, self._recorder.now())

    async def run(
        self,
        card: ModelCard,
        client: str,
        asked: InferRequest,
        stages: RequestStages,
        left_s: float | None = None,
        version: str = "",
    ) -> InferResult:
        """Return the node's answer to a request of `client` (its address), in which all outputs are that it asks for.
        `left_s` is how many seconds the client waits, if it said so apart from the request; `version` the only one that may
        answer, if it named one.

        Raises RequestError if the request does not fit the deployment; UnknownDeployment if another version has taken over
        meanwhile; Unavailable if the deadline passes before the request's turn comes; and what Node.infer raises."""
        if card.epoch is not None:
            oip_models.check_fit(card, asked)
        stages.decoded()
        limits = self._limits
        wishes = [wish_s for wish_s in (asked.timeout_s, left_s) if wish_s is not None]
        deadline_s = min(*(wishes or [limits.deadline_s]), limits.longest_deadline_s)
        result = await self._in_turn(card, client, asked, deadline_s, drawn=not version)
        stages.answered()
        if version and result.version != version:
            raise _not_serving(card, version, result.version)
        if missing := [name for name in asked.outputs or () if name not in result.outputs]:
            raise RequestError(f"{card.name!r} has no outputs {missing}; it has {sorted(result.outputs)}")
        return result

    async def _in_turn(
        self, card: ModelCard, client: str, asked: InferRequest, deadline_s: float, *, drawn: bool
    ) -> InferResult:
        """Wait for this request's turn, and return the node's answer. Raises Unavailable if the deadline passes before the
        turn comes."""
        model = card.deployment or card.name
        now = asyncio.get_running_loop().time
        until = now() + deadline_s
        wanted = None if asked.outputs is None else list(asked.outputs)
        lane = (model, tuple(array.shape for array in asked.inputs.values()))
        try:
            async with asyncio.timeout_at(until) as timer, self._turns.turn(lane, client):
                timer.reschedule(None)  # From here on the node keeps the deadline.
                waited_s = now() - until + deadline_s
                left_s = deadline_s - waited_s
                result = await self.node.infer(
                    model, asked.inputs, wanted, left_s, asked.sequence, drawn=drawn
                )
        except TimeoutError:
            why = self.node.ready(model)[1]
            text = f"{deadline_s:g} s have passed while it waited for its turn" + (f": {why}" if why else "")
            raise Unavailable(text) from None
        return replace(result, seconds=result.seconds + waited_s, queue_s=result.queue_s + waited_s)

    def trace(
        self, door: str, card: ModelCard, result: InferResult, stages: RequestStages, nbytes: int
    ) -> None:
        """Record the stages of an answered request of `nbytes`. `door` is the lane of the trace."""
        if self._recorder.on:
            about, add = Subject(card.name, request=result.request), self._recorder.add
            add(door, BODY, stages.began_s, about, nbytes=nbytes, ended_s=stages.read_s)
            add(door, DECODE, stages.read_s, about, nbytes=nbytes, ended_s=stages.decoded_s)
            add(door, ENCODE, stages.answered_s, about)


def _not_serving(card: ModelCard, version: str, serving: str) -> UnknownDeployment:
    """The error of a request for a version that does not serve."""
    trial = "" if card.candidate is None else f", with the candidate {card.candidate.version!r}"
    return UnknownDeployment(f"{card.name!r} serves version {serving!r} only{trial}, not {version[:80]!r}")


def find_card(node: Node, name: str) -> ModelCard:
    """Return the card of a deployment. Raises UnknownDeployment, which names those that exist."""
    if (card := node.model(name)) is not None:
        return card
    there = ", ".join(repr(card.name) for card in node.models()[:20]) or "nothing yet"
    raise UnknownDeployment(f"no deployment {name[:200]!r}; deployed: {there}")
