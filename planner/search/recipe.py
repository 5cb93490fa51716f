"""Recipe: a compact description of a whole strategy that a search can change a little at a time. Rules only.

The model is divided into stretches at cut points. For each stretch, a recipe says how its layers are divided
(its **mode**), over which devices, in which proportion, and which device computes the layers that cannot be
divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Divide, Shares, Whole
from edgepart.planner.search.candidates import CandidateFactory
from edgepart.planner.search.force_axis import reduce
from edgepart.planner.search.memo import CutPoint, Memo


@dataclass(frozen=True, slots=True)
class Mode:
    """How the layers of one stretch are computed."""

    axis: str | None = None
    """The axis to divide along; None keeps the stretch whole."""
    fused: bool = False
    """Whether only the tensors that leave the stretch are divided, and each device computes everything that
    it needs for its part. Halos inside are then computed twice instead of fetched."""
    joined: bool = False
    """With `fused`: whether the next stretch's halo is computed as well, so that the two stretches make one block."""
    home: str | None = None
    """The device that computes whole layers; None for the recipe's `home`."""

    def __str__(self) -> str:
        if self.axis is None:
            return f"whole on {self.home}" if self.home else "whole on one device"
        return f"split along {self.axis}" + (" with recomputed borders" if self.fused else "")


WHOLE = Mode()


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole strategy: a mode for each stretch, and the devices' shares."""

    modes: tuple[Mode, ...]
    """One mode for each stretch."""
    shares: Shares
    home: str
    """The device that computes the layers that are not divided."""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.shares)


@dataclass(frozen=True)
class LayerStretch:
    """The layers between two cut points."""

    layers: tuple[Layer, ...]
    crossing: frozenset[str]
    """Exits that are read after the stretch."""
    seconds: float
    """Seconds that the fastest device takes for the stretch."""


def stretches(memo: Memo, cuts: Sequence[CutPoint]) -> tuple[LayerStretch, ...]:
    """The layers divided into stretches at `cuts`, in order: one more stretch than there are cuts, except
    that stretches without layers are left out."""
    found: list[LayerStretch] = []
    layers = sorted(memo.layers, key=lambda layer: memo.last_position[layer.number])
    at = 0
    for cut in (*cuts, None):
        start = at
        while at < len(layers) and (cut is None or memo.last_position[layers[at].number] <= cut.position):
            at += 1
        inside = tuple(layers[start:at])
        seconds = sum(memo.fastest_s[op.name] for layer in inside for op in layer.operators)
        crossing = cut.crossing if cut else frozenset(memo.graph.answer_outputs)
        if inside:
            found.append(LayerStretch(inside, crossing, seconds))
    return tuple(found)


def expand_recipe(
    candidates: CandidateFactory, recipe: Recipe, parts: Sequence[LayerStretch]
) -> dict[int, Choice]:
    """The choices by layer that `recipe` stands for."""
    choices: dict[int, Choice] = {}
    for mode, stretch in zip(recipe.modes, parts, strict=True):
        choices.update(expand_stretch(candidates, recipe, mode, stretch))
    return choices


def expand_stretch(
    candidates: CandidateFactory, recipe: Recipe, mode: Mode, stretch: LayerStretch
) -> dict[int, Choice]:
    """The choices for the layers of one stretch in `mode`, over the devices of `recipe`."""
    return {layer.number: _choice(candidates, recipe, mode, stretch, layer) for layer in stretch.layers}


def _choice(
    candidates: CandidateFactory, recipe: Recipe, mode: Mode, stretch: LayerStretch, layer: Layer
) -> Choice:
    whole = Whole((mode.home or recipe.home,))
    if mode.axis is None or len(recipe.shares) == 1:
        return whole
    leaves = not stretch.crossing.isdisjoint(layer.exits)
    if mode.fused and not leaves and (pulled := candidates.pull(layer)):
        return pulled
    divided = candidates.divide(layer, mode.axis, recipe.shares, second=mode.axis not in SPATIAL)
    if divided is None:
        # For a norm or a global pool in a stretch of rows, partial results are added up and nothing is gathered.
        return reduce(layer, mode.axis, recipe.shares) or whole
    return Divide(divided.axes, divided.shares, widened=mode.fused and (mode.joined or not leaves))


SPATIAL = frozenset({"height", "width", "depth"})
"""The axes of rows. A layer without rows in a stretch that is divided by rows stays whole: dividing its
channels would move all of its input."""
