"""Questions that agents ask each other on the data channel, and the answers: facts. `ticket` pairs them.

Weights and models travel as parts, so that a broken transfer goes on where it stopped and nothing large is held twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from edgepart.agent.wire.bounds import (
    Bytes,
    Count,
    Digest,
    Many,
    NodeId,
    Seconds,
    Sentence,
    Shapes,
    Ticket,
)
from edgepart.agent.wire.control import Drain


@dataclass(frozen=True, slots=True)
class WantFiles:
    """Which files make up this model?"""

    ticket: Ticket
    model: Digest
    """Digest."""


@dataclass(frozen=True, slots=True)
class Files:
    ticket: Ticket
    manifest: str
    """JSON of a Manifest (agent/storage/store.py)."""
    error: Sentence = ""
    """Why there is no answer; empty when there is one."""


@dataclass(frozen=True, slots=True)
class WantPart:
    """Bytes `offset` to `offset + length` of a blob."""

    ticket: Ticket
    digest: Digest
    offset: Bytes
    length: Bytes
    model: Digest = ""
    """The model that the blob can be cut from (`region` of `constant`), where it is not stored itself."""
    constant: str = ""
    region: tuple[tuple[int, ...], ...] = ()
    """As planner/plans/plan.py packs it: per axis start, stop, start, stop ..."""
    shapes: Shapes = field(default_factory=dict)
    """Of the model's inputs: some constants are folded from them."""


@dataclass(frozen=True, slots=True)
class Part:
    """The payload holds the bytes; fewer than asked for at the end."""

    ticket: Ticket
    total_bytes: Bytes
    error: Sentence = ""


@dataclass(frozen=True, slots=True)
class EchoTogether:
    """Measure how long echoes to `node` take while other members do the same; the answer says it."""

    ticket: Ticket
    node: NodeId
    nbytes: int
    """Of each echo's payload."""
    count: int
    """Echoes under way at once."""
    times: int
    """So often, one after the other."""


@dataclass(frozen=True, slots=True)
class EchoedTogether:
    ticket: Ticket
    seconds: Seconds
    """Until all were back; of all times."""
    error: Sentence = ""


@dataclass(frozen=True, slots=True)
class Echo:
    """Send the payload back at once: measures the link. Packed and unpacked as tensors are, as they are what is sent."""

    ticket: Ticket
    arrays: tuple[Any, ...] = ()
    """As in Tensors."""


@dataclass(frozen=True, slots=True)
class Echoed:
    ticket: Ticket
    arrays: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class WantClock:
    """On the control channel: what time is it?"""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Clock:
    ticket: Ticket
    now_s: float
    """By a clock that nobody sets."""

    def __post_init__(self) -> None:
        if not 0 <= self.now_s < float("inf"):
            raise ValueError(f"a clock cannot show {self.now_s}")


TRACES = "traces"
"""In a member's `Hello.version`, after the plus: it understands the messages below, and WantClock. One that does not would
end the link."""


@dataclass(frozen=True, slots=True)
class Record:
    """Record what you do, until `WantSpans` comes or the time is up."""

    ticket: Ticket
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Recording:
    ticket: Ticket
    error: Sentence = ""
    """Why it does not record; empty when it does."""


@dataclass(frozen=True, slots=True)
class WantSpans:
    """What was recorded for the sender? It is forgotten with the answer."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Spans:
    """The payload holds them, as agent/trace/spans.py packs them."""

    ticket: Ticket
    forgotten: Count
    """Earlier ones, which there was no room for."""
    error: Sentence = ""


@dataclass(frozen=True, slots=True)
class WantCertificate:
    """From a member to who holds the CA's key: renew mine. Only to members that understand charters
    (agent/security/charter.py)."""

    ticket: Ticket
    request: bytes
    """A CSR in DER; the node id is that of the link."""


@dataclass(frozen=True, slots=True)
class Renewed:
    ticket: Ticket
    certificate: bytes
    """DER."""
    error: Sentence = ""
    """Why there is none; empty when there is one."""


@dataclass(frozen=True, slots=True)
class WantSigned:
    """From a member to who holds the CA's key: a user wants this here; sign it. Only to members that understand signed
    drains."""

    ticket: Ticket
    entry: Drain


@dataclass(frozen=True, slots=True)
class Signed:
    ticket: Ticket
    signature: Annotated[bytes, Many(80)]
    error: Sentence = ""
    """Why there is none; empty when there is one."""


Question = WantFiles | WantPart | EchoTogether | Record | WantSpans | WantCertificate | WantSigned
Answer = Files | Part | EchoedTogether | Recording | Spans | Renewed | Signed
