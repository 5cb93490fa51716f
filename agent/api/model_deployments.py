"""Model deployments: deploys, rolls back and undeploys models as users ask, and waits until that is done. Door: the event
loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgepart.agent.api.deployment_outcomes import DeploymentOutcomes
from edgepart.agent.api.known_deployments import KnownDeployments
from edgepart.agent.api.model_intake import ModelIntake
from edgepart.agent.api.node_parts import ManagementActions
from edgepart.agent.api.stages import Progress
from edgepart.agent.cluster.state import events
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.wire.inference import DeployOptions


class ModelDeployments:
    """For the event loop's thread."""

    def __init__(
        self,
        deployments: DeploymentMap,
        known: KnownDeployments,
        intake: ModelIntake,
        outcomes: DeploymentOutcomes,
        management: ManagementActions,
    ) -> None:
        self._deployments = deployments
        self._known = known
        self._intake = intake
        self._outcomes = outcomes
        self._management = management

    async def deploy(
        self, name: str, given: Path | str, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        """Deploy the model in this folder, or the stored one of this digest."""
        with self._intake.keeping():
            found = await self._intake.take_in(given, options, progress)
            before = self._deployments.get(name)
            self._management.post(
                events.DeployRequested(name, found.model, found.model_bytes, found.options, found.asked)
            )
            return await self._outcomes.await_service(name, before, found.notes, progress)

    async def rollback(self, name: str, to: int | None, progress: Progress) -> dict[str, Any]:
        """Have an earlier version serve again, as Node.rollback says."""
        before = self._known.entry(name)
        self._management.post(events.RollbackRequested(name, to))
        return await self._outcomes.await_service(name, before, (), progress)

    async def undeploy(self, name: str) -> None:
        """Undeploy a model. Returns once that is on this device's disk. Raises UnknownDeployment."""
        entry = self._known.entry(name)
        self._management.post(events.UndeployRequested(name, entry.version))
        await self._management.written()
