"""Limits: how much memory, time and how many places clients may take of one agent. Facts: no door."""

from __future__ import annotations

from dataclasses import dataclass

from edgepart.planner.errors import RequestError


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits on the memory, time and connections that clients may take of one agent, over HTTP and gRPC together unless a
    field says otherwise."""

    request_bytes: int = 256 << 20
    """The largest inference request, after decompression. A larger limit allows bigger inputs, and lets one client take
    more memory."""
    unpacked_bytes: int = 64 << 20
    """The largest compressed request, after decompression: few compressed bytes can stand for very many."""
    unpacking: int = 4
    """The most compressed requests that are read at once. A higher number serves more such clients at a time; a lower one
    leaves more to others."""
    all_requests_bytes: int = 512 << 20
    """The memory of all inference requests that are being read or run. Requests beyond it get 503 with Retry-After."""
    all_answers_bytes: int = 256 << 20
    """The memory of all answers that clients have not read yet. Beyond it the oldest deliveries are aborted."""
    in_flight: int = 256
    """The most inference requests at once whose bodies have arrived. A lower number keeps the queue short; with a higher
    one, fewer clients have to try again."""
    reading: int = 512
    """The most inference requests whose bodies are arriving. Beyond it the one that has taken longest is aborted."""
    upload_bytes: int = 64 << 30
    """The largest size of one deployment's files; the disk's free space is another limit."""
    upload_files: int = 4096
    stall_s: float = 20.0
    """Seconds for which a client may send nothing of a body, or read nothing of an answer."""
    least_bytes_per_s: float = 4096.0
    """The least rate of a body or an answer after its first `stall_s`; slower ones are aborted. A lower rate admits slower
    links."""
    body_s: float = 300.0
    """Seconds that an inference request's body may take in all, and that reading an answer may take."""
    head_s: float = 20.0
    """Seconds that a connection may take to send a request's head."""
    linger_s: float = 2.0
    """Seconds for which the rest of a refused body is still read, so that the client sees why it was refused."""
    connections: int = 4096
    """The most connections at once. Beyond it an idle connection of the client with most of them is closed. The number of
    files that the process may open is another limit."""
    client_rate: float = 100.0
    """Requests per second from one address without the credential, other than this machine. A higher rate serves busier
    clients; a lower one leaves more to others."""
    client_burst: float = 200.0
    """The requests that such an address may send at once before its rate counts."""
    deadline_s: float = 60.0
    """The deadline of an inference request that names none."""
    longest_deadline_s: float = 3600.0

    def until(self, began: float, now: float, nbytes: int) -> float:
        """Return the time by which more bytes have to move, for a transfer that began at `began` and has moved `nbytes` so
        far."""
        fast_enough = began + self.stall_s + nbytes / self.least_bytes_per_s
        return min(now + self.stall_s, fast_enough, began + self.body_s)


class TooLarge(RequestError):
    """The body is larger than it may be."""
