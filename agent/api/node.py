"""NodeApi: the agent as its HTTP side sees it (Node in protocol.py). Door: the event loop.

It reads the core's state, and posts users' requests to the core.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from edgepart import __version__
from edgepart.agent.api.candidate_deployments import (
    CandidateDeployments,
    DeploymentSteps,
    StoredModel,
)
from edgepart.agent.api.candidate_requests import AskedInference, CandidateRequests
from edgepart.agent.api.device_choice import check_devices
from edgepart.agent.api.drain import DrainService, SignEntry
from edgepart.agent.api.progress import StandingProgress
from edgepart.agent.api.protocol import (
    BindingStatus,
    CandidateCard,
    DeployedCandidate,
    DeployedModel,
    DeployedVersion,
    InferResult,
    ModelCard,
    Progress,
    SequenceFigures,
    SequenceTurn,
)
from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.chronicle.log_lines import LogLine
from edgepart.agent.chronicle.numbered_log import NumberedLog
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.leader.status import describe_set_aside
from edgepart.agent.cluster.membership.election import term_round
from edgepart.agent.cluster.membership.roster import replace_node_ids
from edgepart.agent.cluster.state import cards, events, judging
from edgepart.agent.cluster.state.bindings import is_variant, read_binding
from edgepart.agent.cluster.state.model_versions import asked_options, number_of
from edgepart.agent.doctor.diagnosis import name_clash_notes
from edgepart.agent.doctor.report import DoctorReport, own_names
from edgepart.agent.engines.verdicts import verdicts_to_json
from edgepart.agent.measure.starvation import describe_starvation
from edgepart.agent.measure.trace_collector import TraceCollector
from edgepart.agent.serving.loaded_plans import HeldPlan, LoadedPlans
from edgepart.agent.serving.request_gatherer import RequestGatherer
from edgepart.agent.serving.sequences import Sequences
from edgepart.agent.serving.shape_routing import ShapeRouter
from edgepart.agent.storage.store import Store
from edgepart.agent.text.token_sequences import TokenSequences
from edgepart.agent.wire.codec import json_record
from edgepart.agent.wire.control import UNLOADABLE, Deployment, DeviceWeights, Standing, Starved
from edgepart.agent.wire.inference import NO_EPOCH, DeployOptions, Epoch
from edgepart.agent.wire.trials import TrialShare
from edgepart.planner import errors
from edgepart.planner.devices.cluster_json import cluster_to_json
from edgepart.planner.errors import ClusterError, EdgepartError, ModelError, Unavailable, UnknownDeployment
from edgepart.planner.plans.plan import Plan, ValueInfo
from edgepart.planner.plans.plan_bytes import plan_from_bytes
from edgepart.planner.plans.reduced_precision import EXACT

FINAL = (
    "Infeasible",
    "ModelError",
    "UsageError",
    "NotInstalled",
    "RequestError",
    "InternalError",
    UNLOADABLE,
)
"""Kinds of errors after which another try does not help, so that the deployment is taken back."""

COMPARING_S = 60.0
"""How long a user who deploys waits to be told how far rounded answers are off, once the model serves."""


@dataclass(frozen=True)
class NodeIdentity:
    """This device's name, its cluster and where its clients connect."""

    name: str
    fingerprint: str
    """The fingerprint of the cluster's CA, in hex."""
    http: Callable[[], str]
    """Returns the URL of this agent's HTTP API; "" while it does not listen."""
    grpc: Callable[[], str]
    """Returns the address of this agent's gRPC server; "" while it does not listen."""
    grpc_trouble: Callable[[], str]
    """Returns why it does not listen although it is to; "" if there is no trouble."""


@dataclass(frozen=True)
class RequestServing:
    """The parts that answer requests here, and their counters."""

    plans: LoadedPlans
    router: ShapeRouter
    gatherer: RequestGatherer
    sequences: Sequences
    tokens: TokenSequences
    kept: Callable[[], tuple[int, int, int]]
    """Returns Executor.count_sequences."""
    mirrored_bytes: Callable[[], int]
    """Returns the bytes that copies of other devices' states take here."""
    latencies: Callable[[], Mapping[tuple[str, Epoch], Sequence[float]]]
    """Returns the seconds that requests took that ran alone on this gateway, by deployment and epoch."""
    computed: Callable[[], int]
    """Returns the number of requests of which this device has computed its part."""
    workers_ended: Callable[[], Mapping[str, int]]
    """Returns the number of worker processes that ended unexpectedly here, by deployment."""


@dataclass(frozen=True)
class ModelFiles:
    """The store of models, and the function that examines new ones in a process of its own."""

    store: Store
    examine: Callable[
        [Path, DeployOptions],
        tuple[Sequence[str], Sequence[Path], DeployOptions, tuple[Sequence[ValueInfo], Sequence[ValueInfo]]],
    ]
    """Returns notes about a model, its files, the options with the shapes that are assumed and the states that were found,
    and its inputs and outputs."""
    fetch: Callable[[str, Sequence[str]], Awaitable[None]]
    """(digest, nodes): returns once the model is in the store. Raises Unavailable if none of the nodes has it."""


@dataclass(frozen=True)
class ManagementActions:
    """The functions that carry out what users ask for."""

    post: Callable[[events.Event], None]
    sealed: SignEntry
    """Has a user's request about drains signed."""
    written: Callable[[], Awaitable[None]]
    """Waits until all waiting writes of state files were tried."""


@dataclass(frozen=True)
class Diagnostics:
    """The parts that describe the state of this device to people."""

    tracing: TraceCollector
    doctor: DoctorReport
    security: Callable[[], dict[str, Any]]
    """Returns the report on certificates and the charter (agent/admission/renewal.py)."""
    disk: Callable[[], Mapping[str, Any]]
    """Returns the state of the disk (agent/maintenance.py)."""
    events: EventLog
    log_lines: NumberedLog[LogLine]
    traffic: Callable[[], Mapping[str, Mapping[str, int]]]
    """Returns what went over this agent's links, by node: "sent_bytes" and "received_bytes"."""


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
        self._models = models
        self._management = management
        self._diagnostics = diagnostics
        self._plans = inference.plans
        self._router = inference.router
        self._post = management.post
        self._residents = DrainService(core, management.post, management.sealed)
        self.trials = CandidateRequests(
            lambda: core.deployments,
            self._infer,
            self._trouble,
            inference.sequences,
            diagnostics.events,
            random.Random(),
        )
        self._candidates = CandidateDeployments(
            core,
            DeploymentSteps(
                self._take_in,
                self._await_service,
                management.post,
                management.written,
                self._serving_plan,
                self._trouble,
            ),
        )
        self._started = time.monotonic()
        self._news = asyncio.Event()
        self.uploading = 0
        """The number of deployments under way here. Their models must be kept although no entry names them
        yet."""

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

    def live(self) -> bool:
        return True

    def ready(self, model: str | None) -> tuple[bool, str]:
        if model is not None:
            why = self._trouble(self._entry(model))
            return not why, why
        if not self._core.leader:
            return False, "no leader is elected yet"
        # Deployments that are set aside do not count: their models are at fault, and the others are served. Nor do
        # candidates: the deployments that they may replace serve without them.
        told = (
            (entry.name, self._trouble(entry))
            for entry in self._core.deployments.in_use()
            if entry.candidacy is None
        )
        why = "; ".join(f"{name}: {why}" for name, why in told if why)
        return not why, why

    def _trouble(self, entry: Deployment) -> str:
        """Why requests cannot be answered now; "" if they can, or if they wait for a plan that is on its
        way."""
        active = self._plans.active(entry.name)
        if active is None:
            return self._text(entry)
        standing = self._find_standing(entry)
        if standing is None or standing.state not in ("waiting", "failed"):
            return ""
        held, here = active[1], {member.node for member in self._core.membership.members()}
        lacking = [
            [name for name in part.devices if held.nodes[name] not in here] for part in held.plan.parts
        ]
        if not all(lacking):
            return ""
        gone = ", ".join(dict.fromkeys(name for part in lacking for name in part))
        return f"its plan needs {gone}, lost or gone, and there is no other plan: {self._name_members(standing.text)}"

    # Models

    def models(self) -> list[ModelCard]:
        return [self._card(entry) for entry in self._core.deployments.list_live()]

    def deployments(self) -> list[DeployedModel]:
        return [
            DeployedModel(
                entry.name,
                DeployedVersion(number_of(entry), entry.model, json_record(asked_options(entry))),
                tuple(
                    DeployedVersion(one.number, one.model, json_record(asked_options(one)))
                    for one in entry.kept
                ),
                self._deployed_candidate(entry.name),
            )
            for entry in self._core.deployments.list_live()
            if entry.candidacy is None
        ]

    def _deployed_candidate(self, parent: str) -> DeployedCandidate | None:
        entry = self._core.deployments.candidate(parent)
        if entry is None or entry.candidacy is None:
            return None
        asked, trial = json_record(asked_options(entry)), entry.candidacy
        return DeployedCandidate(number_of(entry), entry.model, asked, trial.share, trial.shadow)

    def model(self, name: str) -> ModelCard | None:
        entry = self._core.deployments.get(name)
        return None if entry is None or entry.deleted else self._card(entry)

    def _card(self, entry: Deployment) -> ModelCard:
        active = self._plans.active(entry.name)
        kept = tuple(str(one.number) for one in entry.kept)
        parent = "" if entry.candidacy is None else entry.candidacy.parent
        if active is None:
            text, aside = self._text(entry), bool(entry.fault)
            return ModelCard(
                entry.name,
                text,
                trouble=text,
                quantised=_describe_weights(entry.options),
                model_digest=entry.model,
                version=str(number_of(entry)),
                kept_versions=kept,
                set_aside=aside,
                weights=self._weights(entry),
                candidate=self.trials.card(entry.name),
                candidate_of=parent,
            )
        epoch, held = active
        number = (held.order.number if held.order is not None else 0) or number_of(entry)
        plan = held.plan
        return ModelCard(
            name=entry.name,
            state=self._state(entry),
            inputs=tuple(replace(info, shape=info.open_shape) for info in plan.inputs),
            outputs=tuple(replace(info, shape=info.open_shape) for info in plan.outputs),
            epoch=readable(epoch),
            strategy=plan.strategy,
            devices=tuple(plan.programs),
            why=plan.why,
            predicted_latency_s=plan.predicted_latency_s,
            trouble=self._trouble(entry),
            note=self._note(entry),
            transfer_dtype=plan.rounded_to or EXACT,
            rounding=self._describe_rounding(entry),
            quantised=_describe_weights(entry.options),
            model_digest=entry.model,
            version=str(number),
            next_version="" if number == number_of(entry) else str(number_of(entry)),
            kept_versions=kept,
            bindings=self._bindings(entry.name, active),
            states=tuple(state.input.name for state in plan.states),
            sequences=self._sequences(entry, plan) if plan.states else None,
            weights=self._weights(entry),
            covered=self._covered(entry, tuple(plan.programs)),
            candidate=self.trials.card(entry.name),
            candidate_of=parent,
        )

    def _sequences(self, entry: Deployment, plan: Plan) -> SequenceFigures:
        serving = self._inference
        growing, idle = serving.tokens.count(entry.name)
        under_way = growing + serving.sequences.count(entry.name)
        state_bytes = {
            name: (under_way + idle) * program.sequence_bytes for name, program in plan.programs.items()
        }
        speed = serving.tokens.speed(entry.name)
        return SequenceFigures(under_way, idle, entry.options.sequences, state_bytes, speed)

    def _bindings(self, name: str, first: tuple[Epoch, HeldPlan]) -> tuple[BindingStatus, ...]:
        """The shapes that serve here and the shapes that requests wait for here, if the model has free dimensions."""
        if not read_binding(first[1].plan.inputs):
            return ()
        serving = [
            BindingStatus(
                read_binding(held.plan.inputs),
                "serving",
                readable(epoch),
                held.plan.strategy,
                tuple(held.plan.programs),
                held.plan.predicted_latency_s,
                held.plan.why,
            )
            for epoch, held in (first, *self._plans.variants(name))
        ]
        return (
            *serving,
            *(BindingStatus(shapes, "waiting for a plan") for shapes in self._router.waiting_shapes(name)),
        )

    def _find_standing(self, entry: Deployment) -> Standing | None:
        standing = self._core.standings.get(entry.name)
        return standing if standing is not None and standing.version == entry.version else None

    def _state(self, entry: Deployment) -> str:
        if entry.fault:
            return "set aside"
        standing = self._find_standing(entry)
        return standing.state if standing else "serving"

    def _weights(self, entry: Deployment) -> tuple[DeviceWeights, ...]:
        standing = self._find_standing(entry)
        return standing.weights if standing else ()

    def _covered(self, entry: Deployment, devices: tuple[str, ...]) -> tuple[str, ...]:
        standing = self._find_standing(entry)
        return tuple(name for name in devices if standing and name in standing.covered)

    def _text(self, entry: Deployment) -> str:
        if entry.fault:
            return describe_set_aside(entry.name, entry.fault)
        standing = self._find_standing(entry)
        return self._name_members(standing.text) if standing else "waiting for the leader"

    def _name_members(self, text: str) -> str:
        """The text with the names of members in place of node ids."""
        return replace_node_ids(
            text, {member.node: member.name for member in self._core.membership.members()}
        )

    def _note(self, entry: Deployment) -> str:
        """The leader's note on the deployment's plan, and this gateway's on batches; "" if there is none."""
        standing = self._find_standing(entry)
        batches = self._inference.gatherer.note(entry.name), self._inference.tokens.note(entry.name)
        notes = (standing.note if standing else "", *batches)
        return "; ".join(filter(None, notes))

    def _describe_rounding(self, entry: Deployment) -> str:
        """How far the deployment's answers are off because transfers are rounded; "" if that is not known."""
        standing = self._find_standing(entry)
        return standing.rounding if standing else ""

    def _entry(self, name: str) -> Deployment:
        entry = self._core.deployments.get(name)
        if entry is None or entry.deleted:
            there = ", ".join(e.name for e in self._core.deployments.list_live()) or "nothing"
            raise UnknownDeployment(f"nothing is deployed as {name!r}; deployed: {there}")
        return entry

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
        return await self.trials.infer(self._entry(model), asked)

    async def _infer(self, entry: Deployment, asked: AskedInference) -> InferResult:
        """Answer a request by this deployment."""
        began = time.perf_counter()
        model, inputs, outputs, sequence = entry.name, asked.inputs, asked.outputs or (), asked.sequence
        if entry.fault:
            raise errors.CrashError(self._text(entry))
        if why := self._trouble(entry):
            raise Unavailable(f"{model!r} is not served now: {why}")
        try:
            if sequence is None:
                values, info = await self._inference.gatherer.infer(
                    model, entry.options, inputs, asked.deadline_s, outputs
                )
            else:
                values, info = await self._inference.sequences.infer(
                    model,
                    sequence.id,
                    inputs,
                    asked.deadline_s,
                    outputs,
                    start=sequence.start,
                    end=sequence.end,
                )
        except (ClusterError, TimeoutError) as error:
            if why := self._trouble(entry):
                raise Unavailable(f"{model!r} is not served now: {why}") from error
            raise
        took_s = time.perf_counter() - began
        rows = _rows(inputs) if entry.options.batch_rows > 1 else 1
        return InferResult(
            values,
            readable(info.epoch),
            took_s,
            info.replays,
            info.request,
            info.waited_s,
            rows=rows,
            runs=info.runs,
            version=str(info.number or number_of(entry)),
        )

    # Deploying

    def standing_changed(self, standing: Standing) -> None:
        """Wake those who wait for a deployment; pass the standing of a variant to the router."""
        if is_variant(standing.deployment):
            self._router.refused(standing)
            return
        self._news.set()
        self._news = asyncio.Event()

    def admit(self, options: DeployOptions) -> None:
        here = {member.name for member in self._core.membership.members()}
        check_devices(options.devices, here, {lost["name"] for lost in self._residents.lost_devices()})

    async def deploy(
        self, name: str, folder: Path, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        return await self._deploy(name, folder, options, progress)

    async def deploy_stored(
        self, name: str, model: str, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        return await self._deploy(name, model, options, progress)

    async def _deploy(
        self, name: str, given: Path | str, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        """Deploy the model in this folder, or the stored one of this digest."""
        self.uploading += 1
        try:
            found = await self._take_in(given, options, progress)
            before = self._core.deployments.get(name)
            self._post(
                events.DeployRequested(name, found.model, found.model_bytes, found.options, found.asked)
            )
            return await self._await_service(name, before, found.notes, progress)
        finally:
            self.uploading -= 1

    async def _take_in(self, given: Path | str, options: DeployOptions, progress: Progress) -> StoredModel:
        """Examine the model in this folder, or the stored one of this digest, and have it in this device's store."""
        stored = given if isinstance(given, str) else ""
        path = await self._fetch(stored, progress) if isinstance(given, str) else _graph_file(given)
        progress("checking the model", 0, 0)
        notes, files, found, (inputs, outputs) = await asyncio.to_thread(self._models.examine, path, options)
        nbytes = sum(file.stat().st_size for file in files)
        if stored and len(files) == len(self._models.store.manifest(stored).files):
            model = stored
        else:  # It was sent, or has other companions with these options.
            progress("storing", 0, 0)
            model = await asyncio.to_thread(self._models.store.put_model, files)
        self._post(events.ModelsStored(self._models.store.models()))
        return StoredModel(model, nbytes, found, options, notes, inputs, outputs)

    async def _fetch(self, model: str, progress: Progress) -> Path:
        """The file of a stored model, once it is in this device's store."""
        progress("looking for the stored model", 0, 0)
        members = [member.node for member in self._core.membership.members()]
        await self._models.fetch(model, [node for node in members if node != self._core.node])
        return self._models.store.model_path(model)

    async def deploy_candidate(
        self, name: str, given: Path | str, options: DeployOptions, share: TrialShare, progress: Progress
    ) -> dict[str, Any]:
        self._entry(name)
        self.uploading += 1
        try:
            return await self._candidates.deploy(name, given, options, share, progress)
        finally:
            self.uploading -= 1

    async def share(self, name: str, share: TrialShare) -> CandidateCard:
        self._entry(name)
        await self._candidates.share(name, share)
        card = self.trials.card(name)
        if card is None:
            raise errors.ClusterError(f"the candidate of {name!r} was given up meanwhile")
        return card

    async def promote(self, name: str, progress: Progress) -> dict[str, Any]:
        self._entry(name)
        return await self._candidates.promote(name, progress)

    async def discard(self, name: str) -> str:
        self._entry(name)
        return await self._candidates.discard(name)

    def _serving_plan(self, name: str) -> Plan | None:
        active = self._plans.active(name)
        return None if active is None else active[1].plan

    async def stop(self) -> None:
        """End what goes on beside requests."""
        await self.trials.stop()

    async def rollback(self, name: str, to: int | None, progress: Progress) -> dict[str, Any]:
        before = self._entry(name)
        self._post(events.RollbackRequested(name, to))
        return await self._await_service(name, before, (), progress)

    async def _await_service(
        self, name: str, before: Deployment | None, notes: Sequence[str], progress: Progress
    ) -> dict[str, Any]:
        """Wait until what was just written down under that name serves; return the answer for the user."""
        standing = await self._await_acknowledgement(self._entry(name), before, progress)
        if self._plan(name).rounded_to:
            progress("comparing rounded answers with exact ones", 0, 0)
            await self._await_comparison(self._entry(name))
        return self._answer(name, standing, notes)

    async def _await_acknowledgement(
        self, entry: Deployment, before: Deployment | None, progress: Progress
    ) -> Standing:
        """Wait until the leader acknowledges the deployment and its plan serves here; return the standing. If
        the leader reports a final error instead, take the deployment back, restore what had that name before,
        and raise the error."""
        telling = StandingProgress(progress)
        while True:
            news = self._news
            current = self._core.deployments.get(entry.name)
            if current is not None and current.fault and current.model == entry.model:
                if before is not None and not before.fault:
                    self._post(events.RestoreRequested(before))
                raise errors.CrashError(self._text(current))
            if current is None or current.version != entry.version:
                raise errors.ClusterError(f"{entry.name!r} was deployed again or undeployed meanwhile")
            standing = self._find_standing(entry)
            if standing is not None:
                active = self._plans.active(entry.name)
                if standing.acknowledged and active is not None and active[0] >= standing.epoch:
                    return standing
                if standing.error_kind not in FINAL:
                    text = self._name_members(standing.text)
                    telling.tell(text, standing.weights, time.monotonic())
                else:
                    if before is None:
                        self._post(events.UndeployRequested(entry.name, entry.version))
                    else:
                        self._post(events.RestoreRequested(before))
                    raise _error(replace(standing, error=self._name_members(standing.error)))
            try:
                async with asyncio.timeout(0.2):
                    await news.wait()
            except TimeoutError:
                continue  # look again: this agent's own switch to the plan wakes nobody

    async def _await_comparison(self, entry: Deployment) -> None:
        """Wait until the leader says how far answers are off, but at most COMPARING_S."""
        until = time.monotonic() + COMPARING_S
        while not self._describe_rounding(entry) and time.monotonic() < until:
            news = self._news
            try:
                async with asyncio.timeout(0.2):
                    await news.wait()
            except TimeoutError:
                continue

    def _answer(self, name: str, standing: Standing, notes: Sequence[str]) -> dict[str, Any]:
        plan, entry = self._plan(name), self._entry(name)
        return {
            "name": name,
            "version": str(number_of(entry)),
            "devices": list(plan.programs),
            "strategy": plan.strategy,
            "predicted_latency_s": plan.predicted_latency_s,
            "why": plan.why,
            "transfer_dtype": plan.rounded_to or EXACT,
            "rounding": self._describe_rounding(entry),
            "text": entry.options.text,
            "quantised": _describe_weights(entry.options),
            "notes": [*notes, *filter(None, [self._note(entry)])],
            "epoch": list(astuple(readable(standing.epoch))),
            "url": f"{self._me.http()}/v2/models/{name}/infer",
        }

    async def undeploy(self, name: str) -> None:
        entry = self._entry(name)
        self._post(events.UndeployRequested(name, entry.version))
        await self._management.written()

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

        active, plan = self._plans.active(name), self._plan(name)
        epoch = active[0] if active else NO_EPOCH
        took = self._inference.latencies().get((name, epoch), ())
        measured = judging.build_measurements_report(plan, self._kinds(name), self._core.profiles, took)
        shown = list(astuple(readable(epoch))) if active else None
        return plan_report(plan) | {"epoch": shown, "measured": measured}

    async def drawing(self, name: str) -> dict[str, Any]:
        from edgepart.planner.report.drawing import draw_plan  # late: imports the simulator and operators

        active, plan = self._plans.active(name), self._plan(name)
        members = {member.node: member.name for member in self._core.membership.members()}
        known = [self._core.cards[node] for node in members if node in self._core.cards]
        cluster = cards.build_cluster(known, members)
        pictures = await asyncio.to_thread(draw_plan, plan, cluster, members.get(self._core.node, ""))
        return {"epoch": list(astuple(readable(active[0]))) if active else None} | pictures

    async def doctor(self) -> dict[str, Any]:
        return await self._diagnostics.doctor.document()

    async def trace(self, name: str, seconds: float) -> dict[str, Any]:
        self._plan(name)  # raises if there is no plan to trace
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

    def _plan(self, name: str) -> Plan:
        """The active plan with every device's segments: the leader's order has them all, even if this device
        computes none."""
        entry = self._entry(name)
        order = self._core.follower.active(name)
        if order is None:
            raise Unavailable(f"no plan of {name!r} is active here: {self._text(entry)}")
        return plan_from_bytes(order.plan)


def readable(epoch: Epoch) -> Epoch:
    """The epoch as people see it, without the low digits of its term, which say who made the term."""
    return Epoch(term_round(epoch.term), epoch.number)


def _graph_file(folder: Path) -> Path:
    found = sorted(folder.glob("*.onnx"))
    if len(found) != 1:
        raise ModelError(
            f"expected one .onnx file among the uploaded ones, found {len(found)}. Nothing was stored"
        )
    return found[0]


def _error(standing: Standing) -> EdgepartError:
    """The leader's error, as an exception of the class that the leader named."""
    kind = getattr(errors, standing.error_kind, errors.ClusterError)
    text = f"{standing.error.rstrip('.')}. Nothing was deployed."
    return kind(text) if issubclass(kind, EdgepartError) else errors.ClusterError(text)


def _describe_weights(options: DeployOptions) -> str:
    """What became of weights that were quantised; "" if none were."""
    return options.quantised.describe(options.weights or "") if options.quantised is not None else ""


def _rows(inputs: Mapping[str, Any]) -> int:
    """The rows of a request: the extent of its inputs' first axis."""
    return max((array.shape[0] for array in inputs.values() if array.ndim), default=1)
