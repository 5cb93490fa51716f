"""Rate limit: checks whether a client may send a request, and that it does not send too many. Door: the clock.

Clients that show the cluster's credential, and programs on this machine, have no limit. Each other address has a token
bucket: each request takes a token, whether it is allowed (inference, if it is open; health; the dashboard's page) or not (a
wrong credential). admission.py decides how many places for requests one address may have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edgepart.agent.gateway.access import authorise, is_local, shows_credential
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.host.token_bucket import Buckets
from edgepart.agent.wire.vocabulary import LOCAL
from edgepart.planner.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    address: str | None
    """The client's address; None if it is unknown."""
    headers: Mapping[str, str]
    """The request's HTTP headers, or what stands for them (access.py)."""


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
        self, caller: Caller, *, write: bool = False, infer: bool = False, any_key: bool = False
    ) -> None:
        """Raises NotAuthorised unless the request may be served, and Throttled if its client sends too many. `any_key`
        is that of access.py."""
        if shows_credential(caller.headers, self._credential()):
            return
        free = is_local(caller.address, caller.headers)
        if not free:
            self._take(caller)
        openness = self._inference if infer else LOCAL
        authorise(
            caller.address,
            caller.headers,
            self._credential(),
            write=write,
            openness=openness,
            any_key=any_key,
        )

    def knock(self, caller: Caller) -> None:
        """Check a request that every client may send. Raises Throttled if its client sends too many."""
        if not is_local(caller.address, caller.headers) and not shows_credential(
            caller.headers, self._credential()
        ):
            self._take(caller)

    def _take(self, caller: Caller) -> None:
        wait_s = self._buckets.take(caller.address or "", self._clock())
        if wait_s > 0:
            raise Throttled(
                f"{caller.address} asks more often than {self._limits.client_rate:g} times a second", wait_s
            )
