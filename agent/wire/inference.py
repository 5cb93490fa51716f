"""Messages about requests on the data channel, and the options of a deployment: facts.

A message travels as one frame (agent/wire/frames.py): its kind, its fields as MessagePack and, for Tensors, a raw payload.
docs/protocol.md says who sends which message, and when.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from edgepart.agent.wire.bounds import (
    LARGEST,
    MOST_MEMBERS,
    MOST_NAMES,
    Count,
    Digest,
    Many,
    Name,
    Nodes,
    Number,
    OneOf,
    PlanName,
    Shapes,
    Text,
    WholeNumber,
    Word,
)
from edgepart.agent.wire.codec import OPTIONAL
from edgepart.agent.wire.vocabulary import MOST_BATCH_DELAY_S
from edgepart.planner.figures import format_figure
from edgepart.planner.plans.reduced_precision import EXACT, KINDS
from edgepart.planner.vocabulary import AXES, OBJECTIVES, WEIGHTS

ValueName = Annotated[str, Text(1024, 1)]
"""The name of an input or output of a model."""

MOST_SEQUENCES = 4096
"""The most sequences of a deployment for which a user can ask devices to keep states."""
MOST_KEPT = 16
"""The most earlier versions of a model that a user may have kept."""
MOST_BINDINGS = 64
"""The most bindings that a user can ask for."""
MOST_BATCH_ROWS = 32
"""The most rows of a batch: no more requests of one shape have their turn at once (agent/gateway/admission.py)."""
MOST_SEARCH_BUDGET_S = 600.0
"""The longest search, in seconds, that a user can ask for: during it the leader makes no other plans but urgent ones."""

MOST_ERROR = 1e6
"""The largest error of quantised weights that is told or allowed."""

NODE_BITS = 24
"""The number of low bits of a term that come from the leader that makes it. They keep the two sides of a network split from
making the same term, and also two starts of a device whose state was restored from an older copy in between."""


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """Names one plan of a deployment. Epochs only grow, and frames of an epoch that a device has left are dropped."""

    term: Count
    """The term of the leader that made the plan; it is on disk before the leader's first message and never used again."""
    number: Count
    """Counts the plans of one term."""

    def __str__(self) -> str:
        """A form for people: the term without its node bits, and the number of the plan."""
        return f"{self.term >> NODE_BITS}.{self.number}"


NO_EPOCH = Epoch(0, 0)


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """The step of a sequence that a request is. Devices keep the sequence's states between its steps.

    A step may be repeated, and a step at position 0 begins the sequence anew, so that lost steps can be made again."""

    sequence: Word
    """`<gateway's node id>/<random boot id>/<count>`: the name of the sequence."""
    position: Count
    """What the steps before this one have brought the sequence to, in a unit of the gateway's choice (steps, or tokens)."""
    after: Count
    """What this step brings it to."""
    revision: Count = field(default=0, metadata=OPTIONAL)
    """Counts, from 1, how often the gateway has cut the sequence to go on differently from there. 0 stands for a sequence
    that is never cut, and whose states are not carried."""
    since: Count = field(default=0, metadata=OPTIONAL)
    """The position at which the sequence was cut last. Up to there, and no further, it is what it was one revision before:
    a device that was not told of a cut may keep states of the steps that were given up."""


@dataclass(slots=True, unsafe_hash=True)
class Tensors:
    """One transfer of one request; the payload holds its pieces.

    Nobody changes one. It is not frozen because a frozen record takes five times as long to make, and devices that
    exchange small messages make thousands a second."""

    deployment: PlanName
    epoch: Epoch
    request: Word
    """`<gateway's node id>/<random boot id>/<count>`: it names the gateway that the outputs go to."""
    transfer: int
    """`Transfer.number` of the plan."""
    arrays: tuple[Any, ...]
    """The meta of each piece of the transfer, in order, by which agent/wire/tensors.py reads the piece from the payload."""
    exact: bool = False
    """Whether no piece of this request may be rounded, whatever the plan says: agents try plans by such requests, and
    devices compute those of users first."""
    step: SequenceStep | None = field(default=None, metadata=OPTIONAL)
    """The step that the request is; None if it belongs to no sequence, so that states are zeros before it and are not kept
    after it."""
    prefill: bool = field(default=False, metadata=OPTIONAL)
    """Whether the step reads many rows at once, with the programs of `Plan.prefill`."""
    steps: Annotated[tuple[SequenceStep, ...], Many(MOST_SEQUENCES)] = field(default=(), metadata=OPTIONAL)
    """The steps of several sequences that the request makes with the programs of `Plan.batch`, one for each place of the
    batch; () if it is no such request. The sequence "" stands for a place whose step is of no sequence."""
    likely: Count = field(default=0, metadata=OPTIONAL)
    """How many of the most likely entries the gateway wants of each piece that goes to it, in place of the whole piece
    (agent/wire/likely_entries.py); 0 if it wants whole pieces."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Tells the gateway of a request that this device cannot finish the request."""

    deployment: PlanName
    epoch: Epoch
    request: Word
    stale: bool
    """Whether the device has left that epoch or does not know it yet. The request is then run again on the current one."""
    error: str
    """The reason, for people."""
    crashed: bool = False
    """Whether the request ended the worker that computed it. The request may then be tried once more, but not again."""
    lost_state: bool = field(default=False, metadata=OPTIONAL)
    """Whether the device does not have the states that the step of a sequence begins with. The sequence then has to be made
    again from its first step."""
    no_room: bool = field(default=False, metadata=OPTIONAL)
    """Whether the device has no room for the states of another sequence now."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A gateway tells every device of the plan to forget the request, which passed its deadline or is being run again."""

    deployment: PlanName
    epoch: Epoch
    request: Word


@dataclass(frozen=True, slots=True)
class EndSequence:
    """A gateway tells the devices of the plan that the sequence has no further steps."""

    deployment: PlanName
    epoch: Epoch
    sequence: Word


@dataclass(frozen=True, slots=True)
class ResumeSequence:
    """A gateway asks a device of a plan to get the states of a sequence from the devices that have them, by whatever plan
    they were made. SequenceResumed is the answer."""

    deployment: PlanName
    epoch: Epoch
    sequence: Word
    revision: Count
    position: Count
    """What the sequence has come to for the gateway; states of later steps are of no use."""
    sources: Nodes
    """The nodes that may have states of it."""
    since: Count = field(default=0, metadata=OPTIONAL)
    """As in SequenceStep: rows of the revision before are of use up to there."""


@dataclass(frozen=True, slots=True)
class SequenceResumed:
    """How far a device has the states of a sequence now; 0 if it does not have them."""

    deployment: PlanName
    epoch: Epoch
    sequence: Word
    position: Count


@dataclass(frozen=True, slots=True)
class RowsOf:
    """The devices of a plan whose rows are wanted."""

    deployment: PlanName
    epoch: Epoch
    devices: Annotated[tuple[Name, ...], Many(MOST_MEMBERS)]


@dataclass(frozen=True, slots=True)
class WantRows:
    """A device that resumes a sequence by this plan asks another one what it has of the rows of states that it needs, and
    then for some of them. SentRows are the answer."""

    deployment: PlanName
    epoch: Epoch
    sequence: Word
    revision: Count
    position: Count
    since: Count = field(default=0, metadata=OPTIONAL)
    """As in SequenceStep: rows of the revision before are of use up to there."""
    question: Count = field(default=0, metadata=OPTIONAL)
    """A number that the asker gives no other question. The answer repeats it."""
    rows_of: RowsOf | None = field(default=None, metadata=OPTIONAL)
    """Whose rows are to be sent; None if the asker wants to know what there is."""


@dataclass(frozen=True, slots=True)
class SentRows:
    """The first rows of some of the states that a device keeps of a sequence, from its first step to `position`: an answer
    to WantRows, or a part of it. The payload holds them, in the order of `pieces`, if the question was for rows."""

    deployment: PlanName
    epoch: Epoch
    """The plan by which the states were made."""
    sequence: Word
    revision: Count
    device: Name
    """The device of that plan whose states they are: the sender, or one that it mirrors."""
    position: Count
    pieces: Annotated[tuple[Count, ...], Many(MOST_NAMES)] = ()
    """The numbers of the pieces in `Program.kept`; () in an answer that has none."""
    arrays: Annotated[tuple[Any, ...], Many(MOST_NAMES)] = ()
    last: bool = True
    """Whether nothing of the answer follows."""
    question: Count = field(default=0, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class MirroredRows:
    """A device sends the rows by which its states of a sequence have grown to the device that mirrors it, late and a few
    at a time. The payload holds the rows from `begin` to `position` of all pieces in `Program.kept`, in this order. A
    `position` of 0 says that the states are not kept any more."""

    deployment: PlanName
    epoch: Epoch
    sequence: Word
    revision: Count
    begin: Count
    position: Count
    arrays: Annotated[tuple[Any, ...], Many(MOST_NAMES)] = ()


StateMessage = ResumeSequence | SequenceResumed | WantRows | SentRows | MirroredRows
"""The messages by which states of sequences go from device to device."""
RowsMessage = SentRows | MirroredRows
"""Those of them that have a payload."""

RequestMessage = Tensors | Failed | Cancel | EndSequence
"""The messages about requests."""


@dataclass(frozen=True, slots=True)
class QuantisedWeights:
    """How a model came to its weights of few bits, and what they do to its answers."""

    source: Digest
    """The digest of the model as the user has it."""
    maker: Word
    """The program that made the weights, with its version."""
    error: Annotated[float, Number(0, MOST_ERROR)]
    """The largest difference of answers from those of the model as the user has it, relative to each output's largest
    magnitude."""
    inputs: Word
    """What answers were compared on, such as "4 made-up inputs"."""
    same_tokens: Annotated[float, Number(0, 1)] | None = field(default=None, metadata=OPTIONAL)
    """The share of tokens of a text whose most likely next token is the same; None if the model is no language model."""

    def describe(self, kind: str) -> str:
        """A sentence for people. `kind` is the type of the weights.

        >>> QuantisedWeights("9f86", "ORT 1.32", 0.0123, "4 inputs").describe("int8")
        'int8 weights (made by ORT 1.32): answers differ by up to 1.2 % of their largest magnitude on 4 inputs'
        """
        share = format_figure(100 * self.error, 2)
        off = f"answers differ by up to {share} % of their largest magnitude on {self.inputs}"
        same = self.same_tokens
        tokens = (
            ""
            if same is None
            else f", and {format_figure(100 * same)} % of the likeliest tokens are the same"
        )
        return f"{kind} weights (made by {self.maker}): {off}{tokens}"


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """The options that a user gave for a deployment."""

    shapes: Shapes = field(default_factory=dict)
    objective: Annotated[str, OneOf(OBJECTIVES)] = "latency"
    strategy: Annotated[str, Text(128, 1)] = "auto"
    axis: Annotated[str, OneOf(AXES)] | None = None
    devices: Annotated[tuple[Annotated[str, Text(128, 1)], ...], Many(MOST_NAMES)] = ()
    """Names of the devices that may be used; empty allows all."""
    memory_limit_bytes: Annotated[int, WholeNumber(1, LARGEST)] | None = None
    """The memory limit of each device; None sets no limit."""
    bindings: Annotated[int, WholeNumber(0, MOST_BINDINGS)] = 8
    """The number of bindings, besides the first, for which the cluster keeps plans (agent/cluster/leader/variants.py). With
    a higher number fewer requests wait for a plan; a lower one takes less memory for sessions and less planning after a
    loss. With 0 only the first binding has a plan."""
    search_budget_s: Annotated[float, Number(0, MOST_SEARCH_BUDGET_S, above=0)] | None = None
    """About how long the leader may search for a plan; None leaves the time to the leader (agent/planwork/plan_job.py).
    A longer search finds better plans, but later."""
    transfer_dtype: Annotated[str, OneOf(KINDS)] = EXACT
    """The type that float32 numbers may be rounded to between devices (planner/plans/reduced_precision.py)."""
    states: Annotated[tuple[tuple[ValueName, ValueName], ...], Many(MOST_NAMES)] | None = field(
        default=None, metadata=OPTIONAL
    )
    """The outputs that are inputs of the next step, each with that input; () for none. With None the names of outputs and
    inputs say which."""
    context: Annotated[int, WholeNumber(1, LARGEST)] | None = field(default=None, metadata=OPTIONAL)
    """The most rows (tokens) of a sequence, for a model whose states grow with each step; None leaves such states to the
    client, as ordinary inputs and outputs."""
    sequences: Annotated[int, WholeNumber(1, MOST_SEQUENCES)] = field(default=4, metadata=OPTIONAL)
    """The most sequences whose states each device keeps at the same time."""
    prefill: Shapes | None = field(default=None, metadata=OPTIONAL)
    """The shapes of the inputs of steps that read many rows of a sequence at once; None if there are no such steps. The
    agent that takes the model finds them."""
    batch: Shapes | None = field(default=None, metadata=OPTIONAL)
    """The shapes of the inputs of requests that make a step in each of several sequences; None if there are no such
    requests. The agent that takes the model finds them."""
    text: bool = field(default=False, metadata=OPTIONAL)
    """Whether the model is a language model with a tokenizer beside it, which can be asked for text. The agent that takes
    the model finds this out."""
    mirrors: bool = field(default=False, metadata=OPTIONAL)
    """Whether each device keeps a copy of another one's states, so that after a loss only the end of a text has to be read
    again."""
    keep: Annotated[int, WholeNumber(0, MOST_KEPT)] = field(default=1, metadata=OPTIONAL)
    """How many earlier versions of the model stay stored for a rollback. Each takes its bytes on the disks of at least two
    devices; with 0 there is nothing to roll back to."""
    batch_rows: Annotated[int, WholeNumber(0, MOST_BATCH_ROWS)] = field(default=0, metadata=OPTIONAL)
    """The most rows for which a gateway runs requests that wait at the same time as one; 0 and 1 run each alone."""
    batch_delay_s: Annotated[float, Number(0, MOST_BATCH_DELAY_S)] = field(default=0.005, metadata=OPTIONAL)
    """Seconds that a request waits for others. A longer delay fills batches better; a shorter one answers sooner where
    there are few requests."""
    batch_tolerance: Annotated[float, Number(0, 1)] | None = field(default=None, metadata=OPTIONAL)
    """How far a batch's answers may differ from those of single requests, relative to each output's largest magnitude; None
    if each output's own type decides. The agent that takes the model finds it."""
    weights: Annotated[str, OneOf(WEIGHTS)] | None = field(default=None, metadata=OPTIONAL)
    """The type to which the client has the weights of matrix products quantised before it sends the model; None leaves the
    model as it is."""
    max_error: Annotated[float, Number(0, MOST_ERROR)] | None = field(default=None, metadata=OPTIONAL)
    """How far answers may be off because of that, relative to each output's largest magnitude; None allows what is usual
    (agent/quantise/quantised_model.py)."""
    quantised: QuantisedWeights | None = field(default=None, metadata=OPTIONAL)
    """What became of the weights. The client that quantises them says it."""
