"""Loaded plans: loads, switches and drops the plans that this device holds, from LoadPlan to DropPlan. Door: tasks in the
event loop.

A plan is loaded when its weights are in the store, its sessions are warm and the executor takes its requests. A device
without a program in the plan keeps it to be a gateway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edgepart.agent.cluster.leader.status import describe_set_aside
from edgepart.agent.cluster.state.bindings import is_variant, parent_of
from edgepart.agent.cluster.state.events import (
    DriftMeasured,
    DropPlan,
    LoadPlan,
    PlanLoaded,
    SegmentsTimed,
    SwitchTo,
    WeightsArrived,
)
from edgepart.agent.execution.executor import Executor
from edgepart.agent.execution.prepared import Loader, LoadUrgency, RunnableProgram
from edgepart.agent.execution.tasks import StepKind, gateway_of, kind_of
from edgepart.agent.serving.arriving_weights import Arrived, ArrivingWeights, ignore_arrival, weights_of
from edgepart.agent.serving.requester import Requester
from edgepart.agent.serving.state_carrier import StateCarrier
from edgepart.agent.wire.inference import (
    Cancel,
    EndSequence,
    Epoch,
    Failed,
    RequestMessage,
    StateMessage,
    Tensors,
)
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import CrashError, EdgepartError, InternalError
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import GATEWAY, Plan, Program, Transfer, WeightRef
from edgepart.planner.plans.plan_bytes import plan_from_bytes
from edgepart.planner.region import Array

log = logging.getLogger(__name__)

FetchWeights = Callable[[Plan, Sequence[WeightRef], Sequence[str], Arrived], Awaitable[None]]
"""fetch(plan, its weights, source nodes, arrived) returns when all of them are in the store; it calls `arrived` as they
come. Raises EdgepartError."""
FetchConstants = Callable[[Plan, Sequence[str]], Awaitable[Mapping[str, Array]]]
"""constants(plan, source nodes) returns the values of its constant outputs that are not inputs. Raises EdgepartError."""


BATCH_AFTER_S = 5.0
"""Seconds after which a plan that serves gets its programs of steps in several sequences, if nothing is being loaded then,
or else as long later. Spare plans are loaded first: without them a loss pauses all texts for longer. With less they might
wait; with more, texts at the same time take turns for longer."""


@dataclass
class HeldPlan:
    """A plan that is loaded on this device."""

    plan: Plan
    nodes: Mapping[str, str]
    """Node ids by device name."""
    constants: Mapping[str, Array] = field(default_factory=dict)
    to_gateway: Mapping[StepKind, frozenset[int]] = field(default_factory=dict)
    """Numbers of the transfers that bring outputs to the gateway, by the kind of step."""
    order: LoadPlan | None = None
    """The order to load it."""
    prepared: RunnableProgram | None = None
    """This device's program, whose segments may name fewer engines than the plan's; None if it has none."""


class LoadedPlans:
    """Loads, switches and drops plans. Methods must be called from the event loop's thread, except `arrived`."""

    def __init__(
        self,
        node: str,
        loader: Loader,
        executor: Executor,
        requester: Requester,
        fetch: FetchWeights,
        constants: FetchConstants,
        loaded: Callable[[PlanLoaded | SegmentsTimed | DriftMeasured | WeightsArrived], None],
        carrier: StateCarrier,
        time: Callable[[str, RunnableProgram], Sequence[SegmentsTimed | DriftMeasured]] = lambda *_: (),
    ) -> None:
        """`loaded` is called when a plan is loaded or cannot be, as its weights arrive, and with what
        `time(deployment, program)` measures of its segments."""
        self._node = node
        self._loader = loader
        self._executor = executor
        self._requester = requester
        self._fetch = fetch
        self._constants = constants
        self._loaded = loaded
        self._carrier = carrier
        self._time = time
        self._held: dict[tuple[str, Epoch], HeldPlan] = {}
        self._loading: dict[tuple[str, Epoch], asyncio.Task[None]] = {}
        self._active: dict[str, Epoch] = {}
        self._adding: dict[tuple[str, Epoch], asyncio.Task[None]] = {}
        """What loads programs of steps in several sequences, by deployment and epoch."""

    @property
    def loading(self) -> bool:
        """Whether a plan is being loaded."""
        return bool(self._loading)

    @property
    def unfinished(self) -> list[str]:
        """The deployments of which this device has yet to load something: plans that it was told to, and programs of steps
        in several sequences."""
        return sorted({parent_of(name) for name, _ in (*self._loading, *self._adding)})

    def active(self, deployment: str) -> tuple[Epoch, HeldPlan] | None:
        """The epoch on which new requests start, and its plan; None if there is none."""
        epoch = self._active.get(deployment)
        held = self._held.get((deployment, epoch)) if epoch else None
        return (epoch, held) if epoch and held else None

    def held(self, deployment: str, epoch: Epoch) -> HeldPlan | None:
        """The plan of that epoch; None if it is not loaded here."""
        return self._held.get((deployment, epoch))

    def nodes(self, deployment: str) -> frozenset[str]:
        """The nodes that compute or mirror by any plan of the deployment that is held here."""
        return frozenset(
            node
            for (name, _), held in self._held.items()
            if name == deployment
            for node in held.nodes.values()
        )

    def variants(self, deployment: str) -> list[tuple[Epoch, HeldPlan]]:
        """The epochs and plans on which requests for the deployment's variants start."""
        names = [name for name in self._active if is_variant(name) and parent_of(name) == deployment]
        return [found for name in names if (found := self.active(name)) is not None]

    def programs(self) -> dict[str, tuple[Epoch, Program]]:
        """This device's program in the plan on which new requests start, and its epoch, by deployment."""
        found = {}
        for name, epoch in self._active.items():
            held = self._held.get((name, epoch))
            if held is not None and held.prepared is not None:
                found[name] = epoch, held.prepared.program
        return found

    def load(self, order: LoadPlan) -> None:
        """Begin to load a plan; PlanLoaded follows."""
        key = (order.deployment, order.epoch)
        if key in self._loading:
            return
        if key in self._held:
            self._loaded(PlanLoaded(*key))
            return
        self._executor.expect(*key)
        task = asyncio.get_running_loop().create_task(self._load(order), name=f"load {key}")
        self._loading[key] = task
        task.add_done_callback(lambda done: self._handle_loaded(key, done))

    def _handle_loaded(self, key: tuple[str, Epoch], task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or self._loading.get(key) is not task:
            return  # `drop` has forgotten this task, and the same plan may be loading again.
        del self._loading[key]
        if error is None:
            self._loaded(PlanLoaded(*key))
            return
        self._executor.retire(*key)
        if isinstance(error, EdgepartError):
            log.warning("plan %s of %s is not loaded: %s", key[1], key[0], error)
        else:
            log.error("loading plan %s of %s", key[1], key[0], exc_info=error)
        self._loaded(PlanLoaded(*key, error=str(error) or repr(error)))

    async def _load(self, order: LoadPlan) -> None:
        plan = await asyncio.to_thread(lambda: check_plan(plan_from_bytes(order.plan)))
        names = dict(order.names)
        if unknown := sorted({*plan.programs, *plan.mirrors.values()} - names.keys()):
            raise InternalError(f"the plan uses {unknown}, and the order does not say which nodes they are")
        held = HeldPlan(
            plan,
            names,
            await self._constants(plan, order.sources),
            {
                kind: frozenset(t.number for t in form.transfers if t.target == GATEWAY)
                for kind, form in ((StepKind.USUAL, plan), (StepKind.BATCH, plan.batch))
                if form is not None
            },
            order,
        )
        program = next((p for name, p in plan.programs.items() if names.get(name) == self._node), None)
        if program is not None:
            arriving = self._count_weights(order, plan, program)
            prepared = held.prepared = await self._prepare(order, plan, program, arriving.note)
            others = await self._prepare_others(order, prepared, plan, arriving.note)
            if order.weighed:
                for found in await asyncio.to_thread(self._time_segments, order.deployment, prepared):
                    self._loaded(found)
            try:
                self._executor.install(
                    order.deployment,
                    order.epoch,
                    prepared,
                    plan.transfers,
                    names,
                    others,
                    plan.batch.programs[program.device] if plan.batch is not None else None,
                )
            except EdgepartError:
                for one in (prepared, *(other for other, _ in others.values())):
                    self._loader.release(one)
                raise
        else:
            self._executor.retire(order.deployment, order.epoch)  # Ends `expect`: no frames will come.
        self._held[order.deployment, order.epoch] = held
        mirror = plan.mirrors.get(program.device) if program is not None else None
        if mirror is not None:
            self._carrier.mirror((order.deployment, order.epoch), names[mirror])

    def _count_weights(self, order: LoadPlan, plan: Plan, program: Program) -> ArrivingWeights:
        """What tells how far the weights are that this plan needs here before it is loaded."""
        forms = [program] + ([plan.prefill.programs[program.device]] if plan.prefill is not None else [])
        return ArrivingWeights(
            weights_of(forms),
            lambda here, needed: self._loaded(WeightsArrived(order.deployment, order.epoch, here, needed)),
            asyncio.get_running_loop().time,
        )

    def _time_segments(
        self, deployment: str, prepared: RunnableProgram
    ) -> Sequence[SegmentsTimed | DriftMeasured]:
        """The times of the program's segments; nothing if a segment does not run: its first request will say why."""
        try:
            return self._time(deployment, prepared)
        except EdgepartError as error:
            log.info("a plan is not timed: %s", error)
            return ()

    async def _prepare_others(
        self, order: LoadPlan, prepared: RunnableProgram, plan: Plan, arrived: Arrived
    ) -> dict[StepKind, tuple[RunnableProgram, Sequence[Transfer]]]:
        """Prepare the program of steps that read many rows beside `prepared`, which is released if that fails."""
        if (form := plan.prefill) is None:
            return {}
        try:
            made = await self._prepare(order, form, form.programs[prepared.program.device], arrived)
        except BaseException:
            self._loader.release(prepared)
            raise
        return {StepKind.PREFILL: (made, form.transfers)}

    async def _add_batch(self, key: tuple[str, Epoch], held: HeldPlan) -> None:
        """Prepare the program of steps in several sequences, when nothing else is to be loaded. Nothing is wrong without
        it: such steps are then made one after the other."""
        form, order = held.plan.batch, held.order
        mine = [name for name in form.programs if held.nodes.get(name) == self._node] if form else []
        if form is None or order is None or not mine:
            return
        await asyncio.sleep(BATCH_AFTER_S)
        while self._loading:
            await asyncio.sleep(BATCH_AFTER_S)
        if self._held.get(key) is not held or self._active.get(key[0]) != key[1]:
            return
        try:
            prepared = await self._prepare(order, form, form.programs[mine[0]], background=True)
        except EdgepartError as error:
            log.warning("texts of %s at the same time are computed one after the other: %s", key[0], error)
            return
        if not self._executor.add(*key, StepKind.BATCH, prepared, form.transfers, held.nodes):
            self._loader.release(prepared)

    async def _prepare(
        self,
        order: LoadPlan,
        plan: Plan,
        program: Program,
        arrived: Arrived = ignore_arrival,
        *,
        background: bool = False,
    ) -> RunnableProgram:
        """Fetch the program's weights, and make its sessions in a thread. If this task is cancelled meanwhile, they are
        released."""
        deployment, model = order.deployment, plan.model_digest
        with self._loader.getting_ready(deployment, model):
            await self._fetch(plan, weights_of([program]), order.sources, arrived)
            urgency = LoadUrgency.BACKGROUND if background or order.spare else LoadUrgency.COMING
            if deployment not in self._active:  # Whatever is asked of it waits for this plan.
                urgency = LoadUrgency.AWAITED
            making = asyncio.ensure_future(
                asyncio.to_thread(
                    self._loader.prepare, deployment, model, program, plan.transfers, urgency=urgency
                )
            )
            try:
                return await asyncio.shield(making)
            except asyncio.CancelledError:
                making.add_done_callback(self._release_unwanted)
                self._loader.abandon(deployment, model)
                raise

    def _release_unwanted(self, made: asyncio.Future[RunnableProgram]) -> None:
        if not made.cancelled() and made.exception() is None:
            self._loader.release(made.result())

    def switch(self, order: SwitchTo) -> None:
        """Start new requests on this epoch from now on."""
        held = self._held.get((order.deployment, order.epoch))
        if held is None:
            log.warning("told to switch %s to %s, which is not here", order.deployment, order.epoch)
            return
        self._active[order.deployment] = order.epoch
        if (key := (order.deployment, order.epoch)) not in self._adding:
            task = asyncio.get_running_loop().create_task(self._add_batch(key, held), name=f"batch {key}")
            self._adding[key] = task
            task.add_done_callback(lambda _: self._adding.pop(key, None))
        number = held.order.number if held.order is not None else 0
        self._requester.activate(
            order.deployment, order.epoch, held.plan, held.nodes, held.constants, number=number
        )

    def switch_off(self, variant: str) -> None:
        """Start no new requests on the variant's plans. Requests under way continue."""
        self._active.pop(variant, None)
        self._requester.suspend(variant)

    def drop(self, order: DropPlan) -> None:
        """Forget a plan, even if it is still being loaded."""
        key = (order.deployment, order.epoch)
        if task := self._loading.pop(key, None):
            task.cancel()
        self._held.pop(key, None)
        self._carrier.retire(key)
        for prepared in self._executor.retire(*key):
            self._loader.release(prepared)
        if self._active.get(order.deployment) == order.epoch:
            del self._active[order.deployment]

    def undeployed(self, deployment: str) -> None:
        """Answer the deployment's requests with an error, as it was undeployed. DropPlan drops its plans."""
        for name in [name for name in self._active if parent_of(name) == deployment]:
            del self._active[name]
        self._requester.remove(deployment)

    def set_aside(self, deployment: str, fault: str) -> None:
        """Answer the deployment's requests with `fault`, as its model ends workers. DropPlan drops its plans."""
        for name in [name for name in self._active if parent_of(name) == deployment]:
            del self._active[name]
            self._requester.refuse(name, lambda: CrashError(describe_set_aside(deployment, fault)))

    def weights(self) -> frozenset[str]:
        """Digests of the blobs that this device's programs use."""
        programs = [
            program
            for held in self._held.values()
            for plan in held.plan.forms
            for name, program in plan.programs.items()
            if held.nodes.get(name) == self._node
        ]
        return frozenset(ref.digest for p in programs for segment in p.segments for ref in segment.weights)

    def arrived(self, message: RequestMessage | StateMessage, values: Sequence[Value], source: str) -> None:
        """Hand a request's frame to this device's gateway or to its executor. For any thread."""
        match message:
            case Tensors():  # First, as nearly all frames are.
                held = None
                if gateway_of(message.request) == self._node:
                    held = self._held.get((message.deployment, message.epoch))
                if held is not None and message.transfer in held.to_gateway.get(kind_of(message), ()):
                    self._requester.deliver(message, values, source)
                else:
                    self._executor.deliver(message, values, source)
            case Cancel():
                if source == gateway_of(message.request):
                    self._executor.cancel(message.request)
            case EndSequence():
                if source == gateway_of(message.sequence):
                    self._executor.end_sequence(message.sequence)
                    self._carrier.end(message.sequence)
            case _ if isinstance(message, StateMessage):
                self._carrier.arrived(message, values, source)
            case Failed():
                self._requester.deliver(message, (), source)
