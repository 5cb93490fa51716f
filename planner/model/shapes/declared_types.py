"""What a file says of the types of values that operators write: it is taken where inference finds nothing, and not believed
where inference finds something else. Pure rules over protos."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from onnx import NodeProto, TypeProto, ValueInfoProto

from edgepart.planner.errors import ModelError
from edgepart.planner.model.shapes.free_dimensions import BoundDimensions
from edgepart.planner.model.shapes.shape_inference import SHAPED_BY_DATA, Types, known_shape
from edgepart.planner.model.subgraphs import describe_node, nested_graphs
from edgepart.planner.model.weights import dtype_name

MOST_CONTRADICTIONS = 3
"""As many values whose shapes the file has wrong get a note each; an exporter may have ten of each layer wrong."""


@dataclass
class DeclaredTypes:
    """The types that a file declares, and those among them that are wrong."""

    model: str
    """The model's name, for messages."""
    dimensions: BoundDimensions
    """What the dimensions of declared shapes are bound to."""
    types: dict[str, TypeProto] = field(default_factory=dict)
    """The declared types that may be right, by the value's name."""
    contradicted: set[str] = field(default_factory=set)
    """Values of which the file says another shape than they have."""
    notes: list[str] = field(default_factory=list)
    """A note on each of the first few of these."""

    def add(self, values: Iterable[ValueInfoProto]) -> None:
        """Takes note of what the main graph says, or a branch that is written out into it."""
        self.types |= {value.name: self.dimensions.fill(value.type) for value in values}

    def complete(self, node: NodeProto, read: Types, found: Types) -> dict[str, TypeProto]:
        """The types of the node's outputs, as far as they are known: those found by inference, completed by what the file
        says. `read`: the types of its inputs and captured values. Raises ModelError if the file says another element
        type."""
        for name in filter(None, node.output):
            self._compare(node, name, found.get(name))
        said: Types = {} if _depends_on_data(node, read, found) else self.types
        merged = {name: _complete_type(found.get(name), said.get(name)) for name in node.output if name}
        return {name: of for name, of in merged.items() if of is not None}

    def _compare(self, node: NodeProto, name: str, found: TypeProto | None) -> None:
        """Compares the type that the file declares for a value with the inferred one. As in the runtime,
        another element type raises ModelError; another shape only gets a note, and the inferred shape is
        taken."""
        fault = _find_contradiction(found, self.types.get(name))
        if fault is None:
            return
        if fault.of_type:
            raise ModelError(f"{self.model}: {describe_node(node)}: the file says that {name!r} {fault.text}")
        self.contradicted.add(name)
        if len(self.contradicted) <= MOST_CONTRADICTIONS:
            self.notes.append(f"{name}: the file says that it {fault.text}, and the latter was taken")
        del self.types[name]

    def count_contradictions(self) -> Iterator[str]:
        """Yields a note on the values whose shapes the file has wrong, beyond those that have notes of their own."""
        if (more := len(self.contradicted) - MOST_CONTRADICTIONS) > 0:
            yield f"the file has the shapes of {more} more values wrong, too"


def _depends_on_data(node: NodeProto, read: Types, found: Types) -> bool:
    """Whether the shapes of a node's outputs cannot be known before a request, whatever the file
    declares: inference knows the operator, and the shapes depend on the elements or the unknown shapes of
    its inputs."""
    if not found or next(nested_graphs(node), None) is not None:
        return False
    if not all(of.HasField("tensor_type") for of in (*read.values(), *found.values())):
        return False
    unknown = any(known_shape(of) is None for of in read.values())
    return unknown or (node.op_type in SHAPED_BY_DATA and not node.domain)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A difference between the type that a file declares for a value and the type that its operator writes."""

    text: str
    """A text for people: "is ..., but it is ..."."""
    of_type: bool
    """Whether the element type or the kind differs, not only the shape."""


def _find_contradiction(found: TypeProto | None, declared: TypeProto | None) -> Contradiction | None:
    """The difference between the type that the file declares and the type found; None if they agree as far as
    both are known."""
    if found is None or declared is None:
        return None
    kinds = found.WhichOneof("value"), declared.WhichOneof("value")
    if None in kinds or kinds != ("tensor_type", "tensor_type"):
        if None in kinds or kinds[0] == kinds[1]:
            return None
        return Contradiction(f"is a {kinds[1]}, but it is a {kinds[0]}".replace("_type", ""), of_type=True)
    mine, other = found.tensor_type, declared.tensor_type
    if mine.elem_type and other.elem_type and mine.elem_type != other.elem_type:
        names = dtype_name(other.elem_type), dtype_name(mine.elem_type)
        return Contradiction(f"is of {names[0]}, but it is of {names[1]}", of_type=True)
    if not mine.HasField("shape") or not other.HasField("shape"):
        return None
    pairs = list(zip(mine.shape.dim, other.shape.dim, strict=False))
    if len(mine.shape.dim) == len(other.shape.dim) and all(
        a.dim_value == b.dim_value for a, b in pairs if a.HasField("dim_value") and b.HasField("dim_value")
    ):
        return None
    return Contradiction(f"has the shape {_extents(other)}, but it has {_extents(mine)}", of_type=False)


def _extents(of: TypeProto.Tensor) -> str:
    found = (
        str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in of.shape.dim
    )
    return f"[{', '.join(found)}]"


def _complete_type(found: TypeProto | None, declared: TypeProto | None) -> TypeProto | None:
    """`found`, with its unknown parts taken from `declared`."""
    if found is None or found.WhichOneof("value") is None:
        return declared
    if declared is None or not (found.HasField("tensor_type") and declared.HasField("tensor_type")):
        return found
    result = TypeProto()
    result.CopyFrom(found)
    mine, other = result.tensor_type, declared.tensor_type
    mine.elem_type = mine.elem_type or other.elem_type
    if not mine.HasField("shape") and other.HasField("shape"):
        mine.shape.CopyFrom(other.shape)
    elif len(mine.shape.dim) == len(other.shape.dim):
        for dim, stated in zip(mine.shape.dim, other.shape.dim, strict=True):
            if not dim.HasField("dim_value") and stated.HasField("dim_value"):
                dim.dim_value = stated.dim_value
    return result
