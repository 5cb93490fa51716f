"""Carried states: what other devices get of the states of sequences that are kept here, and what comes from them. Rules:
the executor's lock is given.

Only states that are written in place are carried: of these, the rows of steps that were made never change, so that they can
be read while the next step is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from threading import RLock

from edgepart.agent.execution.prepared import RunnableProgram
from edgepart.agent.execution.sequences import GrownRows, KeptRows, KeptSequences, SequenceKey
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.errors import StateLost
from edgepart.planner.plans.plan import KeptPiece, Program
from edgepart.planner.region import Array

PlanId = tuple[str, Epoch]
"""The deployment and the epoch that name a plan."""

Fill = Callable[[Sequence[KeptPiece], Sequence[Array]], int]
"""fill(pieces, arrays) copies rows into the arrays of these pieces, and returns their number."""


class CarriedStates:
    """The states that the executor keeps, as far as they are carried. Thread-safe."""

    def __init__(
        self,
        lock: RLock,
        sequences: KeptSequences,
        program: Callable[[PlanId], RunnableProgram | None],
        batch: Callable[[PlanId], Program | None],
        busy: Callable[[], Collection[SequenceKey]],
        clock: Callable[[], float],
    ) -> None:
        """`program` is the installed program of a plan, `batch` the one that makes steps in several sequences, and `busy`
        are the sequences whose steps are under way. `clock` is the one by which steps are timed."""
        self._lock = lock
        self._sequences = sequences
        self._program = program
        self._batch = batch
        self._busy = busy
        self._clock = clock

    def rows_of(self, sequence: str) -> Mapping[PlanId, KeptRows]:
        """What is kept of a sequence here, by the plans by which its states were made."""
        with self._lock:
            return self._sequences.rows(sequence)

    def expect(self, plan: PlanId, sequence: str) -> None:
        """The sequence may come from other devices, unless a step of it comes before."""
        with self._lock:
            self._sequences.expect((*plan, sequence))

    def adopt(self, plan: PlanId, sequence: str, revision: int, fill: Fill) -> int:
        """Keep the rows of a sequence that comes from other devices, as many as `fill` finds; returns their number. All of
        it is done under the lock, so that no step reads rows while they are written.

        Raises StateLost if the sequence goes on already or a step of it has not ended, this device has no program of that
        plan, or its states cannot be carried, and Unavailable if there is no room."""
        with self._lock:
            prepared = self._program(plan)
            if prepared is None:
                raise StateLost("this device has left that epoch, or does not know it")
            if not prepared.program.kept or not prepared.program.in_place:
                raise StateLost("the states of this model are not written in place")
            key, now = (*plan, sequence), self._clock()
            arrays = self._sequences.adopt(key, prepared, now, self._busy(), self._batch(plan))
            position = fill(prepared.program.kept, arrays)
            self._sequences.adopted(key, revision, position)
            return position

    def grown(self, plan: PlanId, most_bytes: int) -> Sequence[GrownRows]:
        """Copies of the rows that the device that mirrors this one does not have yet, of each sequence at most
        `most_bytes`."""
        with self._lock:
            return list(self._sequences.grown(plan, most_bytes))

    def names(self, plan: PlanId) -> set[str]:
        """The names of the plan's sequences that are kept here."""
        with self._lock:
            return self._sequences.names(plan)

    def mirror_anew(self, plan: PlanId, sequence: str | None = None) -> None:
        """Let `grown` begin with the first rows again: of one sequence, or of all of the plan."""
        with self._lock:
            self._sequences.mirror_anew(plan, sequence)
