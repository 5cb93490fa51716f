"""A large cluster loses a third of its boxes in the same instant: the time until the rest is calm, and the cost."""

from __future__ import annotations

import time
from typing import Any

from tests.simulation.cluster import SimNet, node_id
from tests.simulation.trace import Broken

LOOK_S = 0.05
MOST_S = 60.0


def lose_a_third(agents: int, seed: int, *, power: bool = False) -> dict[str, Any]:
    """Return virtual seconds and messages until one box leads, all see which boxes are left, and these serve
    the deployment."""
    began = time.process_time()
    net = SimNet(agents, seed)
    net.start()
    found_s = _calm(net)
    net.deploy(node_id(1))
    net.run(0.1)
    deployed_s = _calm(net)
    net.run(5.0)
    formed, formed_s = net.network.messages, time.process_time() - began
    for number in range(1, agents + 1, 3):  # a leader is among them
        net.crash(node_id(number), power=power)
    settled_s = _calm(net)
    return {
        "agents": agents,
        "lost": len(range(1, agents + 1, 3)),
        "found_each_other_s": round(found_s, 2),
        "served_s": round(deployed_s, 2),
        "settled_after_the_loss_s": round(settled_s, 2),
        "messages_before": formed,
        "messages_after_the_loss": net.network.messages - formed,
        "messages_each": round((net.network.messages - formed) / len(net.running)),
        "cpu_s_before": round(formed_s, 1),
        "cpu_s": round(time.process_time() - began, 1),
    }


def _calm(net: SimNet) -> float:
    start = net.now
    while faults := net.settled_faults():
        if net.now > start + MOST_S:
            raise Broken("not calm: " + "; ".join(faults[:5]))
        net.run(LOOK_S)
    return net.now - start
