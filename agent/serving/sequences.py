"""Sequences: the steps of this gateway's clients whose states devices keep. Door: the event loop and its clock.

sequence_history.py says what is made next. Clients notice a pause at most when devices have lost states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.serving.sequence_history import (
    SequenceHistories,
    SequenceHistory,
    SequenceLimits,
    StepUnderWay,
)
from edgepart.agent.wire.inference import SequenceStep
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import RequestError, StateLost, Unavailable

REPLAY_PAUSE_S = 0.05
"""Seconds before lost steps are made again. A shorter pause goes on sooner after a loss; a longer one leaves devices alone
that cannot keep the states yet."""


class RunStep(Protocol):
    """The interface of ShapeRouter.infer. With `likely`, an output may be so many of its LikelyEntries."""

    async def __call__(
        self,
        deployment: str,
        inputs: Mapping[str, Value],
        deadline_s: float,
        outputs: Sequence[str] = (),
        step: SequenceStep | None = None,
        likely: int = 0,
    ) -> tuple[dict[str, Value], AnswerInfo]: ...


class Sequences:
    """The sequences of this gateway's clients, by deployment and the client's id. For the event loop's thread."""

    def __init__(
        self,
        run: RunStep,
        make_name: Callable[[], str],
        end: Callable[[str, str], None],
        serving: Callable[[str], str | None],
        limits: SequenceLimits | None = None,
    ) -> None:
        """`make_name` returns a name that no other sequence has. `end(deployment, name)` tells devices that they need to
        keep a sequence no longer. `serving` returns the digest of the model that serves now."""
        self._run = run
        self._end = end
        self._serving = serving
        self._loop = asyncio.get_running_loop()
        self._histories = SequenceHistories(make_name, limits)
        self._turns: dict[str, asyncio.Lock] = {}
        """By a sequence's name, the lock that is held by its step under way, of which there is one at a time."""
        self.replays = 0
        """How often steps were made again because devices had lost their states."""

    def count(self, deployment: str) -> int:
        """The number of sequences of a deployment."""
        return sum(one.key[0] == deployment for one in self._histories)

    def has(self, deployment: str, sequence_id: str) -> bool:
        """Whether this sequence of a deployment is under way."""
        return self._histories.knows((deployment, sequence_id))

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
        many, and StateLost, which ends the sequence, if the states are lost and the steps are too many to be made again,
        or another model serves now."""
        if start:
            self.end(deployment, sequence_id)
        sequence = self._find((deployment, sequence_id), start=start)
        until_s, turn = self._loop.time() + deadline_s, self._turns[sequence.name]
        await _take_turn(turn, until_s)
        try:
            if sequence not in self._histories:
                raise RequestError(f"sequence {sequence_id!r} was ended while this step waited for its turn")
            sequence.check_shapes(inputs)
            answer = await self._step(sequence, inputs, until_s, outputs)
            self._histories.remember(sequence, inputs, self._loop.time())
        except StateLost:
            self._end_same(sequence)
            raise
        finally:
            turn.release()
        if end:
            self._end_same(sequence)
        return answer

    def end(self, deployment: str, sequence_id: str) -> None:
        """End a sequence, if there is such a one."""
        if (sequence := self._histories.end((deployment, sequence_id))) is not None:
            del self._turns[sequence.name]
            self._end(deployment, sequence.name)

    def _end_same(self, sequence: SequenceHistory) -> None:
        """End this sequence, unless the client has ended it or begun it anew meanwhile."""
        if sequence in self._histories:
            self.end(*sequence.key)

    def _find(self, key: tuple[str, str], *, start: bool) -> SequenceHistory:
        now = self._loop.time()
        for idle in self._histories.idle(now):
            if not self._turns[idle.name].locked():
                self.end(*idle.key)
        if not start:
            return self._histories.find(key)
        begun = self._histories.begin(key, now)
        self._turns[begun.name] = asyncio.Lock()
        return begun

    async def _step(
        self,
        sequence: SequenceHistory,
        inputs: Mapping[str, Value],
        until_s: float,
        outputs: Sequence[str],
    ) -> tuple[dict[str, Value], AnswerInfo]:
        """Make the step, and before that all steps again as often as their states are lost."""
        deployment, under_way = sequence.key[0], StepUnderWay(sequence, inputs)
        while True:
            sequence.check_model(self._serving(deployment))
            step, given = under_way.next_step()
            wanted, left_s = outputs if under_way.is_last else (), until_s - self._loop.time()
            try:
                answer = await self._run(deployment, given, left_s, wanted, step)
                under_way.answered((answer[1].epoch, answer[1].side))
            except StateLost as error:
                under_way.lost(str(error))
                self.replays += 1
                await asyncio.sleep(REPLAY_PAUSE_S)
                continue
            if under_way.is_last:
                return answer
            under_way.made()


async def _take_turn(turn: asyncio.Lock, until_s: float) -> None:
    """Wait for the steps before. Raises Unavailable if they take longer than this one has time."""
    try:
        async with asyncio.timeout_at(until_s):
            await turn.acquire()
    except TimeoutError as error:
        raise Unavailable("the deadline passed while the step waited for the one before it") from error
