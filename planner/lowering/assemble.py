"""Assembly: turns a schedule into a Plan with numbered transfers and, for each device, a program and its
segments. Pure rules.

This module also predicts memory: what sessions keep (session_memory.py), and what is alive at the same time
in the order of the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgepart.planner.devices.engine import CPU
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.draft import Draft, Share
from edgepart.planner.lowering.liveness import stage_outputs
from edgepart.planner.lowering.schedule import (
    CostModel,
    Schedule,
    Seconds,
    Stage,
    StageMessage,
    message_bytes,
)
from edgepart.planner.lowering.segment import (
    Digests,
    Value,
    WeightRefs,
    build_segment,
    input_values,
    make_ports,
    nbytes_of,
    segment_digest,
    weight_refs,
    whole_refs,
)
from edgepart.planner.lowering.segment_time import predict_segment_s
from edgepart.planner.lowering.session_memory import SessionMemory, predict_session_memory
from edgepart.planner.model.graph import Graph, WholeModel
from edgepart.planner.plans.model_ends import value_info
from edgepart.planner.plans.plan import (
    KeptPiece,
    KeptState,
    Piece,
    Plan,
    Port,
    Program,
    Receive,
    Run,
    Segment,
    Send,
    Step,
    Transfer,
    WeightRef,
)
from edgepart.planner.plans.reduced_precision import EXACT, rounded_dtype
from edgepart.planner.region import Region


@dataclass(frozen=True, slots=True)
class SegmentWithMemory:
    """A segment, and the memory of its session."""

    segment: Segment
    session: SessionMemory


class Sketches:
    """Segments without models and digests. Plans of one problem share many of them, so each is made once."""

    def __init__(self) -> None:
        self.refs: WeightRefs = {}
        self._found: dict[
            tuple[tuple[int, ...], tuple[str, ...], str], tuple[SegmentWithMemory, tuple[Share, ...]]
        ] = {}

    def get(
        self, stage: Stage, outputs: Sequence[Value], make: Callable[[], SegmentWithMemory]
    ) -> SegmentWithMemory:
        """The segment of a stage with these outputs; `make` makes it if it is not known yet."""
        # The shares are kept with the result, so that their ids are not reused.
        key = tuple(map(id, stage.shares)), tuple(name for name, _ in outputs), stage.engine
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = make(), stage.shares
        return found[0]


def assemble(
    schedule: Schedule,
    seconds: Seconds,
    cost: CostModel,
    model_digest: str,
    *,
    digests: Digests | None = None,
    sketches: Sketches | None = None,
) -> Plan:
    """The plan of a schedule. Without `digests` it is a sketch, whose segments have no models and no digests."""
    draft, graph = schedule.draft, schedule.draft.graph
    numbers = {id(message): n for n, message in enumerate(schedule.messages)}
    programs: dict[str, Program] = {}
    for device, stages in schedule.stages.items():
        maker = _SegmentMaker(schedule, device, seconds, cost, model_digest, digests, sketches or Sketches())
        made = list(maker.make_segments())
        steps = tuple(_steps(schedule, device, stages, numbers))
        segments = tuple(one.segment for one in made)
        programs[device] = _program(graph, device, steps, segments, schedule, [one.session for one in made])
    strategy, problem = draft.blueprint.strategy, draft.blueprint.problem
    return Plan(
        model_digest=model_digest,
        strategy=strategy.name,
        programs=programs,
        transfers=tuple(_transfer(problem, message, n) for n, message in enumerate(schedule.messages)),
        inputs=tuple(value_info(graph, name) for name in graph.request_inputs),
        outputs=tuple(value_info(graph, name) for name in graph.answer_outputs),
        constant_outputs=tuple(name for name in graph.answer_outputs if name not in graph.producers),
        why=strategy.why,
        states=tuple(
            KeptState(value_info(graph, one.input), one.output, one.grows, one.in_place)
            for one in graph.states
        ),
    )


def _transfer(problem: Problem, message: StageMessage, number: int) -> Transfer:
    graph, asked = problem.graph, problem.transfer_dtype
    ends, moves = (message.source, message.target), message.moves
    dtypes = tuple(rounded_dtype(graph.tensors[move.tensor], move.region, ends, asked) for move in moves)
    return Transfer(
        number,
        *ends,
        tuple(Piece(move.tensor, move.region) for move in moves),
        message_bytes(problem, message),
        () if set(dtypes) == {EXACT} else dtypes,
    )


def _steps(
    schedule: Schedule, device: str, stages: Sequence[Stage], numbers: Mapping[int, int]
) -> Iterator[Step]:
    segment = 0
    for stage in stages:
        yield from (Receive(numbers[id(message)]) for message in schedule.received_messages(device, stage))
        if stage.shares:
            yield Run(segment)
            segment += 1
        yield from (Send(numbers[id(message)]) for message in schedule.sent_messages(device, stage))


@dataclass(frozen=True)
class _SegmentMaker:
    """Makes one device's segments."""

    schedule: Schedule
    device: str
    seconds: Seconds
    cost: CostModel
    model_digest: str
    digests: Digests | None
    sketches: Sketches

    @property
    def draft(self) -> Draft:
        return self.schedule.draft

    def make_segments(self) -> Iterator[SegmentWithMemory]:
        """The segments of the stages that compute something, in order."""
        stages = self.schedule.stages[self.device]
        for stage, outputs in zip(stages, stage_outputs(self.schedule, self.device), strict=True):
            if stage.shares:
                yield self._make_known(stage, outputs)

    def _make_known(self, stage: Stage, outputs: Sequence[Value]) -> SegmentWithMemory:
        if self.digests is None:
            return self.sketches.get(stage, outputs, lambda: self._make_segment(stage, outputs))
        return self._make_segment(stage, outputs)

    def _make_segment(self, stage: Stage, outputs: Sequence[Value]) -> SegmentWithMemory:
        segment = self._segment(stage, outputs)
        threads = self.draft.blueprint.problem.cluster.device(self.device).threads
        return SegmentWithMemory(segment, predict_session_memory(stage.shares, segment.weights, threads))

    def _segment(self, stage: Stage, outputs: Sequence[Value]) -> Segment:
        graph, shares = self.draft.graph, stage.shares
        inputs = input_values(self.draft, shares)
        whole = _whole_model(graph, shares, inputs, outputs)
        if whole is not None:
            inputs = tuple(
                (name, graph.region_of(name)) for name in dict.fromkeys(name for name, _ in inputs)
            )
        if whole is not None and self.digests is not None:
            refs, model = whole_refs(whole, self.model_digest, self.digests), whole.model
        else:
            refs = weight_refs(self.draft, shares, self.model_digest, self.digests, self.sketches.refs)
            model = b"" if self.digests is None else build_segment(self.draft, shares, outputs, refs)
        shapes = (region.shape for _, region in (*inputs, *outputs))
        digest = segment_digest(model, refs, shapes) if model else ""
        stage = self._without_refused(stage, digest)
        values = (*inputs, *outputs)
        predicted = predict_segment_s(self.draft, stage, self.device, values, self.seconds, self.cost)
        segment = Segment(
            digest=digest,
            model=model,
            inputs=make_ports(graph, inputs),
            outputs=make_ports(graph, outputs),
            weights=refs,
            operators=tuple(share.operator.name for share in shares),
            compute_s=predicted,
            flops=sum(self._flops(share) for share in shares),
            workspace_bytes=_workspace_bytes(graph, shares, inputs, outputs),
            calibrated_s=predicted / self.cost.drift(self.device, stage.engine),
            whole=whole is not None,
            engine=stage.engine,
            times_cpu=self._times_cpu(stage, values, predicted),
        )
        measured = self.cost.profiled_s(segment.timed_as, self.device) if digest else None
        return segment if measured is None else replace(segment, compute_s=measured)

    def _times_cpu(self, stage: Stage, values: Sequence[Value], predicted: float) -> float:
        """How many times as long as the CPU the stage's engine takes by calibration alone; 0 on the CPU."""
        if stage.engine == CPU:
            return 0.0
        on_cpu = replace(stage, engine=CPU)
        cpu_s = predict_segment_s(self.draft, on_cpu, self.device, values, self.seconds, self.cost)
        drifts = self.cost.drift(self.device, stage.engine) / self.cost.drift(self.device)
        return predicted / cpu_s / drifts

    def _without_refused(self, stage: Stage, digest: str) -> Stage:
        """The stage, on the CPU if its engine is refused for the segment of this digest."""
        engines = self.cost.engines(self.device) if stage.engine else ()
        refused = any(engine.name == stage.engine and digest in engine.refused for engine in engines)
        return replace(stage, engine=CPU) if refused else stage

    def _flops(self, share: Share) -> float:
        return self.draft.blueprint.accesses[share.operator.name].flops(share.outputs)


def _whole_model(
    graph: Graph, shares: Sequence[Share], inputs: Sequence[Value], outputs: Sequence[Value]
) -> WholeModel | None:
    """The whole model, if the segment computes all operators and has all inputs and outputs of the model; else None."""
    whole = graph.whole
    if whole is None or len(shares) < len(graph.operators):
        return None
    given_out = {name for name in graph.outputs if name in graph.producers}  # With the outputs of states.
    is_all = {name for name, _ in inputs} == set(whole.inputs) and {name for name, _ in outputs} == given_out
    return whole if is_all and all(r == graph.region_of(n) for n, r in (*inputs, *outputs)) else None


def _workspace_bytes(
    graph: Graph, shares: Sequence[Share], inputs: Sequence[Value], outputs: Sequence[Value]
) -> int:
    """The most bytes of values that are alive at once while the shares run in order."""
    last = {name: n for n, share in enumerate(shares) for name, _ in share.needs}
    last.update((name, len(shares)) for name, _ in outputs)
    alive = {(name, region): nbytes_of(graph, name, region) for name, region in inputs}
    most = now = sum(alive.values())
    for n, share in enumerate(shares):
        for name, region in share.written:
            alive[name, region] = nbytes_of(graph, name, region)
            now += alive[name, region]
        most = max(most, now)
        for value in [value for value in alive if last.get(value[0], -1) <= n]:
            now -= alive.pop(value)
    return most


def _program(
    graph: Graph,
    device: str,
    steps: tuple[Step, ...],
    segments: tuple[Segment, ...],
    schedule: Schedule,
    sessions: Sequence[SessionMemory],
) -> Program:
    weights = {(r.digest, r.source, r.region): r for segment in segments for r in segment.weights}
    once: dict[object, WeightRef] = {ref.digest or key: ref for key, ref in weights.items()}
    weight_bytes = sum(ref.nbytes for ref in once.values())
    making = max((session.making_bytes for session in sessions), default=0)
    kept = sum(session.kept_bytes for session in sessions)
    request = _peak_bytes(graph, device, steps, segments, schedule)
    peak = kept + max(making, request)
    here = schedule.draft.blueprint.problem.cluster.device(device)
    pieces = tuple(kept_pieces(schedule.draft, device))
    return Program(
        device,
        steps,
        segments,
        weight_bytes,
        peak,
        kept,
        request,
        here.calibrated_flops_per_s,
        pieces,
        schedule.draft.blueprint.problem.sequences,
    )


def kept_pieces(draft: Draft, device: str) -> Iterator[KeptPiece]:
    """Yields the pieces of states that a device keeps between steps."""
    graph = draft.graph
    for state in graph.states:
        for written in draft.kept_regions(state.output, device):
            read = graph.read_region(state, written)
            nbytes = nbytes_of(graph, state.input, read)
            yield KeptPiece(
                Piece(state.input, read),
                Piece(state.output, written),
                graph.tensors[state.input].dtype,
                nbytes,
                state.in_place,
            )


def _peak_bytes(
    graph: Graph, device: str, steps: Sequence[Step], segments: Sequence[Segment], schedule: Schedule
) -> int:
    """The most bytes of pieces and workspace at once. A piece is held from its arrival until the last use of its
    tensor; what the device keeps of sequences is held all the time, and so is what it keeps for the next step."""

    def move(number: int) -> list[Value]:
        return [(move.tensor, move.region) for move in schedule.messages[number].moves]

    def of(values: Iterable[Port]) -> list[Value]:
        return [(port.piece.tensor, port.piece.region) for port in values]

    used = [of(segments[s.segment].inputs) if isinstance(s, Run) else move(s.transfer) for s in steps]
    last = {name: n for n, values in enumerate(used) for name, _ in values}
    held: dict[str, dict[Region, int]] = {}
    kept = list(kept_pieces(schedule.draft, device))
    last.update((name, len(steps)) for piece in kept for name in (piece.read.tensor, piece.written.tensor))
    most = now = sum(piece.sequence_bytes for piece in kept) * schedule.draft.blueprint.problem.sequences
    in_place = {piece.written.tensor for piece in kept if piece.in_place}
    for n, step in enumerate(steps):
        new: list[Value] = []
        if isinstance(step, Run):
            segment = segments[step.segment]
            new = of(segment.outputs)
            most = max(most, now + segment.workspace_bytes)
        elif isinstance(step, Receive):
            new = used[n]
        for name, region in new:
            of_tensor = held.setdefault(name, {})
            if region not in of_tensor and name not in in_place:
                of_tensor[region] = nbytes_of(graph, name, region)
                now += of_tensor[region]
        most = max(most, now)
        for name, _ in (*used[n], *new):
            if name in held and last.get(name, -1) <= n:
                now -= sum(held.pop(name).values())
    return most
