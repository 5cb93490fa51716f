"""Channels last: operators with windows over [batch, space..., channel], derived from the declarations of the same
operators over [batch, channel, space...]. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from edgepart.planner.access.declare.bound import BoundOperator, Shape
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, round_out
from edgepart.planner.access.declare.protocol import Axis, Local, Outputs
from edgepart.planner.region import Region


class ChannelsLast(Derived):
    """An operator with its channels last. A twin, the same operator with its channels at axis 1, says which
    regions are read. The twin has one node, which works on either order: only its operator type or an
    attribute tells the orders apart."""

    def __init__(self, bound: BoundOperator, twin: Derived, turned: Iterable[int], quantum: int) -> None:
        """`turned`: inputs that have their channels last. `quantum`: one node makes a multiple of this number
        of channels."""
        self.bound = bound
        self.twin = twin
        self.family = twin.family
        self.turned = frozenset(turned)
        self.quantum = quantum

    def axes(self) -> tuple[Axis, ...]:
        last = len(self.bound.output) - 1
        places = {0: 0, 1: last, **{axis: axis - 1 for axis in range(2, last + 1)}}
        return tuple(replace(axis, index=places[axis.index]) for axis in self.twin.axes())

    def widen(self, outputs: Outputs) -> Outputs:
        last = len(self.bound.output) - 1
        made = backwards(self.twin.widen(forwards(outputs))[0])
        return {0: made.replace(last, round_out(made.spans[last], self.quantum, self.bound.output[last]))}

    def reads(self, computed: Outputs) -> Reads:
        read = self.twin.reads(forwards(computed))
        return tuple(
            backwards(region) if region is not None and index in self.turned else region
            for index, region in enumerate(read)
        )

    def nodes(self, computed: Outputs) -> Local:
        (node,) = self.twin.nodes(forwards(computed))
        return (node,)

    def work(self, computed: Outputs) -> float:
        return self.twin.work(forwards(computed))


def channels_last(
    bound: BoundOperator,
    declare: Callable[[BoundOperator], Derived],
    turned: Iterable[int] = (0,),
    quantum: int = 1,
) -> Derived:
    """Returns the declaration of an operator that has its channels last, from `declare` for channels at axis 1.
    `turned`: inputs that have their channels last. `quantum`: see ChannelsLast."""
    inputs = list(bound.inputs)
    for index in turned:
        shape = inputs[index]
        inputs[index] = None if shape is None else _shape(shape)
    twin = declare(replace(bound, inputs=tuple(inputs), outputs=(_shape(bound.output),)))
    if twin.opaque is not None:
        return WholeOperator(bound, twin.opaque)
    return ChannelsLast(bound, twin, turned, quantum)


def forwards(outputs: Outputs) -> Outputs:
    """Turns regions with channels last into regions with channels at axis 1."""
    return {n: Region((r.spans[0], r.spans[-1], *r.spans[1:-1])) for n, r in outputs.items()}


def backwards(region: Region) -> Region:
    """Turns a region with channels at axis 1 into a region with channels last."""
    batch, channel, *space = region.spans
    return Region((batch, *space, channel))


def _shape(shape: Shape) -> Shape:
    return (shape[0], shape[-1], *shape[1:-1])
