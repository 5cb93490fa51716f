"""The network that guides a placer, if there is one for so many machines. Rules only."""

from __future__ import annotations

from edgepart.planner.errors import NotInstalled
from edgepart.planner.placing.problem.networks import NeuralNetwork
from edgepart.planner.placing.problem.schedule import Asked


def trained_network(asked: Asked, placer: str, machines: int) -> NeuralNetwork:
    """Return the network of `placer` for workloads of so many machines. Raises NotInstalled if there is none, or one for
    another number of machines."""
    if asked.networks is None:
        raise NotInstalled(f"{placer} needs a trained network, and this search was started without any")
    network = asked.networks(placer)
    if network.card.machines not in (0, machines):
        raise NotInstalled(
            f"the network of {placer} places on {network.card.machines} machines, and this workload has {machines}: "
            f"train one with `edgepart train --placer {placer} --machines {machines}`"
        )
    return network
