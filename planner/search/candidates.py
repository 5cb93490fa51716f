"""The candidate factory: makes choices for layers, and strategies of such choices. Rules only."""

from __future__ import annotations

from collections.abc import Mapping

from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Divide, Pull, Shares, Whole
from edgepart.planner.layout.strategy import Layout, Strategy, Sync
from edgepart.planner.region import Region
from edgepart.planner.search.memo import Memo

SECOND_AXES = ("head", "channel", "feature", "sequence")
"""Axes along which a layer is divided that lacks the wanted one; the first that it has is taken."""

ALIKE_AXES = {"sequence": ("height",), "height": ("sequence",), "head": ("channel",)}
"""Other names of rows and heads, where an operator's four axes look like a picture's; tried before other axes."""


class CandidateFactory:
    """Makes candidates for one problem, and remembers what each was made from."""

    def __init__(self, memo: Memo) -> None:
        self.memo = memo
        self._choices: dict[int, tuple[Mapping[str, Layout], Mapping[int, Choice]]] = {}
        """By id of a strategy's layouts. The layouts are kept with the choices, so that no id comes back."""
        self._reads: dict[int, Mapping[str, Mapping[str, Region]]] = {}

    def divide(self, layer: Layer, axis: str, shares: Shares, second: bool = True) -> Divide | None:
        """`layer` divided along `axis`, or with `second` along the next best axis that it has; None where it cannot be
        divided."""
        alike = (axis, *ALIKE_AXES.get(axis, ()))
        for name in (*alike, *SECOND_AXES) if second else alike:
            if layer.splits(name):
                return Divide((name,), shares)
        return None

    def pull(self, layer: Layer) -> Choice | None:
        """`layer` left to its readers; None where that cannot be: for outputs of the model and opaque layers."""
        return None if layer.opaque or any(n in self.memo.graph.outputs for n in layer.exits) else Pull()

    def keep_whole(self, device: str) -> dict[int, Choice]:
        """Every layer on one device."""
        return {layer.number: Whole((device,)) for layer in self.memo.layers}

    def make(
        self,
        name: str,
        choices: Mapping[int, Choice],
        why: str,
        sync: Sync = Sync.NEEDED,
        hub: str | None = None,
    ) -> Strategy:
        """The strategy whose layouts follow from a choice for every layer."""
        found = self.memo.propagator.lay_out(choices)
        self._choices[id(found.layouts)] = found.layouts, choices
        self._reads[id(found.layouts)] = found.reads
        return Strategy(name, found.layouts, sync, hub, self.memo.coarse.layer_of, why, found.parted)

    def choices_of(self, strategy: Strategy) -> Mapping[int, Choice]:
        """By layer, the choices that a strategy was made from; {} where this factory did not make it."""
        return self._choices.get(id(strategy.layouts), ({}, {}))[1]

    def reads_of(self, strategy: Strategy) -> Mapping[str, Mapping[str, Region]]:
        """By tensor and device, what the device reads to compute its part of the layouts; {} where this factory did not
        make the strategy."""
        return self._reads.get(id(strategy.layouts), {})
