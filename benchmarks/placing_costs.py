"""The cost of a sketch's operators on a GPU, and a sketch as a workload.

A task takes a launch, and then the longer of computing and of moving bytes (Williams et al. 2009). Operators
that the runtime fuses are one launch and move only the bytes that enter and leave the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from benchmarks.placing_clusters import EFFECTIVE, GPUS, LAUNCH_S, Setting
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.placing.problem.workload import Task, TaskTensor, Workload

Groups = Sequence[Sequence[Operator]]
"""Groups of operators that contain each operator once; each group is a task."""

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Operators whose output is their input under another shape: nothing is launched."""

BY_ELEMENT: Mapping[str, int] = {
    "Softmax": 5,
    "LayerNormalization": 8,
    "Gelu": 8,
    "Sigmoid": 4,
    "Slice": 0,
    "Concat": 0,
    "Transpose": 0,
    "Split": 0,
    "Gather": 0,
    "Pad": 0,
    **dict.fromkeys(VIEWS, 0),
}
"""FLOPs for each element written; 1 for other operators. All of these wait for memory, not for arithmetic."""


def flops(graph: Graph, op: Operator) -> float:
    """Return the FLOPs of an operator; a multiplication and an addition count as two."""
    shapes = [graph.shape_of(name) or () for name in op.inputs]
    written = sum(prod(graph.shape_of(name) or ()) for name in op.outputs)
    match op.op_type:
        case "MatMul" | "Gemm":
            return 2.0 * written * shapes[0][-1]
        case "Conv":
            return 2.0 * written * prod(shapes[1][1:])
        case "Einsum":
            letters = op.attributes["equation"].partition("->")[0].split(",")
            extents = {
                a: n
                for term, shape in zip(letters, shapes, strict=True)
                for a, n in zip(term, shape, strict=True)
            }
            return 2.0 * prod(extents.values())
        case "ReduceMean":
            return float(prod(shapes[0]))
        case kind:
            return float(BY_ELEMENT.get(kind, 1) * written)


def nbytes(graph: Graph, name: str) -> int:
    """Return the bytes of a tensor or constant."""
    return graph.constants[name].nbytes if name in graph.constants else graph.tensors[name].nbytes


def moved(graph: Graph, group: Sequence[Operator]) -> float:
    """Return the bytes that enter and leave the group of operators; of a table that is looked up only the
    rows that are read."""
    if all(op.op_type in VIEWS for op in group):
        return 0.0
    inside = {name for op in group for name in op.outputs}
    members = {op.name for op in group}
    read = {
        name: min(nbytes(graph, name), nbytes(graph, op.outputs[0]))
        if op.op_type in ("Gather", "Slice")
        else nbytes(graph, name)
        for op in group
        for name in op.inputs
        if name not in inside
    }
    left = sum(
        nbytes(graph, name)
        for name in inside
        if name in graph.outputs or any(reader.name not in members for reader in graph.consumers[name])
    )
    return float(sum(read.values()) + left)


def kept(graph: Graph, group: Sequence[Operator], readers: Mapping[str, int]) -> float:
    """Return the bytes of the weights that the operators read, and of constants that no other operator reads."""
    names = {name for op in group for name in op.inputs if name in graph.constants}
    return float(sum(nbytes(graph, n) for n in names if n.startswith("weight") or readers[n] == 1))


def seconds(gpu: str, work: float, bytes_moved: float) -> float:
    """Return the seconds of a task on that GPU."""
    if not work and not bytes_moved:
        return 0.0
    one = GPUS[gpu]
    return LAUNCH_S + max(work / one.flops_per_s, bytes_moved / one.memory_bytes_per_s) / EFFECTIVE


def workload(name: str, graph: Graph, groups: Groups, setting: Setting) -> Workload:
    """Return a workload with a task for each group, in order. A tensor that several other groups read is sent
    once."""
    number = {op.name: n for n, group in enumerate(groups) for op in group}
    readers = _readers(graph)
    tasks = tuple(_task(graph, group, setting, readers) for group in groups)
    tensors = []
    for n, group in enumerate(groups):
        for op in group:
            for made in op.outputs:
                elsewhere = sorted({number[reader.name] for reader in graph.consumers[made]} - {n})
                if elsewhere:
                    tensors.append(TaskTensor(n, tuple(elsewhere), float(nbytes(graph, made))))
    return Workload(name, setting.machines, tasks, tuple(tensors), setting.bytes_per_s, setting.latency_s)


def _readers(graph: Graph) -> dict[str, int]:
    """Return how many operators read each constant."""
    found = dict.fromkeys(graph.constants, 0)
    for op in graph.operators:
        for name in {*op.inputs} & graph.constants.keys():
            found[name] += 1
    return found


def _task(graph: Graph, group: Sequence[Operator], setting: Setting, readers: Mapping[str, int]) -> Task:
    work, bytes_moved = sum(flops(graph, op) for op in group), moved(graph, group)
    return Task(
        group[0].name,
        "+".join(op.op_type for op in group),
        tuple(seconds(gpu, work, bytes_moved) for gpu in setting.gpus),
        kept(graph, group, readers),
    )
