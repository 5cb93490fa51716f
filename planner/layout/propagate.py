"""Propagation: from choices for layers to the layouts of all tensors.

Takes a choice for every layer; gives the region of every tensor that each device computes, and the regions
that devices read for this. It walks the graph from back to front and asks access maps what each operator
needs.

A search lays out hundreds of candidates that differ in few layers. So results of the same choice and the same
readers are computed once: everything here is a pure function of records that are compared by identity, and a
candidate costs one look-up for each operator where nothing is new. Rules only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgepart.planner.layers.chains import find_chains, output_of
from edgepart.planner.layers.coarsen import Coarse, Layer
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

DeviceRegions = Mapping[str, Region]
"""The region of one tensor on each device; never changed once it exists."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorReads:
    """The regions of one tensor that all its readers together read."""

    regions: DeviceRegions
    """The region that each device reads."""
    by_parts: DeviceRegions
    """The region that each device reads for layers that are divided. A layer that is whole reads everything,
    which is no halo."""
    for_whole: frozenset[str] = frozenset()
    """Devices on which a layer that is whole reads the tensor, perhaps through layers that are left to their
    readers."""


@dataclass(frozen=True, slots=True, eq=False)
class InternedChoice:
    """A choice that is compared by identity: equal choices share one of these objects."""

    choice: Choice


NO_READS = TensorReads({}, {})
PULLED = InternedChoice(Pull())

Reads = tuple[tuple[int, TensorReads], ...]
"""The reads of one operator: the position of each tensor among its inputs and captured tensors, and the
regions that are read of it."""


class LayoutPropagator:
    """Computes layouts for many candidates of one graph."""

    def __init__(self, coarse: Coarse) -> None:
        self.coarse = coarse
        self.graph = coarse.graph
        self._layers = {n: layer for layer in coarse.layers for n in layer.exits}
        self._chains = {chain[-1].name: chain for chain in find_chains(coarse)}
        self._chain_kinds: dict[str, Hashable] = {}
        self._walk = tuple(
            (
                op,
                coarse.layer_of[op.name],
                tuple(filter(None, op.outputs)),
                (*op.inputs, *op.captured),
                self._chains.get(op.name, ()),
            )
            for op in reversed(self.graph.operators)
        )
        self._followed: dict[Hashable, tuple[tuple[tuple[Layout, TensorReads], ...], Reads]] = {}
        self._results: dict[frozenset[tuple[int, InternedChoice]], PropagatedLayouts] = {}
        self._interned: dict[Choice, InternedChoice] = {}
        self._parts: dict[tuple[int, InternedChoice], tuple[str, Parted] | None] = {}
        self._layouts: dict[tuple[str, InternedChoice, TensorReads | None], Layout] = {}
        self._tiled: dict[Hashable, Layout] = {}
        self._equal: dict[tuple[tuple[str, Region], ...], Layout] = {}
        self._opaque: dict[tuple[str, tuple[int, ...]], tuple[Layout, ...]] = {}
        self._reads: dict[Hashable, Reads] = {}
        self._unions: dict[tuple[TensorReads, TensorReads], TensorReads] = {}

    def lay_out(self, choices: Mapping[int, Choice]) -> PropagatedLayouts:
        """The layouts that follow from a choice for every layer that has exits, by layer number. Equal
        choices give the same records."""
        taken = {number: self._intern(choice) for number, choice in choices.items()}
        key = frozenset(taken.items())
        if key not in self._results:
            self._results[key] = self._lay_out(taken)
        return self._results[key]

    def _lay_out(self, taken: Mapping[int, InternedChoice]) -> PropagatedLayouts:
        parted: dict[str, Parted] = {}
        for number, one in taken.items():
            if isinstance(one.choice, Reduce) and (found := self._part(number, one)):
                parted[found[0]] = found[1]
        read = dict.fromkeys(self.graph.tensors, NO_READS)
        layouts: dict[str, Layout] = {}
        heads: dict[str, Reads] = {}
        """The reads from outside the chain, by operator of a chain that was followed; only the first operator
        has any."""
        for op, number, written, inputs, chain in self._walk:
            if op.name in heads:
                for place, more in heads[op.name]:
                    read[inputs[place]] = self._union(read[inputs[place]], more)
                continue
            one = taken.get(number, PULLED)
            made = tuple(self._layout(name, one, read[name]) for name in written)
            if self.coarse.accesses[op.name].opaque is not None:
                made = self._all_or_nothing(op, written, made)
            layouts.update(zip(written, made, strict=True))
            whole = None if isinstance(one.choice, Whole) else _for_whole(made, [read[n] for n in written])
            if chain and not (parted and any(member.name in parted for member in chain)):
                inside, heads[chain[0].name] = self._follow(chain, made[0], whole)
                for member, (layout, wanted) in zip(chain, inside, strict=False):
                    layouts[output_of(member)] = layout
                    read[output_of(member)] = wanted
                    heads.setdefault(member.name, ())
                continue
            for place, more in self._reads_of(op, parted.get(op.name), made, whole):
                read[inputs[place]] = self._union(read[inputs[place]], more)
        return PropagatedLayouts(layouts, parted, {name: one.regions for name, one in read.items()})

    def _follow(
        self, chain: Sequence[Operator], made: Layout, whole: frozenset[str] | None
    ) -> tuple[tuple[tuple[Layout, TensorReads], ...], Reads]:
        """The layout of each tensor inside a chain with the reads of it, and the reads of the first operator.
        `made` is the last operator's layout, and `whole` names the devices that compute it for a layer that
        is whole."""
        name = chain[-1].name
        if name not in self._chain_kinds:
            links = tuple(op.inputs.index(output_of(before)) for before, op in pairwise(chain))
            self._chain_kinds[name] = links, tuple(self.coarse.kinds[op.name] for op in chain)
        key = (self._chain_kinds[name], id(made), whole)
        found = self._followed.get(key)
        if found is None:
            inside: list[tuple[Layout, TensorReads]] = []
            for before, op in reversed(tuple(pairwise(chain))):
                wanted = next((one for _, one in self._reads_of(op, None, (made,), whole)), NO_READS)
                made = self._layout(output_of(before), PULLED, wanted)
                whole = None if whole is None else _for_whole((made,), (wanted,))
                inside.append((made, wanted))
            reads = self._reads_of(chain[0], None, (made,), whole)
            found = self._followed[key] = tuple(reversed(inside)), reads
        return found

    def _intern(self, choice: Choice) -> InternedChoice:
        found = self._interned.get(choice)
        if found is None:
            found = self._interned[choice] = InternedChoice(choice)
        return found

    def _part(self, number: int, one: InternedChoice) -> tuple[str, Parted] | None:
        if (number, one) not in self._parts:
            assert isinstance(one.choice, Reduce)
            self._parts[number, one] = part(self.coarse.layers[number], one.choice)
        return self._parts[number, one]

    def _layout(self, name: str, one: InternedChoice, read: TensorReads) -> Layout:
        """The region of one tensor that each device computes. Few choices depend on the tensor's readers."""
        layer = self._layers.get(name)
        choice = one.choice if layer else PULLED.choice
        choice = choice.then if isinstance(choice, Reduce) else choice
        looks = isinstance(choice, Pull) or (
            isinstance(choice, Divide) and (choice.widened or choice.aligned)
        )
        key = (name, one if layer else PULLED, read if looks else None)
        found = self._layouts.get(key)
        if found is None:
            if isinstance(choice, Pull) and name in self.graph.outputs:
                raise ValueError(f"output {name!r} of the model cannot be left to its readers")
            found = self._layouts[key] = self._make_layout(name, layer, one, choice, read)
        return found

    def _make_layout(
        self, name: str, layer: Layer | None, one: InternedChoice, choice: Choice, read: TensorReads
    ) -> Layout:
        full = self.graph.tensors[name].region
        if isinstance(choice, Whole):
            return self._same(dict.fromkeys(choice.devices, full))
        if not isinstance(choice, Divide) or layer is None:
            return self._same({device: compact(region) for device, region in read.regions.items()})
        if choice.aligned and (needed := _align(full, choice, read)):
            return self._same(needed)
        axes = [layer.axis(axis) for axis in choice.axes]
        ends = ((axis, layer.place(axis, name), layer.each.get((axis.name, name))) for axis in axes if axis)
        key = (full, one, *ends)
        if key not in self._tiled:
            self._tiled[key] = self._same(cut_tiles(name, full, layer, choice))
        found = self._tiled[key]
        return self._same(_widen(found.regions, read.by_parts)) if choice.widened else found

    def _same(self, regions: DeviceRegions) -> Layout:
        """Returns one layout for equal regions, whichever tensor they belong to."""
        key = tuple(regions.items())
        found = self._equal.get(key)
        if found is None:
            found = self._equal[key] = Layout(regions)
        return found

    def _all_or_nothing(
        self, op: Operator, written: Iterable[str], made: tuple[Layout, ...]
    ) -> tuple[Layout, ...]:
        """The layouts of an opaque operator, which writes all its outputs, whole, wherever one of them is written."""
        key = (op.name, tuple(map(id, made)))  # All layouts are kept, so that no id is reused.
        found = self._opaque.get(key)
        if found is None:
            devices = dict.fromkeys(device for layout in made for device in layout.regions)
            found = self._opaque[key] = tuple(
                self._same(dict.fromkeys(devices, self.graph.tensors[name].region)) for name in written
            )
        return found

    def _reads_of(
        self,
        op: Operator,
        parted: Parted | None,
        made: tuple[Layout, ...],
        whole: frozenset[str] | None,
    ) -> Reads:
        """The reads of `op`. `whole` names the devices that compute it for a layer that is whole; None stands
        for all devices."""
        kind = self.coarse.kinds[op.name]  # Operators of the same kind read the same regions.
        key = (kind, parted, tuple(map(id, made)), whole)
        found = self._reads.get(key)
        if found is None:
            if parted:
                reads = self._read_parted(op, parted, made[0].regions)
                whole = frozenset()
            else:
                reads = self._read(op, made)
            found = self._reads[key] = tuple(self._group_by_tensor((*op.inputs, *op.captured), reads, whole))
        return found

    def _read(self, op: Operator, made: tuple[Layout, ...]) -> Iterator[tuple[int, str, Region]]:
        """Yields position, device and region of everything that is read to compute the layouts."""
        indices = [index for index, name in enumerate(op.outputs) if name]
        access = self.coarse.accesses[op.name]
        captured = [self.graph.region_of(name) for name in op.captured]
        for device in dict.fromkeys(device for layout in made for device in layout.regions):
            written = zip(indices, made, strict=True)
            outputs = {i: layout.regions[device] for i, layout in written if device in layout.regions}
            for place, region in enumerate((*access.needs(outputs), *captured)):
                if region is not None:
                    yield place, device, region

    def _read_parted(
        self, op: Operator, parted: Parted, combined: DeviceRegions
    ) -> Iterator[tuple[int, str, Region]]:
        """Yields position, device and region of everything that is read to make addends. Each device makes
        the addends of its part that some device combines."""
        access = self.coarse.accesses[op.name]
        reduction = access.reduction(find_reduced_axis(op, access, parted.axis))
        parts = [interval for _, interval in parted.parts]
        for (device, interval), wanted in zip(
            parted.parts, find_wanted_addends(reduction, parts, combined), strict=True
        ):
            for place, region in enumerate(reduction.part(interval).needs(wanted) if wanted else ()):
                if region is not None:
                    yield place, device, region
        for device, region in combined.items():
            for place, again in find_reread_inputs(reduction, len(parts), region):
                yield place, device, again

    def _group_by_tensor(
        self, names: Sequence[str], reads: Iterable[tuple[int, str, Region]], whole: frozenset[str] | None
    ) -> Iterator[tuple[int, TensorReads]]:
        """Yields the reads of each tensor. Reads on the devices `whole` are for layers that are whole (None:
        on all devices)."""
        found: dict[int, dict[str, Region]] = {}
        for place, device, region in reads:
            if names[place] in self.graph.tensors and not region.is_empty:
                _add(found.setdefault(place, {}), device, region)
        for place, regions in found.items():
            if whole is None:
                yield place, TensorReads(regions, {}, frozenset(regions))
            elif whole.isdisjoint(regions):
                yield place, TensorReads(regions, regions)
            else:
                by_parts = {device: region for device, region in regions.items() if device not in whole}
                yield place, TensorReads(regions, by_parts, whole.intersection(regions))

    def _union(self, one: TensorReads, two: TensorReads) -> TensorReads:
        if one is NO_READS:
            return two
        found = self._unions.get((one, two))
        if found is None:
            for_whole = one.for_whole | two.for_whole
            regions = _unite(one.regions, two.regions)
            by_parts = _unite(one.by_parts, two.by_parts) if for_whole else regions
            found = self._unions[one, two] = TensorReads(regions, by_parts, for_whole)
        return found


def _for_whole(made: Iterable[Layout], reads: Iterable[TensorReads]) -> frozenset[str]:
    """Devices that compute a part of an output that is read there for a layer that is whole."""
    found: frozenset[str] = frozenset()
    for layout, read in zip(made, reads, strict=True):
        if read.for_whole:
            found |= read.for_whole & layout.regions.keys()
    return found


def _align(full: Region, choice: Divide, read: TensorReads) -> DeviceRegions | None:
    """The region that each device needs, if these regions are a partition of the tensor; else None."""
    needed = read.by_parts
    if not set(needed) <= {device for device, _ in choice.shares} or read.regions != needed:
        return None
    if sum(region.size for region in needed.values()) != full.size or full.subtract_all(needed.values()):
        return None
    return needed


def _widen(regions: DeviceRegions, needed: DeviceRegions) -> DeviceRegions:
    return {
        device: region.union_spans(needed.get(device, region)).hull() for device, region in regions.items()
    }


def _unite(one: DeviceRegions, two: DeviceRegions) -> DeviceRegions:
    found = dict(one)
    for device, region in two.items():
        _add(found, device, region)
    return found


def _add(regions: dict[str, Region], device: str, region: Region) -> None:
    before = regions.get(device)
    regions[device] = region if before is None or before == region else before.union_spans(region)
