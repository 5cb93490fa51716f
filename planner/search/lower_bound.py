"""Lower bound: the fewest seconds that a strategy can take, computed from its layouts alone. A search need
not lower and simulate a strategy that cannot win. Rules only.

The bound is the time that the busiest device computes, or that the busiest network card sends or receives.
Only certain work counts. A part that no other device holds is computed, and so is everything that its device
holds and reads for that part. Data that a device reads and does not hold is sent to it. Copies that perhaps
no device reads do not count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from edgepart.planner.layout.strategy import Strategy, Sync
from edgepart.planner.lowering.draft import make_share
from edgepart.planner.model.graph import Operator
from edgepart.planner.region import Region
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study

Owned = Mapping[str, Region]
"""The region of one tensor that each device holds."""


def lower_bound_s(study: Study, strategy: Strategy, enough: float = float("inf")) -> float:
    """Seconds of the busiest device or card for one request: a lower bound on a request's latency and on the
    time between two requests. If latency is the objective, the bound also counts work and messages that must
    follow one another. The bound for replicas assumes that all of them run at their fastest. The search for a
    higher bound ends at `enough` seconds."""
    if strategy.replicas:
        bounds = [lower_bound_s(study, one) for one in strategy.replicas]
        return 1 / sum(1 / bound for bound in bounds) if all(bounds) else 0.0
    bound = 0.0
    for busy_s, latency_s in _bounds(study.memo, _CertainWork(study, strategy)):
        bound = max(bound, busy_s, latency_s)
        if bound >= enough:
            break
    return bound


def is_hopeless(study: Study, strategy: Strategy, best: float, likely: float = 1.0) -> bool:
    """Whether `strategy` certainly takes at least `best` seconds, or keeps its busiest device or card busy
    for at least `likely * best` seconds. Not for replicas."""
    bounds = _bounds(study.memo, _CertainWork(study, strategy))
    return any(busy_s >= likely * best or latency_s >= best for busy_s, latency_s in bounds)


def _bounds(memo: Memo, found: _CertainWork) -> Iterator[tuple[float, float]]:
    """Yields pairs of lower bounds: the seconds that a device or card is busy, and the seconds of a request.
    The bounds that are cheapest to compute come first."""
    yield max(found.compute_s().values(), default=0.0), 0.0
    if memo.problem.objective == "latency":
        yield 0.0, found.one_after_another_s()
    sending, receiving = memo.cluster.sending_bytes_per_s, memo.cluster.receiving_bytes_per_s
    received, sent = found.moved_bytes()
    for rates, count in ((receiving, received), (sending, sent), (receiving, found.gathered_bytes())):
        yield max((nbytes / rates[name] for name, nbytes in count.items()), default=0.0), 0.0


class _CertainWork:
    """The work that a strategy is certain to do."""

    def __init__(self, study: Study, strategy: Strategy) -> None:
        self.memo = study.memo
        self.strategy = strategy
        merges = not strategy.parted
        self.graph, self.accesses = (
            self.memo.chain_costs.merge(()) if merges else (self.memo.graph, self.memo.coarse.accesses)
        )
        self.seconds = {
            d: self.memo.chain_s[d] if merges else self.memo.seconds_on(d) for d in self.memo.whole_s
        }
        self.reads = study.candidates.reads_of(strategy)
        self.runs: dict[str, frozenset[str]] = {}
        """The devices that certainly compute their part of each operator."""
        self.unsure: dict[str, set[str]] = {}
        """The devices, by tensor, that may not read the tensor because they may not compute the operator that
        reads it."""
        links = (
            self.memo.cluster.link(one, two)
            for one in self.memo.whole_s
            for two in self.memo.whole_s
            if one != two
        )
        self.hop_s = min((2 * link.message_s + link.latency_s for link in links), default=0.0)
        """The fewest seconds that a message takes."""
        self._walk()

    def _walk(self) -> None:
        """Walks from readers to writers: a device that computes a reader also computes the tensors that it
        holds among the reader's inputs."""
        reading: dict[str, set[str]] = defaultdict(set)
        for op in reversed(self.graph.operators):
            names = [name for name in op.outputs if name]
            holders = {d for name in names if name in self.strategy.layouts for d in self._find_owned(name)}
            parted = op.name in self.strategy.parted
            if parted or not all(self._is_known(name) for name in names):
                sure: set[str] = set()
            elif all(self._is_partition(name) for name in names):
                sure = holders
            else:
                sure = {d for n in names for d in reading[n] if self._meets(n, d)}
            self.runs[op.name] = frozenset(sure)
            for name in self.graph.reads(op):
                reading[name] |= sure
                lacking = set(self.memo.whole_s) if parted else holders - sure
                self.unsure.setdefault(name, set()).update(lacking)

    def _find_owned(self, name: str) -> Owned:
        return self.strategy.layouts[name].regions

    def _is_known(self, name: str) -> bool:
        return name in self.strategy.layouts and self.graph.tensors[name].shape is not None

    def _is_partition(self, name: str) -> bool:
        full = self.graph.tensors[name].region.size
        return full > 0 and sum(region.size for region in self._find_owned(name).values()) == full

    def _meets(self, name: str, device: str) -> bool:
        """Whether the device certainly reads some of the region that it holds."""
        held, read = self._find_owned(name).get(device), self.reads[name].get(device)
        if held is None or read is None or device in self.unsure[name]:
            return False
        return held == read or not held.intersect(read).is_empty

    def compute_s(self) -> dict[str, float]:
        """The seconds that each device computes. A part of an operator takes its share of the whole
        operator's seconds: smaller parts are computed at no higher rate."""
        found: dict[str, float] = defaultdict(float)
        for op in self.graph.operators:
            name = next(filter(None, op.outputs), None)
            if name is None or not self.runs[op.name]:
                continue
            full, owned = self.graph.tensors[name].region.size, self._find_owned(name)
            for device in self.runs[op.name] & owned.keys():
                found[device] += self.seconds[device][op.name] * owned[device].size / full
        return found

    def one_after_another_s(self) -> float:
        """The seconds of the longest path through the model: of the operators on it that one device computes
        in one piece, and of its messages. The time of a divided operator does not count, because borders may
        be computed before the rest."""
        done: dict[str, float] = {}
        for op in self.graph.operators:
            devices = self._sharers(op)
            if len(devices) == 1:
                end = self._ready_s(op, devices[0], done) + self.seconds[devices[0]][op.name]
            elif devices and not self.strategy.early:
                end = min(self._ready_s(op, device, done) for device in devices)
            else:
                end = min((done.get(name, 0.0) for name in self.graph.reads(op)), default=0.0)
            done.update((name, end) for name in op.outputs)
        return max((done.get(name, 0.0) for name in self.graph.answer_outputs), default=0.0)

    def _ready_s(self, op: Operator, device: str, done: Mapping[str, float]) -> float:
        """The seconds until a device has everything that it reads for its part of `op`, which no other device
        computes."""
        index, name = next((index, name) for index, name in enumerate(op.outputs) if name)
        share = make_share(
            self.graph, op, device, self.accesses[op.name], {index: self._find_owned(name)[device]}
        )
        ready_s = 0.0
        for read, region in share.needs:
            held = self._sources(read)
            travels = bool(held) and not (device in held and held[device].contains(region))
            ready_s = max(ready_s, done.get(read, 0.0) + (self.hop_s if travels else 0.0))
        return ready_s

    def _sharers(self, op: Operator) -> tuple[str, ...]:
        """The devices that each compute a part of `op` that no other device computes; () if they are not known."""
        names = [name for name in op.outputs if name]
        if op.name in self.strategy.parted or len(names) != 1 or not self._is_known(names[0]):
            return ()
        return tuple(self._find_owned(names[0])) if self._is_partition(names[0]) else ()

    def moved_bytes(self) -> tuple[dict[str, float], dict[str, float]]:
        """The bytes that each device's card receives, and the bytes that it sends."""
        received: dict[str, float] = defaultdict(float)
        sent: dict[str, float] = defaultdict(float)
        for name in (*self.graph.request_inputs, *self.graph.producers):
            owned = self._sources(name)
            missing = self._missing_elements(name, owned) if owned else {}
            is_input = name in self.graph.request_inputs
            item_bytes = self.memo.cost.item_bytes(name) if is_input else self.memo.travel_bytes(name)
            for device, size in missing.items():
                received[device] += size * item_bytes
            if len(owned) == 1:
                sent[next(iter(owned))] += sum(missing.values()) * item_bytes
        return received, sent

    def _sources(self, name: str) -> Owned:
        """The region of the tensor that each device has; {} if that is not known."""
        tensor = self.graph.tensors[name]
        if tensor.shape is None or tensor.region.is_empty:
            return {}
        if name in self.graph.request_inputs:
            return {self.memo.problem.gateway: tensor.region}
        return self._find_owned(name) if name in self.strategy.layouts else {}

    def _missing_elements(self, name: str, owned: Owned) -> dict[str, int]:
        """The number of elements that each device certainly reads and does not hold."""
        unsure = self.unsure.get(name, set())
        needed = {d: region for d, region in self.reads.get(name, {}).items() if d not in unsure}
        # Where devices send only a part of an output, which part comes from which device is not known.
        if name in self.graph.answer_outputs and name not in self.memo.problem.answer_share:
            needed[self.memo.problem.gateway] = self.graph.tensors[name].region
        return {
            device: region.size - (region.intersect(owned[device]).size if device in owned else 0)
            for device, region in needed.items()
        }

    def gathered_bytes(self) -> dict[str, float]:
        """The bytes that the hub receives from the other devices; {} if the strategy does not move data
        through a hub."""
        hub = self.strategy.hub
        if self.strategy.sync is not Sync.HUB or hub is None:
            return {}
        found = 0.0
        for name in (name for layer in self.memo.layers for name in layer.exits):
            if self.reads.get(name) and self._is_known(name) and self._is_partition(name):
                rest = sum(region.size for device, region in self._find_owned(name).items() if device != hub)
                found += rest * self.memo.travel_bytes(name)
        return {hub: found}
