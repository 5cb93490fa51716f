"""Sequences: the steps of this gateway's clients whose states devices keep. Door: the event loop and its clock.

States are a cache: the gateway keeps the inputs of all steps, and when devices have lost the states (one left, the plan
changed, or other sequences needed the room) it makes the steps again and then goes on. Clients notice a pause at most.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.wire.inference import SequenceStep
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.errors import RequestError, StateLost, Unavailable

REPLAY_PAUSE_S = 0.05
"""Seconds before lost steps are made again. A shorter pause goes on sooner after a loss; a longer one leaves devices alone
that cannot keep the states yet."""


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


class RunStep(Protocol):
    """The interface of ShapeRouter.infer."""

    async def __call__(
        self,
        deployment: str,
        inputs: Mapping[str, Value],
        deadline_s: float,
        outputs: Sequence[str] = (),
        step: SequenceStep | None = None,
    ) -> tuple[dict[str, Value], AnswerInfo]: ...


@dataclass(eq=False)
class _Sequence:
    """A sequence under way."""

    name: str
    """Its name among agents."""
    used_at_s: float
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the step under way, of which there is one at a time."""
    position: int = 0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of the first step's inputs. Steps of other shapes run by another plan, whose devices do not have the
    states."""
    history: list[Mapping[str, Value]] | None = field(default_factory=list)
    """The inputs of all steps; None if it was given up."""
    nbytes: int = 0
    replays: int = 0


class Sequences:
    """The sequences of this gateway's clients, by deployment and the client's id. For the event loop's thread."""

    def __init__(
        self,
        run: RunStep,
        make_name: Callable[[], str],
        end: Callable[[str, str], None],
        limits: SequenceLimits | None = None,
    ) -> None:
        """`make_name` returns a name that no other sequence has. `end(deployment, name)` tells devices that they need to
        keep a sequence no longer."""
        self._run = run
        self._make_name = make_name
        self._end = end
        self._limits = limits or SequenceLimits()
        self._loop = asyncio.get_running_loop()
        self._sequences: OrderedDict[tuple[str, str], _Sequence] = OrderedDict()
        """The sequences; the one whose last step is longest ago comes first."""
        self.replays = 0
        """How often steps were made again because devices had lost their states."""

    def count(self, deployment: str) -> int:
        """The number of sequences of a deployment."""
        return sum(name == deployment for name, _ in self._sequences)

    async def infer(
        self,
        deployment: str,
        sequence_id: str,
        inputs: Mapping[str, Value],
        deadline_s: float,
        outputs: Sequence[str] = (),
        *,
        start: bool = False,
        end: bool = False,
    ) -> tuple[dict[str, Value], AnswerInfo]:
        """Make the next step of a sequence. `start` begins it (anew), `end` ends it after this step. Inputs must not change
        meanwhile.

        Raises what `ShapeRouter.infer` raises, RequestError if there is no such sequence, Unavailable if there are too
        many, and StateLost if the states are lost and the steps are too many to be made again."""
        key = deployment, sequence_id
        if start:
            self.end(*key)
        sequence = self._find(key, start=start)
        until_s = self._loop.time() + deadline_s
        await _take_turn(sequence, until_s)
        try:
            if self._sequences.get(key) is not sequence:
                raise RequestError(f"sequence {sequence_id!r} was ended while this step waited for its turn")
            _check_shapes(sequence, inputs)
            answer = await self._step(key, sequence, inputs, until_s, outputs)
            sequence.used_at_s = self._loop.time()
            self._remember(sequence, inputs)
        finally:
            sequence.turn.release()
        if end:
            self._end_same(key, sequence)
        return answer

    def end(self, deployment: str, sequence_id: str) -> None:
        """End a sequence, if there is such a one."""
        if (sequence := self._sequences.pop((deployment, sequence_id), None)) is not None:
            self._end(deployment, sequence.name)

    def _end_same(self, key: tuple[str, str], sequence: _Sequence) -> None:
        """End this sequence, unless the client has ended it or begun it anew meanwhile."""
        if self._sequences.get(key) is sequence:
            self.end(*key)

    def _find(self, key: tuple[str, str], *, start: bool) -> _Sequence:
        self._end_idle()
        if start:
            if len(self._sequences) >= self._limits.sequences:
                raise Unavailable(f"{len(self._sequences)} sequences are under way at this agent already")
            self._sequences[key] = _Sequence(self._make_name(), self._loop.time())
        if key not in self._sequences:
            raise RequestError(
                f"no sequence {key[1]!r} of {key[0]!r} is under way at this agent: its first step needs sequence_start, "
                f"all steps have to go to one agent, and after {self._limits.idle_s:g} s without a step a sequence ends"
            )
        self._sequences.move_to_end(key)
        return self._sequences[key]

    def _end_idle(self) -> None:
        oldest = self._loop.time() - self._limits.idle_s
        for key in [key for key, one in self._sequences.items() if one.used_at_s < oldest]:
            if not self._sequences[key].turn.locked():
                self.end(*key)

    async def _step(
        self,
        key: tuple[str, str],
        sequence: _Sequence,
        inputs: Mapping[str, Value],
        until_s: float,
        outputs: Sequence[str],
    ) -> tuple[dict[str, Value], AnswerInfo]:
        """Make the step, and before that all steps again as often as their states are lost."""
        made, history = (
            sequence.position,
            sequence.history,
        )  # Another sequence's step may give the history up meanwhile.
        while True:
            try:
                for before in (history or ())[made:]:
                    await self._make(key[0], sequence, made, before, until_s, ())
                    made += 1
                return await self._make(key[0], sequence, sequence.position, inputs, until_s, outputs)
            except StateLost as error:
                if history is None:
                    self._end_same(key, sequence)
                    raise StateLost(
                        f"the states of sequence {key[1]!r} are lost, and its {sequence.position} steps were too large to "
                        f"be kept here: begin it again ({error})"
                    ) from error
            made = 0
            self.replays += 1
            sequence.replays += 1
            await asyncio.sleep(REPLAY_PAUSE_S)

    async def _make(
        self,
        deployment: str,
        sequence: _Sequence,
        position: int,
        inputs: Mapping[str, Any],
        until_s: float,
        outputs: Sequence[str],
    ) -> tuple[dict[str, Value], AnswerInfo]:
        step = SequenceStep(sequence.name, position, position + 1)
        return await self._run(deployment, inputs, until_s - self._loop.time(), outputs, step)

    def _remember(self, sequence: _Sequence, inputs: Mapping[str, Value]) -> None:
        sequence.position += 1
        sequence.shapes = sequence.shapes or _shapes_of(inputs)
        if sequence.history is None:
            return
        # Copies, as arrays may lie in the body of an HTTP request, whose memory is used again.
        sequence.history.append({name: copy(value) for name, value in inputs.items()})
        sequence.nbytes += sum(map(value_bytes, inputs.values()))
        if sum(one.nbytes for one in self._sequences.values()) > self._limits.history_bytes:
            longest = max(self._sequences.values(), key=lambda one: one.nbytes)
            longest.history, longest.nbytes = None, 0


def _shapes_of(inputs: Mapping[str, Value]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in inputs.items() if isinstance(value, np.ndarray)}


def _check_shapes(sequence: _Sequence, inputs: Mapping[str, Value]) -> None:
    """Raises RequestError if the inputs do not have the shapes of the first step's."""
    for name, shape in _shapes_of(inputs).items():
        if shape != (first := sequence.shapes.get(name, shape)):
            raise RequestError(
                f"input {name!r} has shape {shape}, and in the first step of this sequence it had {first}: all steps of a "
                "sequence need the same shapes"
            )


async def _take_turn(sequence: _Sequence, until_s: float) -> None:
    """Wait for the steps before. Raises Unavailable if they take longer than this one has time."""
    try:
        async with asyncio.timeout_at(until_s):
            await sequence.turn.acquire()
    except TimeoutError as error:
        raise Unavailable("the deadline passed while the step waited for the one before it") from error
