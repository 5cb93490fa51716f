"""One GET request to an agent, for commands that run no event loop, and the note that another agent answered. Door: the
network."""

from __future__ import annotations

import asyncio
from typing import Any

from edgepart.cli.output import note
from edgepart.client.target import AgentTarget


def fetch(target: AgentTarget, path: str) -> Any:
    """The JSON document that the agent serves at `path`. Raises Unavailable if no agent answers."""

    async def get() -> Any:
        from edgepart.client.async_client import AsyncClient

        async with AsyncClient(target) as client:
            document = await client.get(path)
            note_detour(target, client.url)
            return document

    return asyncio.run(get())


def note_detour(target: AgentTarget, url: str) -> None:
    """Says so if another agent answers than the one that was to be asked first."""
    if url != target.url:
        note(f"note: the agent at {target.url} cannot be reached; {url} answers")
