"""What is known of values that have the rows of a past, and of the operators that read them. Facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgepart.planner.errors import NotInPlace
from edgepart.planner.model.graph import Graph, Operator

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PastRows:
    """Where the rows of the past are in a value."""

    rows: int
    """The axis that has the past's rows and those of the step."""
    batch: int
    """The axis that has the sequences of a batch."""
    inner: int = 1
    """The elements of that axis for each sequence (such as heads); those of a sequence lie side by side."""
    masked: bool = False
    """Whether the mask has been applied to it."""
    shares: bool = False
    """Whether rows that the mask leaves out are zeros, because a Softmax gave each row its share."""
    sinks: int = 0
    """The elements behind the rows that are no rows, but take a share like them."""

    @property
    def place(self) -> tuple[int, int, int]:
        return self.rows, self.batch, self.inner

    @property
    def form(self) -> tuple[int, int, int, int]:
        """What has to be the same of two values whose elements are put together."""
        return *self.place, self.sinks


@dataclass(frozen=True)
class Alongside:
    """An input that has a column for each of the past's rows without having rows itself, such as a mask. Its columns have
    to be put into the order of the rows."""

    number: int
    """The number of the operator's input."""
    rank: int
    """The axes that it has to have for this, those that are missing in front included."""
    past_rows: PastRows
    """Where rows and sequences are, counted among these axes."""


@dataclass(frozen=True)
class Followed:
    """What an operator makes of values with rows of the past."""

    writes: Mapping[str, PastRows]
    """The outputs that have rows of the past."""
    alongside: tuple[Alongside, ...] = ()


@dataclass(frozen=True)
class Reading:
    """An operator, with what is known of its inputs."""

    graph: Graph
    op: Operator
    past_rows: Mapping[int, PastRows]
    """The inputs that have rows of the past, by their numbers."""
    of_mask: frozenset[int]
    """The inputs that have no rows of the past, and depend on the mask."""
    sequences: int

    def refuse(self, why: str) -> NotInPlace:
        return NotInPlace(f"{self.op.op_type} {self.op.name!r} {why}")

    def shape(self, name: str) -> Shape:
        """Raises NotInPlace if it is not known."""
        found = self.graph.shape_of(name)
        if found is None:
            raise self.refuse(f"has {name!r}, whose shape is known only at run time")
        return found

    def input_shape(self, number: int) -> Shape:
        return self.shape(self.op.inputs[number])

    @property
    def output(self) -> Shape:
        return self.shape(self.op.outputs[0])

    def only(self) -> PastRows:
        """Where the rows are in the first input of an operator that reads no others of the past. Raises NotInPlace."""
        if self.past_rows.keys() != {0}:
            raise self.refuse("reads rows of the past in an unusual way")
        return self.past_rows[0]

    def write(self, one: PastRows) -> Followed:
        return Followed(dict.fromkeys(self.op.outputs[:1], one))

    def attribute(self, name: str, usual: int) -> int:
        return int(self.op.attributes.get(name, usual))
