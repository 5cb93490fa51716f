"""GDP's network as an ONNX file, for any number of rows. Rules only."""

from __future__ import annotations

from edgepart.planner.learning.training.gdp import tensors_of
from edgepart.planner.learning.training.gdp_network import GdpNetwork
from edgepart.planner.learning.training.onnx_export import export_network
from edgepart.planner.placing.guided.gdp_features import INPUTS, features_of
from edgepart.planner.placing.problem.workload import Workload

ROWS = {0: "rows"}
AXES = {
    **dict.fromkeys(("ops", "numbers", "real", "able", "logits"), ROWS),
    "sources": {0: "rows", 1: "most_sources"},
    "readers": {0: "rows", 1: "most_readers"},
    "continues": {0: "segments"},
}
"""The axes of the inputs and of the output that may have any length."""


def export_gdp(network: GdpNetwork, example: Workload) -> bytes:
    """Return the bytes of an ONNX model. It is the same for any `example` of the network's number of machines."""
    inputs = tensors_of(features_of(example))
    return export_network(network, {name: inputs[name] for name in INPUTS}, ["logits"], AXES)
