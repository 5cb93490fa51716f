"""Checks one node against what ONNX demands: its operator exists, and the number and types of its inputs and outputs and
its attributes with their values are allowed. Pure rules.

ONNX's own checker does most of this. The module adds checks for nodes that the checker accepts, and on which
the runtime or shape inference fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache

from onnx import IR_VERSION, NodeProto, TensorProto, TypeProto, ValueInfoProto, checker, defs, helper
from onnx.onnx_cpp2py_export import checker as bare

from edgepart.planner.errors import ModelError
from edgepart.planner.model.subgraphs import captured_names, describe_node, nested_graphs
from edgepart.planner.model.weights import dtype_name

Types = Mapping[str, TypeProto]
Shapes = list[tuple[int, ...] | None]
"""Shapes of a node's inputs; None for an input that is left out or has no known shape."""

RUNTIME_ONLY = frozenset(
    [
        "Affine",
        "Crop",
        "DynamicSlice",
        "GivenTensorFill",
        "ImageScaler",
        "LayerNormalization",
        "ParametricSoftplus",
        "Scale",
        "ScaledTanh",
        "SimplifiedLayerNormalization",
        "ThresholdedRelu",
    ]
)
"""Operators that ONNX Runtime has in ai.onnx, but ONNX does not have, or not in that version."""

OLDEST_IR = 4
"""The oldest IR version by which nodes are checked. Before it, initializers had to be inputs as well. The
runtime does not insist on that, so the checks do not either."""


def check_opsets(imports: Mapping[str, int], ir_version: int) -> str | None:
    """The fault in the versions that a model declares; None if there is none."""
    if ir_version > IR_VERSION:
        return f"is of version {ir_version} of ONNX's format; this program knows those up to {IR_VERSION}: update it"
    for domain, version in imports.items():
        if version < 1:
            return f"uses version {version} of {domain or 'ai.onnx'}, which cannot be"
    newest = defs.onnx_opset_version()
    if imports.get("", 1) > newest:
        return f"uses version {imports['']} of ai.onnx; this program knows those up to {newest}: update it"
    return None


def schema_of(op_type: str, version: int, domain: str) -> defs.OpSchema | None:
    """The operator's schema; None if ONNX does not know the operator in that version."""
    return _schema(op_type, version, "" if domain == "ai.onnx" else domain)


@lru_cache(maxsize=4096)
def _schema(op_type: str, version: int, domain: str) -> defs.OpSchema | None:
    if not defs.has(op_type, domain):
        return None
    try:
        return defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None


def check_node(node: NodeProto, types: Types, imports: Mapping[str, int], ir_version: int) -> None:
    """Raises ModelError, naming the node, if ONNX does not allow the node. `types` holds the types of its
    inputs and of the values that its sub-graphs read."""
    schema = schema_of(node.op_type, imports.get(node.domain, 1), node.domain)
    if schema is None and not node.domain and node.op_type in RUNTIME_ONLY:
        return
    try:
        _check_form(node, types, tuple(imports.items()), max(ir_version, OLDEST_IR))
    except checker.ValidationError as error:
        raise ModelError(f"{describe_node(node)} is not a valid operator: {_first(error)}") from error
    if schema is None:
        return
    if fault := _fault_of_types(node, types, _formals(node.op_type, schema.since_version, node.domain)):
        raise ModelError(f"{describe_node(node)}: {fault}")
    _check_values(node, _shapes(node, types))


def _check_values(node: NodeProto, shapes: Shapes) -> None:
    """Raises ModelError for a fault in attributes, also in those of nodes in sub-graphs, because shape
    inference visits sub-graphs by itself."""
    if node.domain in ("", "ai.onnx"):
        rule = _VALUES.get(node.op_type)
        if fault := _fault_of_words(node) or (rule(node, shapes) if rule else None):
            raise ModelError(f"{describe_node(node)}: {fault}")
    for nested in nested_graphs(node):
        for inner in nested.node:
            _check_values(inner, [None] * len(inner.input))


def _check_form(node: NodeProto, types: Types, imports: tuple[tuple[str, int], ...], ir_version: int) -> None:
    if next(nested_graphs(node), None) is None:
        bare.check_node(node.SerializeToString(), _context(imports, ir_version), bare.LexicalScopeContext())
        return
    # Only a graph around the node can tell the checker which names its sub-graphs may read.
    known = dict.fromkeys((*filter(None, node.input), *captured_names(node)))
    values = [ValueInfoProto(name=name, type=_with_shape(types.get(name))) for name in known]
    around = helper.make_graph([node], "around", values, [])
    bare.check_graph(around.SerializeToString(), _context(imports, ir_version), bare.LexicalScopeContext())


def _with_shape(of: TypeProto | None) -> TypeProto:
    """The type as the checker wants it for a graph's inputs, where tensors must have a shape; float if there is no type.
    The checker ignores the extents, which may be known only when the value is computed."""
    made = TypeProto()
    if of is not None and of.WhichOneof("value"):
        made.CopyFrom(of)
    else:
        made.tensor_type.elem_type = TensorProto.FLOAT
    for kind in ("tensor_type", "sparse_tensor_type"):
        if made.HasField(kind):
            getattr(made, kind).shape.SetInParent()
    return made


@lru_cache(maxsize=16)
def _context(imports: tuple[tuple[str, int], ...], ir_version: int) -> bare.CheckerContext:
    context = bare.CheckerContext()
    context.ir_version = ir_version
    context.opset_imports = dict(imports)
    return context


def _first(error: Exception) -> str:
    """The first paragraph of a message, on one line."""
    return " ".join(str(error).split("\n\n")[0].split())


@cache
def _formals(op_type: str, version: int, domain: str) -> tuple[tuple[str, frozenset[str]], ...]:
    """For each input of an operator: its type, or the name of a type variable ("T"; "" if inputs of a
    variadic parameter may have different types), and the types that are allowed. The last entry holds for all
    further inputs."""
    inputs = defs.get_schema(op_type, version, domain).inputs
    return tuple((p.type_str if p.is_homogeneous else "", frozenset(p.types)) for p in inputs)


def _fault_of_types(
    node: NodeProto, types: Types, formals: tuple[tuple[str, frozenset[str]], ...]
) -> str | None:
    bound: dict[str, tuple[str, str]] = {}
    for index, name in enumerate(node.input):
        found = _tensor_text(types.get(name)) if name else None
        if found is None:
            continue
        kind, allowed = formals[min(index, len(formals) - 1)]
        if found not in allowed:
            return f"its input {name!r} is a {found}, which it does not take"
        first, of = bound.setdefault(kind, (name, found))
        if kind and of != found:
            return f"its inputs {first!r} and {name!r} are a {of} and a {found}, and must be of one type"
    return None


def _tensor_text(of: TypeProto | None) -> str | None:
    """The type as a schema writes it, like "tensor(float)"; None if it is not known, or not a tensor."""
    if of is None or not of.HasField("tensor_type") or not of.tensor_type.elem_type:
        return None
    return f"tensor({dtype_name(of.tensor_type.elem_type)})"


def _shapes(node: NodeProto, types: Types) -> Shapes:
    found: Shapes = []
    for name in node.input:
        of = types.get(name)
        dims = of.tensor_type.shape.dim if of is not None and of.tensor_type.HasField("shape") else None
        known = dims is not None and all(dim.HasField("dim_value") for dim in dims)
        found.append(tuple(dim.dim_value for dim in dims) if known and dims is not None else None)
    return found


def _integers(node: NodeProto, name: str) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == name), [])


def _integer(node: NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


Rule = Callable[[NodeProto, Shapes], str | None]
"""Returns the fault in a node's values, or None. The checker has already found the values to be of the right
kind."""


def _convolution(weight: int, *, transposed: bool = False) -> Rule:
    """The rule for a convolution whose weight is input number `weight`."""

    def rule(node: NodeProto, shapes: Shapes) -> str | None:
        group = _integer(node, "group", 1)
        if group < 1:
            return f"group {group} must be at least 1"
        kernel, of = _integers(node, "kernel_shape"), shapes[weight] if weight < len(shapes) else None
        if of is None or len(of) < 3:
            return None
        if kernel and tuple(kernel) != of[2:]:
            return f"kernel_shape {kernel} is not that of its weight {list(of)}"
        channels = shapes[0][1] if shapes[0] and len(shapes[0]) == len(of) else None
        taken = of[0] if transposed else of[1] * group
        if channels is not None and channels != taken:
            return f"its input has {channels} channels, and its weight {list(of)} takes {taken} in {group} groups"
        return f"{of[0]} channels do not make {group} groups" if of[0] % group else None

    return rule


def _permutation(node: NodeProto, shapes: Shapes) -> str | None:
    perm = _integers(node, "perm")
    if not perm or not shapes or shapes[0] is None or sorted(perm) == list(range(len(shapes[0]))):
        return None
    return f"perm {perm} is not a permutation of the {len(shapes[0])} axes of its input"


def _equation(node: NodeProto, shapes: Shapes) -> str | None:
    """The fault in an equation. Shape inference reads past the end of its tables if a letter of the result is
    in no operand."""
    text = next((a.s.decode("utf-8", "replace") for a in node.attribute if a.name == "equation"), "")
    plain = text.replace(" ", "")
    left, arrow, right = plain.partition("->")
    if not re.fullmatch(r"([A-Za-z]|\.{3}|,)*(->([A-Za-z]|\.{3})*)?", plain):
        return f"equation {text!r} is not valid: it may contain letters, commas, '...' and one '->'"
    if arrow and (strange := sorted(set(right) - set(left))):
        return f"equation {text!r} has {', '.join(strange)} in its result and in no operand"
    if any(part.count("...") > 1 for part in (*left.split(","), right)):
        return f"equation {text!r} has '...' twice in one term"
    return None


def _at_least_one(name: str) -> Rule:
    def rule(node: NodeProto, shapes: Shapes) -> str | None:
        value = _integer(node, name, 1)
        return None if value >= 1 else f"{name} {value} must be at least 1"

    return rule


def _batches(node: NodeProto, shapes: Shapes) -> str | None:
    """The fault in `batch_dims`, from which shape inference counts axes without a check."""
    count = _integer(node, "batch_dims", 0)
    return f"batch_dims {count} must be at least 0" if count < 0 else None


def _parts(node: NodeProto, shapes: Shapes) -> str | None:
    """The fault in `num_outputs`. Shape inference writes that many shapes, even if the node has fewer outputs."""
    count = _integer(node, "num_outputs", len(node.output))
    return (
        f"num_outputs {count} is not the number of its outputs, {len(node.output)}"
        if count != len(node.output)
        else None
    )


def _axis(node: NodeProto, shapes: Shapes) -> str | None:
    axis, rank = _integer(node, "axis", -1), len(shapes[0]) if shapes and shapes[0] is not None else None
    return f"axis {axis} is not one of its input's {rank}" if rank and not -rank <= axis < rank else None


ALLOWED_WORDS: Mapping[tuple[str, str], frozenset[str]] = {
    ("", "auto_pad"): frozenset({"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}),
    ("Pad", "mode"): frozenset({"constant", "reflect", "edge", "wrap"}),
    ("Resize", "mode"): frozenset({"nearest", "linear", "cubic"}),
    ("Upsample", "mode"): frozenset({"nearest", "linear"}),
}
"""The words that an attribute may have, by operator ("" for all) and attribute."""


def _fault_of_words(node: NodeProto) -> str | None:
    for attribute in node.attribute:
        allowed = ALLOWED_WORDS.get((node.op_type, attribute.name)) or ALLOWED_WORDS.get(("", attribute.name))
        word = attribute.s.decode("utf-8", "replace")
        if allowed and word not in allowed:
            return f"{attribute.name} {word!r} is none of {', '.join(sorted(allowed))}"
    return None


_VALUES: Mapping[str, Rule] = {
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "ConvTranspose": _convolution(1, transposed=True),
    "DepthToSpace": _at_least_one("blocksize"),
    "Einsum": _equation,
    "GRU": _at_least_one("hidden_size"),
    "GatherND": _batches,
    "GroupNormalization": _at_least_one("num_groups"),
    "LRN": _at_least_one("size"),
    "LSTM": _at_least_one("hidden_size"),
    "LayerNormalization": _axis,
    "QLinearConv": _convolution(3),
    "RMSNormalization": _axis,
    "RNN": _at_least_one("hidden_size"),
    "SpaceToDepth": _at_least_one("blocksize"),
    "Split": _parts,
    "Transpose": _permutation,
}
