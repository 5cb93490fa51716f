"""Segment files: segments as complete ONNX models, with their weights. Door: files. The weights of one segment at a time
are in memory, or one weight if they lie beside their model."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, TensorProto

from edgepart.planner.model.blobs import pack_constant
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import Segment, WeightRef

LARGEST_FILE_BYTES = (1 << 31) - 1
"""The most bytes that a message of protobuf can have. Weights of a larger model lie in a file beside it."""
_OVERHEAD_BYTES = 64
"""More than what a weight takes inside a model in addition to its bytes."""
_ALIGNED_BYTES = 64
"""Weights beside a model begin at multiples of this, as ONNX Runtime reads them best."""


def write_segment(
    segment: Segment, graph: Graph, path: Path, largest_bytes: int = LARGEST_FILE_BYTES
) -> None:
    """Write the segment with its weights, which come from `graph`. If both together are larger than `largest_bytes`, the
    weights are in a file beside the model."""
    model = ModelProto.FromString(segment.model)
    refs = {ref.name: ref for ref in segment.weights}
    outside = [proto for proto in model.graph.initializer if proto.name in refs]
    weights_bytes = sum(ref.nbytes + _OVERHEAD_BYTES for ref in segment.weights)
    if outside and len(segment.model) + weights_bytes > largest_bytes:
        _write_beside(outside, refs, graph, path.with_name(f"{path.name}.data"))
    else:
        for proto in outside:
            data = _weight_bytes(graph, refs[proto.name])
            proto.CopyFrom(
                TensorProto(name=proto.name, data_type=proto.data_type, dims=proto.dims, raw_data=data)
            )
    _name_ranks(model, segment, graph)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _write_beside(protos: list[TensorProto], refs: dict[str, WeightRef], graph: Graph, path: Path) -> None:
    with path.open("xb") as file:
        for proto in protos:
            file.write(bytes(-file.tell() % _ALIGNED_BYTES))
            at, data = file.tell(), _weight_bytes(graph, refs[proto.name])
            file.write(data)
            del proto.external_data[:]
            for key, value in (("location", path.name), ("offset", at), ("length", len(data))):
                proto.external_data.add(key=key, value=str(value))


def _weight_bytes(graph: Graph, ref: WeightRef) -> bytes:
    return pack_constant(graph.weight(ref.source), ref.region).tobytes()


def _name_ranks(model: ModelProto, segment: Segment, graph: Graph) -> None:
    """Give inputs and outputs without a shape one with free axes, as ONNX's checker wants it. (Segments with branches have
    no shapes, because ONNX Runtime infers every branch from them.) Where the number of axes is known at run time only,
    there is still none."""
    ports = {port.name: port.piece for port in (*segment.inputs, *segment.outputs)}
    for info in (*model.graph.input, *model.graph.output):
        kind = info.type.tensor_type
        if info.name not in ports or not info.type.HasField("tensor_type") or kind.HasField("shape"):
            continue
        piece = ports[info.name]
        tensor = graph.tensors.get(piece.tensor)  # Parts of sums are not in the graph, and have a shape.
        if tensor is None or tensor.shape is not None:
            kind.shape.SetInParent()
            for _ in piece.region.shape:
                kind.shape.dim.add()
