"""Node lists and the graphs inside nodes: sorts nodes, finds captured names, inlines branches and functions.

Pure rules over ONNX protos, which know nothing of shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, defs, helper
from onnx.inliner import inline_local_functions
from onnx.shape_inference import InferenceError
from onnx.version_converter import ConvertError

from edgepart.planner.errors import ModelError


def nested_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """The sub-graphs among the node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captured_names(node: NodeProto) -> tuple[str, ...]:
    """Names of the outer values that the node's sub-graphs read, each once."""
    found: dict[str, None] = {}
    for graph in nested_graphs(node):
        found |= dict.fromkeys(_outer_names(graph))
    return tuple(found)


def _outer_names(graph: GraphProto) -> Iterator[str]:
    defined = _defined_names(graph)
    for node in graph.node:
        yield from (name for name in (*node.input, *captured_names(node)) if name and name not in defined)
    yield from (output.name for output in graph.output if output.name not in defined)


def _defined_names(graph: GraphProto) -> set[str]:
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    names |= {sparse.values.name for sparse in graph.sparse_initializer}
    return names | {name for node in graph.node for name in node.output if name}


def sort_nodes(nodes: Sequence[NodeProto], known: Collection[str], where: str) -> list[NodeProto]:
    """The nodes in an order in which each node comes after the nodes that it reads from: the file's order, as far as it is
    such an order.

    Raises ModelError for a value that is written twice, a value that no node writes, and a cycle."""
    writer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in writer or name in known:
                raise ModelError(
                    f"{where}: {name!r} is written twice, the second time by {describe_node(node)}"
                )
            writer[name] = index
    reads = [[*filter(None, node.input), *captured_names(node)] for node in nodes]
    for index, names in enumerate(reads):
        for name in names:
            if name not in writer and name not in known:
                raise ModelError(
                    f"{where}: {describe_node(nodes[index])} reads {name!r}, which nothing writes"
                )
    before = [[writer[name] for name in names if name in writer] for names in reads]
    if all(other < index for index, others in enumerate(before) for other in others):
        return list(nodes)
    try:
        return [nodes[index] for index in _stable_order(before)]
    except CycleError as error:
        raise ModelError(
            f"{where}: {describe_node(nodes[error.args[1][0]])} depends on its own output"
        ) from error


def _stable_order(before: Sequence[Sequence[int]]) -> Iterator[int]:
    """Yields each index after those before it, and the smallest of all that may follow: operators that stand together
    in the file, such as those of a layer, stay together. Raises CycleError."""
    sorter = TopologicalSorter(dict(enumerate(before)))
    sorter.prepare()
    ready: list[int] = []
    while sorter.is_active():
        for index in sorter.get_ready():
            heappush(ready, index)
        yield (index := heappop(ready))
        sorter.done(index)


def live_nodes(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """The nodes that the outputs depend on, in their order, without optional outputs that no node reads. Changes the
    nodes."""
    writers: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in filter(None, node.output):
            writers.setdefault(name, []).append(node)
    needed, waiting = set(outputs), list(outputs)
    while waiting:
        for node in writers.get(waiting.pop(), ()):
            fresh = {*node.input, *captured_names(node)} - needed
            needed |= fresh
            waiting.extend(fresh)
    alive = [node for node in nodes if needed.intersection(node.output) - {""}]
    taken = needed | writers.keys()
    for node in alive:
        _forget_unread(node, needed)
        _name_first(node, taken)
    return alive


def _forget_unread(node: NodeProto, needed: Collection[str]) -> None:
    """Removes the names of optional outputs that no node reads (a Dropout's mask), except the first output,
    which decides how the node can be divided."""
    if node.domain not in ("", "ai.onnx") or not defs.has(node.op_type):
        return
    declared = defs.get_schema(node.op_type).outputs
    for index, name in enumerate(node.output):
        optional = (
            index < len(declared) and declared[index].option == defs.OpSchema.FormalParameterOption.Optional
        )
        if index and optional and name not in needed:
            node.output[index] = ""
    while node.output and not node.output[-1]:
        del node.output[-1]


def _name_first(node: NodeProto, taken: Collection[str]) -> None:
    """Names the first output (all states) of a recurrent operator of which only the last state is read."""
    if node.op_type in ("RNN", "GRU", "LSTM", "DynamicQuantizeLSTM") and node.output and not node.output[0]:
        name = f"{node.op_type}.{next(filter(None, node.output))}"
        while name in taken:
            name += "'"
        node.output[0] = name


def sort_nested_nodes(node: NodeProto, known: Collection[str], where: str) -> None:
    """Sorts the nodes of all sub-graphs as `sort_nodes` does; `known` are the names that exist outside of them."""
    for graph in nested_graphs(node):
        outside = {name for name in known if name} - {n for inner in graph.node for n in inner.output}
        outside.update(value.name for value in graph.input)
        outside.update(tensor.name for tensor in graph.initializer)
        outside.update(sparse.values.name for sparse in graph.sparse_initializer)
        ordered = [
            NodeProto.FromString(inner.SerializeToString())
            for inner in sort_nodes(graph.node, outside, where)
        ]
        written = {name for inner in ordered for name in inner.output}
        for inner in ordered:
            sort_nested_nodes(inner, outside | written, where)
        del graph.node[:]
        graph.node.extend(ordered)


def describe_node(node: NodeProto) -> str:
    """A text for people that names the node."""
    return f"{node.op_type} {node.name or next(filter(None, node.output), '')!r}"


def inline_branch(node: NodeProto, branch: GraphProto, taken: Collection[str]) -> GraphProto:
    """A copy of `branch` whose nodes write `node`'s outputs. Inner names are changed so that none is in
    `taken`. Only the nodes, initializers and value_info of the result are used."""
    results = [output.name for output in branch.output]
    written = {name for inner in branch.node for name in inner.output}
    mapping: dict[str, str] = {}
    for inside, outside in zip(results, node.output, strict=True):
        if inside in written and inside not in mapping and outside:
            mapping[inside] = outside
    prefix = node.name or next(filter(None, node.output))
    while any(f"{prefix}/{name}" in taken for name in _defined_names(branch)):
        prefix += "_"
    for name in _defined_names(branch):
        mapping.setdefault(name, f"{prefix}/{name}")
    result = GraphProto()
    result.CopyFrom(branch)
    _rename(result, mapping)
    for inner in result.node:
        inner.name = f"{prefix}/{inner.name}" if inner.name else ""
    for inside, outside in zip(results, node.output, strict=True):
        if outside and mapping.get(inside) != outside:
            result.node.append(helper.make_node("Identity", [mapping.get(inside, inside)], [outside]))
    return result


def _rename(graph: GraphProto, mapping: Mapping[str, str]) -> None:
    """Renames values in place. The names that a nested graph defines hide outer names."""
    for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
        tensor.name = mapping.get(tensor.name, tensor.name)
    for value in (*graph.output, *graph.value_info):
        value.name = mapping.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [mapping.get(name, name) for name in node.input]
        node.output[:] = [mapping.get(name, name) for name in node.output]
        for nested in nested_graphs(node):
            own = _defined_names(nested)
            _rename(nested, {old: new for old, new in mapping.items() if old not in own})


MOST_NODES = 1 << 17
"""The largest number of nodes to which inlining functions may lead. A few lines of functions that call each
other can make any number."""

DEEPEST_CALLS = 100
"""The deepest nesting of function calls; ONNX's inliner goes no further."""


def inline_functions(model: ModelProto, where: str) -> ModelProto:
    """The model with its local functions inlined. Changes `model`. Raises ModelError if they cannot be inlined.

    Weights are left out of the inlining, so that gigabytes are not copied."""
    if not model.functions:
        return model
    check_calls(model, where)
    inlined: ModelProto = inline_local_functions(_without_data(model))
    if inlined.functions:
        try:
            inlined = inline_local_functions(inlined, convert_version=True)
        except (ConvertError, InferenceError) as error:
            raise ModelError(f"{where}: its functions cannot be brought to its own opset: {error}") from error
    left = {_function_key(f) for f in inlined.functions}
    for node in nested_nodes(inlined.graph):
        if (node.domain, node.op_type) in left:
            raise ModelError(
                f"{where}: {describe_node(node)} calls a function of another opset, which cannot be inlined"
            )
    for kept, made in (
        (model.graph.node, inlined.graph.node),
        (model.graph.value_info, inlined.graph.value_info),
        (model.opset_import, inlined.opset_import),
    ):
        del kept[:]
        kept.extend(made)
    del model.functions[:]
    return model


def check_calls(model: ModelProto, where: str) -> None:
    """Raises ModelError for functions that call themselves, are nested too deep, or would make too many nodes."""
    called = {
        _function_key(f): Counter((n.domain, n.op_type) for n in nested_nodes(f)) for f in model.functions
    }
    try:
        order = tuple(
            TopologicalSorter({f: of.keys() & called.keys() for f, of in called.items()}).static_order()
        )
    except CycleError as error:
        raise ModelError(f"{where}: function {error.args[1][0][1]!r} calls itself") from error
    size: dict[tuple[str, str], int] = {}
    depth: dict[tuple[str, str], int] = {}
    for function in order:
        size[function] = sum(count * size.get(of, 1) for of, count in called[function].items())
        depth[function] = 1 + max((depth.get(of, 0) for of in called[function]), default=0)
        if depth[function] > DEEPEST_CALLS:
            raise ModelError(
                f"{where}: function {function[1]!r} calls functions more than {DEEPEST_CALLS} deep; inline them first"
            )
    nodes = sum(size.get((node.domain, node.op_type), 1) for node in nested_nodes(model.graph))
    if nodes > MOST_NODES:
        raise ModelError(
            f"{where}: its functions written out would be {nodes} nodes, and {MOST_NODES} is the most"
        )


def _without_data(model: ModelProto) -> ModelProto:
    """A copy of the model whose weights have names, types and shapes but no data."""
    graph = GraphProto(name=model.graph.name)
    for kept, made in (
        (graph.node, model.graph.node),
        (graph.input, model.graph.input),
        (graph.output, model.graph.output),
        (graph.value_info, model.graph.value_info),
    ):
        kept.extend(made)
    for tensor in model.graph.initializer:
        graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    copied = ModelProto(ir_version=model.ir_version, graph=graph)
    copied.opset_import.extend(model.opset_import)
    copied.functions.extend(model.functions)
    return copied


def _function_key(function: FunctionProto) -> tuple[str, str]:
    return (function.domain, function.name)


def nested_nodes(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """All nodes, also those of sub-graphs."""
    for node in graph.node:
        yield node
        for nested in nested_graphs(node):
            yield from nested_nodes(nested)
