"""Loads a model file into a Graph: reads and checks it, binds free dimensions, infers types, folds constants,
and drops everything that no output depends on. A door: it opens the model's files.

model_file.py reads the file, shape_inference.py infers the types of one operator, constant_folding.py folds constants,
and weights.py reads the weights of the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
    helper,
)

from edgepart.planner.errors import EdgepartError, ModelError, NotInPlace, UsageError
from edgepart.planner.model.constant_folding import SHAPED_BY_DATA, fold_node
from edgepart.planner.model.described_operators import descriptions_of, infer_function, take_functions
from edgepart.planner.model.graph import Constant, Graph, Operator, Tensor, check_graph
from edgepart.planner.model.model_file import FAULTS, parse_model, read_model
from edgepart.planner.model.quantised_activations import make_activations_unsigned
from edgepart.planner.model.rewrites.in_place import write_in_place
from edgepart.planner.model.rewrites.merged_decoder import decide, shapes_of_plan
from edgepart.planner.model.rewrites.past_before_rows import find_growing, has_masked_past, open_decided
from edgepart.planner.model.shapes.shape_inference import (
    complete_type,
    find_contradiction,
    infer_types,
    known_shape,
    tensor_of,
    type_of,
)
from edgepart.planner.model.subgraphs import (
    captured_names,
    describe_node,
    inline_branch,
    inline_functions,
    live_nodes,
    nested_graphs,
    sort_nested_nodes,
    sort_nodes,
)
from edgepart.planner.model.validate import check_node, check_opsets
from edgepart.planner.model.weights import (
    Origin,
    constant_of,
    dtype_name,
    eager_constant,
    embed_external,
    sparse_constant_of,
)
from edgepart.planner.model.whole import file_constants, make_whole_model
from edgepart.planner.tdl.description import OperatorDescription

MOST_CONTRADICTIONS = 3
"""As many values whose shapes the file has wrong get a note each; an exporter may have ten of each layer wrong."""


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
        loader = _Loader(whole, origin, shapes, functions)
        graph = loader.graph()
        _forget_shapes(own, loader.contradicted)
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
    _Loader(model, origin, left).bind(inputs_of(model))


def inputs_of(model: ModelProto) -> list[ValueInfoProto]:
    """The inputs that requests provide, which are the inputs without a constant value."""
    constants = {proto.name for proto in model.graph.initializer}
    constants |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    return [value for value in model.graph.input if value.name not in constants]


@dataclass
class _Loader:
    """The state of the single pass over a model."""

    model: ModelProto
    origin: Origin
    shapes: Mapping[str, tuple[int | None, ...]] | None
    """The user's shapes by input; None leaves free dimensions free."""
    functions: Mapping[tuple[str, str], bytes] = field(default_factory=dict)
    """The model's functions that are not written out (Graph.functions)."""
    types: dict[str, TypeProto] = field(default_factory=dict)
    """Types of all values written so far, constants included, by name."""
    constants: dict[str, Constant] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    symbols: dict[str, int] = field(default_factory=dict)
    """Extents of symbolic dimensions that are bound, by name."""
    names: set[str] = field(default_factory=set)
    """Names of the operators so far."""
    contradicted: set[str] = field(default_factory=set)
    """Values of which the file says another shape than they have."""

    def graph(self) -> Graph:
        source = self.model.graph
        self.imports = _imports(self.model, self.origin.name)
        if fault := check_opsets(self.imports, self.model.ir_version):
            raise ModelError(f"{self.origin.name}: {fault}")
        for sparse in source.sparse_initializer:
            self._add_constant(sparse_constant_of(sparse, self.origin))
        for proto in source.initializer:
            self._add_constant(constant_of(proto, self.origin))
        inputs = inputs_of(self.model)
        self.free = {value.name: free_of(value.type) for value in (*source.output, *inputs)}
        for value in inputs:
            _check_input(value, self.origin.name)
        self.bind(inputs)
        self.declared = {
            value.name: self._with_symbols(value.type) for value in (*source.value_info, *source.output)
        }
        outputs = tuple(value.name for value in source.output)
        for kind, names in (("inputs", [value.name for value in inputs]), ("outputs", list(outputs))):
            if len(set(names)) < len(names) or "" in names:
                raise ModelError(f"{self.origin.name}: two {kind} share a name, or one has none: {names}")
        self._visit_all(source.node, outputs)
        for name in outputs:
            if name not in self.types:
                raise ModelError(f"{self.origin.name}: nothing writes the output {name!r}")
        return self._finish(tuple(value.name for value in inputs), outputs)

    def _add_constant(self, constant: Constant) -> None:
        if constant.name in self.types:
            raise ModelError(f"{self.origin.name}: {constant.name!r} is written twice")
        self.constants[constant.name] = constant
        self.types[constant.name] = type_of(constant)

    def bind(self, inputs: Sequence[ValueInfoProto]) -> None:
        """Gives every free dimension of the inputs an extent: the user's extent, else the extent bound to the
        dimension's name, else 1."""
        if self.shapes is None:
            self.types |= {value.name: self._with_symbols(value.type) for value in inputs}
            return
        names = [value.name for value in inputs]
        for name in self.shapes:
            if name not in names:
                raise UsageError(f"{self.origin.name}: no input is called {name!r}; its inputs are {names}")
        given = self.shapes.keys()
        for value in sorted(
            inputs, key=lambda value: value.name not in given
        ):  # Inputs with a user's shape first.
            bound = TypeProto()
            bound.CopyFrom(value.type)
            if value.name in self.shapes:
                self._bind_by_user(value, bound, self.shapes[value.name])
            elif bound.HasField("tensor_type"):
                self._bind_by_default(value.name, bound.tensor_type)
            self.types[value.name] = bound

    def _bind_by_user(self, value: ValueInfoProto, bound: TypeProto, wanted: tuple[int | None, ...]) -> None:
        where = f"{self.origin.name}: input {value.name!r}"
        if not bound.HasField("tensor_type"):
            raise UsageError(f"{where} is not a tensor and takes no shape")
        dims = bound.tensor_type.shape.dim
        if bound.tensor_type.HasField("shape") and len(dims) != len(wanted):
            raise UsageError(
                f"{where} has {len(dims)} dimensions, and {len(wanted)} were given: {list(wanted)}"
            )
        for axis, extent in enumerate(wanted):
            dim = dims[axis] if axis < len(dims) else dims.add()
            if extent is None:
                continue
            fixed = dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else extent
            if symbol := _symbol(dim):
                fixed = self.symbols.setdefault(symbol, extent)
            if extent < 0 or fixed != extent:
                reason = "negative" if extent < 0 else f"it is {fixed}"
                raise UsageError(f"{where}: dimension {axis} cannot be {extent}: {reason}")
            dim.dim_value = extent

    def _bind_by_default(self, name: str, tensor: TypeProto.Tensor) -> None:
        if not tensor.HasField("shape"):
            self.notes.append(
                f"input {name}: has no shape, so what depends on it cannot be split; give its shape"
            )
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                continue
            symbol = _symbol(dim)
            if not symbol or symbol not in self.symbols:
                self.notes.append(f"input {name}: {symbol or f'dimension {axis}'} taken as 1")
            dim.dim_value = self.symbols.setdefault(symbol, 1) if symbol else 1

    def _with_symbols(self, declared: TypeProto) -> TypeProto:
        """A declared type with bound dimension names replaced by extents; other named dimensions stay unknown."""
        result = TypeProto()
        result.CopyFrom(declared)
        if result.HasField("tensor_type"):
            for dim in result.tensor_type.shape.dim:
                if _symbol(dim) in self.symbols:
                    dim.dim_value = self.symbols[_symbol(dim)]
                elif dim.HasField("dim_value") and dim.dim_value < 0:
                    dim.ClearField("value")
        return result

    def _visit_all(self, nodes: Sequence[NodeProto], outputs: Sequence[str]) -> None:
        for node in sort_nodes(live_nodes(nodes, outputs), set(self.types), self.origin.name):
            try:
                self._visit(node)
            except EdgepartError:
                raise
            except FAULTS as error:
                raise ModelError(
                    f"{self.origin.name}: {describe_node(node)} cannot be read: {error!r}"
                ) from error

    def _visit(self, node: NodeProto) -> None:
        """Turns one node into constants, into the nodes of the only branch that it can take, or into an operator."""
        if node.domain == "ai.onnx":
            node.domain = ""
        if (
            node.op_type == "Constant"
            and not node.domain
            and (proto := _attribute(node, "value")) is not None
        ):
            self._add_constant(constant_of(proto.t, self.origin, name=node.output[0]))
            return
        if (branch := self._branch(node)) is not None:
            self._visit_branch(node, branch)
            return
        if node.op_type == "Range" and not node.domain:
            self._make_scalars(node)
        version = self.imports.get(node.domain, 1)
        read = {name: self.types[name] for name in (*node.input, *captured_names(node)) if name in self.types}
        sort_nested_nodes(node, read, self.origin.name)
        for nested in nested_graphs(node):
            embed_external(nested, self.origin)
        try:
            check_node(node, read, self.imports, self.model.ir_version)
            found = self._infer_types(node, read)
        except ModelError as error:
            assumed = f" ({'; '.join(self.notes)})" if self.notes else ""
            raise ModelError(f"{self.origin.name}: {error}{assumed}") from error
        for name in filter(None, node.output):
            self._compare(node, name, found.get(name))
        said = {} if self._depends_on_data(node, read, found) else self.declared
        merged = {name: complete_type(found.get(name), said.get(name)) for name in node.output if name}
        known = {name: of for name, of in merged.items() if of is not None}
        folded = fold_node(node, known, read, self.constants, version)
        if folded is not None:
            for made in folded.values():
                self._add_constant(made)
            return
        self.types |= {name: known.get(name, TypeProto()) for name in node.output if name}
        self.operators.append(self._operator(node, version))

    def _infer_types(self, node: NodeProto, read: Mapping[str, TypeProto]) -> dict[str, TypeProto]:
        if (node.domain, node.op_type) in self.functions:
            return infer_function(
                node, read, self.constants, self.functions, self.imports, self.model.ir_version
            )
        return infer_types(node, read, self.constants, self.imports, self.model.ir_version)

    def _depends_on_data(
        self, node: NodeProto, read: Mapping[str, TypeProto], found: Mapping[str, TypeProto]
    ) -> bool:
        """Whether the shapes of a node's outputs cannot be known before a request, whatever the file
        declares: inference knows the operator, and the shapes depend on the elements or the unknown shapes of
        its inputs."""
        if not found or next(nested_graphs(node), None) is not None:
            return False
        if not all(of.HasField("tensor_type") for of in (*read.values(), *found.values())):
            return False
        unknown = any(known_shape(of) is None for of in read.values())
        return unknown or (node.op_type in SHAPED_BY_DATA and not node.domain)

    def _compare(self, node: NodeProto, name: str, found: TypeProto | None) -> None:
        """Compares the type that the file declares for a value with the inferred one. As in the runtime,
        another element type raises ModelError; another shape only gets a note, and the inferred shape is
        taken."""
        fault = find_contradiction(found, self.declared.get(name))
        if fault is None:
            return
        if fault.of_type:
            raise ModelError(
                f"{self.origin.name}: {describe_node(node)}: the file says that {name!r} {fault.text}"
            )
        self.contradicted.add(name)
        if len(self.contradicted) <= MOST_CONTRADICTIONS:
            self.notes.append(f"{name}: the file says that it {fault.text}, and the latter was taken")
        del self.declared[name]

    def _make_scalars(self, node: NodeProto) -> None:
        """Replaces constants of one element that a Range reads by scalars, because the runtime accepts a
        vector of one element as a Range's bound from an operator, but not as a constant."""
        for place, name in enumerate(node.input):
            known = self.constants.get(name)
            if known is None or known.shape == () or known.region.size != 1:
                continue
            scalar = f"{name}:scalar"
            if scalar not in self.constants:
                self._add_constant(eager_constant(scalar, known.load().reshape(()), known.dtype))
            node.input[place] = scalar

    def _branch(self, node: NodeProto) -> onnx.GraphProto | None:
        """The branch that an If with a constant condition always takes; None for other nodes."""
        if node.op_type != "If" or node.domain or len(node.input) != 1 or node.input[0] not in self.constants:
            return None
        condition = self.constants[node.input[0]].load()
        taken = _attribute(node, "then_branch" if condition.size == 1 and condition.item() else "else_branch")
        fits = taken is not None and condition.size == 1 and len(taken.g.output) == len(node.output)
        return taken.g if fits and taken is not None else None

    def _visit_branch(self, node: NodeProto, branch: onnx.GraphProto) -> None:
        inlined = inline_branch(node, branch, self.types.keys())
        for sparse in inlined.sparse_initializer:
            self._add_constant(sparse_constant_of(sparse, self.origin))
        for proto in inlined.initializer:
            self._add_constant(constant_of(proto, self.origin))
        self.declared |= {value.name: self._with_symbols(value.type) for value in inlined.value_info}
        self._visit_all(inlined.node, tuple(node.output))

    def _operator(self, node: NodeProto, version: int) -> Operator:
        return Operator(
            name=self._new_name(node),
            op_type=node.op_type,
            domain=node.domain,
            version=version,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes={a.name: self._value(a, node) for a in node.attribute},
            captured=captured_names(node),
        )

    def _new_name(self, node: NodeProto) -> str:
        wanted = node.name or f"{node.op_type}_{len(self.operators)}"
        name, count = wanted, 1
        while name in self.names:
            count += 1
            name = f"{wanted}#{count}"
        self.names.add(name)
        return name

    def _value(self, attribute: AttributeProto, node: NodeProto) -> Any:
        """The value of an attribute as a plain Python value; text is a str if it is UTF-8."""
        if attribute.ref_attr_name:
            raise ModelError(
                f"{self.origin.name}: {describe_node(node)} refers to an attribute of a function, outside one"
            )
        value = helper.get_attribute_value(attribute)
        match attribute.type:
            case AttributeProto.TENSOR:
                return constant_of(value, self.origin).load()
            case AttributeProto.TENSORS:
                return [constant_of(proto, self.origin).load() for proto in value]
            case AttributeProto.STRING:
                return _text(value)
            case AttributeProto.STRINGS:
                return [_text(one) for one in value]
        return list(value) if isinstance(value, Iterable) and not isinstance(value, bytes | str) else value

    def _finish(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
        """The graph without operators, tensors and constants that no output depends on."""
        needed, kept = set(outputs), list[Operator]()
        for op in reversed(self.operators):
            if needed.intersection(op.outputs):
                kept.append(op)
                needed.update(op.inputs, op.captured)
        written = {name for op in kept for name in op.outputs if name}
        tensors: dict[str, Tensor] = {}
        for name in (*inputs, *(name for op in reversed(kept) for name in op.outputs if name)):
            tensors[name] = tensor_of(name, self.types[name])
        return Graph(
            name=self.model.graph.name or self.origin.name,
            inputs=inputs,
            outputs=outputs,
            tensors=tensors,
            constants={n: c for n, c in self.constants.items() if n in needed and n not in written},
            operators=tuple(reversed(kept)),
            opset_imports=dict(self.imports),
            ir_version=self.model.ir_version,
            notes=(*self.notes, *self._count_contradictions()),
            free=self._free_of(inputs, outputs, tensors),
        )

    def _count_contradictions(self) -> Iterator[str]:
        """Yields a note on the values whose shapes the file has wrong, beyond those that have notes of their own."""
        if (more := len(self.contradicted) - MOST_CONTRADICTIONS) > 0:
            yield f"the file has the shapes of {more} more values wrong, too"

    def _free_of(
        self, inputs: tuple[str, ...], outputs: tuple[str, ...], tensors: Mapping[str, Tensor]
    ) -> dict[str, tuple[str | None, ...]]:
        """The mapping for Graph.free. An output without a declared shape may depend on any free dimension of the inputs,
        so all its axes count as free."""
        found = {name: free for name in inputs if (free := self.free[name]) and free.count(None) < len(free)}
        for name in outputs if found else ():
            free = self.free[name]
            known = tensors[name].shape if name in tensors else None
            if free is None and known is not None and name not in inputs:
                found[name] = ("",) * len(known)
            elif free and known is not None and len(free) == len(known) and free.count(None) < len(free):
                found[name] = free
        return found


def _imports(model: ModelProto, where: str) -> dict[str, int]:
    """Opset versions by domain ("" for ai.onnx). Raises ModelError if a model of IR version 3 or later
    declares none."""
    imports = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    if not imports and model.ir_version >= 3:
        raise ModelError(f"{where}: does not say which operator set it uses")
    return imports or {"": 1}


def _check_input(value: ValueInfoProto, where: str) -> None:
    """Raises ModelError for an input without a type, which the runtime does not accept."""
    kind = value.type.WhichOneof("value")
    if kind == "tensor_type":
        dtype_name(value.type.tensor_type.elem_type, f"{where}: input {value.name!r}")
    elif kind is None:
        raise ModelError(f"{where}: input {value.name!r} has no type; the file is damaged")


def _symbol(dim: TensorShapeProto.Dimension) -> str:
    """The name of a dimension; "" if it has none, or only punctuation like "?", because two such dimensions
    need not be equal."""
    return dim.dim_param if any(map(str.isalnum, dim.dim_param)) else ""


def free_of(declared: TypeProto) -> tuple[str | None, ...] | None:
    """For each axis, the name of a free dimension ("" if it has no name), or None for a fixed dimension; None
    if no shape is declared."""
    if not declared.HasField("tensor_type") or not declared.tensor_type.HasField("shape"):
        return None
    return tuple(
        None if dim.HasField("dim_value") and dim.dim_value >= 0 else _symbol(dim)
        for dim in declared.tensor_type.shape.dim
    )


def _attribute(node: NodeProto, name: str) -> AttributeProto | None:
    return next((attribute for attribute in node.attribute if attribute.name == name), None)


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
