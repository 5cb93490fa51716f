"""Study: one problem with all that is worked out about it once: layers, costs, speeds, cut points,
verdicts.

What strategies ask instead of the bare problem, so that comparing hundreds of candidates computes nothing
twice. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

from edgepart.planner.cost.chain_cost import ChainCostModel, ChainCosts
from edgepart.planner.cost.cost import Cost, Profiles
from edgepart.planner.cost.layer_cost import Held, LayerCost
from edgepart.planner.cost.operator_cost import OperatorCosts
from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.errors import Infeasible, UsageError
from edgepart.planner.layers.coarsen import Coarse, Layer, coarsen
from edgepart.planner.layout.choices import Choice, Divide, Pull, Whole
from edgepart.planner.layout.propagate import Laying
from edgepart.planner.layout.strategy import Layout, Problem, Strategy, Sync
from edgepart.planner.lowering.lower import Lowering
from edgepart.planner.plans.reduced_precision import least_share
from edgepart.planner.region import Region
from edgepart.planner.simulation.latency import Simulation, run_schedule, simulate, together
from edgepart.planner.simulation.throughput import StreamResult, fitting, stream

T = TypeVar("T")

SECOND_AXES = ("head", "channel", "feature", "sequence")
"""What a layer that lacks the wanted axis is divided along instead, the first that it has."""


ALIKE = {"sequence": ("height",), "height": ("sequence",), "head": ("channel",)}
"""Names that rows and heads go by where an operator's four axes look like a picture's: tried before other axes."""

WORTH = 0.97
"""The score of something better over what is there, at most, to be spoken of: a smaller gain is within what predictions
are wrong by."""

ROOMY = 6
"""Times what a model's weights and tensors take: of a device that has so much memory, what a candidate needs is not
counted, as long as a bound on it is less."""

Shares = tuple[tuple[str, float], ...]
"""Devices, and each one's part; need not sum to one."""


@dataclass(frozen=True)
class CutPoint:
    """A place between layers that no layer straddles."""

    position: int
    """Operators up to this index lie before it."""
    last: str
    """The operator just before it."""
    crossing: frozenset[str]
    """Exits that are written before it and read after it."""
    seconds: float
    """Of computing what lies before it on the fastest device."""


class Study:
    """A problem, and what is known about it."""

    def __init__(self, problem: Problem, profiles: Profiles | None = None) -> None:
        self.problem = problem
        self.graph = problem.graph
        self.cluster = problem.cluster
        self.cost = Cost(problem.cluster, problem.graph, profiles or {})
        if problem.objective not in ("latency", "throughput"):
            raise UsageError(f"objective {problem.objective!r}: choose 'latency' or 'throughput'")
        problem.cluster.device(problem.gateway)
        self._forecasts: dict[Hashable, tuple[Strategy, Simulation]] = {}
        self._outlines: dict[Hashable, tuple[Strategy, Simulation]] = {}
        self._bundling: dict[int, Lowering] = {}
        self._streams: dict[Hashable, StreamResult] = {}
        self._seconds: dict[str, Mapping[str, float]] = {}
        self._choices: dict[int, tuple[Mapping[str, Layout], Mapping[int, Choice]]] = {}
        self._made: dict[Callable[[Study], Any], Any] = {}
        self._needed: dict[int, Mapping[str, Mapping[str, Region]]] = {}
        self.portions: dict[int, dict[tuple[Held, str | None], LayerCost]] = {}
        """By node of a layer-wise search, what was measured of it, by what is held and what is left out; for all such
        searches."""
        self.too_big: tuple[Strategy, Mapping[str, int]] | None = None
        """The best of the candidates that did not fit, and by device the bytes that it lacks."""

    def on(self, cluster: Cluster) -> Study:
        """The same question about another cluster; what is known of the graph alone is not worked out again."""
        problem = replace(self.problem, cluster=cluster)
        other = Study(problem, self.cost.profiles)
        kept = {"coarse": self.coarse, "laying": self.laying, "ground": self.ground, "bundled": self.bundled}
        other.portions = self.portions
        other.__dict__.update(kept)  # Cached properties, filled in.
        return other

    @cached_property
    def coarse(self) -> Coarse:
        return coarsen(self.graph)

    @cached_property
    def laying(self) -> Laying:
        """Lays candidates out; what they have in common, once."""
        return Laying(self.coarse)

    @cached_property
    def ground(self) -> OperatorCosts:
        """Measures what operators do for regions, each once."""
        return OperatorCosts(self.coarse, self.cost)

    @cached_property
    def bundled(self) -> ChainCosts:
        """Operators that always run together, as one."""
        return ChainCosts(self.coarse, self.ground)

    def once(self, make: Callable[[Study], T]) -> T:
        """What `make` gives for this study, which it is asked once."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast(T, self._made[make])

    @cached_property
    def lowering(self) -> Lowering:
        """Writes candidates out; what they have in common, once."""
        return Lowering(self.problem, self.cost, self.coarse.accesses)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers that a choice has to be taken for."""
        return tuple(layer for layer in self.coarse.layers if layer.exits)

    @cached_property
    def whole_s(self) -> Mapping[str, float]:
        """By device, seconds of computing the whole model there."""
        return {
            device.name: self.cost.segment_s(device.name) + sum(self.seconds_on(device.name).values())
            for device in self.cluster.devices
        }

    def seconds_on(self, device: str) -> Mapping[str, float]:
        """By operator, seconds of computing all of it on that device; remembered."""
        found = self._seconds.get(device)
        if found is None:
            by_name, accesses = self.graph.by_name, self.coarse.accesses
            found = self._seconds[device] = {
                name: self.cost.compute_s(by_name[name], accesses[name], full, device)
                for name, full in self._full.items()
            }
        return found

    @cached_property
    def bundled_s(self) -> Mapping[str, Mapping[str, float]]:
        """By device, and by operator or bundle, seconds of all of it there."""
        members = {chain[-1].name: [op.name for op in chain] for chain in self.bundled.chains}
        found: dict[str, Mapping[str, float]] = {}
        for device in self.whole_s:
            each = self.seconds_on(device)
            found[device] = {**each, **{n: sum(each[op] for op in ops) for n, ops in members.items()}}
        return found

    @cached_property
    def by_speed(self) -> tuple[str, ...]:
        """Devices, fastest first; the gateway first among equals."""
        return tuple(
            sorted(self.whole_s, key=lambda name: (self.whole_s[name], name != self.problem.gateway))
        )

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """Axes along which at least one layer can be divided, the most often found first."""
        count: dict[str, int] = {}
        for layer in self.layers:
            for axis in layer.axes:
                if layer.splits(axis.name):
                    count[axis.name] = count.get(axis.name, 0) + 1
        return tuple(sorted(count, key=lambda name: (-count[name], name)))

    def shares(self, devices: Iterable[str]) -> Shares:
        """In proportion to how fast each computes the whole model."""
        return tuple((name, 1 / self.whole_s[name]) for name in devices)

    def limit_bytes(self, device: str) -> float:
        """What a plan may use there."""
        own = self.cluster.device(device).memory_bytes
        return min(own, self.problem.memory_limit_bytes.get(device, own))

    @cached_property
    def cuts(self) -> tuple[CutPoint, ...]:
        """Every place where no layer straddles, in the model's order."""
        return tuple(_cuts(self))

    @cached_property
    def full_s(self) -> Mapping[str, float]:
        """By operator, seconds of all of it on the fastest device."""
        return self.seconds_on(self.by_speed[0])

    @cached_property
    def ends(self) -> Mapping[int, int]:
        """By layer that has exits, the index of its last operator."""
        return {layer.number: max(self.position[op.name] for op in layer.operators) for layer in self.layers}

    @cached_property
    def position(self) -> Mapping[str, int]:
        """By operator, its index."""
        return {op.name: index for index, op in enumerate(self.graph.operators)}

    @cached_property
    def _full(self) -> Mapping[str, dict[int, Region]]:
        tensors = self.graph.tensors
        return {
            op.name: {i: tensors[n].region for i, n in enumerate(op.outputs) if n}
            for op in self.graph.operators
        }

    def divided(self, layer: Layer, axis: str, shares: Shares, second: bool = True) -> Divide | None:
        """`layer` along `axis`, or along the next best that it has; None where it cannot be divided."""
        alike = (axis, *ALIKE.get(axis, ()))
        for name in (*alike, *SECOND_AXES) if second else alike:
            if layer.splits(name):
                return Divide((name,), shares)
        return None

    def strategy(
        self,
        name: str,
        choices: Mapping[int, Choice],
        why: str,
        sync: Sync = Sync.NEEDED,
        hub: str | None = None,
    ) -> Strategy:
        """The layouts that follow from a choice for every layer."""
        laid = self.laying.lay_out(choices)
        self._choices[id(laid.layouts)] = laid.layouts, choices
        self._needed[id(laid.layouts)] = laid.needed
        return Strategy(name, laid.layouts, sync, hub, self.coarse.layer_of, why, laid.parted)

    def choices_of(self, strategy: Strategy) -> Mapping[int, Choice]:
        """The choices that a strategy of this study was made from, by layer; {} where it was made otherwise."""
        return self._choices.get(id(strategy.layouts), ({}, {}))[1]

    def needed_of(self, strategy: Strategy) -> Mapping[str, Mapping[str, Region]]:
        """By tensor and device, what is read to compute the layouts; {} where the strategy was made otherwise."""
        return self._needed.get(id(strategy.layouts), {})

    def whole(self, device: str) -> dict[int, Choice]:
        """Everything on one device."""
        return {layer.number: Whole((device,)) for layer in self.layers}

    def pull(self, layer: Layer) -> Choice | None:
        """Left to its readers; None where that cannot be: outputs of the model, and what is opaque."""
        return None if layer.opaque or any(n in self.graph.outputs for n in layer.exits) else Pull()

    def travel_bytes(self, name: str) -> float:
        """Bytes per element of a tensor on its way between devices, at the least."""
        share = least_share(self.graph.tensors.get(name), self.problem.transfer_dtype)
        return self.cost.item_bytes(name) * share

    def forecast(self, strategy: Strategy) -> Simulation:
        """What `strategy` would do: lowered to a sketch of a plan, and simulated; remembered."""
        key = _written(strategy)
        found = self._forecasts.get(key)
        if found is None:
            if strategy.replicas:
                made = together([self.forecast(one) for one in strategy.replicas])
            else:
                plan = self.lowering.plan(strategy, sketch=True)
                made = simulate(plan, self.cluster, self.problem.gateway, self.cost)
            found = self._forecasts[key] = (strategy, made)
        return found[1]

    def outline(self, strategy: Strategy) -> Simulation:
        """The same but for memory, which is enough and may be more than is needed, much quicker: operators that always run
        together are one (planner/cost/chain_cost.py), and there is no plan (planner/lowering/outline.py)."""
        key = _written(strategy)
        if key in self._forecasts:
            return self._forecasts[key][1]
        found = self._outlines.get(key)
        if found is None:
            if strategy.replicas:
                made = together([self.outline(one) for one in strategy.replicas])
            else:
                made = self._outlined(strategy)
            found = self._outlines[key] = (strategy, made)
        return found[1]

    def _outlined(self, strategy: Strategy) -> Simulation:
        """Memory is counted only where it may be short."""
        lowering = self.sketching(strategy.parted)
        if not self._is_roomy:
            plan = lowering.plan(strategy, sketch=True)
            return simulate(plan, self.cluster, self.problem.gateway, self.cost)
        schedule, enough = lowering.outline(strategy)
        made = run_schedule(schedule, self.cluster, self.problem.gateway)
        return replace(made, peak_memory_bytes=enough)

    @cached_property
    def _is_roomy(self) -> bool:
        """Whether any device is likely to have the memory for whatever a candidate asks of it."""
        graph = self.graph
        weights = sum(constant.nbytes for constant in graph.constants.values())
        values = sum(tensor.nbytes for tensor in graph.tensors.values() if tensor.shape is not None)
        return ROOMY * (weights + values) < min(map(self.limit_bytes, self.whole_s))

    def sketching(self, parted: Iterable[str]) -> Lowering:
        """Writes bundles out; the operators `parted` stay apart."""
        graph, accesses = self.bundled.graph(parted)
        found = self._bundling.get(id(graph))
        if found is None:
            first = next(iter(self._bundling.values()), None)
            if first is None:
                found = Lowering(replace(self.problem, graph=graph), ChainCostModel(self.cost), accesses)
            else:
                found = first.among(graph, accesses)
            self._bundling[id(graph)] = found
        return found

    def stream(self, strategy: Strategy) -> StreamResult:
        """What `strategy` would do with many requests at a time; remembered."""
        key = _written(strategy)
        found = self._streams.get(key)
        if found is None:
            found = self._streams[key] = self.many(self.forecast(strategy))
        return found

    def many(self, simulation: Simulation) -> StreamResult:
        """The same plan with many requests at a time, as far as the devices have memory for them."""
        limits = {name: self.limit_bytes(name) for name in simulation.peak_memory_bytes}
        in_flight = fitting(simulation, self.cluster, limits)
        return stream(simulation, self.cluster, self.problem.gateway, in_flight)

    def score(self, strategy: Strategy) -> float:
        """What is to be small: seconds of a request, or seconds between two of them."""
        if self.problem.objective == "throughput":
            return 1 / self.stream(strategy).throughput_per_s
        return self.outline(strategy).latency_s

    def is_better(self, strategy: Strategy, score: float) -> bool:
        """Whether it scores below that; many requests are simulated only where the busiest device leaves a chance."""
        if self.problem.objective == "throughput" and 1 / self.outline(strategy).most_per_s >= score:
            return False
        return self.score(strategy) < score

    def short_bytes(self, strategy: Strategy) -> dict[str, int]:
        """By device, the memory that is missing; {} where it fits."""
        inner = self.bundled.inner_bytes
        outline = self.outline(strategy).peak_memory_bytes
        if all(peak + inner <= self.limit_bytes(name) for name, peak in outline.items()):
            return {}
        peaks = self.forecast(strategy).peak_memory_bytes
        short = {name: peak - self.limit_bytes(name) for name, peak in peaks.items()}
        return {name: int(-(-lack // 1)) for name, lack in short.items() if lack > 0}

    def best(self, candidates: Iterable[Strategy]) -> Strategy:
        """The one with the lowest score that fits; one device where several are no better.

        Infeasible, with what the nearest candidate lacks, where none fits."""
        chosen: dict[bool, Strategy] = {}
        nearest: dict[str, int] = {}
        for strategy in candidates:
            short = self.short_bytes(strategy)
            if not short:
                shared = len(self.outline(strategy).compute_s) > 1
                if shared not in chosen or self.is_better(strategy, self.score(chosen[shared])):
                    chosen[shared] = strategy
            else:
                if not nearest or sum(short.values()) < sum(nearest.values()):
                    nearest = short
                latency_s = self.outline(strategy).latency_s
                if self.too_big is None or latency_s < self.outline(self.too_big[0]).latency_s:
                    self.too_big = strategy, short
        if not chosen:
            raise self.infeasible(nearest)
        alone, together = chosen.get(False), chosen.get(True)
        if alone and (together is None or self.score(together) >= self.score(alone)):
            return alone
        assert together is not None
        return together

    def infeasible(self, short: Mapping[str, int]) -> Infeasible:
        each = ", ".join(
            f"{name} lacks {lack:,} bytes (it may use {limit:,.0f}; {limit + lack:,.0f} would do)"
            for name, lack in sorted(short.items())
            for limit in [self.limit_bytes(name)]
        )
        return Infeasible(
            f"model {self.graph.name!r} does not fit: {each}. "
            "Add devices, raise the memory limit or take another strategy.",
            short,
        )


def _written(strategy: Strategy) -> Hashable:
    """The same where the same is written out, whatever the strategy is called. Whoever remembers something by it keeps
    the strategy, so that no id comes back."""
    if strategy.replicas:
        return tuple(map(_written, strategy.replicas))
    hub = strategy.hub if strategy.sync is Sync.HUB else None
    relays = frozenset(strategy.relays.items())
    order = frozenset(strategy.order.items())
    return id(strategy.layouts), id(strategy.parted), id(strategy.layers), hub, strategy.early, relays, order


def _cuts(study: Study) -> Iterator[CutPoint]:
    """One sweep along the model: what is open at an index is a layer begun and not ended."""
    coarse, operators = study.coarse, study.graph.operators
    last = _last_reads(study)
    ends = {end: number for number, end in study.ends.items()}
    begun: set[int] = set()
    alive: set[str] = set()
    seconds = 0.0
    for index, op in enumerate(operators):
        seconds += study.full_s[op.name]
        if not coarse.is_pulled(op):
            begun.add(coarse.layer_of[op.name])
        number = ends.get(index)
        if number is None:
            continue
        begun.discard(number)
        alive = {n for n in (*alive, *coarse.layers[number].exits) if last[n] > index}
        if not begun and alive:
            yield CutPoint(index, op.name, frozenset(alive), seconds)


def _last_reads(study: Study) -> dict[str, int]:
    """By tensor, where it is read for the last time; a pulled reader reads where its own readers do."""
    coarse, graph, last = study.coarse, study.graph, dict[str, int]()
    for op in reversed(graph.operators):
        for name in filter(None, op.outputs):
            last[name] = study.position[op.name]
            for reader in graph.consumers[name]:
                reads = [study.position[reader.name]]
                if coarse.is_pulled(reader):
                    reads = [last[n] for n in reader.outputs if n]
                last[name] = max([last[name], *reads])
    return last
