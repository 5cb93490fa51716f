"""Texts in a simulated cluster: the gateway's own TokenSequences and StepBatches, whose event loop is one in virtual time,
and clients that let texts grow token by token.

Prompts are read in blocks, texts of one gateway lie side by side and their next tokens are read together, as far as devices
can; some clients hang up. Whatever happens meanwhile, after each token the decoder says what it would say in an undisturbed
run, so that the tokens of each text are the same too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepart.agent.execution.tasks import StepKind
from edgepart.agent.serving.requester import FAILURES, AnswerInfo
from edgepart.agent.serving.resumption import Resumptions
from edgepart.agent.text.token_sequences import TokenSequence, TokenSequences
from edgepart.agent.wire.inference import SequenceStep
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import ClusterError, EdgepartError, InternalError, Unavailable
from edgepart.planner.region import Array
from tests.simulation.decoder_layers import (
    CHAT,
    CONTEXT,
    DECODER,
    SEQUENCES,
    VOCABULARY,
    outputs_of,
    read_inputs,
    undisturbed_logits,
)
from tests.simulation.ledger import Job, Work
from tests.simulation.trace import Broken, short
from tests.simulation.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.clients import Device

PAUSES_S = (0.0, 0.0, 0.02, 1.0)
"""The longest time that a client leaves between two tokens; each client has one of these. Without a pause texts are read
together most often."""
IMPATIENT = 0.03
"""The share of requests that have only about as much time as one takes. Some devices have made such a step then."""
MOST_IMPATIENT_S = 0.06
PATIENT_S = 25.0
"""The time that other requests have at most. In the product it is longer than a run goes on."""
LEAVING = 0.2
"""The share of clients that hang up before their text is done."""
EDITS = (0, 0, 2, 6)
"""How often a client goes back in its text and on differently; each client has one of these. The rows that
it leaves behind are of another revision then."""
EDITING = 0.15
"""The share of tokens after which such a client does so."""
WAIT_S = 20.0
"""The time for which a client waits for its turn."""


class Asked:
    """A request of which a coroutine awaits the end."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.value = loop.create_future()

    def answered(self, value: Any, job: Job) -> None:
        """Handle the answer of that attempt; None if the request has none."""
        if not self.value.done():
            self.value.set_result((value, AnswerInfo(job.epoch, 0, "by formula", side=job.side)))

    def failed(self, kind: str, error: str) -> None:
        """Handle the failure."""
        if not self.value.done():
            refused = kind == "refused"
            self.value.set_exception((Unavailable if refused else FAILURES.get(kind, ClusterError))(error))


class Texts:
    """The texts of one gateway, in one life of its box."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.loop = VirtualLoop(lambda: device.net.now, device.later)  # type: ignore[abstract]
        self._names = 0
        self.hurried = True
        """Whether some steps get less time than they need."""
        carrier = device.carrier
        with self.loop.running():
            self.resumptions = Resumptions(carrier.send, carrier.resumes, carrier.nodes)
            self.sequences = TokenSequences(
                self._run,
                self._run_steps,
                self._make_name,
                device.tell_ended,
                lambda _: SEQUENCES,
                lambda _: DECODER.model if device.box.active.get(CHAT) else None,
                self._resume,
                lambda _: None,
            )

    def begin(self, prompt: Sequence[int], count: int) -> TextClient:
        """Let a client ask for `count` tokens that follow a prompt."""
        client = TextClient(self, prompt, count)
        self.device.net.ledger.texts.add(client)
        return client

    async def _resume(self, deployment: str, sequence: str, revision: int, position: int, since: int) -> int:
        at = await self.resumptions.resume(deployment, sequence, revision, position, since)
        self.device.net.ledger.resumed_texts += at > 0
        return at

    def _make_name(self) -> str:
        self._names += 1
        return f"{self.device.box.node}/{self.device.life}/text{self._names}"

    async def _run(
        self,
        deployment: str,
        inputs: Mapping[str, Value],
        deadline_s: float,
        outputs: Sequence[str] = (),
        step: SequenceStep | None = None,
        likely: int = 0,
    ) -> tuple[dict[str, Value], AnswerInfo]:
        """Implements RunStep. Devices always say how likely each token is."""
        if deployment not in self.device.box.active:
            raise Unavailable(f"no plan of {deployment} is active here")
        return await self._run_steps(deployment, dict(inputs), deadline_s, tuple(outputs), step=step)

    async def _run_steps(
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
    ) -> tuple[dict[str, Value], AnswerInfo]:
        """Implements RunSteps."""
        if self.loop.is_closed():
            raise Unavailable("this box is off")
        random, asked = self.device.net.random, Asked(self.loop)
        impatient = random.random() < IMPATIENT and self.hurried
        left_s = random.uniform(0.0, MOST_IMPATIENT_S) if impatient else min(deadline_s, PATIENT_S)
        kind = StepKind.of(steps, prefill=prefill)
        work = Work(read_inputs(inputs), steps or ((step,) if step is not None else ()), kind)
        number = self.device.submit(asked, deployment, left_s, work, patient=True)
        try:
            rows, info = await asked.value
        finally:
            self.device.withdraw(number)
        self.device.net.ledger.batches += kind is StepKind.BATCH
        return (outputs_of(rows) if outputs else {}), info


class TextClient:
    """A client that wants so many tokens that follow a prompt, the most likely ones."""

    def __init__(self, texts: Texts, prompt: Sequence[int], count: int) -> None:
        self.device, self._texts = texts.device, texts
        self.tokens = list(prompt)
        """The prompt, and what was said so far."""
        self.left = min(count, CONTEXT - len(prompt))
        self.name = ""
        """The name of its sequence among agents."""
        random = self.device.net.random
        self.pause_s = random.choice(PAUSES_S)
        self.edits = random.choice(EDITS)
        self._task = texts.loop.create_task(self._write())
        self._task.add_done_callback(self._ended)
        if random.random() < LEAVING:
            self.device.later(random.uniform(0.0, 2.0), self._task.cancel)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self.device.net.ledger.texts.discard(self)

    async def _write(self) -> None:
        """Ask until all tokens are said. After an error the client asks again, with what was said so far as the prompt."""
        while self.left:
            try:
                async with self._texts.sequences.take(CHAT, DECODER, self.tokens, WAIT_S) as sequence:
                    try:
                        await self._grow(sequence)
                    finally:
                        self.device.net.ledger.replayed_texts += sequence.replays
            except InternalError as error:
                raise Broken(f"{short(self.device.box.node)}: a text ended inside: {error}") from error
            except EdgepartError:
                await asyncio.sleep(self.device.net.random.uniform(0.1, 0.3))

    async def _grow(self, sequence: TokenSequence) -> None:
        self.name = sequence.name
        logits = await self._read(sequence, self.tokens[len(sequence.tokens) :])
        while True:
            self.tokens.append(int(logits.argmax()))
            self.left -= 1
            self.device.net.ledger.tokens += 1
            if not self.left or self._goes_back():
                return
            if self.pause_s:
                await asyncio.sleep(self.device.net.random.uniform(0.0, self.pause_s))
            logits = await self._read(sequence, self.tokens[-1:])

    def _goes_back(self) -> bool:
        """Whether the client goes back now: it asks anew, with a part of the text and another token as the prompt."""
        random = self.device.net.random
        if not self.edits or random.random() >= EDITING:
            return False
        self.edits -= 1
        del self.tokens[random.randrange(1, len(self.tokens)) :]
        self.tokens.append(random.randrange(VOCABULARY))
        return True

    async def _read(self, sequence: TokenSequence, tokens: Sequence[int]) -> Array:
        logits = await self._texts.sequences.read(sequence, DECODER, tokens)
        assert isinstance(logits, np.ndarray)
        expected = undisturbed_logits(self.tokens)
        if logits.tolist() != expected:
            raise Broken(
                f"{short(self.device.box.node)}: after {len(self.tokens)} tokens of {sequence.name} the decoder says "
                f"{logits.tolist()}, and in an undisturbed run it says {expected}"
            )
        return logits


def make_up_prompt(device: Device) -> list[int]:
    """A prompt; many begin alike."""
    random = device.net.random
    return [random.randrange(VOCABULARY) for _ in range(random.randint(1, 12))]
