"""The plan that was kept on disk: whether the plan by which a deployment was served when this device's agent ended can
serve again. Rules, without I/O.

After a power cut the same devices come back with the same weights, so that this plan needs no search. It may be slower
than another one by now: it is compared as any plan that serves. It is tried when it serves, because what the devices
compute with may be new.
"""

from __future__ import annotations

import math

from edgepart.agent.cluster.state.events import PlanKey
from edgepart.agent.wire.control import Prepare, Version

AWAITED_S = 3.0
"""How long after the begin of a leadership the devices of a kept plan are waited for before a plan is made without them.
With less, boxes that start a moment after the leader are planned without; with more, requests wait longer if a box does
not come back."""
SERVED_BEFORE = "it served before the agents ended; a search for a better plan follows"
"""What is said of a kept plan that serves until that search is over."""


class KeptOnDisk:
    """The kept plan of one deployment, as long as it may be of use."""

    def __init__(self, order: Prepare | None) -> None:
        """`order`: the order that brought it; None if there is none."""
        self.order = order
        self.missing: tuple[str, ...] = ()
        """The names of its devices that are waited for now."""
        self.fault = ""
        """Why the plan is not used although it is of the wanted version; "" if that is not so."""
        self._until = math.inf
        """The time until which its devices are waited for; inf if they have not been looked for yet."""

    def look(self, key: PlanKey, version: Version, now: float) -> Prepare | None:
        """The order if the plan is of the deployment's `version` and all of its devices are in `key`; else None."""
        order, self.missing = self.order, ()
        if order is None or order.version != version:
            self.order = None
            return None
        here = {node: name for node, name, _ in key.devices}
        renamed = [f"{name} is {here[node]}" for name, node in order.names if here.get(node, name) != name]
        if renamed:
            self.refuse(f"devices have other names now ({', '.join(renamed)})")
            return None
        self._until = min(self._until, now + AWAITED_S)
        lacking = tuple(name for name, node in order.names if node not in here)
        if lacking and now < self._until:
            self.missing = lacking
        return None if lacking else order

    def refuse(self, why: str) -> None:
        """Do without the plan."""
        self.order, self.fault = None, f"the plan that served before is not used: {why}"

    def forget(self) -> None:
        """Do without the plan, as it is in use, or not needed any more."""
        self.order = None

    def wake_at(self, now: float) -> float:
        """The time from which on missing devices are not waited for any more; inf if none is waited for."""
        return self._until if self.missing and now < self._until else math.inf
