"""Image operators: Col2Im, CenterCropPad and AffineGrid. Rules only."""

from __future__ import annotations

from collections.abc import Callable

from edgepart.planner.access.declare.aligned import Aligned, Along
from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.cut_nodes import integers
from edgepart.planner.access.declare.derived import Derived, WholeOperator
from edgepart.planner.access.declare.protocol import Local, LocalNode, Outputs
from edgepart.planner.access.operators.data_movement import Pad


def col2im(bound: BoundOperator) -> Derived:
    """Declares Col2Im, which turns [batch, channels x block, blocks] into [batch, channels, *image], and adds
    blocks where they overlap."""
    rows, channels = bound.shape(0)[1], bound.output[1]
    if rows % channels:
        return WholeOperator(bound, "its rows are not so many for each channel")
    columns = [Along(0), Along(1, times=rows // channels), None]
    rest = [[None] * len(bound.shape(index)) for index in (1, 2)]
    whole = range(2, len(bound.output))
    return Aligned(bound, [columns, *rest], whole=whole, family="move", work=rows / channels)


class Centred(Pad):
    """CenterCropPad: a Pad that adds half of the missing elements at each side, as zeros; negative pads crop."""

    def __init__(self, bound: BoundOperator) -> None:
        lacking = [after - before for before, after in zip(bound.shape(0), bound.output, strict=True)]
        begins = [n // 2 if n > 0 else -(-n // 2) for n in lacking]
        ends = [n - begin for n, begin in zip(lacking, begins, strict=True)]
        super().__init__(bound, begins, ends, constant=True)

    def nodes(self, computed: Outputs) -> Local:
        begins, ends = self._local(computed[0])
        if not any(begins) and not any(ends):
            return (LocalNode("Identity", (0,), (0,)),)
        return (LocalNode("Pad", (0, integers(begins + ends)), (0,)),)


class Grid(Aligned):
    """AffineGrid, which turns [batch, 2, 3] or [batch, 3, 4] into the coordinates [batch, *space, 2 or 3].
    Space is whole, because steps counted from the middle of a part would round differently. The size that the
    model gives is not read."""

    def __init__(self, bound: BoundOperator) -> None:
        whole = range(1, len(bound.output))
        super().__init__(bound, [[Along(0), None, None], None], whole=whole, work=2.0 * bound.shape(0)[2])

    def nodes(self, computed: Outputs) -> Local:
        batch, *space, _ = computed[0].shape
        op = self.bound.operator
        return (LocalNode("AffineGrid", (0, integers([batch, 1, *space])), (0,), op.attributes),)


DECLARATIONS: dict[str, Callable[[BoundOperator], Derived]] = {
    "AffineGrid": Grid,
    "CenterCropPad": Centred,
    "Col2Im": col2im,
}

OPAQUE = {("", "ImageDecoder"): "it decodes one stream of bytes from its begin to its end"}
