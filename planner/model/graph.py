"""The operator graph that the planner works on: Operator, Tensor, Constant, Graph. Facts, and pure look-ups in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edgepart.planner.errors import InternalError
from edgepart.planner.region import Array, Interval, Region, span
from edgepart.planner.tdl.description import OperatorDescription


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the model."""

    name: str
    """Unique in the graph."""
    shape: tuple[int, ...] | None
    """None if the shape cannot be known before the run, and for values that are not tensors."""
    dtype: str
    """ONNX element type in lower case ("float", "float16", "int64", "string", "bool" ...), or "sequence", "map",
    "optional", "unknown" for a value that is not a tensor."""
    item_bytes: int
    """Bytes per element; 0 for strings, and for values that are not tensors."""
    kind: bytes = field(default=b"", repr=False)
    """The serialised onnx.TypeProto of a sequence, map or optional, which a segment that reads it has to declare."""

    @property
    def region(self) -> Region:
        """The whole tensor; `Region(())` if the shape is not known."""
        return Region.full(self.shape)

    @property
    def nbytes(self) -> int:
        return self.region.size * self.item_bytes


@dataclass(frozen=True)
class Constant:
    """A weight, or another value that is the same for every request. Its bytes are read only on demand."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    load: Callable[[], Array] = field(repr=False, compare=False)
    """Reads the value; arrays of sub-byte types and bfloat16 have the types of ml_dtypes."""

    @property
    def region(self) -> Region:
        return Region.full(self.shape)


@dataclass(frozen=True)
class Operator:
    """One node of the model."""

    name: str
    """Unique in the graph; made up if the model gives none."""
    op_type: str
    domain: str
    """"" for ai.onnx."""
    version: int
    """The opset version of the domain that the model imports."""
    inputs: tuple[str, ...]
    """Names of tensors or constants; "" for an input that is left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    """Python values (int, float, str, bytes, lists, numpy arrays); sub-graphs as onnx.GraphProto."""
    captured: tuple[str, ...] = ()
    """Outer tensors and constants that its sub-graphs read by name; they must be present and whole when the
    operator runs."""


@dataclass(frozen=True, slots=True)
class State:
    """A value that a step leaves for the next step of its sequence: an output of the model that is an input of the next
    step."""

    output: str
    input: str
    grows: int | None = None
    """The axis along which the output is longer than the input, by the rows that the step adds at the end. The next step's
    input is the end of the output. None if both have the same shape."""
    in_place: bool = False
    """Whether the operator that writes the output can write it over the input: it changes only rows that the step adds,
    and nothing depends on rows after those. So a step can also be made again, or a sequence be continued from an earlier
    row."""
    short: bool = False
    """Whether a step may add fewer rows than the output is longer, one at least. The others lie behind those that it adds,
    and are not kept."""


@dataclass(frozen=True)
class WholeModel:
    """The model as it stands in its file, as one segment (whole.py)."""

    model: bytes = field(repr=False)
    """Serialized ModelProto; big weights are external, under the names in `weights`."""
    inputs: tuple[str, ...]
    """The inputs that its session must be given. Inputs that have a value in the model or that no node reads
    are left out."""
    weights: tuple[Constant, ...]
    """The external weights: constants of the file, some of which the graph may have folded into others."""


@dataclass(frozen=True)
class Graph:
    """A model whose free dimensions are bound, with weights kept apart and operators in an order that can run."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    """Graph inputs and the outputs of operators, by name; no constants."""
    constants: Mapping[str, Constant]
    operators: tuple[Operator, ...]
    """The operators in topological order."""
    opset_imports: Mapping[str, int]
    ir_version: int
    notes: tuple[str, ...] = ()
    """The assumptions of the loader, for the user to read ("batch taken as 1")."""
    free: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    """Maps inputs and outputs with free dimensions to an entry for each axis: the dimension's name if it is
    free ("" if it has no name), or None if the model fixes it. Equal names stand for equal extents."""
    whole: WholeModel | None = field(default=None, repr=False)
    """The model itself as one segment; None if it cannot be one."""
    states: tuple[State, ...] = ()
    """The states that devices keep between the steps of a sequence. A request brings none of their inputs, and is answered
    with none of their outputs."""

    descriptions: Mapping[tuple[str, str], tuple[OperatorDescription, ...]] = field(default_factory=dict)
    """Users' descriptions of operators, by domain ("" is ai.onnx) and type; the first that fits an operator counts."""
    functions: Mapping[tuple[str, str], bytes] = field(default_factory=dict, repr=False)
    """The model's own functions that are operators of the graph, as they are described, and the functions that they call:
    serialised onnx.FunctionProto, by domain and name. All others are written out."""

    @cached_property
    def request_inputs(self) -> tuple[str, ...]:
        """The inputs that a request brings."""
        kept = {state.input for state in self.states}
        return tuple(name for name in self.inputs if name not in kept)

    @cached_property
    def answer_outputs(self) -> tuple[str, ...]:
        """The outputs with which a request is answered."""
        kept = {state.output for state in self.states}
        return tuple(name for name in self.outputs if name not in kept)

    @cached_property
    def in_place(self) -> frozenset[str]:
        """The inputs and outputs of states that an operator writes in place: of the output only the rows that a step adds
        are written, and neither is copied."""
        kept = [state for state in self.states if state.in_place]
        return frozenset(name for state in kept for name in (state.input, state.output))

    def written_region(self, state: State, read: Region) -> Region:
        """The region of a state's output that becomes the region `read` of its input; if steps may be short, the region of
        all that may become it."""
        if state.grows is None:
            return read
        least, most = self._rows_added(state, state.grows)
        rows = (Interval(one.start + least, one.stop + most) for one in read.spans[state.grows])
        return read.replace(state.grows, span(*rows))

    def read_region(self, state: State, written: Region) -> Region:
        """The region of a state's input that the region `written` of its output becomes: what `written_region` is the
        inverse of."""
        if state.grows is None:
            return written
        least, most = self._rows_added(state, state.grows)
        rows = (Interval(one.start - least, one.stop - most) for one in written.spans[state.grows])
        return written.replace(state.grows, span(*rows))

    def _rows_added(self, state: State, axis: int) -> tuple[int, int]:
        """The fewest and the most rows that a step adds."""
        most = self.region_of(state.output).shape[axis] - self.region_of(state.input).shape[axis]
        return (1 if state.short else most), most

    @cached_property
    def producers(self) -> Mapping[str, Operator]:
        """Maps each tensor to the operator that writes it. Graph inputs are left out."""
        return {name: op for op in self.operators for name in op.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Operator, ...]]:
        """Maps each tensor to the operators that read it, also by a captured name; () if no operator reads
        the tensor."""
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
        """The shape of a tensor or constant."""
        if name in self.constants:
            return self.constants[name].shape
        return self.tensors[name].shape

    def weight(self, name: str) -> Constant:
        """A constant of the graph, or of the file if it was folded into others. Raises KeyError for an
        unknown name."""
        if name not in self.constants:
            for constant in self.whole.weights if self.whole is not None else ():
                if constant.name == name:
                    return constant
        return self.constants[name]

    def region_of(self, name: str) -> Region:
        return Region.full(self.shape_of(name))

    def reads(self, op: Operator) -> Iterator[str]:
        """Yields the names of the tensors (not constants) that `op` reads, captured tensors too, each once."""
        return (n for n in dict.fromkeys((*op.inputs, *op.captured)) if n in self.tensors)


def broken_graph_rules(graph: Graph) -> Iterator[str]:
    """Yields the rules that `graph` breaks; none for a valid graph. Checked when a model is loaded, and by
    tests."""
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
                yield f"{name!r}, written by {op.op_type} {op.name!r}, is not a tensor of the graph"
            known.add(name)
    for name in graph.outputs:
        if name not in known:
            yield f"output {name!r} is written by no operator"


def check_graph(graph: Graph) -> Graph:
    """Returns `graph`. Raises InternalError, naming every broken rule, if the graph is not valid."""
    if broken := list(broken_graph_rules(graph)):
        raise InternalError("the graph breaks its rules: " + "; ".join(broken))
    return graph
