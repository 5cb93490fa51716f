"""The requests of a simulated cluster: what their clients saw of them, over all gateways, and what devices know of an
attempt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgepart.agent.execution.sequences import SequenceKey
from edgepart.agent.execution.tasks import StepKind
from edgepart.agent.wire.inference import Epoch, SequenceStep

if TYPE_CHECKING:
    from tests.simulation.decoder_layers import Rows
    from tests.simulation.sequences import SequenceClient
    from tests.simulation.texts import TextClient

    Passed = int | Rows
    """What goes from device to device."""


@dataclass
class Ledger:
    """The results that clients saw, over all gateways."""

    accepted: dict[int, float] = field(default_factory=dict)
    """Requests in flight, and their deadlines (in the network's time, as far as the gateway's clock allows)."""
    names: dict[int, str] = field(default_factory=dict)
    """The deployments of the requests that are no steps of sequences, whose states may be lost."""
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
    texts: set[TextClient] = field(default_factory=set)
    """The texts that grow."""
    tokens: int = 0
    """Tokens of texts that clients saw."""
    blocks: int = 0
    """Blocks of prompts that devices have read; each counts once for each device."""
    batches: int = 0
    """Requests that read a token in each of several texts."""
    resumed_texts: int = 0
    """How often a text went on with states that devices had from others."""
    replayed_texts: int = 0
    """How often all tokens of a text had to be read again."""

    def in_flight(self, names: Collection[str]) -> dict[int, float]:
        """Requests in flight that ask for these deployments and are no steps of sequences, and their deadlines."""
        return {number: at for number, at in self.accepted.items() if self.names.get(number) in names}


@dataclass(frozen=True)
class Work:
    """What a request asks for, beside its deployment."""

    value: Passed
    """The inputs."""
    steps: tuple[SequenceStep, ...]
    kind: StepKind = StepKind.USUAL


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt at a request, as devices know it."""

    gateway: str
    life: int
    attempt: int
    name: str
    epoch: Epoch
    route: tuple[str, ...]
    kind: StepKind = StepKind.USUAL
    steps: tuple[SequenceStep, ...] = ()
    """The steps of sequences that it makes: none, one, or one for each place of a batch."""
    side: int = 0
    """The replica whose route it is."""

    @property
    def by_sequence(self) -> Mapping[SequenceKey, SequenceStep]:
        """The steps by their sequences, without places of a batch that are of no sequence."""
        return {(self.name, self.epoch, one.sequence): one for one in self.steps if one.sequence}
