"""Rate limit: checks whether a client may send a request, and that it does not send too many. Door: aiohttp's requests, the
clock.

Clients that show the cluster's credential, and programs on this machine, have no limit. Each other address has a token
bucket: each request takes a token, whether it is allowed (inference, if it is open; health; the dashboard's page) or not (a
wrong credential). admission.py decides how many places for requests one address may have.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web

from edgepart.agent.host.token_bucket import Buckets
from edgepart.agent.http.access import authorise, is_local, shows_credential
from edgepart.agent.http.bodies import BodyLimits
from edgepart.agent.wire.vocabulary import LOCAL
from edgepart.planner.errors import Unavailable


class Throttled(Unavailable):
    """A client sends requests too often. The HTTP status is 429."""


class ClientGate:
    """Checks the requests of one agent's clients. It belongs to the event loop's thread."""

    def __init__(
        self,
        credential: Callable[[], str],
        limits: BodyLimits,
        inference: str = LOCAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up the checks. `credential` returns the current credential; `inference` is LOCAL, OPEN or CLOSED, as in
        access.py."""
        self._credential = credential
        self._limits = limits
        self._inference = inference
        self._clock = clock
        self._buckets = Buckets(limits.client_rate, limits.client_burst)

    def allow(
        self, request: web.Request, *, write: bool = False, infer: bool = False, any_key: bool = False
    ) -> None:
        """Raises NotAuthorised unless the request may be served, and Throttled if its client sends too many. `any_key`
        is that of access.py."""
        if shows_credential(request.headers, self._credential()):
            return
        free = is_local(request.remote, request.headers)
        if not free:
            self._take(request)
        openness = self._inference if infer else LOCAL
        authorise(
            request.remote,
            request.headers,
            self._credential(),
            write=write,
            openness=openness,
            any_key=any_key,
        )

    def knock(self, request: web.Request) -> None:
        """Check a request that every client may send. Raises Throttled if its client sends too many."""
        if not is_local(request.remote, request.headers) and not shows_credential(
            request.headers, self._credential()
        ):
            self._take(request)

    def _take(self, request: web.Request) -> None:
        wait_s = self._buckets.take(request.remote or "", self._clock())
        if wait_s > 0:
            raise Throttled(
                f"{request.remote} asks more often than {self._limits.client_rate:g} times a second", wait_s
            )
