"""Text deployments: what the text generator asks of the agent. Door: the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from edgepart.agent.cluster.core.core import Core
from edgepart.agent.serving.requester import Requester
from edgepart.agent.text.companions import NAMES
from edgepart.agent.text.tokenizer import MOST_FILE_BYTES
from edgepart.agent.wire.control import Deployment
from edgepart.planner.errors import Unavailable
from edgepart.planner.plans.plan import Plan

FetchFiles = Callable[[str, Collection[str], int, Sequence[str]], Awaitable[dict[str, bytes]]]
"""fetch(model, names, most bytes of a file, source nodes) is BlobFetcher.files."""


class AgentTextDeployments:
    """Implements TextDeployments."""

    def __init__(self, core: Core, requester: Requester, fetch: FetchFiles) -> None:
        self._core = core
        self._requester = requester
        self._fetch = fetch

    def deployments(self) -> Sequence[Deployment]:
        return [entry for entry in self._core.deployments.list_live() if entry.options.text]

    def plan(self, name: str) -> Plan:
        plan = self._requester.active(name)
        if plan is None:
            raise Unavailable(f"no plan of {name!r} is active here; `edgepart status` says why")
        return plan

    async def companions(self, deployment: Deployment) -> Mapping[str, bytes]:
        order = self._core.follower.active(deployment.name)
        members = [
            member.node for member in self._core.membership.members() if member.node != self._core.node
        ]
        sources = dict.fromkeys((*(order.sources if order is not None else ()), *members))
        return await self._fetch(deployment.model, NAMES, MOST_FILE_BYTES, tuple(sources))
