"""State carrier: carries states between this device and others, all in one thread and in the order in which messages come.
Door: the thread and its clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread

from edgepart.agent.execution.carried_states import PlanId
from edgepart.agent.serving.state_exchange import StateExchange
from edgepart.agent.wire.inference import SequenceResumed, StateMessage
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import EdgepartError, FrameError

log = logging.getLogger(__name__)

MIRROR_EVERY_S = 0.1
"""Seconds between two looks at what has grown. With fewer, rows are sent singly, which costs the processor more; with more,
more tokens are read again after a loss."""
MIRROR_PAUSE_S = 0.01
"""Seconds between two messages while a mirror is far behind, as after a long prompt: requests come first."""


class StateCarrier:
    """Carries states to and from this device. Methods may be called from any thread."""

    def __init__(self, exchange: StateExchange, resumed: Callable[[SequenceResumed, str], None]) -> None:
        """`resumed` takes what devices answer to this device's gateway, and the node that answered."""
        self._exchange = exchange
        self._resumed = resumed
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="edgepart-states", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._orders.put(None)

    @property
    def mirrored_bytes(self) -> int:
        """Bytes that are set aside here for copies of other devices' states."""
        return self._exchange.mirrors.nbytes

    def arrived(self, message: StateMessage, values: Sequence[Value], source: str) -> None:
        """Take a message of another device, or of this one's gateway."""
        if isinstance(message, SequenceResumed):
            self._resumed(message, source)
        else:
            self._orders.put(lambda: self._exchange.take(message, values, source, time.monotonic()))

    def mirror(self, plan: PlanId, node: str) -> None:
        """Let this node have a copy of what this device keeps by a plan."""
        self._orders.put(lambda: self._exchange.mirrors.begin(plan, node))

    def retire(self, plan: PlanId) -> None:
        """Drop the copies of a plan that this device leaves."""
        self._orders.put(lambda: self._exchange.retire(plan))

    def end(self, sequence: str) -> None:
        """Drop the copies of a sequence that has no further steps."""
        self._orders.put(lambda: self._exchange.end(sequence))

    def lost(self, node: str) -> None:
        """Handle a broken connection with a node."""
        self._orders.put(lambda: self._exchange.lose(node))

    def found(self, node: str) -> None:
        """Handle a new connection with a node."""
        self._orders.put(lambda: self._exchange.found(node))

    def _work(self) -> None:
        look_at_s = time.monotonic()
        while True:
            try:
                patience_s = max(0.0, look_at_s - time.monotonic()) if self._exchange.mirrors else None
                order = self._orders.get(timeout=patience_s)
            except Empty:
                more = self._guard(self._exchange.send_grown)
                look_at_s = time.monotonic() + (MIRROR_PAUSE_S if more else MIRROR_EVERY_S)
                continue
            if order is None:
                return
            self._guard(order)

    def _guard(self, order: Callable[[], object]) -> object:
        """What the order returns; None if it fails. The thread goes on: what is missing is made again from tokens."""
        try:
            return order()
        except FrameError as error:
            log.warning("states that another device sent are not taken: %s", error)
        except EdgepartError as error:
            log.info("states are not carried: %s", error)
        except Exception:
            log.exception("carrying states")
        return None
