"""Segments: builds one stand-alone ONNX model of the shares that a device computes between two
communications. Pure rules over protos.

Big weights are left out of the model (they are external data without a file, and the session gets their
values); small weights are in it. Every value is a packed region of a tensor of the whole model. A complete
tensor keeps its name, so that sub-graphs find the values that they capture."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
)

from edgepart.planner.access import LocalNode
from edgepart.planner.errors import InternalError
from edgepart.planner.lowering.draft import Draft, Share
from edgepart.planner.model.blobs import blob_digest, is_inline, pack_constant, region_bytes
from edgepart.planner.model.graph import Constant, Graph, WholeModel
from edgepart.planner.model.protos import element_type, external_proto, tensor_proto
from edgepart.planner.model.subgraphs import nested_graphs, nested_nodes
from edgepart.planner.plans.plan import Piece, Port, WeightRef
from edgepart.planner.region import Array, Region, Span

Digests = MutableMapping[tuple[str, str, Region], str]
"""Digests of weights, by model digest, constant and region."""

Value = tuple[str, Region]

WINDOWED = frozenset({"AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool", "QLinearConv"})
"""Operators that read their first input through windows, and nothing behind the last window."""

DEFAULT_OPSET = 17
"""The opset for the Slice and Concat nodes that edgepart adds, if the model imports contrib domains only."""


def value_name(graph: Graph, name: str, region: Region) -> str:
    """The name of a region of a tensor or constant in a segment."""
    return name if region == graph.region_of(name) else f"{name}[{region}]"


def input_values(draft: Draft, shares: Sequence[Share]) -> tuple[Value, ...]:
    """The inputs of a segment of these shares: the values that they read and do not compute. A need inside a
    bigger one is left out, because the segment cuts it from the bigger one."""
    written: dict[str, Region] = {name: region for share in shares for name, region in share.written}
    wanted: dict[str, list[Region]] = {}
    for share in shares:
        for name, need in share.needs:
            if name not in written or not written[name].contains(need):
                wanted.setdefault(name, []).append(need)
    found: list[Value] = []
    runs_the_model = draft.runs_the_model and len(shares) == len(draft.groups)
    for name, needs in wanted.items():
        if runs_the_model and name in draft.graph.inputs:
            found.append((name, draft.graph.region_of(name)))
            continue
        kept: list[Region] = []
        for need in sorted(dict.fromkeys(needs), key=lambda region: -region.size):
            if not any(other.contains(need) for other in kept):
                kept.append(need)
        found += [(name, region) for region in kept]
    return tuple(found)


def weights_of(draft: Draft, shares: Iterable[Share]) -> Iterator[Value]:
    """The regions of constants that the shares read, each once; empty ones are left out."""
    constants = draft.graph.constants
    pairs: dict[Value, None] = {}
    for share in shares:
        op = share.operator
        for name, region in zip(op.inputs, share.reads, strict=True):
            if name in constants and region is not None and not (region.is_empty and region.size < 1):
                pairs[name, region] = None
        pairs.update(((name, constants[name].region), None) for name in op.captured if name in constants)
    return iter(pairs)


WeightRefs = MutableMapping[Value, WeightRef | None]
"""References to weights without their digests, by constant and region; None for weights that stay in the segment."""


def weight_refs(
    draft: Draft,
    shares: Iterable[Share],
    model: str,
    digests: Digests | None,
    known: WeightRefs | None = None,
) -> tuple[WeightRef, ...]:
    """References to the weights that stay outside the segment. If `digests` is None, their digests are left empty and no
    weight is read. `known` remembers references between calls for one graph."""
    known = {} if known is None else known
    refs: list[WeightRef] = []
    for name, region in weights_of(draft, shares):
        if (name, region) not in known:
            known[name, region] = _ref(draft.graph, name, region)
        ref = known[name, region]
        if ref is None:
            continue
        if digests is not None:
            key = (model, name, region)
            constant = draft.graph.constants[name]
            digest = digests.get(key) or digests.setdefault(key, blob_digest(constant, region))
            ref = replace(ref, digest=digest)
        refs.append(ref)
    return tuple(refs)


def _ref(graph: Graph, name: str, region: Region) -> WeightRef | None:
    constant = graph.constants[name]
    if is_inline(constant, region):
        return None
    called = value_name(graph, name, region)
    return WeightRef(called, "", name, region, constant.dtype, region.shape, region_bytes(constant, region))


def whole_ref(constant: Constant) -> WeightRef:
    """The reference to a whole constant, without its digest."""
    region, shape = constant.region, constant.region.shape
    return WeightRef(constant.name, "", constant.name, region, constant.dtype, shape, constant.nbytes)


def whole_refs(whole: WholeModel, model: str, digests: Digests) -> tuple[WeightRef, ...]:
    """References to the weights of a model that is one segment. Reads the weights whose digests are not known."""
    refs = []
    for constant in whole.weights:
        key = (model, constant.name, constant.region)
        digest = digests.get(key) or digests.setdefault(key, blob_digest(constant, constant.region))
        refs.append(replace(whole_ref(constant), digest=digest))
    return tuple(refs)


def build_segment(
    draft: Draft, shares: Sequence[Share], outputs: Sequence[Value], refs: Sequence[WeightRef]
) -> bytes:
    """The serialised model with the inputs `input_values`, the external weights `refs`, and the outputs `outputs`."""
    builder = _SegmentBuilder(draft, {(ref.source, ref.region): ref for ref in refs})
    for name, region in input_values(draft, shares):
        builder.take(name, region)
    for share in shares:
        builder.add(share)
    return bytes(builder.finish(outputs).SerializeToString(deterministic=True))


def segment_digest(model: bytes, refs: Iterable[WeightRef], shapes: Iterable[tuple[int, ...]]) -> str:
    """SHA-256 (hex) of the model, of the digests of its weights, and of the shapes of its inputs and outputs. The shapes
    count because a user's own model is the same for all shapes, while its times and buffers are not."""
    found = hashlib.sha256(model)
    for ref in refs:
        found.update(f"{ref.name}\0{ref.digest}\0".encode())
    for shape in shapes:
        found.update(f"{shape}\0".encode())
    return found.hexdigest()


def make_ports(graph: Graph, values: Iterable[Value]) -> tuple[Port, ...]:
    return tuple(Port(value_name(graph, name, region), Piece(name, region)) for name, region in values)


@dataclass
class _SegmentBuilder:
    """Builds the model of one segment."""

    draft: Draft
    refs: Mapping[Value, WeightRef]
    nodes: list[NodeProto] = field(default_factory=list)
    initializers: dict[str, TensorProto] = field(default_factory=dict)
    inputs: list[ValueInfoProto] = field(default_factory=list)
    held: dict[str, dict[Region, str]] = field(default_factory=dict)
    """The names of the values that hold a region of each tensor, by tensor and region; crops are included."""

    @property
    def graph(self) -> Graph:
        return self.draft.graph

    @property
    def opset(self) -> int:
        return self.graph.opset_imports.get("", DEFAULT_OPSET)

    def take(self, name: str, region: Region) -> None:
        called = value_name(self.graph, name, region)
        self.inputs.append(value_info(self.graph, called, name, region))
        self.held.setdefault(name, {})[region] = called

    def add(self, share: Share) -> None:
        """Adds the share's local nodes, and the crops of their inputs."""
        op = share.operator
        for name in op.captured:
            self.value(name, self.graph.region_of(name))
        for n, node in enumerate(self.draft.blueprint.accesses[op.name].localize(share.outputs)):
            inputs = [self._input(share, node, k) for k in range(len(node.inputs))]
            outputs = [self._output(share, key) for key in node.outputs]
            while inputs and not inputs[-1]:
                inputs.pop()
            proto = helper.make_node(node.op_type, inputs, outputs, f"{op.name}/{n}" if n else op.name)
            proto.domain = node.domain
            proto.attribute.extend(attributes_of(node, self._version(node.domain)))
            self.nodes.append(proto)
        for name, region in share.written:
            self.held.setdefault(name, {})[region] = value_name(self.graph, name, region)

    def _version(self, domain: str) -> int:
        return self.opset if domain == "" else self.graph.opset_imports.get(domain, 1)

    def _input(self, share: Share, node: LocalNode, k: int) -> str:
        op, key = share.operator, node.inputs[k]
        if key is None:
            return ""
        if isinstance(key, str):
            return f"{op.name}:{key}"
        if isinstance(key, np.ndarray):
            return self._constant(f"{op.name}:{'/'.join(map(str, node.outputs))}:{k}", key)
        assert isinstance(key, int)
        region = share.reads[key]
        if region is None:
            raise InternalError(
                f"{op.op_type} {op.name!r}: its local node reads input {key}, its needs do not"
            )
        name = op.inputs[key]
        if key == 0 and name not in self.graph.constants:
            held = self.held.get(name, {})
            region = (
                region
                if region in held
                else next((r for r in held if gives_same_output(node, region, r)), region)
            )
        return self.value(name, region)

    def _output(self, share: Share, key: int | str | None) -> str:
        if key is None:
            return ""
        op = share.operator
        if isinstance(key, str):
            return f"{op.name}:{key}"
        if key not in share.outputs:  # The node writes this output, though nothing reads it.
            return f"{op.name}:unread{key}"
        return value_name(self.graph, op.outputs[key], share.outputs[key])

    def value(self, name: str, region: Region) -> str:
        """The name of the value that holds exactly that region. Adds nodes that cut the region from a bigger
        one if necessary."""
        held = self.held.setdefault(name, {})
        if region not in held:
            if name in self.graph.constants:
                held[region] = self._weight(name, region)
            elif region.is_empty:
                held[region] = self._nothing(name, region)
            else:
                outer = next((have for have in held if have.contains(region)), None)
                if outer is None:
                    raise InternalError(f"a segment needs {region} of {name!r} and has {[*map(str, held)]}")
                held[region] = self._crop(name, outer, region)
        return held[region]

    def _weight(self, name: str, region: Region) -> str:
        called, constant = value_name(self.graph, name, region), self.graph.constants[name]
        if (name, region) not in self.refs:
            proto = tensor_proto(pack_constant(constant, region), called, constant.dtype)
        else:
            ref = self.refs[name, region]
            proto = external_proto(ref.name, ref.dtype, ref.shape, ref.nbytes)
        self.initializers[called] = proto
        return called

    def _nothing(self, name: str, region: Region) -> str:
        """An initializer for a tensor without elements, which is the same for every request."""
        called, kind = value_name(self.graph, name, region), element_type(self.graph.tensors[name].dtype)
        self.initializers[called] = TensorProto(name=called, data_type=kind, dims=region.shape)
        return called

    def _constant(self, called: str, array: Array) -> str:
        if called not in self.initializers:
            self.initializers[called] = tensor_proto(array, called, None)
        return called

    def _crop(self, name: str, outer: Region, region: Region) -> str:
        """Adds Slice nodes that cut `region` from `outer`; a Concat joins the pieces if an axis has several
        intervals."""
        inner, source = region.within(outer), self.held[name][outer]
        called = value_name(self.graph, name, region)
        wide = [a for a, (s, n) in enumerate(zip(inner.spans, outer.shape, strict=True)) if span_is_cut(s, n)]
        for axis in wide[:-1]:
            source = self._cut_axis(source, inner.spans[axis], axis, f"{called}:axis{axis}")
        return self._cut_axis(source, inner.spans[wide[-1]], wide[-1], called)

    def _cut_axis(self, source: str, one: Span, axis: int, called: str) -> str:
        names = [called] if len(one) == 1 else [f"{called}:{k}" for k in range(len(one))]
        for interval, name in zip(one, names, strict=True):
            self._slice(source, name, axis, interval.start, interval.stop)
        if len(names) > 1:
            self.nodes.append(helper.make_node("Concat", names, [called], called, axis=axis))
        return called

    def _slice(self, source: str, called: str, axis: int, start: int, stop: int) -> None:
        if self.opset < 10:
            node = helper.make_node(
                "Slice", [source], [called], called, axes=[axis], starts=[start], ends=[stop]
            )
        else:
            extra = {"starts": start, "ends": stop, "axes": axis}
            names = [self._constant(f"{called}:{key}", np.array([v], np.int64)) for key, v in extra.items()]
            node = helper.make_node("Slice", [source, *names], [called], called)
        self.nodes.append(node)

    def finish(self, outputs: Sequence[Value]) -> ModelProto:
        infos = [value_info(self.graph, self.held[name][region], name, region) for name, region in outputs]
        holding = {node.op_type for node in self.nodes if next(nested_graphs(node), None) is not None}
        if holding and "Scan" not in holding:
            # The runtime infers every branch from these shapes, and refuses the model even if the branch is never
            # taken. A Scan does not run without shapes.
            for info in (*self.inputs, *infos):
                if info.type.HasField("tensor_type"):
                    info.type.tensor_type.ClearField("shape")
        graph = helper.make_graph(
            self.nodes, "segment", self.inputs, infos, initializer=list(self.initializers.values())
        )
        domains = sorted({"", *(node.domain for node in nested_nodes(graph))})
        imports = [helper.make_opsetid(domain, self._version(domain)) for domain in domains]
        model = helper.make_model(
            graph, ir_version=max(self.graph.ir_version, 4), opset_imports=imports, producer_name="edgepart"
        )
        if any((node.domain, node.op_type) in self.graph.functions for node in nested_nodes(graph)):
            model.functions.extend(FunctionProto.FromString(one) for one in self.graph.functions.values())
        return model


def gives_same_output(node: LocalNode, need: Region, outer: Region) -> bool:
    """Whether a node whose first input should be `need` writes the same output if its input is `outer`.

    With strides, elements behind the last window may be unread. Cutting them off would copy all other
    elements: ResNet's 1x1 convolutions of stride 2 read 55 of 56 rows."""
    strides = node.attributes.get("strides")
    kernel = node.attributes.get("kernel_shape")
    if node.op_type not in WINDOWED or not strides or not kernel or node.attributes.get("ceil_mode"):
        return False
    rank = len(kernel)
    if need.rank != rank + 2 or need.spans[:2] != outer.spans[:2]:
        return False
    pads = node.attributes.get("pads") or (0,) * 2 * rank
    dilations = node.attributes.get("dilations") or (1,) * rank
    for axis in range(rank):
        mine, theirs = need.spans[axis + 2], outer.spans[axis + 2]
        if mine == theirs:
            continue
        if len(mine) != 1 or len(theirs) != 1 or mine[0].start != theirs[0].start or pads[axis + rank]:
            return False
        window = (kernel[axis] - 1) * dilations[axis] + 1 - pads[axis]
        if (
            theirs[0].stop < mine[0].stop
            or (theirs[0].size - window) // strides[axis] != (mine[0].size - window) // strides[axis]
        ):
            return False
    return True


def span_is_cut(one: Span, extent: int) -> bool:
    """Whether `one` is only a part of an axis of this extent."""
    return sum(interval.size for interval in one) != extent


def value_info(graph: Graph, called: str, name: str, region: Region) -> ValueInfoProto:
    """The name `called` with the type and shape of a region of a tensor; without a type if the type is not known."""
    tensor = graph.tensors[name]
    kind = element_type(tensor.dtype)
    if not kind:
        info = ValueInfoProto(name=called)
        info.type.ParseFromString(tensor.kind)
        return info
    return helper.make_tensor_value_info(called, kind, None if tensor.shape is None else region.shape)


def attributes_of(node: LocalNode, version: int) -> Iterator[AttributeProto]:
    """The node's attributes as protos."""
    for name, value in node.attributes.items():
        if value is None:
            continue
        if isinstance(value, list | tuple) and not value:
            kind = _declared_kind(node, version, name)
            yield AttributeProto(name=name, type=kind)
            continue
        if isinstance(value, np.ndarray):
            value = tensor_proto(value, "", None)
        elif isinstance(value, list | tuple) and isinstance(value[0], np.ndarray):
            value = [tensor_proto(item, "", None) for item in value]
        elif isinstance(value, bool | np.bool_):
            value = int(value)
        yield helper.make_attribute(name, value)


def _declared_kind(node: LocalNode, version: int, name: str) -> Any:
    """The attribute type of an empty list: as the operator's schema declares it, or integers if there is no schema."""
    if not onnx.defs.has(node.op_type, version, node.domain):
        return AttributeProto.INTS
    declared: Mapping[str, Any] = onnx.defs.get_schema(node.op_type, version, node.domain).attributes
    return declared[name].type.value if name in declared else AttributeProto.INTS


def nbytes_of(graph: Graph, name: str, region: Region) -> int:
    """Bytes of a region; 0 if the tensor's shape is not known before the run."""
    tensor = graph.tensors[name]
    return 0 if tensor.shape is None else region.size * tensor.item_bytes


def border_bytes(graph: Graph, values: Iterable[Value]) -> int:
    """Bytes of the inputs and outputs of a segment that are cut, joined or reordered for the runtime, each of which copies
    them. What is written in place stays where it is."""
    return sum(nbytes_of(graph, name, region) for name, region in values if name not in graph.in_place)
