"""One GET request to an agent, for commands that run no event loop. Door: the network."""

from __future__ import annotations

import asyncio
from typing import Any

from edgepart.client.target import AgentTarget


def fetch(target: AgentTarget, path: str) -> Any:
    """The JSON document that the agent serves at `path`. Raises Unavailable if no agent answers."""

    async def get() -> Any:
        from edgepart.client.async_client import AsyncClient

        async with AsyncClient(target) as client:
            return await client.get(path)

    return asyncio.run(get())
