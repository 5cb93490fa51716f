"""QuantizeLinear and DequantizeLinear, with a scale for the tensor, for each index of an axis, or for each block. Rules
only."""

from __future__ import annotations

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, broadcast, vector
from edgepart.planner.access.declare.bound import BoundOperator, Shape
from edgepart.planner.access.declare.derived import Derived, WholeOperator


def quantise(bound: BoundOperator) -> Derived:
    """Declares either operator, with the inputs x, scale and zero point (shaped as the scale)."""
    output = bound.output
    axis = int(bound.attribute("axis", 1))
    axis = axis % len(output) if output and -len(output) <= axis < len(output) else 0
    block = int(bound.attribute("block_size", 0))
    scale = bound.shape(1)
    blocked = block > 0 and len(scale) == len(output)
    if not blocked and not (len(scale) <= 1 and (not scale or scale[0] in (1, output[axis]))):
        return WholeOperator(
            bound, "its scale has a shape that is neither per tensor, per axis nor per block"
        )

    def read(shape: Shape | None) -> AxisReads | None:
        if shape is None or not blocked:
            return vector(shape, axis, output[axis] if output else 1)
        return [Along(n, per=block if n == axis else 1) for n in range(len(shape))]

    return Aligned(bound, [broadcast(bound.inputs[0], output), *map(read, bound.inputs[1:])], work=2.0)


DECLARATIONS = {"DequantizeLinear": quantise, "QuantizeLinear": quantise}
MICROSOFT = DECLARATIONS
