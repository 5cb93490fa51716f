"""States that simulated devices send each other: the real rules of agent/serving/state_exchange.py, and in the place of
StateCarrier's thread the events of the simulated network.

Arrays are copied when they are sent, as a connection does it, so that what a device writes later does not reach others. A
device that refuses what another one sent ends the play, as all of them are honest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepart.agent.execution.carried_states import CarriedStates, Fill, PlanId
from edgepart.agent.execution.places import home_of
from edgepart.agent.serving.mirrored_states import MirroredKey
from edgepart.agent.serving.state_exchange import StateExchange
from edgepart.agent.wire.inference import Epoch, StateMessage
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import EdgepartError, FrameError, Unavailable
from edgepart.planner.plans.plan import KeptPiece, Program
from edgepart.planner.region import Array
from tests.simulation.decoder_layers import CHAT, TextPart
from tests.simulation.held_plans import Held, held_plan, routes, text_part_of
from tests.simulation.network import DATA
from tests.simulation.trace import Broken, short

if TYPE_CHECKING:
    from tests.simulation.clients import Device

MIRROR_EVERY_S = (0.1, 0.3)
"""Bounds on the time between two looks at what has grown."""
FAR_BEHIND, MOST_BEHIND_S = 0.2, 1.5
"""The share of looks that come late while there are faults, as requests go before them, and how late they come at most."""
MOST_TAKING_S = 0.003
"""The longest time from the arrival of a message until the rules take it."""
MOST_WAITING_S = 0.2
"""The longest time, where this device has much to do."""
BUSY = 0.05
"""The share of messages at whose arrival it has, while there are faults."""


class _States(CarriedStates):
    """The states that a device carries. Rows are not written while a step reads them."""

    def adopt(self, plan: PlanId, sequence: str, revision: int, fill: Fill) -> int:
        def fill_idle(pieces: Sequence[KeptPiece], arrays: Sequence[Array]) -> int:
            if (*plan, sequence) in self._busy():
                raise Broken(f"rows of {sequence} are written while a step reads them")
            return fill(pieces, arrays)

        return super().adopt(plan, sequence, revision, fill_idle)


class Carrier:
    """The states that one device carries, in one life of its box."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._orders: deque[Callable[[], object]] = deque()
        """What waits for the thread, in the order in which it came."""
        self._looks = False
        """Whether it looks at what has grown, again and again."""
        kept = device.states
        states = _States(RLock(), kept.kept, self._part, self._batch, lambda: kept.busy, lambda: device.now)
        self.exchange = StateExchange(device.box.node, self.send, states, self._held)

    @property
    def copies(self) -> list[MirroredKey]:
        """What it has of other devices' states."""
        return list(self.exchange.mirrors._copies._mirrored)

    @property
    def unfinished(self) -> list[str]:
        """The sequences for whose states it waits."""
        return [sequence for _, sequence in self.exchange._resumptions]

    # What it is told, as in agent/wiring/computation.py and agent/serving/loaded_plans.py

    def loaded(self, key: PlanId) -> None:
        """Handle a plan that this device holds from now on."""
        held = self._held(*key)
        if held is not None and (mirror := held.plan.mirrors.get(self._device.box.node)):
            self._order(lambda: self._mirror(key, mirror))

    def left(self, key: PlanId) -> None:
        """Handle a plan that this device does not hold any more."""
        self._order(lambda: self.exchange.retire(key))

    def sequence_ended(self, sequence: str) -> None:
        self._order(lambda: self.exchange.end(sequence))

    def lost(self, node: str) -> None:
        self._order(lambda: self.exchange.lose(node))

    def found(self, node: str) -> None:
        self._order(lambda: self.exchange.found(node))

    def arrived(self, message: StateMessage, values: Sequence[Value], source: str) -> None:
        """Take a message of a device. It waits for a moment, as the thread may be at another one."""
        random = self._device.net.random
        most_s = MOST_WAITING_S if self._falls(BUSY) else MOST_TAKING_S
        self._orders.append(lambda: self.exchange.take(message, values, source, self._device.now))
        self._device.later(random.uniform(0.0, most_s), self._work)

    def _order(self, do: Callable[[], object]) -> None:
        """Do something now, or behind all that waits."""
        self._orders.append(do)
        if len(self._orders) == 1:
            self._work()
        else:
            self._device.later(0.0, self._work)

    def _work(self) -> None:
        """Do what has waited longest. There is one event for each that waits."""
        self._guard(self._orders.popleft())

    def _guard(self, do: Callable[[], object]) -> None:
        try:
            do()
        except FrameError as error:
            raise Broken(f"{short(self._device.box.node)} refuses states: {error}") from error
        except EdgepartError as error:
            self._device.net.note(self._device.box, f"states are not carried: {error}")

    def _mirror(self, key: PlanId, mirror: str) -> None:
        self.exchange.mirrors.begin(key, mirror)
        if not self._looks:
            self._looks = True
            self._look_later()

    def _look_later(self) -> None:
        random = self._device.net.random
        late_s = random.uniform(0.0, MOST_BEHIND_S) if self._falls(FAR_BEHIND) else 0.0
        self._device.later(random.uniform(*MIRROR_EVERY_S) + late_s, self._look)

    def _falls(self, share: float) -> bool:
        """Whether something happens now that happens so often while there are faults."""
        net = self._device.net
        return net.full > 0.0 and net.random.random() < share

    def _look(self) -> None:
        self._guard(self.exchange.send_grown)
        self._looks = bool(self.exchange.mirrors)
        if self._looks:
            self._look_later()

    # What it asks and sends

    def send(self, node: str, message: StateMessage, values: Sequence[Value]) -> None:
        """Send states, or a message about them, to a device; this one too. Raises Unavailable if there is no connection."""
        device, arrays = self._device, tuple(np.array(value) for value in values)
        if node == device.box.node:
            device.states_arrived(message, arrays, node)
        elif not device.net.carry(device.box, node, DATA, "states_arrived", message, arrays, device.box.node):
            raise Unavailable(f"no connection with {short(node)}")

    def _held(self, deployment: str, epoch: Epoch) -> Held | None:
        """The plan, if it is one of a decoder and is held here."""
        box, key = self._device.box, (deployment, epoch)
        if deployment != CHAT or key not in box.loaded:
            return None
        return held_plan(box.plans[key], mirrors=self._device.net.mirrors)

    def _part(self, key: PlanId) -> Any:
        """This device's layers in a plan that it holds."""
        box = self._device.box
        for route in routes(box.plans[key]) if self._held(*key) is not None else ():
            if box.node in route:
                return text_part_of(route, box.node, fits_rows=self._device.states.fits_rows)
        return None

    def _batch(self, key: PlanId) -> Program | None:
        part = self._part(key)
        return part.batch if isinstance(part, TextPart) else None

    # What a gateway asks, as Requester.resumes and LoadedPlans.nodes answer it

    def resumes(self, deployment: str, sequence: str) -> tuple[str, Epoch, frozenset[str]] | None:
        """The plan by which the next step of a sequence would be made, and the devices that would make it."""
        epoch = self._device.requests.current(deployment)
        order = self._device.box.plans.get((deployment, epoch)) if epoch is not None else None
        if epoch is None or order is None:
            return None
        side, found = self._device.requests.home_of(deployment, home_of(sequence)), routes(order)
        return deployment, epoch, frozenset().union(*(found if side is None else found[side : side + 1]))

    def nodes(self, deployment: str) -> frozenset[str]:
        """The nodes that may have states by any plan of the deployment."""
        box = self._device.box
        held = [box.plans[key] for key in box.loaded if key[0] == deployment]
        return frozenset(node for order in held for _, node in order.names)
