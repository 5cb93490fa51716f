"""The requests of a simulated cluster: what their clients saw of them, over all gateways, and what devices know of an
attempt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgepart.agent.wire.inference import Epoch, SequenceStep

if TYPE_CHECKING:
    from tests.simulation.sequences import SequenceClient


@dataclass
class Ledger:
    """The results that clients saw, over all gateways."""

    accepted: dict[int, float] = field(default_factory=dict)
    """Requests in flight, and their deadlines (in the network's time, as far as the gateway's clock allows)."""
    steps_asked: set[int] = field(default_factory=set)
    """Requests that are steps of sequences, which may find their states lost."""
    answered: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    """Maps a request to its error, with the error's kind in front."""
    refused: int = 0
    orphaned: set[int] = field(default_factory=set)
    """Requests whose gateway, the client's own box, died."""
    replays: int = 0
    next_number: int = 0
    sequences: set[SequenceClient] = field(default_factory=set)
    """The sequences that go on."""
    steps: int = 0
    """Answers to steps of sequences that clients saw."""
    replayed_sequences: int = 0
    """How often all steps of a sequence had to be made again."""

    @property
    def whole(self) -> dict[int, float]:
        """Requests in flight that are no steps of sequences, and their deadlines."""
        return {number: at for number, at in self.accepted.items() if number not in self.steps_asked}


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt at a request, as devices know it."""

    gateway: str
    life: int
    attempt: int
    name: str
    epoch: Epoch
    route: tuple[str, ...]
    step: SequenceStep | None = None
