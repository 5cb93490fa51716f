"""Networks that say the same noise each time, for tests of what is done with any network's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepart.planner.placing.engine.flat_serial import STANDINGS
from edgepart.planner.placing.guided.placeto_state import COLUMNS
from edgepart.planner.placing.problem.networks import NetworkCard, NeuralNetwork


def untrained(placer: str) -> NeuralNetwork:
    """Return a network of the placer, for any number of machines, whose outputs are noise."""

    def run(inputs: Mapping[str, NDArray[Any]]) -> Sequence[NDArray[Any]]:
        if placer == "learned":
            pairs = inputs["pairs"].shape[:2]
            shapes = [pairs, (pairs[0], STANDINGS)]
        elif placer == "placeto":
            shapes = [(1, inputs["state"].shape[1] - COLUMNS)]
        else:
            shapes = [inputs["able"].shape]
        return [np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in shapes]

    return NeuralNetwork(NetworkCard(placer, 0, ("noise",), 0, "", "2026-01-01", ""), run)
