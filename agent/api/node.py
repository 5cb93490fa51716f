"""NodeApi: the agent as its HTTP side sees it (Node in protocol.py). Door: the event loop.

It reads the core's state, and posts users' requests to the core.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from edgepart import __version__
from edgepart.agent.api.candidate_deployments import CandidateDeployments
from edgepart.agent.api.candidate_requests import CandidateRequests
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
from edgepart.agent.api.stages import Progress
from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.chronicle.log_lines import LogLine
from edgepart.agent.chronicle.numbered_log import NumberedLog
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.membership.election import readable_epoch, term_round
from edgepart.agent.cluster.state import cards, events, judging
from edgepart.agent.cluster.state.bindings import is_variant
from edgepart.agent.doctor.diagnosis import name_clash_notes
from edgepart.agent.doctor.report import own_names
from edgepart.agent.engines.verdicts import verdicts_to_json
from edgepart.agent.measure.starvation import describe_starvation
from edgepart.agent.wire.control import Standing, Starved
from edgepart.agent.wire.inference import NO_EPOCH, DeployOptions
from edgepart.agent.wire.trials import TrialShare
from edgepart.planner.devices.cluster_json import cluster_to_json
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
        self._plans = inference.plans
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
        self._started = time.monotonic()

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
        leader = self._core.leader
        members = self._core.membership.members()
        names = {member.node: member.name for member in members}
        now = asyncio.get_running_loop().time()
        starved = {m.node: self._core.membership.starvation_of(m.node, now) for m in members}
        return {
            "name": names.get(self._core.node, self._me.name),
            "node": self._core.node,
            "version": __version__,
            "cluster": self._me.fingerprint,
            "http": self._me.http() or None,
            "grpc": self._me.grpc() or None,
            "grpc_trouble": self._me.grpc_trouble() or None,
            "leader": names.get(leader),
            "term": term_round(self._core.election.term),
            "uptime_s": time.monotonic() - self._started,
            "computed": self._inference.computed(),
            "security": self._diagnostics.security(),
            "members": [
                {
                    "name": member.name,
                    "node": member.node,
                    "state": self._residents.state(member),
                    "note": "; ".join(filter(None, self._about(member, starved[member.node]))) or None,
                    "starved": asdict(starved[member.node]) if starved[member.node].share else None,
                    "http": member.http or None,
                    "grpc": member.grpc,
                    "address": member.listen[0] if member.listen else None,
                    "leader": member.node == leader,
                    "measured": member.node in self._core.cards,
                }
                for member in members
            ],
            "notes": name_clash_notes(own_names(self._core.membership)),
            "lost": self._residents.lost_devices(),
            "drains": self._residents.drains(),
            "refused": self._residents.refused_devices(),
            "disk": dict(self._diagnostics.disk()),
            "sequences": self._sequences_here(),
            "loading": self._plans.unfinished,
            "workers_ended": dict(self._inference.workers_ended()),
            "plans_refused": dict(self._core.controller.count_refused() if self._core.controller else {}),
            "traffic": {
                names[node]: dict(traffic)
                for node, traffic in self._diagnostics.traffic().items()
                if node in names
            },
            "drifts": self._drifts(names),
        }

    def _sequences_here(self) -> dict[str, int]:
        serving = self._inference
        kept, nbytes, evictions = serving.kept()
        replays = serving.sequences.replays + serving.tokens.replays
        batches = serving.tokens.batches
        return {
            "kept": kept,
            "bytes": nbytes,
            "evictions": evictions,
            "replays": replays,
            "batches": batches,
            "resumed": serving.tokens.resumed,
            "mirrored_bytes": serving.mirrored_bytes(),
        }

    def _drifts(self, names: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """The drift of each device that computes a deployment, by deployment and device."""
        nodes = {name: node for node, name in names.items()}
        return {
            card.name: {
                device: self._core.drifts.factor(nodes[device], card.name)
                for device in card.devices
                if device in nodes
            }
            for card in self.models()
        }

    def _about(self, member: events.Member, starved: Starved) -> tuple[str, ...]:
        """Notes about a member for people; a note is "" if there is nothing to say."""
        return member.note, self._core.card_faults.get(member.node, ""), describe_starvation(starved)

    def devices(self) -> dict[str, Any]:
        members = self._core.membership.members()
        names = {member.node: member.name for member in members}
        known = [self._core.cards[node] for node in names if node in self._core.cards]
        document = cluster_to_json(cards.build_cluster(known, names))
        measured = {names[card.node]: cards.parse_card(card.document) for card in known}
        left_out = {name: dict(one.left_out) for name, one in measured.items() if one.left_out}
        refused = {name: verdicts_to_json(one.refused) for name, one in measured.items() if one.refused}
        drifts = {name: [asdict(e) for e in one.drifts] for name, one in measured.items() if one.drifts}
        engines = {"engines_left_out": left_out, "engines_refused": refused, "engine_drifts": drifts}
        return document | {"gateway": names.get(self._core.leader)} | {k: v for k, v in engines.items() if v}

    def plan(self, name: str) -> dict[str, Any]:
        from edgepart.planner.report.shares import plan_report  # late: imports the simulator and operators

        active, plan = self._plans.active(name), self._known.plan(name)
        epoch = active[0] if active else NO_EPOCH
        took = self._inference.latencies().get((name, epoch), ())
        measured = judging.build_measurements_report(plan, self._kinds(name), self._core.profiles, took)
        shown = list(astuple(readable_epoch(epoch))) if active else None
        return plan_report(plan) | {"epoch": shown, "measured": measured}

    async def drawing(self, name: str) -> dict[str, Any]:
        from edgepart.planner.report.drawing import draw_plan  # late: imports the simulator and operators

        active, plan = self._plans.active(name), self._known.plan(name)
        members = {member.node: member.name for member in self._core.membership.members()}
        known = [self._core.cards[node] for node in members if node in self._core.cards]
        cluster = cards.build_cluster(known, members)
        pictures = await asyncio.to_thread(draw_plan, plan, cluster, members.get(self._core.node, ""))
        return {"epoch": list(astuple(readable_epoch(active[0]))) if active else None} | pictures

    async def doctor(self) -> dict[str, Any]:
        return await self._diagnostics.doctor.document()

    async def trace(self, name: str, seconds: float) -> dict[str, Any]:
        self._known.plan(name)  # raises if there is no plan to trace
        return await self._diagnostics.tracing.start(name, seconds)

    async def end_trace(self, name: str) -> dict[str, Any]:
        return await self._diagnostics.tracing.finish(name)

    def _kinds(self, deployment: str) -> judging.Kinds:
        """The pace and threads of each member that has a card, by name, with its drift as it is now."""
        found = {}
        for member in self._core.membership.members():
            if (card := self._core.cards.get(member.node)) is not None:
                device = cards.parse_card(card.document).device
                device = device.with_drift(self._core.drifts.factor(member.node, deployment))
                found[member.name] = device.pace, device.threads
        return found
