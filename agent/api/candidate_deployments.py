"""Candidate deployments: makes, promotes and gives up candidates as users ask, and waits until that is done. Door: the
event loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgepart.agent.api.deployment_outcomes import DeploymentOutcomes
from edgepart.agent.api.known_deployments import KnownDeployments
from edgepart.agent.api.model_intake import ModelIntake, StoredModel
from edgepart.agent.api.node_parts import ManagementActions
from edgepart.agent.api.stages import Progress
from edgepart.agent.cluster.state import events
from edgepart.agent.cluster.state.candidates import find_misfits, is_promoted
from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.model_versions import number_of
from edgepart.agent.wire.control import Deployment
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import TrialShare, candidate_name
from edgepart.planner.errors import Unavailable, UsageError
from edgepart.planner.plans.plan import Plan


class CandidateDeployments:
    """For the event loop's thread. Raises UnknownDeployment for names under which nothing is deployed."""

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
        self, parent: str, given: Path | str, options: DeployOptions, share: TrialShare, progress: Progress
    ) -> dict[str, Any]:
        """Deploy a candidate, as Node.deploy_candidate says."""
        serving = self._serving(parent)
        with self._intake.keeping():
            found = await self._intake.take_in(given, options, progress)
            self._check_fit(parent, serving, found)
            name = candidate_name(parent)
            before = self._deployments.get(name)
            self._management.post(
                events.CandidateRequested(
                    parent, found.model, found.model_bytes, found.options, found.asked, share
                )
            )
            answer = await self._outcomes.await_service(name, before, found.notes, progress)
        return answer | {"candidate_of": parent, "share": share.percent, "shadow": share.shadow}

    def _serving(self, parent: str) -> Plan:
        """The plan of the deployment. Raises UnknownDeployment; Unavailable if it does not serve."""
        self._known.entry(parent)
        active = self._known.active(parent)
        if active is None:
            raise Unavailable(
                f"{parent!r} does not serve yet, so that a candidate cannot be compared with it. Nothing was deployed"
            )
        return active[1].plan

    def _check_fit(self, parent: str, serving: Plan, found: StoredModel) -> None:
        """Raises UsageError if requests for the deployment do not fit the model, or its answers are others."""
        misfits = [
            *find_misfits(serving.inputs, found.inputs, "input"),
            *find_misfits(serving.outputs, found.outputs, "output"),
        ]
        if bool(serving.states) != bool(found.options.states):
            misfits.append("only one of them keeps states between requests")
        if misfits:
            raise UsageError(
                f"the model cannot be a candidate of {parent!r}, whose clients expect other inputs and outputs: "
                f"{'; '.join(misfits[:6])}. Nothing was deployed"
            )

    async def share(self, parent: str, share: TrialShare) -> None:
        """Give the candidate another share, once it is on this device's disk."""
        self._find(parent)
        self._management.post(events.ShareRequested(parent, share))
        await self._management.written()

    async def promote(self, parent: str, progress: Progress) -> dict[str, Any]:
        """Promote the candidate, as Node.promote says."""
        before, candidate = self._find(parent)
        if not is_promoted(before, candidate) and (why := self._known.trouble(candidate)):
            raise Unavailable(
                f"version {number_of(candidate)}, the candidate of {parent!r}, does not serve: {why}. Nothing was changed"
            )
        self._management.post(events.PromoteRequested(parent))
        answer = await self._outcomes.await_service(parent, before, (), progress)
        # The leader does this as well, unless it is of an earlier release, in case this agent is lost before it comes here.
        left = self._deployments.candidate(parent)
        if left is not None and number_of(left) == number_of(candidate):
            self._management.post(events.UndeployRequested(left.name, left.version))
        return answer

    async def discard(self, parent: str) -> str:
        """Give the candidate up; returns its number."""
        _, candidate = self._find(parent)
        self._management.post(events.UndeployRequested(candidate.name, candidate.version))
        await self._management.written()
        return str(number_of(candidate))

    def _find(self, parent: str) -> tuple[Deployment, Deployment]:
        """The deployment and its candidate. Raises UnknownDeployment; UsageError if it has none."""
        return self._known.entry(parent), self._deployments.trial(parent)
