"""Scorer: predicts the seconds that a candidate takes. Rules only.

The methods of `Scorer`, from top to bottom, follow the steps of a candidate:

1. Choices become layouts: the candidate factory (candidates.py) asks the propagator which region of every tensor each
   device computes, and makes a `Strategy` of the layouts.
2. `score` returns one number for a strategy: seconds of a request, or seconds between two of many requests.
3. `outline` predicts quickly. `sketch_lowering` merges operators that always run together
   (planner/cost/chain_cost.py); the lowering turns the layouts into a schedule: who computes and sends what, and when.
   The schedule is simulated: its `latency_s` is the score. No plan is written.
4. `forecast` predicts with every operator and the exact memory: the strategy is lowered to a sketch of a plan, and the
   sketch is simulated. It is used where memory may be short, and for the numbers that people see.
5. `forecast_stream` simulates many requests at a time from a forecast.
6. `pick_best` compares candidates: it takes the one with the least score among those that fit the devices' memory.

The results of simulations are remembered."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from edgepart.planner.cost.chain_cost import ChainCostModel
from edgepart.planner.layout.strategy import Strategy, Sync
from edgepart.planner.lowering.lower import Lowering
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.refusal import refuse
from edgepart.planner.simulation.latency import Simulation, combine_replicas, run_schedule, simulate
from edgepart.planner.simulation.throughput import StreamResult, fitting_in_flight, simulate_stream

ROOMY = 6
"""Outlines predict only an upper bound on memory if every device has more memory than this factor times the
bytes of the model's weights and tensors."""

WORTH_MORE_STEPS = 0.995
"""A strategy with more steps must score below this factor times the score without them. More steps take more
memory, and predictions are no more exact than this."""


class Scorer:
    """Predicts the results of one problem's candidates, and picks the best candidate."""

    def __init__(self, memo: Memo) -> None:
        self.memo = memo
        self.too_big: tuple[Strategy, Mapping[str, int]] | None = None
        """The fastest of the candidates that did not fit, and the bytes that each device lacks."""
        self._outlines: dict[Hashable, tuple[Strategy, Simulation]] = {}
        self._forecasts: dict[Hashable, tuple[Strategy, Simulation]] = {}
        self._streams: dict[Hashable, StreamResult] = {}
        self._sketch_lowerings: dict[int, Lowering] = {}

    def score(self, strategy: Strategy) -> float:
        """The number to minimise: seconds of a request, or seconds between two of many requests."""
        if self.memo.problem.objective == "throughput":
            return 1 / self.forecast_stream(strategy).throughput_per_s
        return self.outline(strategy).latency_s

    def outline(self, strategy: Strategy) -> Simulation:
        """The predicted result of `strategy`, like a forecast, but with an upper bound on memory if memory is
        plentiful."""
        key = _identity(strategy)
        if key in self._forecasts:
            return self._forecasts[key][1]
        found = self._outlines.get(key)
        if found is None:
            if strategy.replicas:
                made = combine_replicas([self.outline(one) for one in strategy.replicas])
            else:
                made = self._simulate_outline(strategy)
            found = self._outlines[key] = (strategy, made)
        return found[1]

    def _simulate_outline(self, strategy: Strategy) -> Simulation:
        """An outline; it computes the exact memory only if memory may be short."""
        lowering = self.sketch_lowering(strategy.parted)
        if not self._is_roomy:
            plan = lowering.plan(strategy, sketch=True)
            return simulate(plan, self.memo.cluster, self.memo.problem.gateway, self.memo.cost)
        schedule, enough_bytes = lowering.outline(strategy)
        made = run_schedule(schedule, self.memo.cluster, self.memo.problem.gateway)
        return replace(made, peak_memory_bytes=enough_bytes)

    @cached_property
    def _is_roomy(self) -> bool:
        """Whether every device probably has enough memory for any candidate."""
        graph = self.memo.graph
        weights = sum(constant.nbytes for constant in graph.constants.values())
        values = sum(tensor.nbytes for tensor in graph.tensors.values() if tensor.shape is not None)
        return ROOMY * (weights + values) < min(map(self.memo.limit_bytes, self.memo.whole_s))

    def sketch_lowering(self, parted: Iterable[str]) -> Lowering:
        """The lowering that treats each chain of operators as one operator; the operators `parted` stay separate. If a
        device has engines, all stay separate, as each may run on another one."""
        if any(device.engines for device in self.memo.cluster.devices):
            parted = [op.name for op in self.memo.graph.operators]
        graph, accesses = self.memo.chain_costs.merge(parted)
        found = self._sketch_lowerings.get(id(graph))
        if found is None:
            first = next(iter(self._sketch_lowerings.values()), None)
            if first is None:
                problem = replace(self.memo.problem, graph=graph)
                found = Lowering(problem, ChainCostModel(self.memo.cost), accesses)
            else:
                found = first.among(graph, accesses)
            self._sketch_lowerings[id(graph)] = found
        return found

    def forecast(self, strategy: Strategy) -> Simulation:
        """The predicted result of `strategy`, with the exact memory: the strategy is lowered to a sketch of a
        plan and simulated."""
        key = _identity(strategy)
        found = self._forecasts.get(key)
        if found is None:
            if strategy.replicas:
                made = combine_replicas([self.forecast(one) for one in strategy.replicas])
            else:
                plan = self.memo.lowering.plan(strategy, sketch=True)
                made = simulate(plan, self.memo.cluster, self.memo.problem.gateway, self.memo.cost)
            found = self._forecasts[key] = (strategy, made)
        return found[1]

    def forecast_stream(self, strategy: Strategy) -> StreamResult:
        """The predicted result of `strategy` with many requests at a time."""
        key = _identity(strategy)
        found = self._streams.get(key)
        if found is None:
            found = self._streams[key] = self.run_stream(self.forecast(strategy))
        return found

    def run_stream(self, simulation: Simulation) -> StreamResult:
        """The simulated plan with many requests at a time, as many as the devices have memory for."""
        limits = {name: self.memo.limit_bytes(name) for name in simulation.peak_memory_bytes}
        in_flight = fitting_in_flight(simulation, self.memo.cluster, limits)
        return simulate_stream(simulation, self.memo.cluster, self.memo.problem.gateway, in_flight)

    def is_better(self, strategy: Strategy, score: float) -> bool:
        """Whether `strategy` scores below `score`. Many requests are simulated only if the load of the
        busiest device does not already rule that out."""
        if self.memo.problem.objective == "throughput" and 1 / self.outline(strategy).most_per_s >= score:
            return False
        return self.score(strategy) < score

    def accept_if_better(self, strategy: Strategy, changed: Strategy, why: str) -> Strategy | None:
        """`changed`, with `why` added to its reasons, if it fits in memory and is better than `strategy` by
        more than the error of predictions; else None."""
        reasons = strategy.why if why in strategy.why else f"{strategy.why}; {why}"
        found = replace(changed, why=reasons)
        if self.score(found) >= WORTH_MORE_STEPS * self.score(strategy) or self.short_bytes(found):
            return None
        return found

    def short_bytes(self, strategy: Strategy) -> dict[str, int]:
        """The bytes of memory that each device lacks for `strategy`; {} if the strategy fits."""
        inner = self.memo.chain_costs.inner_bytes
        outline = self.outline(strategy).peak_memory_bytes
        if all(peak + inner <= self.memo.limit_bytes(name) for name, peak in outline.items()):
            return {}
        peaks = self.forecast(strategy).peak_memory_bytes
        short = {name: peak - self.memo.limit_bytes(name) for name, peak in peaks.items()}
        return {name: int(-(-lack // 1)) for name, lack in short.items() if lack > 0}

    def pick_best(self, candidates: Iterable[Strategy]) -> Strategy:
        """The candidate with the lowest score that fits in memory. A candidate on a single device is
        preferred if those on several devices are no better.

        Raises Infeasible, with the bytes that the nearest candidate lacks, if none fits."""
        chosen: dict[bool, Strategy] = {}
        nearest: dict[str, int] = {}
        for strategy in candidates:
            short = self.short_bytes(strategy)
            if not short:
                is_shared = len(self.outline(strategy).compute_s) > 1
                if is_shared not in chosen or self.is_better(strategy, self.score(chosen[is_shared])):
                    chosen[is_shared] = strategy
            else:
                if not nearest or sum(short.values()) < sum(nearest.values()):
                    nearest = short
                latency_s = self.outline(strategy).latency_s
                if self.too_big is None or latency_s < self.outline(self.too_big[0]).latency_s:
                    self.too_big = strategy, short
        if not chosen:
            raise refuse(self.memo, nearest)
        alone, shared = chosen.get(False), chosen.get(True)
        if alone and (shared is None or self.score(shared) >= self.score(alone)):
            return alone
        assert shared is not None
        return shared


def _identity(strategy: Strategy) -> Hashable:
    """A key that is equal for strategies that lower to the same plan, whatever their names. Code that
    remembers something under this key also keeps the strategy, so that no id is reused."""
    if strategy.replicas:
        return tuple(map(_identity, strategy.replicas))
    hub = strategy.hub if strategy.sync is Sync.HUB else None
    order = frozenset(strategy.order.items())
    return (
        id(strategy.layouts),
        id(strategy.parted),
        id(strategy.layers),
        hub,
        strategy.early,
        strategy.detours,
        order,
    )
