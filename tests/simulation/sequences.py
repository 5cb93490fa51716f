"""Sequences in a simulated cluster: the real rules of the gateway (agent/serving/sequence_history.py), clients that ask
for one step after the other, and the real rules by which devices keep states.

Whatever happens meanwhile, each answer of a step is the one of an undisturbed run. A step that fails, because no plan was
there in its time, is asked for again with another input, which a client may do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepart.agent.execution.sequences import KeptSequences, SequenceKey
from edgepart.agent.execution.tasks import StepKind
from edgepart.agent.serving.sequence_history import SequenceHistory, StepUnderWay
from edgepart.agent.serving.sequences import REPLAY_PAUSE_S
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import StateLost
from tests.simulation.decoder_layers import CHAT, TextPart, text_part
from tests.simulation.layers import ROWS, part, undisturbed
from tests.simulation.trace import Broken, short

if TYPE_CHECKING:
    from tests.simulation.clients import Device
    from tests.simulation.ledger import Job, Passed

PAUSES_S = (0.02, 0.2, 1.0, 3.0)
"""The longest time that a client leaves between two steps; each client has one of these. With the longest one other
sequences may take its room on devices (SPARED_S)."""
IMPATIENT = 0.1
"""The share of steps whose clients wait only about as long as a step takes. Some devices have made such a step then, and it
is asked for again with another input."""
MOST_IMPATIENT_S = 0.06


class States:
    """The states that one device keeps, and its steps under way."""

    def __init__(self, *, fits_rows: bool = True) -> None:
        """`fits_rows`: whether there is memory for the caches of several texts side by side."""
        self.fits_rows = fits_rows
        self.kept = KeptSequences()
        self.free_s = 0.0
        """When it is done with all steps that it has taken, in the network's time; it does one after the other."""
        self._began: dict[Job, Sequence[Value]] = {}

    @property
    def kept_now(self) -> list[SequenceKey]:
        """The sequences whose states it keeps."""
        return list(self.kept._kept)

    @property
    def busy(self) -> set[SequenceKey]:
        """The sequences whose steps are under way."""
        return {key for job in self._began for key in job.by_sequence}

    def begin(self, job: Job, hop: int, now: float) -> None:
        """Raises StateLost or Unavailable if the device does not have the states with which the step begins."""
        mine = self._part(job, hop)
        if not mine.program.kept:
            self._began[job] = ()
        elif job.kind is StepKind.BATCH:
            self._began[job] = self.kept.begin_batch(job.by_sequence, mine, now)
        else:
            ((key, step),) = job.by_sequence.items()
            batch = mine.batch if isinstance(mine, TextPart) else None
            self._began[job] = self.kept.begin(key, step, mine, now, self.busy, batch)

    def finish(self, job: Job, hop: int, value: Any, now: float) -> Passed:
        """Make the step, and return what goes to the next device."""
        mine, began = self._part(job, hop), self._began.pop(job)
        made: Passed
        if isinstance(mine, TextPart):
            made, ended = mine.compute(began, value), began
        else:
            made, ended = mine.compute(began, job.steps[0].position, value)
        if job.kind is StepKind.BATCH:
            self.kept.finish_batch(job.by_sequence, mine, (), now)
        elif mine.program.kept:
            ((key, step),) = job.by_sequence.items()
            self.kept.finish(key, step, mine, began, ended, now)
        return made

    def drop(self, job: Job, hop: int, value: Any, *, computed: bool) -> None:
        """Handle the end of a step that was not finished. If it was `computed`, caches are written already."""
        began, mine = self._began.pop(job, None), self._part(job, hop)
        if computed and began is not None and isinstance(mine, TextPart):
            mine.compute(began, value)

    def _part(self, job: Job, hop: int) -> Any:
        if job.name == CHAT:
            return text_part(hop, len(job.route), fits_rows=self.fits_rows)
        return part(hop, len(job.route))


class SequenceClient:
    """A client of one gateway, which wants the answers of so many steps of a sequence."""

    def __init__(self, device: Device, history: SequenceHistory, steps: int, deadline_s: float) -> None:
        self.device, self.history = device, history
        self.left = min(steps, ROWS)
        self.deadline_s = deadline_s
        self.pause_s = device.net.random.choice(PAUSES_S)
        self._inputs: list[int] = []
        """The inputs of the steps that were answered."""
        self._input = 0
        self._step: StepUnderWay | None = None
        self._until_s = 0.0

    def ask(self) -> None:
        """Ask for the next step."""
        random = self.device.net.random
        self._input = random.randrange(1, 1000)
        self._step = StepUnderWay(self.history, {"x": np.array([self._input])})
        impatient = random.random() < IMPATIENT
        self._until_s = self.device.now + (
            random.uniform(0.0, MOST_IMPATIENT_S) if impatient else self.deadline_s
        )
        self._make()

    def _make(self) -> None:
        assert self._step is not None
        step, given = self._step.next_step()
        left_s = self._until_s - self.device.now
        self.device.ask_step(self, left_s, step, int(np.asarray(given["x"])[0]))

    def answered(self, value: int, job: Job) -> None:
        """Handle the answer of a step: of one that was made again, or of the one that the client asked for."""
        assert self._step is not None
        try:
            self._step.answered((job.epoch, job.side))
        except StateLost as lost:
            self.failed("state", str(lost))
            return
        if not self._step.is_last:
            self._step.made()
            self._make()
            return
        whole = [*self._inputs, self._input]
        if value != undisturbed(whole):
            raise Broken(
                f"{short(self.device.box.node)}: step {len(self._inputs)} of {self.history.name} has the answer {value}, "
                f"and in an undisturbed run it has {undisturbed(whole)}"
            )
        self._inputs.append(self._input)
        self.device.histories.remember(self.history, self._step.inputs, self.device.now)
        self.device.net.ledger.steps += 1
        self.left -= 1
        if not self.left:
            self.device.end_sequence(self)
            return
        self.device.later(self.device.net.random.uniform(0.0, self.pause_s), self.ask)

    def failed(self, kind: str, error: str) -> None:
        """Handle the failure of a step."""
        assert self._step is not None
        if kind == "removed":
            self.device.end_sequence(self)
        elif kind == "state":
            try:
                self._step.lost(error)
            except StateLost as given_up:
                raise Broken(f"a history was given up: {given_up}") from given_up
            self.device.net.ledger.replayed_sequences += 1
            self.device.later(REPLAY_PAUSE_S, self._make)
        else:
            self.device.later(self.device.net.random.uniform(0.1, 0.3), self.ask)
