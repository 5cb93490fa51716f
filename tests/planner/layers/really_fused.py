"""What ONNX Runtime really computes in one operator: read off the graph that it optimised."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path

import onnx
import onnxruntime

from edgepart.planner.model.graph import Graph

LAYOUTS = ("NchwcTransformer", "NhwcTransformer")
"""Left off: it gives tensors other layouts and other names, so that nothing could be compared."""


def optimised(model: Path | bytes) -> onnx.ModelProto:
    """As it is run, but for layouts."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else str(model),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(LAYOUTS),
        )
        return onnx.load(options.optimized_model_filepath)


def really_fused(graph: Graph, model: Path | bytes) -> list[tuple[str, frozenset[str]]]:
    """Type of the runtime's operator, and names of the operators of `graph` that it computes, where these are several.

    Its members are what lies behind its outputs, up to tensors that other operators of the runtime's write. Where
    several of the runtime's operators do, or one does again, what was parted is no member."""
    made = optimised(model).graph
    written = {name for node in made.node for name in node.output if name in graph.producers}
    members: dict[int, set[str]] = defaultdict(set)
    for number, node in enumerate(made.node):
        waiting = [name for name in node.output if name in graph.producers]
        stops = written - set(waiting)
        while waiting:
            op = graph.producers[waiting.pop()]
            if op.name not in members[number]:
                members[number].add(op.name)
                waiting += [n for n in op.inputs if n in graph.producers and n not in stops]
    counted: dict[str, int] = defaultdict(int)
    for names in members.values():
        for name in names:
            counted[name] += 1
    fused = [
        (made.node[number].op_type, frozenset(n for n in names if counted[n] == 1))
        for number, names in members.items()
    ]
    return [(kind, names) for kind, names in fused if len(names) > 1]
