"""Dispatch: sends messages to other agents and dispatches the frames that arrive. Door: the transport is given.

Control messages go to the event loop. The frames of a request go straight to their receiver in the thread that read them,
so that tensors do not pass through the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from edgepart.agent.cluster.state.events import MessageReceived
from edgepart.agent.net.links import CONTROL, DATA
from edgepart.agent.security.charter import Charter
from edgepart.agent.wire import control, inference, queries
from edgepart.agent.wire.codec import frame_to_message, kinds, message_to_frame
from edgepart.agent.wire.frames import Buffer, Frame
from edgepart.agent.wire.inference import RequestMessage, RowsMessage, StateMessage, Tensors
from edgepart.agent.wire.tensors import Value, pack_arrays, unpack_arrays
from edgepart.agent.wire.transfer_headers import pack_header

log = logging.getLogger(__name__)

CONTROL_KINDS = kinds(
    control.Hello,
    control.Heartbeat,
    control.View,
    control.AskAbout,
    control.Opinion,
    control.Leaving,
    control.Starved,
    control.Doors,
    control.Goodbye,
    control.Card,
    control.Deployments,
    control.Report,
    control.Want,
    control.Prepare,
    control.Activate,
    control.Retire,
    control.FetchModel,
    control.Timed,
    control.Drift,
    control.Latency,
    control.Drains,
    control.DrainStanding,
    control.Standing,
    queries.WantClock,
    queries.Clock,
    Charter,
)
DATA_KINDS = kinds(
    inference.Tensors,
    inference.Failed,
    inference.Cancel,
    inference.EndSequence,
    inference.ResumeSequence,
    inference.SequenceResumed,
    inference.WantRows,
    inference.SentRows,
    inference.MirroredRows,
    queries.WantFiles,
    queries.Files,
    queries.WantPart,
    queries.Part,
    queries.EchoTogether,
    queries.EchoedTogether,
    queries.Echo,
    queries.Echoed,
    queries.Record,
    queries.Recording,
    queries.WantSpans,
    queries.Spans,
    queries.WantCertificate,
    queries.Renewed,
    queries.WantSigned,
    queries.Signed,
)

SendFrame = Callable[[str, str, Frame], None]
"""(node, channel, frame); raises Unavailable."""


class RequestFrames(Protocol):
    """The receiver of the frames of requests (agent/serving/loaded_plans.py); it is called from any thread."""

    def arrived(
        self, message: RequestMessage | StateMessage, values: Sequence[Value], source: str
    ) -> None: ...


class EchoFrames(Protocol):
    """The receiver of echoes (agent/measure/echoes.py); it is called in the thread that read them."""

    def came(self, node: str, message: queries.Echo | queries.Echoed, values: Sequence[Value]) -> None: ...


class FrameDispatcher:
    """Sends this agent's messages, and dispatches the frames that it receives."""

    def __init__(self, node: str, send_frame: SendFrame) -> None:
        self._node = node
        self._send_frame = send_frame
        self._loop = asyncio.get_running_loop()
        self._requests: RequestFrames | None = None
        self._echoes: EchoFrames | None = None
        self._to_core: Callable[[MessageReceived], None] = _nowhere
        self._question: Callable[[str, queries.Question], None] = _nowhere
        self._answer: Callable[[str, queries.Answer, memoryview], None] = _nowhere
        self._clocks: Callable[[str, queries.WantClock | queries.Clock], None] = _nowhere
        self._charter: Callable[[str, Charter], None] = _nowhere

    def connect(
        self,
        requests: RequestFrames,
        echoes: EchoFrames,
        to_core: Callable[[MessageReceived], None],
        question: Callable[[str, queries.Question], None],
        answer: Callable[[str, queries.Answer, memoryview], None],
        clocks: Callable[[str, queries.WantClock | queries.Clock], None] | None = None,
        charter: Callable[[str, Charter], None] | None = None,
    ) -> None:
        """Set where frames go. `requests`, `echoes`, `question` and `clocks` are called in reader threads, the others
        in the loop."""
        self._requests, self._echoes = requests, echoes
        self._to_core, self._question, self._answer = to_core, question, answer
        self._clocks = clocks or _nowhere
        self._charter = charter or _nowhere

    # Out

    def control(self, node: str, message: Any) -> None:
        """Send a message on the control channel. Raises Unavailable if there is no link."""
        self._send_frame(node, CONTROL, message_to_frame(message))

    def data(self, node: str, message: Any, payload: Sequence[Buffer] = ()) -> None:
        """Send a message on the data channel. Raises Unavailable if there is no link."""
        self._send_frame(node, DATA, message_to_frame(message, payload))

    def values(self, node: str, message: RequestMessage | StateMessage, values: Sequence[Value]) -> None:
        """Send a frame of a request, or of a sequence's states, to a device. If that is this device, nothing is packed. Any
        thread may call it. Raises Unavailable if there is no link."""
        if node == self._node:
            if self._requests is not None:
                self._requests.arrived(message, values, node)
        elif isinstance(message, Tensors):
            metas, buffers = pack_arrays(values)
            frame = Frame(Tensors.__name__, {}, tuple(buffers), message, packed=pack_header(message, metas))
            self._send_frame(node, DATA, frame)
        elif isinstance(message, RowsMessage):
            self.arrays(node, message, values)
        else:
            self.data(node, message)

    def arrays(
        self, node: str, message: queries.Echo | queries.Echoed | RowsMessage, values: Sequence[Value]
    ) -> None:
        """Send a message with these values as its `arrays`. Any thread may call it. Raises Unavailable if there is no
        link."""
        metas, buffers = pack_arrays(values)
        self.data(node, replace(message, arrays=metas), buffers)

    # In

    def take(self, node: str, channel: str, frame: Frame) -> None:
        """Dispatch a frame that arrived; its reader's thread calls this. Raises FrameError, which ends the link, for an
        unknown message."""
        if channel == CONTROL:
            told = frame_to_message(frame, CONTROL_KINDS)
            if isinstance(told, queries.WantClock | queries.Clock):
                self._clocks(node, told)
            elif isinstance(told, Charter):
                self._loop.call_soon_threadsafe(self._charter, node, told)
            else:
                self._loop.call_soon_threadsafe(self._to_core, MessageReceived(node, told))
            return
        if frame.layout is not None and self._requests is not None:
            payload = frame.payload[0] if frame.payload else b""
            self._requests.arrived(frame.message, frame.layout.read(payload), node)
            return
        message = frame.message or frame_to_message(frame, DATA_KINDS)
        match message:
            case _ if isinstance(message, RequestMessage | StateMessage):
                arrays = message.arrays if isinstance(message, Tensors | RowsMessage) else ()
                values = unpack_arrays(arrays, frame.body)
                if self._requests is not None:
                    self._requests.arrived(message, values, node)
            case queries.Echo() | queries.Echoed():
                values = unpack_arrays(message.arrays, frame.body)
                if self._echoes is not None:
                    self._echoes.came(node, message, values)
            case (
                queries.WantFiles()
                | queries.WantPart()
                | queries.EchoTogether()
                | queries.Record()
                | queries.WantSpans()
                | queries.WantCertificate()
                | queries.WantSigned()
            ):
                self._question(node, message)
            case _:
                self._loop.call_soon_threadsafe(self._answer, node, message, frame.body)


def _nowhere(*_: Any) -> None:
    log.debug("a frame came before this agent was ready for it, and is dropped")
