"""NodeApi: the agent as its HTTP side sees it (Node in protocol.py). Door: the event loop.

It puts the parts together that do what Node asks, and hands each request to its part. They read the core's state, and post
what users ask for to the core.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgepart import __version__
from edgepart.agent.api.candidate_deployments import CandidateDeployments
from edgepart.agent.api.candidate_requests import CandidateRequests
from edgepart.agent.api.cluster_report import ClusterReport
from edgepart.agent.api.deployed_model import DeployedModel, list_deployed
from edgepart.agent.api.deployment_cards import DeploymentCards
from edgepart.agent.api.deployment_inference import DeploymentInference
from edgepart.agent.api.deployment_outcomes import DeploymentOutcomes
from edgepart.agent.api.device_choice import check_devices
from edgepart.agent.api.drain import DrainService
from edgepart.agent.api.inference_request import AskedInference, InferResult, SequenceTurn
from edgepart.agent.api.known_deployments import KnownDeployments
from edgepart.agent.api.model_card import CandidateCard, ModelCard
from edgepart.agent.api.model_deployments import ModelDeployments
from edgepart.agent.api.model_intake import ModelIntake
from edgepart.agent.api.node_parts import (
    Diagnostics,
    ManagementActions,
    ModelFiles,
    NodeIdentity,
    RequestServing,
)
from edgepart.agent.api.plan_reports import PlanReports
from edgepart.agent.api.stages import Progress
from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.chronicle.log_lines import LogLine
from edgepart.agent.chronicle.numbered_log import NumberedLog
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.state.bindings import is_variant
from edgepart.agent.wire.control import Standing
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import TrialShare
from edgepart.planner.errors import ClusterError


class NodeApi:
    """Implements Node, in the event loop's thread."""

    def __init__(
        self,
        me: NodeIdentity,
        core: Core,
        inference: RequestServing,
        models: ModelFiles,
        management: ManagementActions,
        diagnostics: Diagnostics,
    ) -> None:
        self._me = me
        self._core = core
        self._inference = inference
        self._management = management
        self._diagnostics = diagnostics
        self._known = KnownDeployments(core, inference.plans)
        self._residents = DrainService(core, management.post, management.sealed)
        self.trials = CandidateRequests(
            lambda: core.deployments,
            DeploymentInference(self._known, inference.gatherer, inference.sequences).infer,
            self._known.trouble,
            inference.sequences,
            diagnostics.events,
            random.Random(),
        )
        self._cards = DeploymentCards(core.deployments, self._known, inference, self.trials)
        self.intake = ModelIntake(core, models, management.post)
        self._outcomes = DeploymentOutcomes(
            core.deployments, self._known, self._cards, management.post, me.http
        )
        parts = core.deployments, self._known, self.intake, self._outcomes, management
        self._deployments, self._candidates = ModelDeployments(*parts), CandidateDeployments(*parts)
        self._report = ClusterReport(me, core, inference, self._residents, diagnostics)
        self._plan_reports = PlanReports(core, self._known, inference.latencies)

    @property
    def name(self) -> str:
        return self._me.name

    @property
    def version(self) -> str:
        return __version__

    @property
    def fingerprint(self) -> str:
        return self._me.fingerprint

    @property
    def event_log(self) -> EventLog:
        return self._diagnostics.events

    @property
    def log_lines(self) -> NumberedLog[LogLine]:
        return self._diagnostics.log_lines

    async def stop(self) -> None:
        """End what goes on beside requests."""
        await self.trials.stop()

    def live(self) -> bool:
        return True

    def ready(self, model: str | None) -> tuple[bool, str]:
        if model is not None:
            why = self._known.trouble(self._known.entry(model))
        elif not self._core.leader:
            why = "no leader is elected yet"
        else:
            why = self._known.troubles()
        return not why, why

    # Models

    def models(self) -> list[ModelCard]:
        return self._cards.list_all()

    def model(self, name: str) -> ModelCard | None:
        return self._cards.find(name)

    def deployments(self) -> list[DeployedModel]:
        return list_deployed(self._core.deployments)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None,
        deadline_s: float,
        sequence: SequenceTurn | None = None,
        *,
        drawn: bool = True,
    ) -> InferResult:
        asked = AskedInference(inputs, outputs, deadline_s, sequence)
        if not drawn:
            return await self.trials.infer_only(model, asked)
        return await self.trials.infer(self._known.entry(model), asked)

    # Deploying

    def standing_changed(self, standing: Standing) -> None:
        """Wake those who wait for a deployment; pass the standing of a variant to the router."""
        if is_variant(standing.deployment):
            self._inference.router.refused(standing)
        else:
            self._outcomes.wake()

    def admit(self, options: DeployOptions) -> None:
        here = {member.name for member in self._core.membership.members()}
        check_devices(options.devices, here, {lost["name"] for lost in self._residents.lost_devices()})

    async def deploy(
        self, name: str, folder: Path, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        return await self._deployments.deploy(name, folder, options, progress)

    async def deploy_stored(
        self, name: str, model: str, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        return await self._deployments.deploy(name, model, options, progress)

    async def deploy_candidate(
        self, name: str, given: Path | str, options: DeployOptions, share: TrialShare, progress: Progress
    ) -> dict[str, Any]:
        return await self._candidates.deploy(name, given, options, share, progress)

    async def share(self, name: str, share: TrialShare) -> CandidateCard:
        await self._candidates.share(name, share)
        card = self.trials.card(name)
        if card is None:
            raise ClusterError(f"the candidate of {name!r} was given up meanwhile")
        return card

    async def promote(self, name: str, progress: Progress) -> dict[str, Any]:
        return await self._candidates.promote(name, progress)

    async def discard(self, name: str) -> str:
        return await self._candidates.discard(name)

    async def rollback(self, name: str, to: int | None, progress: Progress) -> dict[str, Any]:
        return await self._deployments.rollback(name, to, progress)

    async def undeploy(self, name: str) -> None:
        await self._deployments.undeploy(name)

    # Devices

    async def drain(self, name: str, progress: Progress, *, remove: bool) -> dict[str, Any]:
        done = await self._residents.drain(name, progress, remove=remove)
        await self._management.written()
        return done

    async def undrain(self, name: str) -> dict[str, Any]:
        done = await self._residents.undrain(name)
        await self._management.written()
        return done

    # Reports

    def status(self) -> dict[str, Any]:
        return self._report.status()

    def devices(self) -> dict[str, Any]:
        return self._report.devices()

    def plan(self, name: str) -> dict[str, Any]:
        return self._plan_reports.describe(name)

    async def drawing(self, name: str) -> dict[str, Any]:
        return await self._plan_reports.draw(name)

    async def doctor(self) -> dict[str, Any]:
        return await self._diagnostics.doctor.document()

    async def trace(self, name: str, seconds: float) -> dict[str, Any]:
        self._known.plan(name)  # raises if there is no plan to trace
        return await self._diagnostics.tracing.start(name, seconds)

    async def end_trace(self, name: str) -> dict[str, Any]:
        return await self._diagnostics.tracing.finish(name)
