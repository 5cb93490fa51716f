"""Outlines: turns a schedule into the form that the simulator reads, without making a plan. Pure rules.

A search that only asks how long a candidate takes needs no ports, weights or numbers of segments. The seconds
and bytes are those of the plan (assemble.py); a test compares them. Memory gets an upper bound: as if a
device held, at once and in full, everything that its operators read and write. If this bound is too much for
a device, the plan gives the exact figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from math import ceil

from edgepart.planner.cost.memory import OPERATOR_BYTES, REORDERING_FACTOR, kept_bytes, session_bytes
from edgepart.planner.lowering.by_level import Levels
from edgepart.planner.lowering.draft import Draft, Flow, Share, covers
from edgepart.planner.lowering.liveness import stage_outputs
from edgepart.planner.lowering.schedule import CostModel, Seconds, Stage, StagePlace, message_bytes
from edgepart.planner.lowering.schedule import Schedule as Planned
from edgepart.planner.lowering.schedule import StageMessage as Sent
from edgepart.planner.lowering.segment import Value, input_values, nbytes_of
from edgepart.planner.lowering.segment_time import predict_segment_s
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.plans.plan import Receive, Send
from edgepart.planner.plans.reduced_precision import EXACT, rounded_dtype, rounding_copy_bytes
from edgepart.planner.plans.timeline import Compute, MessageTimes, TimedSchedule

_Own = Mapping[int, Sequence[tuple[str, int]]]
"""The tensors that each share reads from its own device, each with a number of levels, by id of the share."""

Steps = tuple[Receive | Compute | Send, ...]


class Outliner:
    """Outlines many candidates of one problem; results that they have in common are computed once."""

    def __init__(self, cost: CostModel, levels: Levels) -> None:
        self.cost = cost
        self._levels = levels
        self._runs: dict[tuple[tuple[int, ...], tuple[str, ...], str], tuple[Compute, tuple[Share, ...]]] = {}
        """The step of each segment, by the ids of its shares, the names of its outputs and its engine. The shares are
        kept with the step, so that their ids are not reused."""
        self._senders: dict[Flow, frozenset[str]] = {}
        self._bytes: dict[int, tuple[int, Operator]] = {}

    def outline(self, planned: Planned, seconds: Seconds) -> TimedSchedule:
        """The schedule for the simulator."""
        steps = {
            device: [step for stage in stages for step in stage]
            for device, stages in self.by_stage(planned, seconds).items()
        }
        return TimedSchedule(steps, self.messages(planned))

    def messages(self, planned: Planned) -> list[MessageTimes]:
        """The messages of the schedule, with their bytes on the wire."""
        problem = planned.draft.blueprint.problem
        return [MessageTimes(m.source, m.target, message_bytes(problem, m)) for m in planned.messages]

    def by_stage(self, planned: Planned, seconds: Seconds) -> dict[str, list[Steps]]:
        """The steps of each stage, by device."""
        numbers = {id(message): n for n, message in enumerate(planned.messages)}
        own = self._levels.own(planned.draft)
        found: dict[str, list[Steps]] = {}
        for device, stages in planned.stages.items():
            if any(stage.is_part for stage in stages):
                values = stage_outputs(planned, device)
            else:  # The same result, computed faster.
                values = self._stage_outputs(planned.draft, device, stages, own)
            found[device] = [
                tuple(self._steps(planned, device, stage, handed, numbers, seconds))
                for stage, handed in zip(stages, values, strict=True)
            ]
        return found

    def most_bytes(self, planned: Planned) -> dict[str, int]:
        """An upper bound, in bytes, on the peak memory that the plan would predict for each device."""
        draft, cluster = planned.draft, planned.draft.blueprint.problem.cluster
        found: dict[str, int] = {}
        for device, stages in planned.stages.items():
            session = session_bytes(cluster.device(device).threads)
            shares = (share.operator for stage in stages for share in stage.shares)
            received = (m for stage in stages for m in planned.received_messages(device, stage))
            found[device] = len(stages) * session + sum(self._held_bytes(draft.graph, op) for op in shares)
            found[device] += sum(_nbytes(draft.graph, message) for message in received)
            found[device] += _sequence_bytes(draft, device)
        return found

    def _steps(
        self,
        planned: Planned,
        device: str,
        stage: Stage,
        handed: Sequence[Value],
        numbers: Mapping[int, int],
        seconds: Seconds,
    ) -> Iterator[Receive | Compute | Send]:
        for message in planned.received_messages(device, stage):
            yield Receive(numbers[id(message)])
            yield from self._rounding_step(planned, device, message)
        if stage.shares:
            yield self._run(planned.draft, device, stage, handed, seconds)
        for message in planned.sent_messages(device, stage):
            yield from self._rounding_step(planned, device, message)
            yield Send(numbers[id(message)])

    def _rounding_step(self, planned: Planned, device: str, message: Sent) -> Iterator[Compute]:
        """The step that rounds a message's pieces on `device`, or converts them back; none if nothing is rounded."""
        graph, asked = planned.draft.graph, planned.draft.blueprint.problem.transfer_dtype
        ends = message.source, message.target
        if asked != EXACT and all(ends):
            kinds = [rounded_dtype(graph.tensors[m.tensor], m.region, ends, asked) for m in message.moves]
            sizes = (move.region.size for move in message.moves)
            nbytes = rounding_copy_bytes(zip(kinds, sizes, strict=True))
            if nbytes:
                yield Compute(self.cost.copy_s(device, nbytes), "rounding")

    def _stage_outputs(
        self, draft: Draft, device: str, stages: Sequence[Stage], own: _Own
    ) -> Iterator[tuple[Value, ...]]:
        """Yields the outputs of each stage: the values that it computes and that later stages of this device
        or other devices read."""
        readers = _readers(own, stages)
        for stage in stages:
            yield tuple(self._list_outputs(draft, device, stage, readers))

    def _list_outputs(
        self, draft: Draft, device: str, stage: Stage, readers: Mapping[str, Set[StagePlace]]
    ) -> Iterator[Value]:
        for share in stage.shares:
            for name, region in share.written:
                places = readers.get(name, ())
                read_later = len(places) > 1 or (places and stage.first not in places)
                sent = device in self._sending_devices(draft.flows[name])
                kept = (covers(region, one) for one in draft.kept_regions(name, device))
                if read_later or sent or any(kept):
                    yield name, region

    def _sending_devices(self, flow: Flow) -> frozenset[str]:
        """The devices that send some of the region that they compute of a tensor."""
        found = self._senders.get(flow)
        if found is None:
            computed = flow.computed
            sending = (m.source for m in flow.moves if covers(computed.get(m.source), m.region))
            found = self._senders[flow] = frozenset(sending)
        return found

    def _run(
        self, draft: Draft, device: str, stage: Stage, handed: Sequence[Value], seconds: Seconds
    ) -> Compute:
        """The step of a stage's segment, whose outputs are the values `handed`."""
        shares = stage.shares
        key = tuple(map(id, shares)), tuple(name for name, _ in handed), stage.engine
        found = self._runs.get(key)
        if found is None:
            values = (*input_values(draft, shares), *handed)
            predicted = predict_segment_s(draft, stage, device, values, seconds, self.cost)
            found = self._runs[key] = Compute(predicted, f"{len(shares)} operators"), shares
        return found[0]

    def _held_bytes(self, graph: Graph, op: Operator) -> int:
        """An upper bound, in bytes, on the memory that one share of `op` takes: its weights, packed and while
        they are reordered, everything that it reads, and twice what it writes (the original and the copy that
        is passed on)."""
        found = self._bytes.get(id(op))
        if found is None:
            names = [name for name in (*op.inputs, *op.captured) if name]
            weights = [graph.constants[n] for n in names if n in graph.constants]
            kept = sum(kept_bytes(one.dtype, one.nbytes) for one in weights)
            making = max(kept, ceil(REORDERING_FACTOR * sum(one.nbytes for one in weights)))
            reads = sum(nbytes_of(graph, n, graph.region_of(n)) for n in names if n in graph.tensors)
            writes = sum(nbytes_of(graph, n, graph.region_of(n)) for n in op.outputs if n)
            found = self._bytes[id(op)] = OPERATOR_BYTES + kept + making + reads + 2 * writes, op
        return found[0]


def _readers(own: _Own, stages: Sequence[Stage]) -> Mapping[str, Set[StagePlace]]:
    """The stages that read each tensor that a device computes, and do not compute it themselves."""
    found: dict[str, set[StagePlace]] = {}
    for stage in stages:
        inside = {name for share in stage.shares for name, _ in share.written}
        for share in stage.shares:
            for name, _ in own[id(share)]:
                if name not in inside:
                    found.setdefault(name, set()).add(stage.first)
    return found


def _sequence_bytes(draft: Draft, device: str) -> int:
    """An upper bound, in bytes, on what a device keeps of states: of all sequences those after the last step and those
    before it, and those that a step writes."""
    sequences = draft.blueprint.problem.sequences
    return sum(
        (2 * sequences + 1) * nbytes_of(draft.graph, name, region)
        for name in draft.kept
        for region in draft.kept_regions(name, device)
    )


def _nbytes(graph: Graph, message: Sent) -> int:
    return sum(nbytes_of(graph, move.tensor, move.region) for move in message.moves)
