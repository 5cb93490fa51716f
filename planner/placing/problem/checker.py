"""Checking: whether a placer's answer keeps every rule, judged from the numbers alone. Rules only.

The checker shares no code with the modules that make schedules (dispatch.py, load.py and the placers): it
works out lengths, loads and groups again, from their definitions in workload.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf, isfinite, lcm

from edgepart.planner.errors import InternalError
from edgepart.planner.placing.problem.schedule import PlacedTransfer, PlacementFound, PlacementSchedule
from edgepart.planner.placing.problem.workload import TaskTensor, Workload

TOLERANCE = 1e-9
"""The relative error that times may have: they are sums of floats."""

Span = tuple[float, float, str]
"""(start, end, the task or transfer that occupies a side of a machine)."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a rule."""

    rule: str
    """"shape", "runs", "memory", "colocation", "length", "precedence", "transfer", "once", "computing", "sending",
    "receiving", "crossing", "value" or "bound"."""
    what: str
    """The cause of the violation, and its size."""


def check(
    workload: Workload, found: PlacementFound, objective: str = "latency", tolerance: float = TOLERANCE
) -> PlacementFound:
    """Return `found`. Raises InternalError, which names the first few violations, if it breaks a rule."""
    broken = violations(workload, found, objective, tolerance)
    if broken:
        said = "; ".join(f"{violation.rule}: {violation.what}" for violation in broken[:5])
        raise InternalError(f"{workload.name}: a placement breaks {len(broken)} rules: {said}")
    return found


def violations(
    workload: Workload, found: PlacementFound, objective: str = "latency", tolerance: float = TOLERANCE
) -> tuple[Violation, ...]:
    """Return all violations; () for a sound answer. Tasks that take no time also have a place in the order:
    none of them may run in the middle of another task."""
    shape = tuple(_shape(workload, found))
    if shape:
        return shape  # The other rules can only be checked on an answer of the right shape.
    rules: list[Iterable[Violation]] = [_places(workload, found)]
    slack_s = tolerance * abs(found.value_s)
    if objective == "throughput":
        rules.append(_throughput(workload, found, slack_s))
    elif found.schedule is None:
        rules.append([Violation("shape", "a latency without a schedule")])
    else:
        rules.append(_Replay(workload, found.schedule, slack_s).violations())
        rules.append(_worth("value", found.value_s, found.schedule.makespan_s, slack_s))
    if found.bound_s is not None and not found.bound_s <= found.value_s + slack_s:
        rules.append([Violation("bound", f"{found.bound_s!r} is proved and {found.value_s!r} was found")])
    return tuple(violation for rule in rules for violation in rule)


def _shape(workload: Workload, found: PlacementFound) -> Iterator[Violation]:
    """Yield violations in the form of the answer: lengths, indices and values that are impossible."""
    tasks, machines = len(workload.tasks), range(len(workload.machines))
    if len(found.placement) != tasks:
        yield Violation("shape", f"{len(found.placement)} machines for {tasks} tasks")
    for number in {*found.placement} - {*machines}:
        yield Violation("shape", f"there is no machine {number}")
    if not isfinite(found.value_s) or found.value_s < 0:
        yield Violation("shape", f"{found.value_s!r} is no value")
    if found.replicas and len(found.replicas) != tasks:
        yield Violation("shape", f"replicas of {len(found.replicas)} of {tasks} tasks")
    for number, turns in enumerate(found.replicas):
        first = found.placement[number] if number < len(found.placement) else None
        if not turns or turns[0] != first or len({*turns}) < len(turns) or not {*turns} <= {*machines}:
            yield Violation("shape", f"task {number} is on {first}, its replicas are {turns}")
    schedule = found.schedule
    if schedule is None:
        return
    if tuple(schedule.placement) != tuple(found.placement):
        yield Violation("shape", "the schedule is of another placement")
    if len(schedule.start_s) != tasks:
        yield Violation("shape", f"{len(schedule.start_s)} starts of {tasks} tasks")
    for transfer in schedule.transfers:
        known = 0 <= transfer.tensor < len(workload.tensors)
        if not known or transfer.source not in machines or transfer.target not in machines:
            yield Violation("shape", f"{transfer} is of nothing that there is")


def _turns(found: PlacementFound) -> tuple[tuple[int, ...], ...]:
    """Return the machines that take turns at each task."""
    return found.replicas or tuple((machine,) for machine in found.placement)


def _places(workload: Workload, found: PlacementFound) -> Iterator[Violation]:
    """Yield a violation for each task that its machine cannot run, each machine that lacks memory for its
    tasks, and each group that is not on the same machines."""
    kept = [0.0] * len(workload.machines)
    together: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for task, turns in zip(workload.tasks, _turns(found), strict=True):
        for number in turns:
            kept[number] += task.memory_bytes
            if task.compute_s[number] == inf:
                yield Violation("runs", f"{task.name} cannot run on {workload.machines[number].name}")
        if task.colocate:
            together[task.colocate].add(turns)
    for machine, nbytes in zip(workload.machines, kept, strict=True):
        if nbytes > machine.memory_bytes:
            yield Violation("memory", f"{machine.name} keeps {nbytes} of {machine.memory_bytes} bytes")
    for name, places in together.items():
        if len(places) > 1:
            yield Violation("colocation", f"group {name} is on {sorted(places)}")


def _length_s(workload: Workload, tensor: TaskTensor, source: int, target: int) -> float:
    if (source, target) in tensor.transfer_s:
        return tensor.transfer_s[source, target]
    return workload.latency_s[source][target] + tensor.nbytes / workload.bytes_per_s[source][target]


def _worth(rule: str, said: float, is_so: float, slack_s: float) -> Iterator[Violation]:
    if not abs(said - is_so) <= slack_s:
        yield Violation(rule, f"{said!r} is said, {is_so!r} is so")


def _throughput(workload: Workload, found: PlacementFound, slack_s: float) -> Iterator[Violation]:
    """Yield a violation if the value is not the largest load, averaged over the samples after which all turns
    repeat. Sample k is computed by machine number k modulo n of a task that has n machines."""
    turns = _turns(found)
    count = len(workload.machines)
    busy = [[0.0] * count for _ in ("computing", "sending", "receiving")]
    crossing = dict.fromkeys(workload.media, 0.0)
    for task, machines in zip(workload.tasks, turns, strict=True):
        for number in machines:
            busy[0][number] += task.compute_s[number] / len(machines)
    for tensor in workload.tensors:
        sides = turns[tensor.source], *(turns[reader] for reader in tensor.readers)
        samples = lcm(*map(len, sides))
        for sample in range(samples):
            source, *readers = (machines[sample % len(machines)] for machines in sides)
            for target in {*readers} - {source}:
                took_s = _length_s(workload, tensor, source, target) / samples
                busy[1][source] += took_s
                busy[2][target] += took_s
                for medium in workload.media:
                    crossing[medium] += took_s if (source, target) in medium.pairs else 0.0
    whole = max if workload.overlap else sum
    most = max(*(whole([side[number] for side in busy]) for number in range(count)), 0.0, *crossing.values())
    yield from _worth("value", found.value_s, most, slack_s)


class _Replay:
    """Replays a schedule to find the rules that it breaks."""

    def __init__(self, workload: Workload, schedule: PlacementSchedule, slack_s: float) -> None:
        self.workload, self.schedule, self.slack_s = workload, schedule, slack_s
        self.end_s = [
            start_s + task.compute_s[number]
            for task, number, start_s in zip(
                workload.tasks, schedule.placement, schedule.start_s, strict=True
            )
        ]

    def violations(self) -> Iterator[Violation]:
        for task, start_s in zip(self.workload.tasks, self.schedule.start_s, strict=True):
            if not 0 <= start_s < inf:
                yield Violation("precedence", f"{task.name} starts at {start_s!r}")
        yield from _worth("value", self.schedule.makespan_s, max(self.end_s, default=0.0), self.slack_s)
        for transfer in self.schedule.transfers:
            yield from self._transfer(transfer)
        yield from self._arrivals()
        for rule, spans in self._spans().items():
            yield from self._alone(*rule, spans)

    def _transfer(self, transfer: PlacedTransfer) -> Iterator[Violation]:
        """Yield a violation if the transfer is between wrong machines, leaves before its tensor is made, or
        takes a time other than that of its link."""
        tensor, placement = self.workload.tensors[transfer.tensor], self.schedule.placement
        if placement[tensor.source] != transfer.source:
            yield Violation("transfer", f"{transfer} leaves from where its tensor is not made")
        if transfer.target not in {placement[reader] for reader in tensor.readers} - {transfer.source}:
            yield Violation("transfer", f"{transfer} goes where nobody needs it")
        if not transfer.start_s >= self.end_s[tensor.source] - self.slack_s:
            yield Violation(
                "precedence", f"{transfer} leaves before its tensor is made, at {self.end_s[tensor.source]}"
            )
        length_s = _length_s(self.workload, tensor, transfer.source, transfer.target)
        yield from _worth("length", transfer.end_s - transfer.start_s, length_s, self.slack_s)

    def _arrivals(self) -> Iterator[Violation]:
        """Yield a violation for each tensor that is not there when a task reads it, or that a machine gets twice."""
        arrived: dict[tuple[int, int], list[float]] = defaultdict(list)
        for transfer in self.schedule.transfers:
            arrived[transfer.tensor, transfer.target].append(transfer.end_s)
        placement, tasks = self.schedule.placement, self.workload.tasks
        for (tensor, target), times in arrived.items():
            if len(times) > 1:
                yield Violation("once", f"tensor {tensor} is sent to machine {target} {len(times)} times")
        for number, tensor_ in enumerate(self.workload.tensors):
            here = placement[tensor_.source]
            for reader in tensor_.readers:
                there = placement[reader]
                times = [self.end_s[tensor_.source]] if there == here else arrived[number, there]
                if not times:
                    yield Violation("transfer", f"tensor {number} is never sent to {tasks[reader].name}")
                elif not self.schedule.start_s[reader] >= min(times) - self.slack_s:
                    yield Violation(
                        "precedence",
                        f"{tasks[reader].name} starts at {self.schedule.start_s[reader]}, {tasks[tensor_.source].name}'s"
                        f" tensor is there at {min(times)}",
                    )

    def _spans(self) -> dict[tuple[str, int], list[Span]]:
        found: dict[tuple[str, int], list[Span]] = defaultdict(list)
        runs = zip(
            self.workload.tasks, self.schedule.placement, self.schedule.start_s, self.end_s, strict=True
        )
        for task, number, start_s, end_s in runs:
            found["computing", number].append((start_s, end_s, task.name))
        for transfer in self.schedule.transfers:
            span = transfer.start_s, transfer.end_s, str(transfer)
            found["sending", transfer.source].append(span)
            found["receiving", transfer.target].append(span)
            for number, medium in enumerate(self.workload.media):
                if (transfer.source, transfer.target) in medium.pairs:
                    found["crossing", number].append(span)
        return found

    def _alone(self, rule: str, number: int, spans: list[Span]) -> Iterator[Violation]:
        """Yield a violation for each two spans, on a side of a machine or a medium, that overlap."""
        of = self.workload.media if rule == "crossing" else self.workload.machines
        last: Span = (-inf, -inf, "")
        for span in sorted(spans):
            # A span without length may begin together with a longer one: it then comes first.
            if span[0] < last[1] - self.slack_s and span[1] > last[0] + self.slack_s:
                yield Violation(rule, f"{of[number].name}: {span} while {last} is not done")
            last = max(last, span, key=lambda one: one[1])
