"""Step batches: has one request read a token in each of several sequences. Door: the event loop.

Sequences that lie side by side on the devices are a row. While one request of a row is under way, further tokens wait; then
they are read together. So several texts at the same time take turns of all at once, and a text that is alone never waits.

The first request of this kind on a plan is made again by single steps, whose answers count. If the two differ, texts take
turns for as long as that plan serves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from edgepart.agent.serving.gathering import PlanVerdict
from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.serving.sequences import RunStep
from edgepart.agent.text.decoder import Decoder, Logits
from edgepart.agent.verify.same_answer import differences
from edgepart.agent.wire.inference import Epoch, SequenceStep
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import EdgepartError, InternalError, StateLost

log = logging.getLogger(__name__)

GATHER_S = 0.005
"""Seconds for which a token waits for those of the texts that took part in the last request. Between two tokens of a text
lie one or two milliseconds here. With less, texts are more often read alone; with more, all wait longer for a text whose
client reads slowly."""
APART_S = 10.0
"""Seconds for which the tokens of a row are read one after the other once devices could not read them together: they may
have no memory for that, or not be ready yet. With less, more requests fail for nothing; with more, texts take turns for
longer than they have to."""
NO_STEP = SequenceStep("", 0, 0)
"""The step of a place whose sequence takes no part in a request."""


class RunSteps(Protocol):
    """The interface of Requester.run. `likely` is that of RunStep."""

    async def __call__(
        self,
        deployment: str,
        inputs: dict[str, Value],
        deadline_s: float,
        outputs: tuple[str, ...],
        *,
        step: SequenceStep | None = None,
        prefill: bool = False,
        steps: tuple[SequenceStep, ...] = (),
        likely: int = 0,
    ) -> tuple[dict[str, Value], AnswerInfo]: ...


class Placed(Protocol):
    """A sequence that has a place in a row."""

    name: str
    place: int
    tokens: list[int]

    def step(self, position: int, after: int) -> SequenceStep:
        """The step that reads the tokens from `position` to `after`."""


@dataclass(eq=False)
class WaitingToken:
    """A token that waits to be read."""

    sequence: Placed
    token: int
    decoder: Decoder
    likely: int
    """How many of the most likely entries of the logits are wanted; 0 if all are."""
    logits: asyncio.Future[Logits]

    @property
    def position(self) -> int:
        return len(self.sequence.tokens)

    @property
    def step(self) -> SequenceStep:
        """The step that reads it."""
        return self.sequence.step(self.position, self.position + 1)

    def answer(self, logits: Logits) -> None:
        """Tell whoever waits that the token was read."""
        if not self.logits.done():
            self.logits.set_result(logits)

    def fail(self, error: EdgepartError) -> None:
        """Tell whoever waits that the token could not be read."""
        if not self.logits.done():
            self.logits.set_exception(error)


@dataclass(eq=False)
class Row:
    """Sequences that lie side by side."""

    deployment: str
    name: str
    places: list[Placed | None]
    apart_until_s: float = 0.0
    """The time until which devices are not asked to read a token in each of them by one request."""
    named: int = 0
    """The number of names that were made for sequences here."""
    reading: int = 0
    """The number of sequences that read many tokens now; meanwhile no request is of the whole row."""
    busy: bool = False
    """Whether tokens that waited are being read."""
    free: asyncio.Event = field(default_factory=asyncio.Event)
    """Is set while `busy` is not."""
    waiting: list[WaitingToken] = field(default_factory=list)
    expected: set[Placed] = field(default_factory=set)
    """The sequences that took part in the last request, and may soon do so again."""
    timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.free.set()

    def new_name(self, place: int) -> str:
        """A name that says where the sequence lies (agent/execution/sequences.py: place_of)."""
        self.named += 1
        return f"{self.name}/{self.named}.{place}"


class StepBatches:
    """Reads single tokens of the sequences of one gateway. For the event loop's thread."""

    def __init__(
        self,
        run: RunStep,
        run_steps: RunSteps,
        within_s: float,
        tolerance: Callable[[str], float | None],
    ) -> None:
        """`run` makes the step of one sequence, and `run_steps` those of several; each may take `within_s` seconds.
        `tolerance` returns that of a deployment's logits (agent/verify/same_answer.py)."""
        self._run = run
        self._run_steps = run_steps
        self._within_s = within_s
        self._tolerance = tolerance
        self._judged: dict[str, tuple[Epoch, PlanVerdict]] = {}
        """The plan that each deployment's last answer came from, and what is known of its common requests."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.made = 0
        """The number of requests that read tokens of several sequences."""

    def note(self, deployment: str) -> str:
        """Why the deployment's plan does not read texts together; "" if it may."""
        return self._known(deployment).fault

    def keep(self, deployments: Collection[str]) -> None:
        """Forget what is known of the plans of all other deployments."""
        for gone in self._judged.keys() - set(deployments):
            del self._judged[gone]

    async def read(self, row: Row, sequence: Placed, decoder: Decoder, token: int, likely: int = 0) -> Logits:
        """Read a token of a sequence; returns the logits of the one after it, or so many of the most likely ones. Raises
        what `run` raises."""
        one = WaitingToken(sequence, token, decoder, likely, self._loop.create_future())
        if not row.busy and not row.waiting and row.expected <= {sequence}:
            self._begin(row)
            try:
                return await self._read_alone(row, one, one.likely)
            finally:
                self._end(row, [one])
        row.waiting.append(one)
        self._look(row)
        try:
            return await one.logits
        finally:
            if one in row.waiting:
                row.waiting.remove(one)

    @asynccontextmanager
    async def reading(self, row: Row) -> AsyncIterator[None]:
        """Keep requests of the whole row away for as long as the block lasts, in which a sequence reads many tokens."""
        row.reading += 1
        try:
            while row.busy:
                await row.free.wait()
            yield
        finally:
            row.reading -= 1

    def leave(self, row: Row, sequence: Placed) -> None:
        """Do not wait for the sequence any more: its text has ended."""
        row.expected.discard(sequence)
        self._look(row)

    def _look(self, row: Row, *, waited: bool = False) -> None:
        """Read what waits, unless something is being read, or more is likely to come."""
        if row.busy or not row.waiting:
            return
        if row.timer is not None:
            row.timer.cancel()
            row.timer = None
        if not waited and row.expected - {one.sequence for one in row.waiting}:
            row.timer = self._loop.call_later(GATHER_S, lambda: self._look(row, waited=True))
            return
        ones, row.waiting = row.waiting, []
        self._begin(row)
        task = self._loop.create_task(self._read_all(row, ones))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _begin(self, row: Row) -> None:
        row.busy = True
        row.free.clear()

    def _end(self, row: Row, ones: Sequence[WaitingToken]) -> None:
        row.busy = False
        row.free.set()
        row.expected = {one.sequence for one in ones}
        self._look(row)

    async def _read_all(self, row: Row, ones: Sequence[WaitingToken]) -> None:
        try:
            tried = self._may_be_together(row, ones)
            if tried and await self._read_together(row, ones):
                return
            found = await asyncio.gather(*(self._settle(row, one, one.likely) for one in ones))
            if tried and all(logits is not None for logits in found):
                # No states were lost: devices do not have them side by side, or cannot do this now.
                row.apart_until_s = self._loop.time() + APART_S
        finally:
            for one in ones:
                one.fail(InternalError("a token was not read: the agent's log says why"))
            self._end(row, ones)

    def _may_be_together(self, row: Row, ones: Sequence[WaitingToken]) -> bool:
        if len(ones) < 2 or row.reading or self.note(row.deployment):
            return False
        return self._loop.time() >= row.apart_until_s

    def _verdict(self, deployment: str, epoch: Epoch) -> PlanVerdict:
        """What is known of the common requests of the plan from which an answer came."""
        if deployment not in self._judged or self._judged[deployment][0] != epoch:
            self._judged[deployment] = epoch, PlanVerdict()
        return self._judged[deployment][1]

    def _known(self, deployment: str) -> PlanVerdict:
        """What is known of the common requests of the plan from which the deployment's last answer came."""
        return self._judged[deployment][1] if deployment in self._judged else PlanVerdict()

    async def _read_together(self, row: Row, ones: Sequence[WaitingToken]) -> bool:
        """Read the tokens by one request; False if devices cannot do so now."""
        decoder, by_place = ones[0].decoder, {one.sequence.place: one for one in ones}
        if len(row.places) != decoder.batch:
            return False
        tokens: list[tuple[int, int]] = []
        steps: list[SequenceStep] = []
        for place, other in enumerate(row.places):
            one = by_place.get(place)
            if one is None:
                # What a sequence has behind its tokens is not seen: the next token takes its place.
                tokens.append((0, min(len(other.tokens), decoder.context - 1) if other is not None else 0))
                steps.append(NO_STEP)
            else:
                tokens.append((one.token, one.position))
                steps.append(one.step)
        inputs, names = decoder.feed_batch(tokens), (decoder.logits,)
        # Whole logits can be compared.
        proven = self._known(row.deployment).is_right
        likely = max(one.likely for one in ones) if proven and all(one.likely for one in ones) else 0
        try:
            outputs, info = await self._run_steps(
                row.deployment, inputs, self._within_s, names, steps=tuple(steps), likely=likely
            )
            logits = decoder.read_batch(outputs)
        except StateLost:
            return False
        except EdgepartError as error:
            for one in ones:
                one.fail(error)
            return True
        self.made += 1
        verdict = self._verdict(row.deployment, info.epoch)
        if not verdict.is_right:
            await self._compare_with_single_steps(row, ones, logits, verdict)
            return True
        for one in ones:
            one.answer(logits[one.sequence.place])
        return True

    async def _compare_with_single_steps(
        self, row: Row, ones: Sequence[WaitingToken], logits: Sequence[Logits], verdict: PlanVerdict
    ) -> None:
        """Read the tokens one by one, though a common request gave `logits` for them, and judge its plan by that."""
        waited_for = [one for one in ones if not one.logits.done()]
        alone = await asyncio.gather(*(self._settle(row, one, 0) for one in waited_for))
        compared = [
            (got, right)
            for one, right in zip(waited_for, alone, strict=True)
            # A text that was given up meanwhile may have been continued elsewhere.
            if not one.logits.cancelled()
            and isinstance(got := logits[one.sequence.place], np.ndarray)
            and isinstance(right, np.ndarray)
        ]
        tolerance = self._tolerance(row.deployment)
        found = [
            text
            for got, right in compared
            for text in differences({"logits": got}, {"logits": right}, tolerance)
        ]
        if found:
            why = f"a common step does not give what single steps do: {found[0]}"
            verdict.fault = f"texts at the same time take turns: {why}"
            log.warning("%s: %s", row.deployment, verdict.fault)
        elif compared:
            verdict.is_right = True

    async def _read_alone(self, row: Row, one: WaitingToken, likely: int) -> Logits:
        decoder = one.decoder
        inputs = decoder.feed([one.token], one.position)
        outputs, info = await self._run(
            row.deployment, inputs, self._within_s, (decoder.logits,), one.step, likely
        )
        self._verdict(row.deployment, info.epoch)
        return decoder.read(outputs)

    async def _settle(self, row: Row, one: WaitingToken, likely: int) -> Logits | None:
        """Read the token alone for whoever waits for it; returns its logits, or None if it was not read."""
        try:
            logits = await self._read_alone(row, one, likely)
        except EdgepartError as error:
            one.fail(error)
            return None
        one.answer(logits)
        return logits
