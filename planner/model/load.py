"""Loads a model file into a Graph: reads and checks it, binds free dimensions, infers types, folds constants,
and drops everything that no output depends on. A door: it opens the model's files.

model_file.py reads the file, rewrites/ and quantised_activations.py change the model where that is needed, and
graph_builder.py makes the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto, NodeProto

from edgepart.planner.errors import EdgepartError, ModelError, NotInPlace
from edgepart.planner.model.described_operators import descriptions_of, take_functions
from edgepart.planner.model.faults import FAULTS
from edgepart.planner.model.graph import Constant, Graph, check_graph
from edgepart.planner.model.graph_builder import GraphBuilder
from edgepart.planner.model.model_file import parse_model, read_model
from edgepart.planner.model.quantised_activations import make_activations_unsigned
from edgepart.planner.model.rewrites.in_place import write_in_place
from edgepart.planner.model.rewrites.merged_decoder import decide, shapes_of_plan
from edgepart.planner.model.rewrites.past_before_rows import find_growing, has_masked_past, open_decided
from edgepart.planner.model.shapes.free_dimensions import BoundDimensions, inputs_of
from edgepart.planner.model.subgraphs import inline_functions
from edgepart.planner.model.weights import Origin
from edgepart.planner.model.whole import file_constants, make_whole_model
from edgepart.planner.tdl.description import OperatorDescription


def load_graph(
    path: Path | bytes,
    *,
    shapes: Mapping[str, tuple[int | None, ...]] | None = None,
    operators: Sequence[OperatorDescription] = (),
) -> Graph:
    """The model in a file (or given as bytes, without external data), with inputs of the given shapes. `operators` are
    descriptions beside those in the file.

    A free dimension that `shapes` does not bind is taken as 1, and a note says so. One that it binds to None stays free.
    Weights are not read.
    Raises ModelError if the model cannot be used, and UsageError if `shapes` does not fit its inputs."""
    return check_graph(_load(path, shapes or {}, operators))


def load_planned(path: Path | bytes, bound: Mapping[str, tuple[int, ...]]) -> Graph:
    """The graph of a plan whose inputs, all of them, have these shapes. Raises as `load_graph` does."""
    return load_graph(path, shapes=shapes_of_plan(read_model(path), bound))


def load_constants(path: Path | bytes) -> Mapping[str, Constant]:
    """The constants that `load_graph` gives for any input shapes: weights, and values computed from weights
    alone. Raises ModelError if the model cannot be used."""
    return _load(path, None).constants


def load_weights(path: Path | bytes) -> Mapping[str, Constant]:
    """The big constants of the file itself, by name. A constant of the same name in a graph has the same
    value. Much faster than `load_constants`, because nothing is inferred. Raises ModelError if the model
    cannot be used."""
    return file_constants(*parse_model(path))


def _load(
    path: Path | bytes,
    shapes: Mapping[str, tuple[int | None, ...]] | None,
    operators: Sequence[OperatorDescription] = (),
) -> Graph:
    model, origin = parse_model(path)
    _check_names(model.graph.node, origin.name)
    if shapes is not None:
        shapes = decide(model, shapes)
        model = _write_states_in_place(model, origin, shapes, operators)
    return _load_model(model, origin, shapes, operators)


def _write_states_in_place(
    model: ModelProto,
    origin: Origin,
    shapes: Mapping[str, tuple[int | None, ...]],
    operators: Sequence[OperatorDescription],
) -> ModelProto:
    """The model that writes its states in place, if `shapes` say so; otherwise the model itself. Raises NotInPlace, which
    says why, if it cannot write them in place, and ModelError if it cannot be used at all."""
    if not has_masked_past(model, shapes):
        return model
    opened = open_decided(_copy(model))
    try:
        if (growing := find_growing(opened, shapes)) is None:
            return model
        if opened.functions:
            opened = inline_functions(opened, origin.name)
        graph = _load_model(_copy(opened), origin, growing.padded(shapes), operators)
        return write_in_place(opened, graph, growing)
    except NotInPlace as error:
        raise NotInPlace(f"{origin.name}: its states cannot be written in place: {error}") from error


def _copy(model: ModelProto) -> ModelProto:
    copied = ModelProto()
    copied.CopyFrom(model)
    return copied


def _load_model(
    model: ModelProto,
    origin: Origin,
    shapes: Mapping[str, tuple[int | None, ...]] | None,
    operators: Sequence[OperatorDescription],
) -> Graph:
    """The graph of a model, which is changed."""
    own = _copy(model)
    try:
        described = descriptions_of(model, operators)
        functions = take_functions(model, described.keys(), origin.name)
        whole = make_activations_unsigned(inline_functions(model, origin.name))
        builder = GraphBuilder(whole, origin, BoundDimensions(origin.name, shapes), functions)
        graph = builder.graph()
        _forget_shapes(own, builder.declared.contradicted)
        graph = replace(graph, descriptions=described, functions=functions)
        return graph if shapes is None else replace(graph, whole=make_whole_model(own, origin, graph))
    except EdgepartError:
        raise
    except FAULTS as error:
        raise ModelError(f"{origin.name}: is not a usable model: {error!r}") from error


def _forget_shapes(model: ModelProto, names: Collection[str]) -> None:
    """Takes what the file says of these values out of the model: ONNX Runtime plans its memory by it, and ends a request
    where it is wrong (the builder of onnxruntime-genai writes one row for all rows in fp16)."""
    left = [value for value in model.graph.value_info if value.name not in names]
    if len(left) < len(model.graph.value_info):
        del model.graph.value_info[:]
        model.graph.value_info.extend(left)


def _check_names(nodes: Iterable[NodeProto], model: str) -> None:
    """Raises ModelError if two nodes share a name: ONNX Runtime refuses such a model, and the name would be ambiguous."""
    named: dict[str, NodeProto] = {}
    for node in nodes:
        other = named.setdefault(node.name, node) if node.name else node
        if other is not node:
            raise ModelError(
                f"{model}: a {other.op_type} and a {node.op_type} are both called {node.name!r}; give each node a name of "
                "its own, or none"
            )


def check_shapes(path: Path | bytes, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises UsageError if the model's inputs do not accept these shapes, and ModelError if the model cannot
    be read. Fast, because only the inputs are looked at."""
    model, origin = parse_model(path)
    left = decide(model, shapes)
    BoundDimensions(origin.name, left).bind(inputs_of(model))
