"""NCHWc: makes segments' models read and write blocked arrays (nchwc_array.py). Rules: ONNX protos only.

ONNX Runtime's optimiser lets convolutions, pools and sums pass blocked values to each other, and puts operators that
reorder values at a model's ends. To make it treat a port as if the model went on behind it, `wrap_ports` puts an operator
there that can be blocked and does nothing (a maximum over one place). After the model is optimised, `unwrap_ports` removes
this operator, and also the reordering if the port is to be blocked.

An operator that reorders may transpose as well, because the optimiser merges a Transpose between (N, C, H, W) and
(N, H, W, C) into it. Where the reordering is removed, the Transpose is put back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

DOMAIN = "com.microsoft.nchwc"
_TO_CHANNELS_LAST, _TO_CHANNELS_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
_INNER = "/edgepart-inner"
"""Suffix to a port's name, which gives the name of the value on the inner side of the operator put at that port."""


def wrap_ports(model: ModelProto, ports: Collection[str]) -> ModelProto:
    """Return the model with an operator that does nothing at each of these inputs and outputs."""
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    for node in graph.node:
        _rename(node.input, ports)
    inputs = [value.name for value in graph.input if value.name in ports]
    outputs = [value.name for value in graph.output if value.name in ports]
    for node in graph.node:
        _rename(node.output, outputs)
    nodes = [
        *(_nothing(name, name + _INNER) for name in inputs),
        *graph.node,
        *(_nothing(name + _INNER, name) for name in outputs),
    ]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return made


def _nothing(read: str, written: str) -> NodeProto:
    return helper.make_node("MaxPool", [read], [written], kernel_shape=[1, 1], name=f"{written}/edgepart")


def _rename(names: list[str], ports: Collection[str]) -> None:
    for n, name in enumerate(names):
        if name in ports:
            names[n] = name + _INNER


def can_wrap(model: ModelProto) -> frozenset[str]:
    """The inputs and outputs that may be blocked as far as the model says: float32 tensors of rank 4. The set is empty if
    an operator contains a graph, because that graph may read values of the graph around it."""
    if any(a.HasField("g") or a.graphs for node in model.graph.node for a in node.attribute):
        return frozenset()
    made = {name for node in model.graph.node for name in node.output}
    outputs = [value for value in model.graph.output if value.name in made]
    return frozenset(value.name for value in (*model.graph.input, *outputs) if _is_picture(value))


def _is_picture(value: ValueInfoProto) -> bool:
    kind = value.type.tensor_type
    return kind.elem_type == TensorProto.FLOAT and len(kind.shape.dim) == 4


def native(optimised: ModelProto, ports: Iterable[str]) -> frozenset[str]:
    """The wrapped ports at which the segment computes in blocks: behind an input, or before an output, an operator reads or
    writes blocked values and does more than reorder them. Any other operator counts, because sums and concatenations of
    blocked values keep their ordinary names."""
    uses = _Uses(optimised.graph)

    def is_native(name: str) -> bool:
        if found := uses.at_input(name):
            return not all(_is(node, "ReorderOutput") for node in uses.readers[found[1].output[0]])
        if found := uses.at_output(name):
            return not _is(uses.writer.get(found[1].input[0]), "ReorderInput")
        return False

    return frozenset(filter(is_native, ports))


def unwrap_ports(optimised: ModelProto, ports: Collection[str], blocked: Collection[str]) -> ModelProto:
    """Return the optimised model without the operators that were put at `ports`. The ports in `blocked`, which must be
    native, read and write blocked arrays; at the others the runtime reorders where that is needed."""
    made = ModelProto()
    made.CopyFrom(optimised)
    cuts = _Cuts(made.graph)
    for name in [value.name for value in made.graph.input if value.name in ports]:
        cuts.open_input(name, name in blocked)
    for name in [value.name for value in made.graph.output if value.name in ports]:
        cuts.open_output(name, name in blocked)
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in cuts.nodes()]
    del made.graph.node[:], made.graph.value_info[:]
    made.graph.node.extend(nodes)
    return made


class _Cuts:
    """The operators to remove from a graph, and the values to read in place of theirs."""

    def __init__(self, graph: GraphProto) -> None:
        self._graph = graph
        self._uses = _Uses(graph)
        self._ends = {value.name for value in (*graph.input, *graph.output)}
        self._gone: list[NodeProto] = []
        self._instead: dict[str, str] = {}
        """Maps a removed value to the value that is read in its place."""
        self._given: dict[str, str] = {}
        """Maps an output to the value that becomes it."""

    def open_input(self, name: str, blocked: bool) -> None:
        found = self._uses.at_input(name)
        if found is None:
            _must_be_plain(name, blocked)
            self._skip(self._uses.readers[name][0], name)
            return
        reorder, nothing = found
        self._skip(nothing, name if blocked else reorder.output[0])
        if blocked:
            self._gone.append(reorder)
            return
        readers = self._uses.readers[nothing.output[0]]
        back = [node for node in readers if _is(node, "ReorderOutput") and node.output[0] not in self._ends]
        for node in back:
            if transposes(node):
                _only_transpose(node, name, _TO_CHANNELS_LAST)
            else:
                self._skip(node, name)
        if len(back) == len(readers):
            self._gone.append(reorder)

    def open_output(self, name: str, blocked: bool) -> None:
        found = self._uses.at_output(name)
        if found is None:
            _must_be_plain(name, blocked)
            self._give(name, self._uses.writer[name].input[0], self._uses.writer[name])
            return
        reorder, nothing = found
        inner = nothing.input[0]
        if blocked:
            self._give(name, inner, reorder, nothing)
            return
        before = self._uses.writer.get(inner)
        readers = [node for node in self._uses.readers[inner] if node is not nothing]
        back = [
            node
            for node in readers
            if _is(node, "ReorderOutput") and not transposes(node) and node.output[0] not in self._ends
        ]
        from_plain = before is not None and _is(before, "ReorderInput")
        if before is not None and from_plain and transposes(before) and not readers:
            _only_transpose(before, before.input[0], _TO_CHANNELS_FIRST)
            self._give(name, inner, reorder, nothing)
        elif before is not None and from_plain and not transposes(before):
            self._give(name, before.input[0], reorder, nothing, *(() if readers else (before,)))
        elif back:
            self._give(name, back[0].output[0], reorder, nothing)
        else:
            self._skip(nothing, inner)

    def _skip(self, node: NodeProto, instead: str) -> None:
        self._instead[node.output[0]] = instead
        self._gone.append(node)

    def _give(self, output: str, value: str, *gone: NodeProto) -> None:
        self._given[output] = value
        self._gone += gone

    def _read(self, name: str) -> str:
        while name in self._instead:
            name = self._instead[name]
        return name

    def nodes(self) -> list[NodeProto]:
        """The operators that are left, in order."""
        new: dict[str, str] = {}
        copies = []
        for output, value in self._given.items():
            source = self._read(value)
            if source in self._ends or source in new:  # An end itself, or one value under two names.
                copies.append((source, output))
            else:
                new[source] = output
        left = [node for node in self._graph.node if not any(node is one for one in self._gone)]
        for node in left:
            read = [self._read(name) for name in node.input]
            node.input[:] = [new.get(name, name) for name in read]
            node.output[:] = [new.get(name, name) for name in node.output]
        return [
            *left,
            *(helper.make_node("Identity", [new.get(source, source)], [output]) for source, output in copies),
        ]


def _must_be_plain(name: str, blocked: bool) -> None:
    if blocked:
        raise ValueError(f"{name!r} is no blocked port of this model")


class _Uses:
    """The readers and the writer of each value of a graph."""

    def __init__(self, graph: GraphProto) -> None:
        self.readers: Mapping[str, list[NodeProto]] = defaultdict(list)
        self.writer: dict[str, NodeProto] = {}
        for node in graph.node:
            for name in node.input:
                self.readers[name].append(node)
            for name in node.output:
                self.writer[name] = node
        self._inputs = {value.name for value in graph.input}

    def at_input(self, name: str) -> tuple[NodeProto, NodeProto] | None:
        """The operator that reorders an input, and the operator that was put there; None if the latter is not blocked."""
        first = self._only_reader(name) if name in self._inputs else None
        second = self._only_reader(first.output[0]) if _is(first, "ReorderInput") and first else None
        return (first, second) if first and second and _is(second, "MaxPool") else None

    def at_output(self, name: str) -> tuple[NodeProto, NodeProto] | None:
        """The operator that reorders an output, and the operator that was put there; None if the latter is not blocked."""
        last = self.writer.get(name)
        before = self.writer.get(last.input[0]) if last and _is(last, "ReorderOutput") else None
        return (last, before) if last and before and _is(before, "MaxPool") else None

    def _only_reader(self, name: str) -> NodeProto | None:
        found = self.readers[name]
        return found[0] if len(found) == 1 else None


def transposes(node: NodeProto) -> bool:
    """Whether an operator that reorders writes, or reads, plain values as (N, H, W, C)."""
    return any(a.name == "channels_last" and a.i != 0 for a in node.attribute)


def _only_transpose(node: NodeProto, read: str, perm: list[int]) -> None:
    """Replace an operator that reorders and transposes with a plain Transpose of `read`."""
    node.CopyFrom(helper.make_node("Transpose", [read], list(node.output), node.name, perm=perm))


def _is(node: NodeProto | None, op_type: str) -> bool:
    return node is not None and node.domain == DOMAIN and node.op_type == op_type
