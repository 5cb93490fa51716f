"""Plan, Program, Segment, Transfer: what the agents carry out. Facts: frozen records. As bytes they travel and are kept
(plan_bytes.py).

A **program** is one device's static schedule for one request: receive, run a segment, send. The **gateway**
(the agent that a client asked) is the source of input transfers and the target of output transfers. The
gateway is not a device of the plan, so that a request may enter at any agent.

A plan may have **replicas**: groups of devices, each of which answers whole requests by itself. A request goes to one
of them (balance_requests.py), and the other replicas take no part in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgepart.planner.plans.reduced_precision import EXACT
from edgepart.planner.region import Region, span

GATEWAY = ""
"""The name of the gateway in `Transfer.source` and `Transfer.target`."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A region of a tensor: the packed array that holds it has shape `region.shape`."""

    tensor: str
    region: Region


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a segment's model."""

    name: str
    """The value's name inside the segment's ONNX model."""
    piece: Piece
    """Exactly the elements that the model reads or writes at this port, packed."""


@dataclass(frozen=True, slots=True)
class WeightRef:
    """An initializer whose value is not stored in its segment, but is a blob or a slice of a blob."""

    name: str
    """The initializer's name inside the segment's ONNX model (declared there as external data)."""
    digest: str
    """SHA-256 (hex) of the packed little-endian bytes of exactly this region."""
    source: str
    """The constant of the model from which the value is cut."""
    region: Region
    """The region of that constant."""
    dtype: str
    """The ONNX element type in lower case."""
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Segment:
    """A maximal run of operators between communications: a stand-alone ONNX model without its weights."""

    digest: str
    """SHA-256 (hex) of `model`, the digests of its weights and the shapes of its ports. Profiles are stored
    under this digest."""
    model: bytes = field(repr=False)
    """Serialized ModelProto; big initializers are external, under the names in `weights`."""
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: tuple[WeightRef, ...]
    operators: tuple[str, ...]
    """Names of the model's operators that the segment computes, in full or in part; for people and for traces."""
    compute_s: float
    """Predicted seconds on its device, fixed cost included."""
    flops: float
    workspace_bytes: int
    """The estimated peak of the activations that are alive at the same time inside the segment."""
    calibrated_s: float = 0.0
    """Seconds predicted from its device's calibration alone, without profiles and drifts; 0 if not known."""
    whole: bool = False
    """Whether `model` is the user's own, with nothing folded or changed. Such a segment gives the same bits
    that ONNX Runtime gives for the file, and runs as it is, never compiled."""
    engine: str = ""
    """The engine of its device that runs it; "" for the CPU."""
    times_cpu: float = 0.0
    """How many times as long as its device's CPU its engine takes for it, by calibration alone; 0 on the CPU."""

    @property
    def timed_as(self) -> str:
        """The name under which times of this segment are stored: its digest, and its engine if that is not the CPU."""
        return f"{self.digest}@{self.engine}" if self.digest and self.engine else self.digest


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message: pieces that travel together."""

    number: int
    """The transfer's place in the plan, from 0."""
    source: str
    """A device, or GATEWAY."""
    target: str
    """A device, or GATEWAY; not `source`."""
    pieces: tuple[Piece, ...]
    nbytes: int
    """Bytes of the payload, as far as they are known before the run (strings and unknown shapes count 0)."""
    dtypes: tuple[str, ...] = ()
    """The type that each piece is rounded to while it travels, "float32" for a piece that is not rounded
    (planner/plans/reduced_precision.py); () if no piece is rounded."""


@dataclass(frozen=True, slots=True)
class Receive:
    transfer: int


@dataclass(frozen=True, slots=True)
class Run:
    segment: int
    """Index into the program's `segments`."""


@dataclass(frozen=True, slots=True)
class Send:
    transfer: int


Step = Receive | Run | Send


@dataclass(frozen=True, slots=True)
class KeptPiece:
    """A piece of a state that a device keeps between the steps of a sequence: at the end of a step `written` becomes what
    the next step reads as `read`. Before the first step of a sequence it is zeros."""

    read: Piece
    """A region of an input of the model."""
    written: Piece
    """The region of an output of the model, of the same shape. If steps may be short, it is longer along one axis, and
    what becomes `read` depends on the number of rows that the step adds (`after`)."""
    dtype: str
    """The ONNX element type in lower case."""
    nbytes: int
    """The size of `read`."""
    in_place: bool = False
    """Whether a segment that reads `read` and writes `written` may write over what it reads: it changes only rows that the
    step adds."""

    @property
    def sequence_bytes(self) -> int:
        """Bytes that the device keeps of it for each sequence. If it is not written in place, its value before the last
        step is kept too, as that step may have to be made again."""
        return self.nbytes if self.in_place else 2 * self.nbytes

    @property
    def longer(self) -> tuple[tuple[int, int], ...]:
        """Each axis along which `written` has another extent than `read`, with the number of rows that it has more."""
        before, after = self.read.region.shape, self.written.region.shape
        return tuple((axis, b - a) for axis, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)

    def after(self, rows: int) -> KeptPiece:
        """The piece as it is kept after a step that adds so many rows: `written` has the shape of `read`."""
        if not self.longer:
            return self
        (axis, more), region = self.longer[0], self.written.region
        begin = region.spans[axis][0].start + min(rows - 1, more)
        kept = region.replace(axis, span((begin, begin + self.read.region.shape[axis])))
        return replace(self, written=replace(self.written, region=kept))


IN_PLACE_ROWS = 2
"""The axis along which states that are written in place have a row for each step: they are caches of keys and values,
[batch, heads, rows, size]."""


def widen(pieces: Sequence[KeptPiece], rows: int) -> tuple[KeptPiece, ...]:
    """Kept pieces of a single sequence as the programs of a batch keep them, for `rows` sequences."""

    def wide(piece: Piece) -> Piece:
        return replace(piece, region=Region((span((0, rows)), *piece.region.spans[1:])))

    return tuple(
        replace(one, read=wide(one.read), written=wide(one.written), nbytes=one.nbytes * rows)
        for one in pieces
    )


@dataclass(frozen=True)
class Program:
    """The steps of one device for one request, in order. A Run takes its inputs from the pieces that the
    device received or computed before: the piece of a port may be a part of one such piece, or be put
    together from several."""

    device: str
    steps: tuple[Step, ...]
    segments: tuple[Segment, ...]
    weight_bytes: int
    """Bytes of its weights; each distinct digest counts once."""
    peak_memory_bytes: int
    """Predicted peak: the memory that its sessions keep, plus the most that one request, or the creation of a
    session, takes in addition."""
    kept_bytes: int = 0
    """Predicted memory that its sessions keep between requests, weights included."""
    request_bytes: int = 0
    """The most memory that one request is predicted to take in addition."""
    flops_per_s: float = 0.0
    """The calibrated FLOP/s of its device when the plan was made, on which the segments' `calibrated_s` are based; 0 if
    not known."""
    kept: tuple[KeptPiece, ...] = ()
    """The pieces of states that the device keeps for each sequence."""
    sequences: int = 1
    """The most sequences for which the device keeps them at the same time."""

    @property
    def runs(self) -> list[Segment]:
        """The segments that the device runs for one request, in order; one that it runs twice is there twice."""
        return [self.segments[step.segment] for step in self.steps if isinstance(step, Run)]

    @property
    def sequence_bytes(self) -> int:
        """Bytes that the device keeps for each sequence."""
        return sum(piece.sequence_bytes for piece in self.kept)

    @property
    def in_place(self) -> bool:
        """Whether all that it keeps is written in place."""
        return all(piece.in_place for piece in self.kept)


@dataclass(frozen=True, slots=True)
class Replica:
    """A group of devices that answers whole requests by itself, and its pace, by which requests are balanced."""

    devices: tuple[str, ...]
    latency_s: float = 0.0
    """Predicted latency of a request that is alone in the replica, from the gateway and back."""
    between_s: float = 0.0
    """Predicted time between two answers if another request is always waiting."""


@dataclass(frozen=True)
class ValueInfo:
    """An input or output of the model, as clients see it."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    """The shape that the plan is bound to; None if it is not known before the run."""
    free: tuple[str | None, ...] = ()
    """For each axis, the name of the dimension if the model leaves it free ("" if it has no name), or None if
    the model fixes it; () if no axis is free. Equal names stand for equal extents, across all inputs."""

    @property
    def open_shape(self) -> tuple[int, ...] | None:
        """`shape` with -1 for free axes."""
        if self.shape is None or not self.free:
            return self.shape
        return tuple(e if name is None else -1 for e, name in zip(self.shape, self.free, strict=True))


@dataclass(frozen=True)
class KeptState:
    """A state of the model, which devices keep between the steps of a sequence, as gateways see it."""

    input: ValueInfo
    output: str
    grows: int | None = None
    """The axis along which the output is longer than the input, by the rows that a step adds; None if both have the same
    shape."""
    in_place: bool = False
    """Whether a step changes only the rows that it adds."""


@dataclass(frozen=True, slots=True)
class ComputedTensor:
    """A tensor that one layer hands to others, and who computes which region of it; for people, no agent acts on it."""

    tensor: str
    shape: tuple[int, ...]
    regions: Mapping[str, Region]
    """The region of each device that computes a part, by the device's name. Regions may overlap."""


@dataclass(frozen=True)
class Plan:
    """The programs and transfers by which devices answer a request to one model with bound shapes."""

    model_digest: str
    strategy: str
    programs: Mapping[str, Program]
    """Programs by device; devices with nothing to do are left out."""
    transfers: tuple[Transfer, ...]
    """`transfers[n].number == n`."""
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    constant_outputs: tuple[str, ...] = ()
    """Outputs that are constants or inputs of the graph, which the gateway returns without any device."""
    predicted_latency_s: float = 0.0
    predicted_throughput_per_s: float = 0.0
    why: str = ""
    replicas: tuple[Replica, ...] = ()
    """The groups into which the devices are divided, each of which answers whole requests; () if all devices
    answer together."""
    states: tuple[KeptState, ...] = ()
    """The states that devices keep, which are neither among `inputs` nor among `outputs`."""
    prefill: Plan | None = None
    """The programs of steps that read many rows of a sequence at once, with the same kept pieces and without outputs; None
    if there are none."""
    batch: Plan | None = None
    """The programs of requests that make a step in each of several sequences, one for each row of the inputs' first axis.
    Their kept pieces have these rows too. None if there are none."""
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """The devices that keep copies of other devices' states, by the device whose states they copy."""
    layers: tuple[ComputedTensor, ...] = ()
    """The tensors between layers in the order of computation, for drawings of the plan; () if one device computes
    everything, or if the plan was made by an agent that does not tell."""

    @property
    def forms(self) -> tuple[Plan, ...]:
        """This plan, and those of other kinds of steps that its devices hold beside it."""
        return (self, *(form for form in (self.prefill, self.batch) if form is not None))

    @property
    def rows(self) -> int:
        """The number of sequences that take part in a step: the extent of the first axis of all inputs and states; 0 if
        they differ."""
        infos = (*self.inputs, *(state.input for state in self.states))
        found = {info.shape[0] if info.shape else 0 for info in infos}
        return found.pop() if len(found) == 1 else 0

    @property
    def bound_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the model's inputs that the plan is bound to, those of states included."""
        infos = (*self.inputs, *(state.input for state in self.states))
        return {info.name: info.shape for info in infos if info.shape is not None}

    @property
    def parts(self) -> tuple[Replica, ...]:
        """The replicas of the plan; if it has none, a single replica of all its devices."""
        return self.replicas or (Replica(tuple(self.programs)),)

    @property
    def structure(self) -> str:
        """A digest of the segments of each device, those that read blocks of rows included, independent of
        predictions. Plans of equal structure give equal answers."""
        forms = (self,) if self.prefill is None else (self, self.prefill)
        parts = sorted(
            (device, *(one.timed_as for one in program.segments))
            for form in forms
            for device, program in form.programs.items()
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def is_model_itself(self) -> bool:
        """Whether every segment is the user's own graph, so that the answers are exactly the model's."""
        segments = [segment for program in self.programs.values() for segment in program.segments]
        return bool(segments) and all(segment.whole for segment in segments)

    @property
    def rounded_to(self) -> str:
        """The type that some of the data between devices is rounded to; "" if nothing is rounded."""
        return next((d for t in self.transfers for d in t.dtypes if d != EXACT), "")

    @property
    def syncs(self) -> int:
        """The number of transfers between devices (without those of the gateway)."""
        return sum(GATEWAY not in (t.source, t.target) for t in self.transfers)
