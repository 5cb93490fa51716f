"""The plain twin of planner/layout/propagate.py: one candidate at a time, every region worked out where it is met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgepart.planner.layers.coarsen import Coarse
from edgepart.planner.layout.choices import (
    Choice,
    Divide,
    PropagatedLayouts,
    Pull,
    Reduce,
    Whole,
    compact,
    cut_tiles,
    part,
)
from edgepart.planner.layout.partial_sums import find_reduced_axis, find_reread_inputs, find_wanted_addends
from edgepart.planner.layout.strategy import Layout, Parted
from edgepart.planner.model.graph import Operator
from edgepart.planner.region import Region


def lay_out(coarse: Coarse, choices: Mapping[int, Choice]) -> PropagatedLayouts:
    """A layout for every tensor that an operator writes, from a choice for every layer that has exits."""
    return _Back(coarse, choices).run()


class _Back:
    """One walk from the last operator to the first (BBGraP, section 3.2)."""

    def __init__(self, coarse: Coarse, choices: Mapping[int, Choice]) -> None:
        self.coarse = coarse
        self.graph = coarse.graph
        self.choices = choices
        self.exits = {n: layer for layer in coarse.layers for n in layer.exits}
        self.parted = dict(self._parted())
        self.needed: dict[str, dict[str, Region]] = {name: {} for name in self.graph.tensors}
        self.needed_by_parts: dict[str, dict[str, Region]] = {name: {} for name in self.graph.tensors}
        """Without what is needed for layers that are whole: that is all of it, and is no halo."""
        self.for_whole: set[tuple[str, str]] = set()
        """Pulled tensors and devices where a layer that is whole reads them."""

    def _parted(self) -> Iterator[tuple[str, Parted]]:
        for number, choice in self.choices.items():
            if isinstance(choice, Reduce) and (found := part(self.coarse.layers[number], choice)):
                yield found

    def run(self) -> PropagatedLayouts:
        found: dict[str, Layout] = {}
        for op in reversed(self.graph.operators):
            written = {i: self._regions(name) for i, name in enumerate(op.outputs) if name}
            if self.coarse.accesses[op.name].opaque is not None:
                written = self._all_or_nothing(op, written)
            for index, regions in written.items():
                found[op.outputs[index]] = Layout(regions)
            if op.name in self.parted:
                self._reach_back_parted(op, self.parted[op.name], written[0])
                continue
            for device in dict.fromkeys(d for regions in written.values() for d in regions):
                self._reach_back(op, {i: r[device] for i, r in written.items() if device in r}, device)
        return PropagatedLayouts(found, self.parted, self.needed)

    def _regions(self, name: str) -> dict[str, Region]:
        """What each device computes of one tensor."""
        layer = self.exits.get(name)
        choice = self.choices.get(layer.number, Pull()) if layer else Pull()
        choice = choice.then if isinstance(choice, Reduce) else choice
        if isinstance(choice, Whole):
            return dict.fromkeys(choice.devices, self.graph.tensors[name].region)
        if isinstance(choice, Divide) and layer:
            if choice.aligned and (needed := self._aligned(name, choice)):
                return needed
            found = cut_tiles(name, self.graph.tensors[name].region, layer, choice)
            return self._widened(name, found) if choice.widened else found
        if name in self.graph.outputs:
            raise ValueError(f"output {name!r} of the model cannot be left to its readers")
        return {device: compact(region) for device, region in self.needed[name].items()}

    def _aligned(self, name: str, choice: Divide) -> dict[str, Region] | None:
        """What each device needs, where that is a partition of the tensor."""
        needed = self.needed_by_parts[name]
        full = self.graph.tensors[name].region
        if not set(needed) <= {device for device, _ in choice.shares} or self.needed[name] != needed:
            return None
        if sum(region.size for region in needed.values()) != full.size or full.subtract_all(needed.values()):
            return None
        return dict(needed)

    def _widened(self, name: str, regions: dict[str, Region]) -> dict[str, Region]:
        return {
            device: region.union_spans(self.needed_by_parts[name].get(device, region)).hull()
            for device, region in regions.items()
        }

    def _all_or_nothing(
        self, op: Operator, written: dict[int, dict[str, Region]]
    ) -> dict[int, dict[str, Region]]:
        """An opaque operator writes all its outputs, whole, wherever one of them is written."""
        devices = dict.fromkeys(device for regions in written.values() for device in regions)
        return {i: dict.fromkeys(devices, self.graph.tensors[op.outputs[i]].region) for i in written}

    def _reach_back_parted(self, op: Operator, parted: Parted, combined: Mapping[str, Region]) -> None:
        """Each device reads for its part what all that is combined needs of it."""
        access = self.coarse.accesses[op.name]
        reduction = access.reduction(find_reduced_axis(op, access, parted.axis))
        parts = [interval for _, interval in parted.parts]
        for (device, interval), wanted in zip(
            parted.parts, find_wanted_addends(reduction, parts, combined), strict=True
        ):
            needs = reduction.part(interval).needs(wanted) if wanted else ()
            for name, region in zip(op.inputs, needs, strict=False):
                self._need(name, device, region, whole=False)
        for device, region in combined.items():
            for index, again in find_reread_inputs(reduction, len(parts), region):
                self._need(op.inputs[index], device, again, whole=False)

    def _reach_back(self, op: Operator, outputs: dict[int, Region], device: str) -> None:
        needs = self.coarse.accesses[op.name].needs(outputs)
        wanted = [(name, region) for name, region in zip(op.inputs, needs, strict=True) if region is not None]
        wanted += [(name, self.graph.region_of(name)) for name in op.captured]
        whole = isinstance(self.choices.get(self.coarse.layer_of[op.name]), Whole) or any(
            (op.outputs[index], device) in self.for_whole for index in outputs
        )
        for name, region in wanted:
            self._need(name, device, region, whole)

    def _need(self, name: str, device: str, region: Region | None, whole: bool) -> None:
        if region is None or name not in self.needed or region.is_empty:
            return
        _add(self.needed[name], device, region)
        if whole:
            self.for_whole.add((name, device))
        else:
            _add(self.needed_by_parts[name], device, region)


def _add(regions: dict[str, Region], device: str, region: Region) -> None:
    before = regions.get(device)
    regions[device] = region if before is None or before == region else before.union_spans(region)
