"""Links: the seconds that messages between devices take, for tables of the bytes that move. Rules only: numpy."""

from __future__ import annotations

import numpy as np

from edgepart.planner.layerwise.elimination import Table
from edgepart.planner.search.memo import Memo


class Links:
    """The links between any two devices of a cluster, [source, target]."""

    def __init__(self, memo: Memo) -> None:
        names = [device.name for device in memo.cluster.devices]
        links = [[memo.cluster.link(a, b) for b in names] for a in names]
        self._fixed_s: Table = np.array([[link.message_s for link in row] for row in links])
        self._latency_s: Table = np.array([[link.latency_s for link in row] for row in links])
        self._byte_s: Table = np.array([[1 / link.bytes_per_s for link in row] for row in links])

    @property
    def least_byte_s(self) -> float:
        """Seconds a byte over the quickest link between two devices."""
        apart = ~np.eye(len(self._byte_s), dtype=bool)
        return float(self._byte_s[apart].min(initial=np.inf))

    def seconds(self, moved: Table) -> Table:
        """Seconds until all messages have arrived, from the bytes that move, [..., source, target]. A device
        sends one message after another and receives one after another, as in the simulator."""
        count = len(self._byte_s)
        # Devices come first, as time_costs.py has them in memory, so that numpy adds up long rows and not four numbers.
        lanes = np.ascontiguousarray(np.moveaxis(moved, (-2, -1), (0, 1))).reshape(count, count, -1)
        sent = lanes > 0
        busy = lanes * self._byte_s[:, :, None] + sent * self._fixed_s[:, :, None]
        way = sent * (self._fixed_s + self._latency_s)[:, :, None]
        out = (busy.sum(1) + way.max(1)).max(0)
        into = (busy.sum(0) + way.max(0)).max(0)
        found: Table = np.maximum(out, into).reshape(moved.shape[:-2])
        return found
