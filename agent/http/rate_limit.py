"""Gate: each request passes it first: may this client do that, and not too often. Door: aiohttp's requests, the clock.

Whoever shows the cluster's credential, or is a program on this machine, comes as often as it wants. All others have a
token bucket for each address: what they may do (inference, where it is open; health; the dashboard's page) and what they
may not (a wrong credential) takes a token. How many of the places for requests one address may have is admission.py's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web

from edgepart.agent.host.token_bucket import Buckets
from edgepart.agent.http.access import authorise, is_local, shows
from edgepart.agent.http.bodies import BodyLimits
from edgepart.agent.wire.vocabulary import LOCAL
from edgepart.planner.errors import Unavailable


class Throttled(Unavailable):
    """This client asks for more than its share. HTTP's 429."""


class Gate:
    """One agent's. For the event loop's thread."""

    def __init__(
        self,
        credential: Callable[[], str],
        limits: BodyLimits,
        inference: str = LOCAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`credential` gives the one that counts now; `inference` is one of access.py's."""
        self._credential = credential
        self._limits = limits
        self._inference = inference
        self._clock = clock
        self._buckets = Buckets(limits.client_rate, limits.client_burst)

    def allow(self, request: web.Request, *, write: bool = False, infer: bool = False) -> None:
        """NotAuthorised unless it may be served; Throttled where it comes too often."""
        if shows(request.headers, self._credential()):
            return
        free = is_local(request.remote, request.headers)
        if not free:
            self._take(request)
        openness = self._inference if infer else LOCAL
        authorise(request.remote, request.headers, self._credential(), write=write, openness=openness)

    def knock(self, request: web.Request) -> None:
        """For what everybody may have. Throttled."""
        if not is_local(request.remote, request.headers) and not shows(request.headers, self._credential()):
            self._take(request)

    def _take(self, request: web.Request) -> None:
        wait_s = self._buckets.take(request.remote or "", self._clock())
        if wait_s > 0:
            raise Throttled(
                f"{request.remote} asks more often than {self._limits.client_rate:g} times a second", wait_s
            )
