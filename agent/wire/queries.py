"""Questions that agents ask each other, and the answers: facts. `ticket` pairs a question with its answer.

All use the data channel, except WantClock and Clock. Weights and models travel in parts, so that a broken transfer resumes
where it stopped and nothing large is held twice.
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
    WholeNumber,
)
from edgepart.agent.wire.codec import OPTIONAL
from edgepart.agent.wire.control import Drain


@dataclass(frozen=True, slots=True)
class WantFiles:
    """Ask which files make up this model."""

    ticket: Ticket
    model: Digest


@dataclass(frozen=True, slots=True)
class Files:
    ticket: Ticket
    manifest: str
    """JSON of a Manifest (agent/storage/store.py)."""
    error: Sentence = ""
    """Why there is no answer; empty if there is one."""


@dataclass(frozen=True, slots=True)
class WantPart:
    """Send the bytes of a blob from `offset` to `offset + length`."""

    ticket: Ticket
    digest: Digest
    offset: Bytes
    length: Bytes
    model: Digest = ""
    """The model that the blob can be cut from, as `region` of `constant`, if the blob itself is not stored."""
    constant: str = ""
    region: tuple[tuple[int, ...], ...] = ()
    """The region as planner/plans/plan_bytes.py packs it: start, stop, start, stop, ... of each axis."""
    shapes: Shapes = field(default_factory=dict)
    """The shapes of the model's inputs: some constants are folded from them."""


@dataclass(frozen=True, slots=True)
class Part:
    """The answer to WantPart: the payload holds the bytes. At the end of the blob they are fewer than were asked for."""

    ticket: Ticket
    total_bytes: Bytes
    error: Sentence = ""


@dataclass(frozen=True, slots=True)
class EchoTogether:
    """Measure how long echoes to `node` take while other members do the same."""

    ticket: Ticket
    node: NodeId
    nbytes: int
    """The size of each echo's payload."""
    count: int
    """The number of echoes that are on the way at once."""
    times: int
    """The number of repetitions, one after the other."""


@dataclass(frozen=True, slots=True)
class EchoedTogether:
    ticket: Ticket
    seconds: Seconds
    """The time until all echoes of all repetitions were back."""
    error: Sentence = ""


ONE_WAY = "one-way"
"""Stands after the plus in the `Hello.version` of members that know `Echo.back_bytes`; other members would end the link."""
MOST_ECHO_BYTES = 1 << 20
"""The most bytes that an echo can ask for."""


@dataclass(frozen=True, slots=True)
class Echo:
    """Send the payload back at once, which measures the link. The payload is packed and unpacked like tensors, because the
    link has to carry tensors."""

    ticket: Ticket
    arrays: tuple[Any, ...] = ()
    """Metas, as in Tensors."""
    back_bytes: Annotated[int, WholeNumber(0, MOST_ECHO_BYTES)] | None = field(
        default=None, metadata=OPTIONAL
    )
    """Send so many bytes back instead, which measures one direction of the link."""


@dataclass(frozen=True, slots=True)
class Echoed:
    ticket: Ticket
    arrays: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class WantClock:
    """Ask which time the other member's clock shows. It is sent on the control channel."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Clock:
    ticket: Ticket
    now_s: float
    """The time of the monotonic clock, in seconds."""

    def __post_init__(self) -> None:
        if not 0 <= self.now_s < float("inf"):
            raise ValueError(f"a clock cannot show {self.now_s}")


TRACES = "traces"
"""Stands after the plus in the `Hello.version` of members that understand the tracing messages below and WantClock; other
members would end the link."""


@dataclass(frozen=True, slots=True)
class Record:
    """Record your spans until `WantSpans` comes or the time is up."""

    ticket: Ticket
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Recording:
    ticket: Ticket
    error: Sentence = ""
    """Why the member does not record; empty if it does."""


@dataclass(frozen=True, slots=True)
class WantSpans:
    """Send the spans that were recorded for the sender, and forget them."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Spans:
    """The payload holds the spans as agent/trace/spans.py packs them."""

    ticket: Ticket
    forgotten: Count
    """The number of earlier spans that were dropped because there was no room for them."""
    error: Sentence = ""


@dataclass(frozen=True, slots=True)
class WantCertificate:
    """A member asks one that holds the CA's key to renew its certificate. It is sent only to members that understand
    charters (agent/security/charter.py)."""

    ticket: Ticket
    request: bytes
    """A CSR in DER; the certificate is for the node id of the link."""


@dataclass(frozen=True, slots=True)
class Renewed:
    ticket: Ticket
    certificate: bytes
    """The new certificate in DER."""
    error: Sentence = ""
    """Why there is no certificate; empty if there is one."""


@dataclass(frozen=True, slots=True)
class WantSigned:
    """A member asks one that holds the CA's key to sign a drain for which a user asked it. It is sent only to members that
    understand signed drains."""

    ticket: Ticket
    entry: Drain


@dataclass(frozen=True, slots=True)
class Signed:
    ticket: Ticket
    signature: Annotated[bytes, Many(80)]
    error: Sentence = ""
    """Why there is no signature; empty if there is one."""


Question = WantFiles | WantPart | EchoTogether | Record | WantSpans | WantCertificate | WantSigned
Answer = Files | Part | EchoedTogether | Recording | Spans | Renewed | Signed
