"""Reshape, Flatten, Squeeze and Unsqueeze. Both shapes are divided into the smallest blocks of axes that hold the same
elements. Inside a block, contiguous runs of elements map to contiguous runs. Rules only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from edgepart.planner.access.declare.bound import BoundOperator, Shape
from edgepart.planner.access.declare.cut_nodes import cut, integers
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, split_axes
from edgepart.planner.access.declare.protocol import Axis, Local, LocalNode, Outputs
from edgepart.planner.region import Region, Span, span, span_hull, span_size


@dataclass(frozen=True, slots=True)
class Block:
    """Axes of the input and axes of the output that hold the same elements, in order, none of extent 1."""

    ins: tuple[int, ...]
    outs: tuple[int, ...]
    in_extents: Shape
    out_extents: Shape

    @property
    def quantum(self) -> int:
        """The number at whose multiples a cut of the first output axis is also a cut of the first input axis."""
        inner_in, inner_out = prod(self.in_extents[1:]), prod(self.out_extents[1:])
        return inner_in // gcd(inner_in, inner_out)

    def widen(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Returns the smallest spans of the output axes around `spans` whose elements are contiguous. The first axis may
        keep several intervals, if whole indices of the first input axis make them."""
        made = list(spans)
        first = next((n for n, one in enumerate(made) if span_size(one) > 1), len(made) - 1)
        if len(made[first]) > 1 and not (first == 0 and self._exact(made[0])):
            made[first] = span_hull(made[first])
        for n in range(first + 1, len(made)):
            made[n] = span((0, self.out_extents[n]))
        return tuple(made)

    def flat(self, made: Sequence[Span]) -> Span:
        """Returns the positions of widened spans among the block's elements."""
        if len(made[0]) > 1:
            inner = prod(self.out_extents[1:])
            return span(*((i.start * inner, i.stop * inner) for i in made[0]))
        first = last = 0
        for one, extent in zip(made, self.out_extents, strict=True):
            first, last = first * extent + one[0].start, last * extent + one[-1].stop - 1
        return span((first, last + 1))

    def read(self, flat: Span) -> tuple[tuple[Span, ...], Span]:
        """Returns the smallest spans of the input axes that hold the positions `flat`, and all positions that these
        spans hold."""
        inner = prod(self.in_extents[1:])
        if len(flat) > 1:
            lead = span(*((i.start // inner, i.stop // inner) for i in flat))
            return (lead, *(span((0, extent)) for extent in self.in_extents[1:])), flat
        first, last = flat[0].start, flat[0].stop - 1
        spans: list[Span] = []
        held, size, same = 0, prod(self.in_extents), True
        for extent in self.in_extents:
            if not same:
                spans.append(span((0, extent)))
                continue
            size //= extent
            low, high = first // size, last // size
            first, last = first - low * size, last - low * size
            spans.append(span((low, high + 1)))
            held += low * size
            same = low == high
        length = prod(span_size(one) for one in spans)
        return tuple(spans), span((held, held + length))

    def _exact(self, lead: Span) -> bool:
        return all(i.start % self.quantum == 0 and i.stop % self.quantum == 0 for i in lead)


def blocks(ins: Shape, outs: Shape) -> tuple[Block, ...]:
    """Returns the smallest blocks, in order. Both shapes have the same number of elements, not 0.

    >>> [(b.ins, b.outs) for b in blocks((2, 12, 1, 5), (2, 3, 4, 5))]
    [((0,), (0,)), ((1,), (1, 2)), ((3,), (3,))]
    """
    left = [axis for axis, extent in enumerate(ins) if extent > 1]
    right = [axis for axis, extent in enumerate(outs) if extent > 1]
    found: list[Block] = []
    while left:
        a, b = [left.pop(0)], [right.pop(0)]
        while (p := prod(ins[axis] for axis in a)) != (q := prod(outs[axis] for axis in b)):
            if p < q:
                a.append(left.pop(0))
            else:
                b.append(right.pop(0))
        shapes = tuple(ins[axis] for axis in a), tuple(outs[axis] for axis in b)
        found.append(Block(tuple(a), tuple(b), *shapes))
    return tuple(found)


class ReshapeView(Derived):
    """See the module's docstring. The local nodes are Reshapes; the shape that the model gives is not read."""

    family = "move"

    def __init__(self, bound: BoundOperator) -> None:
        self.bound = bound
        self.blocks = blocks(bound.shape(0), bound.output)
        quanta = [1] * len(bound.output)
        for block in self.blocks:
            quanta[block.outs[0]] = block.quantum
        self._axes = split_axes(bound.output, [block.outs[0] for block in self.blocks], quanta=quanta)

    def axes(self) -> tuple[Axis, ...]:
        return self._axes

    def widen(self, outputs: Outputs) -> Outputs:
        spans = list(outputs[0].spans)
        for block in self.blocks:
            made = block.widen([spans[axis] for axis in block.outs])
            for axis, one in zip(block.outs, made, strict=True):
                spans[axis] = one
        return {0: Region(tuple(spans))}

    def reads(self, computed: Outputs) -> Reads:
        spans = list(Region.full(self.bound.shape(0)).spans)
        for block in self.blocks:
            read, _ = block.read(self._flat(block, computed[0]))
            for axis, one in zip(block.ins, read, strict=True):
                spans[axis] = one
        return (Region(tuple(spans)), *([None] * (len(self.bound.inputs) - 1)))

    def nodes(self, computed: Outputs) -> Local:
        shape = integers(computed[0].shape)
        wanted = [self._flat(block, computed[0]) for block in self.blocks]
        held = [block.read(flat)[1] for block, flat in zip(self.blocks, wanted, strict=True)]
        if wanted == held:
            return (LocalNode("Reshape", (0, shape), (0,)),)
        lengths = [span_size(one) for one in held]
        inner = Region(tuple(wanted)).within(Region(tuple(held)))
        return (
            LocalNode("Reshape", (0, integers(lengths)), ("flat",)),
            *cut("flat", "wanted", inner, lengths, self.bound.opset),
            LocalNode("Reshape", ("wanted", shape), (0,)),
        )

    def work(self, computed: Outputs) -> float:
        return 0.0

    def _flat(self, block: Block, region: Region) -> Span:
        return block.flat([region.spans[axis] for axis in block.outs])


def view(bound: BoundOperator) -> Derived:
    if bound.opset < 5:
        return WholeOperator(bound, "it is of an opset before 5, whose Reshape is another")
    return ReshapeView(bound)


DECLARATIONS = {"Flatten": view, "Reshape": view, "Squeeze": view, "Unsqueeze": view}
