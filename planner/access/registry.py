"""Registry: the table of declarations, and the look-ups `access_of` (one operator) and `accesses` (a graph). Rules only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from edgepart.planner.access.attention import contrib, embedding, onnx, projected, rotary
from edgepart.planner.access.declare.bound import BoundOperator, Shape, bind
from edgepart.planner.access.declare.derived import Derived, WholeOperator
from edgepart.planner.access.declare.described import described
from edgepart.planner.access.declare.protocol import Access
from edgepart.planner.access.operators import (
    block_quantised,
    contraction,
    convolution,
    data_movement,
    einsum,
    elementwise,
    fourier,
    generators,
    image,
    losses,
    matrices,
    ml,
    ml_strings,
    normalisation,
    opaque,
    pooling,
    quantised,
    recurrent,
    reduction,
    reshape,
    resize,
    sampling,
    scattering,
)
from edgepart.planner.errors import EdgepartError, ModelError, UsageError
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.region import Region
from edgepart.planner.tdl.description import OperatorDescription

Declaration = Callable[[BoundOperator], Derived]

_FAMILIES = (
    onnx,
    contrib,
    projected,
    block_quantised,
    contraction,
    opaque,
    convolution,
    einsum,
    elementwise,
    embedding,
    ml,
    generators,
    image,
    losses,
    matrices,
    data_movement,
    normalisation,
    pooling,
    quantised,
    recurrent,
    reduction,
    resize,
    rotary,
    sampling,
    scattering,
    fourier,
    ml_strings,
    reshape,
)

_TABLES = {
    "": "DECLARATIONS",
    "com.microsoft": "MICROSOFT",
    "ai.onnx.ml": "ML",
    "ai.onnx.preview": "PREVIEW",
    "ai.onnx.preview.training": "TRAINING",
}
"""Maps a domain to the name of the table in which a family module declares the operators of that domain."""


def _table() -> dict[tuple[str, str], Declaration]:
    table: dict[tuple[str, str], Declaration] = {}
    for family in _FAMILIES:
        for domain, called in _TABLES.items():
            for name, declaration in getattr(family, called, {}).items():
                if (domain, name) in table:
                    raise ValueError(f"{name} of {domain or 'ai.onnx'} is declared twice")
                table[domain, name] = declaration
    return table


DECLARED: Mapping[tuple[str, str], Declaration] = _table()
"""The declarations, by domain ("" is ai.onnx) and operator type."""

OPAQUE: Mapping[tuple[str, str], str] = {
    key: reason for family in _FAMILIES for key, reason in getattr(family, "OPAQUE", {}).items()
}
"""The reason why an operator runs whole on purpose, by domain and operator type."""


def access_of(operator: Operator, graph: Graph) -> Access:
    """Returns the declaration of `operator`, or what follows from the user's description of it. The operator is opaque if
    it has neither, or if its shapes are not known.

    Raises ModelError if the attributes and shapes of an operator of ai.onnx do not fit each other."""
    bound = bind(operator, graph)
    if isinstance(bound, str):
        return _opaque(operator, graph, bound)
    domain = "" if operator.domain == "ai.onnx" else operator.domain
    declaration = DECLARED.get((domain, operator.op_type))
    if operator.captured:
        return WholeOperator(bound, "it holds sub-graphs that read values of the graph around them")
    if declaration is None and (found := graph.descriptions.get((domain, operator.op_type))):
        declaration = partial(described, descriptions=found)
    if declaration is None:
        return WholeOperator(bound, _describe_undeclared(operator))
    try:
        return _check_reads(declaration(bound), bound)
    except EdgepartError:
        raise
    except _FAULTS as error:
        if domain:
            # The file states the shapes of other domains' operators, and they may be wrong: run the operator whole.
            return WholeOperator(
                bound, f"its attributes and the shapes that the file states do not fit: {error!r}"
            )
        raise ModelError(
            f"{operator.op_type} {operator.name!r} cannot be planned: its attributes and the shapes of its inputs "
            f"{[list(shape) if shape is not None else None for shape in bound.inputs]} do not fit each other "
            f"({error!r}). If ONNX Runtime runs the model, please report it"
        ) from error


_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The exceptions that a declaration may raise for an invalid operator, as declarations trust that attributes
and shapes fit the operator's definition."""


def _check_reads(access: Access, bound: BoundOperator) -> Access:
    """Returns `access`. Raises ValueError if its whole outputs would read anything outside an input."""
    if access.opaque is not None:
        return access
    whole = {index: Region.full(shape) for index, shape in enumerate(bound.outputs) if shape is not None}
    access.axes()
    for index, (read, shape) in enumerate(zip(access.needs(whole), bound.inputs, strict=True)):
        if read is not None and (shape is None or not Region.full(shape).contains(read)):
            raise ValueError(f"it would read {read} of input {index}, whose shape is {shape}")
    return access


def check_described(graph: Graph, descriptions: Iterable[OperatorDescription]) -> None:
    """Raises UsageError if one of these descriptions is of an operator that edgepart knows by itself, or that the graph
    does not have, or if an operator that is described is not divided."""
    for one in descriptions:
        called = f"{one.op_type} of {one.domain or 'ai.onnx'}"
        if one.key in DECLARED:
            raise UsageError(
                f"{called} is described, and edgepart knows it by itself; leave the description out"
            )
        found = [
            op
            for op in graph.operators
            if ("" if op.domain == "ai.onnx" else op.domain, op.op_type) == one.key
        ]
        if not found:
            others = sorted({f"{op.op_type} of {op.domain}" for op in graph.operators if op.domain})
            raise UsageError(
                f"{called} is described, and {graph.name} has no such operator; of other domains than ai.onnx it has "
                f"{', '.join(others) or 'none'}"
            )
        for op in found:
            if (access := access_of(op, graph)).opaque is not None:
                raise UsageError(f"{op.op_type} {op.name!r} is not divided: {access.opaque}")


def accesses(graph: Graph) -> Mapping[str, Access]:
    """Returns the declarations of all operators by name. Each is bound at its first look-up, and then kept."""
    return _Accesses(graph)


class _Accesses(Mapping[str, Access]):
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._found: dict[str, Access] = {}

    def __getitem__(self, name: str) -> Access:
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = access_of(self._graph.by_name[name], self._graph)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._graph.by_name)

    def __len__(self) -> int:
        return len(self._graph.operators)


def _opaque(operator: Operator, graph: Graph, reason: str) -> WholeOperator:
    def shapes(names: Sequence[str]) -> tuple[Shape | None, ...]:
        return tuple(graph.shape_of(name) if name else None for name in names)

    return WholeOperator(
        BoundOperator(operator, graph, shapes(operator.inputs), shapes(operator.outputs)), reason
    )


def _describe_undeclared(operator: Operator) -> str:
    domain = "" if operator.domain == "ai.onnx" else operator.domain
    reason = OPAQUE.get((domain, operator.op_type))
    return reason or f"{operator.op_type} of {domain or 'ai.onnx'} has no declaration in planner/access"
