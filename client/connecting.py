"""Connecting: `edgepart.connect` and `edgepart.connect_async`. Door: they open connections."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from edgepart.agent.options import state_folder
from edgepart.client.addresses import parse_urls
from edgepart.client.async_client import AsyncClient
from edgepart.client.client import Client
from edgepart.client.target import AgentTarget, announced_in
from edgepart.planner.errors import UsageError

Urls = str | Sequence[str]
"""One URL or several: "pi-a:8433", "http://pi-a:8433,http://pi-b:8433", or a list of them."""


def connect(
    url: Urls | None = None,
    *,
    credential: str | None = None,
    state: str | Path | None = None,
) -> Client:
    """A client of the cluster, which knows all members.

    `url` names one agent or several; None takes EDGEPART_AGENT, or else the agent that runs on this machine.
    `credential` is the management credential, which agents on other machines want; None takes that of the state folder, if
    there is one. `state` is that folder; None takes EDGEPART_STATE, or the user's.

    Raises UsageError for a wrong URL, Unavailable if no agent can be reached, and NotAuthorised for a wrong credential."""
    client = Client(_target(url, credential, state))
    try:
        client.learn()
    except BaseException:
        client.close()
        raise
    return client


@asynccontextmanager
async def connect_async(
    url: Urls | None = None,
    *,
    credential: str | None = None,
    state: str | Path | None = None,
) -> AsyncIterator[AsyncClient]:
    """`async with edgepart.connect_async() as client:` is what `connect` is, for asyncio."""
    async with AsyncClient(_target(url, credential, state)) as client:
        await client.learn()
        yield client


def _target(url: Urls | None, credential: str | None, state: str | Path | None) -> AgentTarget:
    folder = state_folder(os.environ, None if state is None else Path(state))
    given = os.environ.get("EDGEPART_AGENT") or None if url is None else url
    if credential is not None and not (credential.isascii() and credential.isprintable()):
        raise UsageError("credential: give the text in identity/admin of a member's state folder")
    if given is None:
        return announced_in(folder, credential)
    text = given if isinstance(given, str) else ",".join(given)
    first, *others = parse_urls(text, "url")
    return AgentTarget(first, folder, tuple(others), secret=credential)
