"""The operator graph that the planner works on: Operator, Tensor, Constant, Graph. Facts and pure look-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edgepart.planner.errors import InternalError
from edgepart.planner.region import Array, Region


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the model."""

    name: str
    """Unique in the graph."""
    shape: tuple[int, ...] | None
    """None where it cannot be known before the run, and for values that are no tensors."""
    dtype: str
    """ONNX element type in lower case ("float", "float16", "int64", "string", "bool" ...), or "sequence", "map",
    "optional", "unknown" for what is no tensor."""
    item_bytes: int
    """Bytes per element; 0 where that has no meaning (strings, sequences)."""
    kind: bytes = field(default=b"", repr=False)
    """Of a sequence, map or optional, its serialised onnx.TypeProto: a segment that takes one has to declare it."""

    @property
    def region(self) -> Region:
        """All of it; `Region(())` where the shape is not known."""
        return Region.full(self.shape)

    @property
    def nbytes(self) -> int:
        return self.region.size * self.item_bytes


@dataclass(frozen=True)
class Constant:
    """A weight, or anything else that is the same for every request. Its bytes are read only when asked for."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    load: Callable[[], Array] = field(repr=False, compare=False)
    """Reads the value; arrays of sub-byte and bfloat16 types come in ml_dtypes' types."""

    @property
    def region(self) -> Region:
        return Region.full(self.shape)


@dataclass(frozen=True)
class Operator:
    """One node of the model."""

    name: str
    """Unique in the graph; made up where the model gives none."""
    op_type: str
    domain: str
    """"" is ai.onnx."""
    version: int
    """Version of the domain that the model imports."""
    inputs: tuple[str, ...]
    """Names of tensors or constants; "" for one left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    """Python values (int, float, str, bytes, lists, numpy arrays); sub-graphs as onnx.GraphProto."""
    captured: tuple[str, ...] = ()
    """Outer tensors and constants that sub-graphs read by name; they must be there, whole, when it runs."""


@dataclass(frozen=True)
class WholeModel:
    """The model as its file has it, as one segment (whole.py)."""

    model: bytes = field(repr=False)
    """Serialized ModelProto; big weights are external, under the names in `weights`."""
    inputs: tuple[str, ...]
    """What a session over it must be given: not what has a value in the model, nor what nothing reads."""
    weights: tuple[Constant, ...]
    """Those that are external: constants of the file, some of which the graph may have folded into others."""


@dataclass(frozen=True)
class Graph:
    """A model with every free dimension bound, weights apart, and operators in an order that can be run."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    """Graph inputs and what operators write; constants are not in here."""
    constants: Mapping[str, Constant]
    operators: tuple[Operator, ...]
    """In topological order."""
    opset_imports: Mapping[str, int]
    ir_version: int
    notes: tuple[str, ...] = ()
    """What was assumed on the way in, for the user to read ("batch taken as 1")."""
    free: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    """Inputs and outputs with dimensions that the model leaves free: for each axis the dimension's name, "" where it
    has none, and None where the model fixes it. Equal names stand for equal extents."""
    whole: WholeModel | None = field(default=None, repr=False)
    """None where the model cannot be one segment as it is."""

    @cached_property
    def producers(self) -> Mapping[str, Operator]:
        """By tensor name; graph inputs have none."""
        return {name: op for op in self.operators for name in op.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Operator, ...]]:
        """By tensor name, captured use included; () for a tensor nobody reads."""
        found: dict[str, list[Operator]] = {name: [] for name in self.tensors}
        for op in self.operators:
            for name in dict.fromkeys((*op.inputs, *op.captured)):
                if name in found:
                    found[name].append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    @cached_property
    def by_name(self) -> Mapping[str, Operator]:
        return {op.name: op for op in self.operators}

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor or constant."""
        if name in self.constants:
            return self.constants[name].shape
        return self.tensors[name].shape

    def weight(self, name: str) -> Constant:
        """A constant, or one of the file that was folded into others. KeyError."""
        if name not in self.constants:
            for constant in self.whole.weights if self.whole is not None else ():
                if constant.name == name:
                    return constant
        return self.constants[name]

    def region_of(self, name: str) -> Region:
        return Region.full(self.shape_of(name))

    def reads(self, op: Operator) -> Iterator[str]:
        """Tensors (not constants) that `op` needs, captured ones too, each once."""
        return (n for n in dict.fromkeys((*op.inputs, *op.captured)) if n in self.tensors)


def broken_rules(graph: Graph) -> Iterator[str]:
    """What makes `graph` no graph; nothing for a good one. Called where a model comes in and after tests."""
    known = set(graph.inputs) | set(graph.constants)
    names: set[str] = set()
    for op in graph.operators:
        if op.name in names:
            yield f"two operators are called {op.name!r}"
        names.add(op.name)
        for name in (*op.inputs, *op.captured):
            if name and name not in known:
                yield f"{op.op_type} {op.name!r} reads {name!r} before anything writes it"
        for name in filter(None, op.outputs):
            if name in known:
                yield f"{name!r} is written twice, the second time by {op.op_type} {op.name!r}"
            if name not in graph.tensors:
                yield f"{name!r}, written by {op.op_type} {op.name!r}, is no tensor of the graph"
            known.add(name)
    for name in graph.outputs:
        if name not in known:
            yield f"output {name!r} is written by no operator"


def check(graph: Graph) -> Graph:
    """`graph` itself; InternalError naming every broken rule."""
    if broken := list(broken_rules(graph)):
        raise InternalError("the graph breaks its rules: " + "; ".join(broken))
    return graph
