"""What the shell offers while a command is typed: the names of deployments. Door: the network, for a moment.

A shell waits for this at each press of Tab. So the agent is asked by bare HTTP, for 0.3 seconds at most, and whatever goes
wrong means that nothing is offered: an error would be printed into the line that is being typed. What asking needs is
imported when it is asked, because every command imports this module.
"""

from __future__ import annotations

from pathlib import Path

import typer

PATIENCE_S = 0.3
"""How long a press of Tab may take. An agent on this machine answers within milliseconds."""


def complete_deployment(context: typer.Context, incomplete: str) -> list[str]:
    """The names of deployments that begin with `incomplete`, of the agent that the line names so far."""
    from threading import Thread

    found: list[str] = []
    agent, state = context.params.get("agent"), context.params.get("state")
    # In a thread, because looking up a host's name cannot be ended otherwise; the process ends without waiting for it.
    asking = Thread(target=_ask, args=[agent, state and Path(state), found], daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return sorted(name for name in tuple(found) if name.startswith(incomplete))


def _ask(agent: str | None, state: Path | None, found: list[str]) -> None:
    from http.client import HTTPException

    from edgepart.planner.errors import EdgepartError

    try:
        found.extend(_names(agent, state))
    except (EdgepartError, OSError, HTTPException, ValueError, LookupError, TypeError):
        return  # Nothing is offered, as the head of this file says.


def _names(agent: str | None, state: Path | None) -> list[str]:
    import json
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    from edgepart.client.target import target_of

    target = target_of(agent, state)
    place = urlsplit(target.url)
    credential = target.credential_for(target.url)
    headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
    kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
    connection = kind(place.netloc, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/v2/models", headers=headers)
        return [str(model["name"]) for model in json.loads(connection.getresponse().read())]
    finally:
        connection.close()
