"""Intake: accounts for the memory and the places of the inference requests that are here, whatever protocol they came by.
Door: the event loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from edgepart.agent.gateway.admission import AdmissionPlaces
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.planner.errors import Unavailable


class Intake:
    """The memory and the places that requests take. It belongs to the event loop's thread."""

    def __init__(self, limits: BodyLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self.places = AdmissionPlaces(limits.in_flight)

    def hold(self, nbytes: int) -> None:
        """Account for bytes that have arrived; `release` undoes it. Raises Unavailable if there is no memory for them."""
        if self.held_bytes + nbytes > self.limits.all_requests_bytes:
            raise Unavailable("the requests in flight here take all the memory they may; try again")
        self.held_bytes += nbytes

    def release(self, nbytes: int) -> None:
        self.held_bytes -= nbytes

    @contextmanager
    def place(self, client: str) -> Iterator[None]:
        """Take a place for a request of `client` until the block ends. Raises Unavailable if there is none."""
        self.places.take(client)
        try:
            yield
        finally:
            self.places.leave(client, asyncio.get_running_loop().time())
