"""Token sequences: reads tokens with a decoder whose states the devices keep, one step after another. Door: the event loop.

The tokens are kept here, and the states on the devices are a cache of them: states that are lost are made again from the
tokens. A sequence that is not in use any more keeps its states, so that a later prompt that begins with the same tokens
(the next turn of a chat) reads only what is new. If a name is deployed again with another model, the sequences of the model
before it are of no use: those in use end with an error, and the others are ended silently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from edgepart.agent.serving.sequences import REPLAY_PAUSE_S, RunStep
from edgepart.agent.text.decoder import Decoder, Logits, common_start
from edgepart.agent.text.step_batches import Row, RunSteps, StepBatches
from edgepart.agent.wire.inference import SequenceStep
from edgepart.planner.errors import StateLost, Unavailable

STEP_S = 60.0
"""The longest time, in seconds, that a step may take; within it the cluster recovers from a loss."""
BLOCK_TRIALS = 3
"""How often tokens are tried to be read in blocks. Blocks have no answer that could say why they fail."""
MOST_REPLAYS = 8
"""How often states may be lost while one token is read. A larger number goes on through more trouble; a smaller one tells
the client sooner that the cluster is in it."""
SPEEDS = 8
"""The number of last answers of which the average speed is told."""


Resume = Callable[[str, str, int, int, int], Awaitable[int]]
"""resume(deployment, sequence, revision, position, since) is Resumptions.resume."""


@dataclass(eq=False)
class TokenSequence:
    """A sequence of tokens, of which devices keep the states."""

    deployment: str
    model: str
    """The digest of the model that reads it."""
    name: str
    """Its name among agents."""
    tokens: list[int] = field(default_factory=list)
    """The tokens that were read."""
    revision: int = 1
    since: int = 0
    """The fields of SequenceStep: tokens from `since` on may be others than devices have read in the revision before."""
    asked: bool = False
    """Whether a step of this revision may have been made."""
    replays: int = 0
    """How often tokens were read again since the sequence was taken into use."""
    row: Row | None = None
    """The sequences beside it on the devices; None if it lies by itself."""
    place: int = 0
    """Its place there."""

    def step(self, position: int, after: int) -> SequenceStep:
        """The step that reads the tokens from `position` to `after`."""
        self.asked = True
        return SequenceStep(self.name, position, after, self.revision, self.since)

    def cut(self, length: int) -> None:
        """Give up the tokens after the first `length` ones, and what devices may have read beyond them."""
        del self.tokens[length:]
        self.give_up_from(length)

    def give_up_from(self, position: int) -> None:
        """Give up what devices may have read of the tokens from `position` on."""
        if self.asked:
            self.revision, self.since, self.asked = self.revision + 1, position, False
        else:
            self.since = min(self.since, position)


class TokenSequences:
    """The token sequences of one gateway. For the event loop's thread."""

    def __init__(
        self,
        run: RunStep,
        run_block: RunSteps,
        make_name: Callable[[], str],
        end: Callable[[str, str], None],
        room: Callable[[str], int],
        serving: Callable[[str], str | None],
        resume: Resume,
        tolerance: Callable[[str], float | None],
    ) -> None:
        """`run` makes steps that read one token; `run_block` sends steps that read a block of them, without an answer, and
        makes those that read a token in each of several sequences. `make_name` returns a name that no other sequence has.
        `end(deployment, name)` tells devices that they need to keep a sequence no longer. `room(deployment)` is the most
        sequences that a deployment may have. `serving(deployment)` is the digest of the model that serves under this name;
        None if none does now. `resume` lets the devices that make the next step have states that others have.
        `tolerance` is that of StepBatches."""
        self._run = run
        self._run_block = run_block
        self._make_name = make_name
        self._end = end
        self._room = room
        self._serving = serving
        self._resume = resume
        self._loop = asyncio.get_running_loop()
        self._idle: dict[str, deque[TokenSequence]] = {}
        """The sequences that are not in use, the one that was used last at the end."""
        self._in_use: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The turns of those who wait for a sequence, the first one first."""
        self._speeds: dict[str, deque[float]] = {}
        self._rows: dict[str, list[Row]] = {}
        self._batches = StepBatches(run, run_block, STEP_S, tolerance)
        self.replays = 0
        self.resumed = 0
        """How often a text went on with states that devices had from others."""

    def count(self, deployment: str) -> tuple[int, int]:
        """The numbers of sequences of a deployment that are in use, and that are kept for later prompts."""
        return self._in_use.get(deployment, 0), len(self._idle.get(deployment, ()))

    @property
    def batches(self) -> int:
        """The number of requests that read a token in each of several sequences."""
        return self._batches.made

    def note(self, deployment: str) -> str:
        """Why texts of the deployment are not read together although they could be; "" if they may be."""
        return self._batches.note(deployment)

    def speed(self, deployment: str) -> float | None:
        """The average speed of the deployment's last answers, in tokens per second; None before the first one."""
        speeds = self._speeds.get(deployment)
        return sum(speeds) / len(speeds) if speeds else None

    def note_speed(self, deployment: str, tokens_per_s: float) -> None:
        """Remember the speed of an answer."""
        self._speeds.setdefault(deployment, deque(maxlen=SPEEDS)).append(tokens_per_s)

    @asynccontextmanager
    async def take(
        self, deployment: str, decoder: Decoder, prompt: Sequence[int], wait_s: float
    ) -> AsyncIterator[TokenSequence]:
        """Take a sequence into use for as long as the block lasts: of those not in use, the one that begins like `prompt`,
        cut to what they have in common. Waits for its turn if all are in use. Raises Unavailable if none is free after
        `wait_s` seconds."""
        await self._wait_for_turn(deployment, wait_s)
        try:
            sequence = self._choose(deployment, decoder, prompt)
            sequence.replays = 0
            try:
                yield sequence
            finally:
                if sequence.row is not None:
                    self._batches.leave(sequence.row, sequence)
                self._idle.setdefault(deployment, deque()).append(sequence)
        finally:
            self._give_back(deployment)

    async def _wait_for_turn(self, deployment: str, wait_s: float) -> None:
        waiting = self._waiting.setdefault(deployment, deque())
        turn = self._loop.create_future()
        waiting.append(turn)
        self._give_turns(deployment)
        try:
            async with asyncio.timeout(wait_s):
                await turn
        except BaseException as error:
            if turn in waiting:
                waiting.remove(turn)
            elif not turn.cancelled():  # The turn came just as the wait ended.
                self._give_back(deployment)
            if not isinstance(error, TimeoutError):
                raise
            raise Unavailable(
                f"{deployment!r} generates {self._room(deployment)} texts already, as many as it keeps states for "
                "(--sequences)"
            ) from None

    def _give_turns(self, deployment: str) -> None:
        """Give turns, in the order in which they were asked for, while there is room."""
        waiting = self._waiting[deployment]
        while waiting and self._in_use.get(deployment, 0) < self._room(deployment):
            turn = waiting.popleft()
            if not turn.done():
                self._in_use[deployment] = self._in_use.get(deployment, 0) + 1
                turn.set_result(None)

    def _give_back(self, deployment: str) -> None:
        self._in_use[deployment] -= 1
        self._give_turns(deployment)

    def _choose(self, deployment: str, decoder: Decoder, prompt: Sequence[int]) -> TokenSequence:
        idle = self._idle.setdefault(deployment, deque())
        for other in [one for one in idle if one.model != decoder.model]:
            self._end_idle(other)
        # The last token of a prompt has to be read in any case, as its logits are wanted.
        shared = {id(one): _usable(decoder, one.tokens, prompt[:-1]) for one in idle}
        best = max(idle, key=lambda one: shared[id(one)], default=None)
        has_room = len(idle) + self._in_use[deployment] <= self._room(deployment)
        # All chats with a model begin with the same few tokens; these are not worth the states of another chat.
        if best is None or (has_room and shared[id(best)] < min(len(prompt) - 1, len(best.tokens) / 2)):
            return self._begin(deployment, decoder)
        if not shared[id(best)]:
            best = idle[0]
        idle.remove(best)
        if shared[id(best)] < len(best.tokens):
            best.cut(shared[id(best)])
        return best

    def _begin(self, deployment: str, decoder: Decoder) -> TokenSequence:
        """A new sequence, in the first free place of a row if devices can read tokens of several at once."""
        if not decoder.batch:
            return TokenSequence(deployment, decoder.model, self._make_name())
        rows = self._rows.setdefault(deployment, [])
        rows[:] = [row for row in rows if any(row.places)]
        row = next((one for one in rows if None in one.places and len(one.places) == decoder.batch), None)
        if row is None:
            row = Row(deployment, self._make_name(), [None] * decoder.batch)
            rows.append(row)
        place = row.places.index(None)
        found = TokenSequence(deployment, decoder.model, row.new_name(place), row=row, place=place)
        row.places[place] = found
        return found

    def keep(self, deployments: Collection[str]) -> None:
        """End the sequences, as far as they are not in use, of all other deployments."""
        for gone in self._idle.keys() - set(deployments):
            for sequence in tuple(self._idle[gone]):
                self._end_idle(sequence)
            del self._idle[gone]
            self._speeds.pop(gone, None)
            self._rows.pop(gone, None)
        self._batches.keep(deployments)

    def _end_idle(self, sequence: TokenSequence) -> None:
        self._idle[sequence.deployment].remove(sequence)
        self._end(sequence.deployment, sequence.name)
        if sequence.row is not None:
            sequence.row.places[sequence.place] = None

    async def read_again(self, sequence: TokenSequence, decoder: Decoder) -> Logits:
        """Read the last token once more; returns all logits of the one after it. Raises what `read` raises."""
        return await self.read(sequence, decoder, [sequence.tokens.pop()])

    async def read(
        self, sequence: TokenSequence, decoder: Decoder, tokens: Sequence[int], likely: int = 0
    ) -> Logits:
        """Read more tokens (at least one); returns the logits of the one after them, or with `likely` so many of the most
        likely ones if devices can send those alone. If devices have lost the sequence's states, all its tokens are read
        again before. Raises what ShapeRouter.infer raises, and Unavailable if another model serves now."""
        whole, at, lost = [*sequence.tokens, *tokens], len(sequence.tokens), False
        for trial in range(MOST_REPLAYS):
            try:
                if lost:
                    at = await self._go_on(sequence, decoder)
                    if len(whole) - at > 1:
                        # Steps of other sequences may have written over what was read of them. A device that misses a
                        # block now must not go on with that.
                        sequence.give_up_from(at)
                logits = await self._read_on(
                    sequence, decoder, whole, at, likely, in_blocks=trial < BLOCK_TRIALS
                )
                sequence.tokens[:] = whole
                return logits
            except StateLost:
                lost = True
            except BaseException:
                self._break_off(sequence, len(whole) - at)
                raise
        self._rename(sequence)
        raise Unavailable(
            f"devices lost the states of a text of {sequence.deployment!r} {MOST_REPLAYS} times while tokens were read"
        )

    async def _go_on(self, sequence: TokenSequence, decoder: Decoder) -> int:
        """Find out how many tokens need not be read again, now that devices do not have the states of the sequence."""
        known = len(sequence.tokens)
        resume = self._resume if decoder.in_place else _resume_nothing
        at = await resume(sequence.deployment, sequence.name, sequence.revision, known, sequence.since)
        self.resumed += at > 0
        if at < known or not known:
            sequence.replays += 1
            self.replays += 1
        if not at:
            await asyncio.sleep(REPLAY_PAUSE_S)
        return at

    async def _read_on(
        self,
        sequence: TokenSequence,
        decoder: Decoder,
        whole: Sequence[int],
        at: int,
        likely: int,
        *,
        in_blocks: bool,
    ) -> Logits:
        """Read the tokens from number `at` on, a single one together with those of other sequences if that can be. Blocks
        are sent one after another; devices compute them in this order."""
        row, last, blocks = sequence.row, len(whole) - 1, 0
        if row is not None and at == last:
            self._check_model(sequence)
            return await self._batches.read(row, sequence, decoder, whole[at], likely)
        async with self._batches.reading(row) if row is not None else nullcontext():
            while at < last:
                self._check_model(sequence)
                count = decoder.count_next(last - at, at) if in_blocks else 1
                inputs = decoder.feed(whole[at : at + count], at)
                step = sequence.step(at, at + count)
                if count > 1:
                    await self._run_block(sequence.deployment, inputs, STEP_S, (), step=step, prefill=True)
                    blocks += 1
                else:
                    await self._run(sequence.deployment, inputs, STEP_S, (decoder.logits,), step, likely=1)
                at += count
            self._check_model(sequence)
            step = sequence.step(last, last + 1)
            inputs, within_s = decoder.feed(whole[last:], last), STEP_S * (1 + blocks)
            outputs, _ = await self._run(
                sequence.deployment, inputs, within_s, (decoder.logits,), step, likely
            )
            return decoder.read(outputs)

    def _check_model(self, sequence: TokenSequence) -> None:
        if self._serving(sequence.deployment) not in (None, sequence.model):
            raise Unavailable(f"{sequence.deployment!r} was deployed again while it generated this text")

    def _break_off(self, sequence: TokenSequence, unread: int) -> None:
        """Leave a sequence in the middle of what it reads. Blocks may wait on devices, which drop them with its states."""
        sequence.cut(len(sequence.tokens))
        if unread > 1:
            self._rename(sequence)
            sequence.cut(0)

    def _rename(self, sequence: TokenSequence) -> None:
        """Let devices drop what they have of the sequence, and what they have yet to do for it."""
        self._end(sequence.deployment, sequence.name)
        row = sequence.row
        sequence.name = self._make_name() if row is None else row.new_name(sequence.place)


async def _resume_nothing(deployment: str, name: str, revision: int, position: int, since: int) -> int:
    """Implements Resume for states that are not written in place, which cannot be carried."""
    return 0


def _usable(decoder: Decoder, tokens: Sequence[int], prompt: Sequence[int]) -> int:
    """The number of tokens of a sequence that a prompt can continue from."""
    common = common_start(tokens, prompt)
    return common if decoder.in_place or common == len(tokens) else 0
