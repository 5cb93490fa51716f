"""The plain twin of planner/simulation/network.py, where schedules are too long for plain_simulation.py: whenever something
changed, the rate of every way is worked out anew, and every way has its own event."""

from __future__ import annotations

from heapq import heappush

from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.simulation.fair_share import NEVER, LinkDirection
from edgepart.planner.simulation.network import Events, Network


class PlainNetwork(Network):
    """Opens ways as the other does, and moves bytes in its own way."""

    def __init__(self, cluster: Cluster, events: Events) -> None:
        super().__init__(cluster, events)
        self.waiting: dict[LinkDirection, list[tuple[int, float]]] = {}

    def start(self, way: LinkDirection, key: int, nbytes: float, now: float) -> bool:
        if way.key >= 0:
            self.waiting.setdefault(way, []).append((key, nbytes))
            return False
        way.key, way.left, way.since, way.rate = key, nbytes, now, 0.0
        for one, count in way.shared:
            one.carrying[way] = count
            self.changed[one] = None
        return True

    def end(self, way: LinkDirection, now: float) -> int:
        if now != way.event:
            return -1
        key = way.key
        if self.waiting.get(way):
            way.key, way.left = self.waiting[way].pop(0)
            way.since = now
            way.event = now + way.left / way.rate
            heappush(self.events, (way.event, way.code))
            return key
        way.key, way.event = -1, NEVER
        for one, _ in way.shared:
            del one.carrying[way]
            self.changed[one] = None
        return key

    def settle(self, now: float) -> None:
        self.changed.clear()
        for way in self.ways:
            if way.key < 0:
                continue
            rate = min([way.alone, *(plain_offer(one.bytes_per_s, one.carrying) for one, _ in way.shared)])
            if rate != way.rate:
                way.left -= (now - way.since) * way.rate
                way.since, way.rate = now, rate
                way.event = now + max(0.0, way.left) / rate
                heappush(self.events, (way.event, way.code))


def plain_offer(bytes_per_s: float, carrying: dict[LinkDirection, int]) -> float:
    """An even share of what is left when everybody who wants less than that has it."""
    asking, left = dict(carrying), bytes_per_s
    while len(carrying) > 1 and asking:
        even = left / sum(asking.values())
        content = [way for way in asking if way.alone < even]
        if not content:
            return even
        for way in content:
            left -= way.alone * asking.pop(way)
    return NEVER
