"""Forces an axis: divides along it every layer that has it, even where that is slower. Checks of a model and
tests of every declaration use this. Rules only."""

from __future__ import annotations

from edgepart.planner.errors import UsageError
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Shares, Whole
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.candidates import ALIKE_AXES
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study


def axis_names(memo: Memo) -> tuple[str, ...]:
    """Every axis, written or reduced, along which at least one layer can be divided, in the model's order."""
    return tuple(dict.fromkeys(name for layer in memo.layers for name in axes_of(layer)))


def axes_of(layer: Layer) -> tuple[str, ...]:
    """The axes along which one layer can be divided: first those that it writes, then reduced ones."""
    written = [axis.name for axis in layer.axes if layer.splits(axis.name)]
    reduced = [axis.name for _, axis in layer.reduced if layer.reduces(axis.name)]
    return tuple(dict.fromkeys((*written, *reduced)))


def force(study: Study, axis: str | None, shares: Shares) -> Strategy:
    """A strategy that divides each layer along `axis` in proportion to `shares`, or along the layer's own
    name for rows or heads. If `axis` is None, each layer is divided along its first axis. Layers that cannot
    be divided stay whole on the first device.

    Raises UsageError if no layer has the axis."""
    names = axis_names(study.memo)
    if axis is not None and axis not in names:
        there = ", ".join(names) or "none: nothing in this model can be split"
        raise UsageError(
            f"no operator of {study.memo.graph.name!r} can be split along {axis!r}; axes there are: {there}"
        )
    choices = {layer.number: _choice(layer, axis, shares) for layer in study.memo.layers}
    why = f"everything that can be is split along {axis or 'its first axis'}, as was asked"
    return study.candidates.make("forced", choices, why)


def _choice(layer: Layer, axis: str | None, shares: Shares) -> Choice:
    name = axis if axis is not None else next(iter(axes_of(layer)), None)
    first = Whole((shares[0][0],))
    if name is None:
        return first
    for one in (name, *ALIKE_AXES.get(name, ())):
        if layer.splits(one):
            return Divide((one,), shares)
        if reduced := reduce(layer, one, shares):
            return reduced
    return first


def reduce(layer: Layer, name: str, shares: Shares) -> Reduce | None:
    """The choice that divides `layer` along the reduced axis `name`; None if that cannot be done. The partial
    results are combined in pieces along another axis if there is one, so that no device computes the whole
    output. The best axis for this is the same one, as a norm's rows then stay where they are."""
    if layer.reduces(name) is None:
        return None
    others = [one.name for one in layer.axes if layer.splits(one.name)]
    pieces = name if layer.axis(name) is not None else next(iter(others), None)
    then = Whole((shares[0][0],)) if pieces is None else Divide((pieces,), shares)
    return Reduce(name, shares, then)
