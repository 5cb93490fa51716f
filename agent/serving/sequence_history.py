"""Sequence histories: what a gateway remembers of its clients' sequences, and which step it makes next. Rules: no event
loop, no clock.

States are a cache: the gateway keeps the inputs of all steps, and when devices have lost the states (one left, the plan
changed, or other sequences needed the room) it makes the steps again and then goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field

import numpy as np

from edgepart.agent.wire.inference import Epoch, SequenceStep
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.errors import RequestError, StateLost, Unavailable

SequenceId = tuple[str, str]
"""The deployment and the client's id of a sequence."""


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """Limits on the sequences of one gateway."""

    sequences: int = 1024
    """The most sequences at the same time."""
    history_bytes: int = 256 << 20
    """The most bytes of all steps' inputs together. When they are reached, the longest history is given up: its sequence
    goes on, and ends with an error if devices lose its states."""
    idle_s: float = 600.0
    """Seconds without a step after which a sequence is ended."""


@dataclass(eq=False)
class SequenceHistory:
    """What a gateway remembers of one sequence."""

    key: SequenceId
    name: str
    """Its name among agents."""
    used_at_s: float
    position: int = 0
    model: str | None = None
    """The digest of the model that served when its first step was made; None if that was not known."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of the first step's inputs. Steps of other shapes run by another plan, whose devices do not have the
    states."""
    inputs: list[Mapping[str, Value]] | None = field(default_factory=list)
    """The inputs of all steps; None if they were given up."""
    nbytes: int = 0
    replays: int = 0
    side: tuple[Epoch, int] | None = None
    """The plan and the replica that answered its last step."""

    def check_shapes(self, inputs: Mapping[str, Value]) -> None:
        """Raises RequestError if the inputs do not have the shapes of the first step's."""
        for name, shape in _shapes_of(inputs).items():
            if shape != (first := self.shapes.get(name, shape)):
                raise RequestError(
                    f"input {name!r} has shape {shape}, and in the first step of this sequence it had {first}: all steps "
                    "of a sequence need the same shapes"
                )

    def check_model(self, serving: str | None) -> None:
        """Raises StateLost if another model than that of the sequence's first step serves now. `serving` is its digest;
        None if no plan is known now."""
        if not self.position:
            self.model = serving
        elif None not in (serving, self.model) and serving != self.model:
            raise StateLost(
                f"{self.key[0]!r} was deployed again with another model after {self.position} steps of sequence "
                f"{self.key[1]!r}: begin it again"
            )


@dataclass(eq=False)
class StepUnderWay:
    """The next step of a sequence, and those before it whose states are lost."""

    history: SequenceHistory
    inputs: Mapping[str, Value]
    _before: list[Mapping[str, Value]] | None = field(init=False)
    """The inputs of the steps before. They stay here if another sequence's step gives the history up meanwhile."""
    _made: int = field(init=False)
    """The number of steps whose states devices are believed to have."""

    def __post_init__(self) -> None:
        self._before, self._made = self.history.inputs, self.history.position

    @property
    def is_last(self) -> bool:
        """Whether the next step to be made is the one that the client wants the answer of."""
        return self._made == self.history.position

    def next_step(self) -> tuple[SequenceStep, Mapping[str, Value]]:
        """The step to be made next, and its inputs."""
        inputs = self.inputs if self.is_last else (self._before or ())[self._made]
        return SequenceStep(self.history.name, self._made, self._made + 1), inputs

    def answered(self, side: tuple[Epoch, int]) -> None:
        """The step to be made next was answered by this plan and replica. Raises StateLost if another one answered the step
        before: what this one keeps may be of a step with other inputs, which was not answered."""
        known, self.history.side = self.history.side, side
        if self._made and known not in (None, side):
            raise StateLost(f"another replica has gone on with sequence {self.history.name}")

    def made(self) -> None:
        """A step that is not the last one was made."""
        self._made += 1

    def lost(self, error: str) -> None:
        """Devices have lost the states: make all steps again. Raises StateLost if their inputs were given up."""
        if self._before is None:
            raise StateLost(
                f"the states of sequence {self.history.key[1]!r} are lost, and its {self.history.position} steps were too "
                f"large to be kept here: begin it again ({error})"
            )
        self._made = 0
        self.history.replays += 1


class SequenceHistories:
    """The histories of all sequences of one gateway, by deployment and the client's id."""

    def __init__(self, make_name: Callable[[], str], limits: SequenceLimits | None = None) -> None:
        """`make_name` returns a name that no other sequence has."""
        self._make_name = make_name
        self._limits = limits or SequenceLimits()
        self._known: OrderedDict[SequenceId, SequenceHistory] = OrderedDict()
        """The sequences; the one whose last step is longest ago comes first."""

    def __iter__(self) -> Iterator[SequenceHistory]:
        return iter(self._known.values())

    def __contains__(self, history: SequenceHistory) -> bool:
        """Whether this very sequence goes on: its client has neither ended it nor begun it anew."""
        return self._known.get(history.key) is history

    def knows(self, key: SequenceId) -> bool:
        return key in self._known

    def begin(self, key: SequenceId, now: float) -> SequenceHistory:
        """A new sequence. Raises Unavailable if there are too many."""
        if len(self._known) >= self._limits.sequences:
            raise Unavailable(f"{len(self._known)} sequences are under way at this agent already")
        self._known[key] = SequenceHistory(key, self._make_name(), now)
        return self._known[key]

    def find(self, key: SequenceId) -> SequenceHistory:
        """Raises RequestError if there is no such sequence."""
        if key not in self._known:
            raise RequestError(
                f"no sequence {key[1]!r} of {key[0]!r} is under way at this agent: its first step needs sequence_start, "
                f"all steps have to go to one agent, and after {self._limits.idle_s:g} s without a step a sequence ends"
            )
        self._known.move_to_end(key)
        return self._known[key]

    def remember(self, history: SequenceHistory, inputs: Mapping[str, Value], now: float) -> None:
        """A step was answered. If all inputs are too many bytes now, the longest history is given up."""
        history.used_at_s = now
        history.position += 1
        history.shapes = history.shapes or _shapes_of(inputs)
        if history.inputs is None:
            return
        # Copies, as arrays may lie in the body of an HTTP request, whose memory is used again.
        history.inputs.append({name: copy(value) for name, value in inputs.items()})
        history.nbytes += sum(map(value_bytes, inputs.values()))
        if sum(one.nbytes for one in self) > self._limits.history_bytes:
            longest = max(self, key=lambda one: one.nbytes)
            longest.inputs, longest.nbytes = None, 0

    def idle(self, now: float) -> list[SequenceHistory]:
        """The sequences with which nobody has gone on for too long."""
        oldest = now - self._limits.idle_s
        return [one for one in self if one.used_at_s < oldest]

    def end(self, key: SequenceId) -> SequenceHistory | None:
        """Forget the sequence; returns it, if there was such a one."""
        return self._known.pop(key, None)


def _shapes_of(inputs: Mapping[str, Value]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in inputs.items() if isinstance(value, np.ndarray)}
