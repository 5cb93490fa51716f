"""Builds a Graph from a model, in one pass over its nodes: each becomes constants, the nodes of a branch, or an operator.
Rules over protos; small weights are read from the model's files.

shapes/ says what types values have, constant_folding.py folds constants, and weights.py reads the weights of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import ModelProto, NodeProto, TypeProto, ValueInfoProto

from edgepart.planner.errors import EdgepartError, ModelError
from edgepart.planner.model.attributes import find_attribute, plain_attributes
from edgepart.planner.model.constant_folding import fold_node
from edgepart.planner.model.described_operators import infer_function
from edgepart.planner.model.faults import FAULTS
from edgepart.planner.model.graph import Constant, Graph, Operator, Tensor
from edgepart.planner.model.shapes.declared_types import DeclaredTypes
from edgepart.planner.model.shapes.free_dimensions import BoundDimensions, free_axes, inputs_of
from edgepart.planner.model.shapes.shape_inference import infer_types, tensor_of, type_of
from edgepart.planner.model.subgraphs import (
    captured_names,
    describe_node,
    inline_branch,
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


class GraphBuilder:
    """The state of the single pass over a model. The pass changes the model."""

    def __init__(
        self,
        model: ModelProto,
        origin: Origin,
        dimensions: BoundDimensions,
        functions: Mapping[tuple[str, str], bytes],
    ) -> None:
        self.model, self.origin, self.dimensions = model, origin, dimensions
        self.functions = functions
        """The model's functions that are not written out (Graph.functions)."""
        self.imports = _imports(model, origin.name)
        self.declared = DeclaredTypes(origin.name, dimensions)
        self.types: dict[str, TypeProto] = {}
        """Types of all values written so far, constants included, by name."""
        self.constants: dict[str, Constant] = {}
        self.operators: list[Operator] = []
        self.names: set[str] = set()
        """Names of the operators so far."""

    def graph(self) -> Graph:
        """The model's graph. Raises ModelError if the model cannot be used, and UsageError if the user's shapes do not fit
        its inputs."""
        source = self.model.graph
        if fault := check_opsets(self.imports, self.model.ir_version):
            raise ModelError(f"{self.origin.name}: {fault}")
        for sparse in source.sparse_initializer:
            self._add_constant(sparse_constant_of(sparse, self.origin))
        for proto in source.initializer:
            self._add_constant(constant_of(proto, self.origin))
        inputs = inputs_of(self.model)
        for value in inputs:
            _check_input(value, self.origin.name)
        self.types |= self.dimensions.bind(inputs)
        self.declared.add((*source.value_info, *source.output))
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
            and (proto := find_attribute(node, "value")) is not None
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
            notes = (*self.dimensions.notes, *self.declared.notes)
            assumed = f" ({'; '.join(notes)})" if notes else ""
            raise ModelError(f"{self.origin.name}: {error}{assumed}") from error
        known = self.declared.complete(node, read, found)
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
        taken = find_attribute(
            node, "then_branch" if condition.size == 1 and condition.item() else "else_branch"
        )
        fits = taken is not None and condition.size == 1 and len(taken.g.output) == len(node.output)
        return taken.g if fits and taken is not None else None

    def _visit_branch(self, node: NodeProto, branch: onnx.GraphProto) -> None:
        inlined = inline_branch(node, branch, self.types.keys())
        for sparse in inlined.sparse_initializer:
            self._add_constant(sparse_constant_of(sparse, self.origin))
        for proto in inlined.initializer:
            self._add_constant(constant_of(proto, self.origin))
        self.declared.add(inlined.value_info)
        self._visit_all(inlined.node, tuple(node.output))

    def _operator(self, node: NodeProto, version: int) -> Operator:
        return Operator(
            name=self._new_name(node),
            op_type=node.op_type,
            domain=node.domain,
            version=version,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes=plain_attributes(node, self.origin),
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
            notes=(*self.dimensions.notes, *self.declared.notes, *self.declared.count_contradictions()),
            free=free_axes(self.model, tensors),
        )


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
