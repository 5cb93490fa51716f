"""RPC server: passes questions that other agents ask on the data channel to the parts that answer them. Door:
the event loop; it reaches other members through its arguments.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from edgepart.agent.admission.renewal import CertificateRenewal
from edgepart.agent.admission.signed_drains import DrainSigner
from edgepart.agent.measure.card import CardMeasurement
from edgepart.agent.measure.trace_collector import TraceCollector
from edgepart.agent.net.dispatch import FrameDispatcher
from edgepart.agent.replication.blobs import BlobServer
from edgepart.agent.wire.frames import Buffer
from edgepart.agent.wire.queries import (
    Answer,
    EchoTogether,
    Question,
    Record,
    WantCertificate,
    WantSigned,
    WantSpans,
)
from edgepart.planner.errors import Unavailable

LoopQuestion = EchoTogether | Record | WantSpans | WantCertificate | WantSigned
"""The questions that are answered in the event loop; other questions ask for files."""

log = logging.getLogger(__name__)


class RpcServer:
    """Passes each question to the part that can answer it, and sends the answer to the device that asked."""

    def __init__(
        self,
        post: FrameDispatcher,
        serving: BlobServer,
        measuring: CardMeasurement,
        tracing: TraceCollector,
        renewal: CertificateRenewal,
        drain_signer: DrainSigner,
    ) -> None:
        self._post = post
        self._serving = serving
        self._measuring = measuring
        self._tracing = tracing
        self._renewal = renewal
        self._drain_signer = drain_signer
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[None]] = set()

    def asked(self, node: str, question: Question) -> None:
        """Take a question; called in a reader thread."""
        if isinstance(question, LoopQuestion):
            self._loop.call_soon_threadsafe(self._begin, node, question)
        else:
            self._serving.asked(node, question)

    def _begin(self, node: str, question: LoopQuestion) -> None:
        task = asyncio.create_task(self._answer(node, question), name="answering a member")
        self._under_way.add(task)  # The loop itself keeps only a weak reference.
        task.add_done_callback(self._ended)

    async def _answer(self, node: str, question: LoopQuestion) -> None:
        answer: Answer
        payload: Sequence[Buffer] = ()
        match question:
            case EchoTogether():
                answer = await self._measuring.answer(question)
            case WantCertificate():
                answer = await self._renewal.sign(node, question)
            case WantSigned():
                answer = await self._drain_signer.answer(node, question)
            case _:
                answer, payload = await self._tracing.answer(node, question)
        try:
            self._post.data(node, answer, payload)
        except Unavailable as error:
            log.info("%s is not answered: %s", node, error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a member's question could not be answered", exc_info=error)
