"""The candidate factory: makes choices for layers, and strategies of such choices. Rules only."""

from __future__ import annotations

from collections.abc import Mapping

from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Divide, Pull, Shares, Whole
from edgepart.planner.layout.strategy import Layout, Strategy, Sync
from edgepart.planner.region import Region
from edgepart.planner.search.memo import Memo

SECOND_AXES = ("head", "channel", "feature", "sequence")
"""The axes to divide a layer along if it lacks the requested axis. The first one that the layer has is used."""

ALIKE_AXES = {"sequence": ("height",), "height": ("sequence",), "head": ("channel",)}
"""Other names for the axes of rows and heads, for operators with four axes like those of an image. They are
tried before `SECOND_AXES`."""


class CandidateFactory:
    """Makes candidates for one problem, and remembers what each was made from."""

    def __init__(self, memo: Memo) -> None:
        self.memo = memo
        self._choices: dict[int, tuple[Mapping[str, Layout], Mapping[int, Choice]]] = {}
        """Maps the id of a strategy's layouts to the layouts and the choices. The layouts are kept so that no
        id is reused."""
        self._reads: dict[int, Mapping[str, Mapping[str, Region]]] = {}

    def divide(self, layer: Layer, axis: str, shares: Shares, second: bool = True) -> Divide | None:
        """`layer` divided along `axis`, or with `second` along the next best axis that it has; None if it
        cannot be divided."""
        alike = (axis, *ALIKE_AXES.get(axis, ()))
        for name in (*alike, *SECOND_AXES) if second else alike:
            if layer.splits(name):
                return Divide((name,), shares)
        return None

    def pull(self, layer: Layer) -> Choice | None:
        """The choice that leaves `layer` to its readers; None for outputs of the model and opaque layers,
        which cannot be left."""
        return None if layer.opaque or any(n in self.memo.graph.outputs for n in layer.exits) else Pull()

    def keep_whole(self, device: str) -> dict[int, Choice]:
        """Choices that keep every layer on one device."""
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
        """The choices that a strategy was made from, by layer; {} if this factory did not make the strategy."""
        return self._choices.get(id(strategy.layouts), ({}, {}))[1]

    def reads_of(self, strategy: Strategy) -> Mapping[str, Mapping[str, Region]]:
        """The regions that each device reads to compute its part of the layouts, by tensor and device; {} if
        this factory did not make the strategy."""
        return self._reads.get(id(strategy.layouts), {})
