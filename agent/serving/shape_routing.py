"""Shape routing: runs each request on the plan for its shapes, and asks the leader for a plan if there is none. Door: the
event loop and its clock.

A request with the deployment's first shapes runs on the deployment's own plan. Any other request waits for its variant,
and the leader is told so again and again, because the leader may change meanwhile, or drop the variant and make it again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf

from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.state import events
from edgepart.agent.cluster.state.bindings import (
    Shapes,
    bind_infos,
    find_binding,
    format_shapes,
    variant_name,
)
from edgepart.agent.serving.active_plan import check_inputs, output_names
from edgepart.agent.serving.requester import AnswerInfo, Requester
from edgepart.agent.wire.control import Standing, Version
from edgepart.agent.wire.inference import Epoch, SequenceStep
from edgepart.agent.wire.tensors import Value
from edgepart.planner import errors
from edgepart.planner.errors import ClusterError, EdgepartError, Infeasible, RequestError, Unavailable
from edgepart.planner.plans.plan import Plan

REPEAT_S = 1.0
"""Seconds after which the leader is told again which bindings are wanted. A shorter period tells a new leader sooner; a
longer one takes fewer messages."""
MAX_WAITING = 16
"""The most bindings of one deployment for which requests may wait on this gateway at the same time."""
MAX_REFUSED = 256
"""The most bindings that are remembered as refused; the oldest are forgotten."""
REFUSED_S = 5.0
"""Seconds after which a client should ask again for a binding that the cluster has no room for now."""
ADVICE = "New shapes are planned one at a time: ask again, wait longer, or use fewer shapes (pad the inputs)"


class _Moved(EdgepartError):
    """Another version of the deployment serves now, so the request needs another variant."""


@dataclass(slots=True)
class _Wanted:
    deployment: str
    version: Version
    shapes: Shapes
    requests: int = 0
    """Number of requests that are held now."""
    used: bool = True
    """Whether there were requests since the leader was told last."""


class ShapeRouter:
    """Runs the requests of this agent's clients, by deployment and shapes. For the event loop's thread."""

    def __init__(self, core: Core, requester: Requester, post: Callable[[events.Event], None]) -> None:
        self._core = core
        self._requester = requester
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._wanted: dict[str, _Wanted] = {}
        self._refused: OrderedDict[str, tuple[Callable[[], EdgepartError], float]] = OrderedDict()
        """Maps each refused variant to a function that makes the error, and the time until which asking the leader again
        is useless."""
        self._timer: asyncio.TimerHandle | None = None

    async def infer(
        self,
        deployment: str,
        inputs: Mapping[str, Value],
        deadline_s: float,
        outputs: Sequence[str] = (),
        step: SequenceStep | None = None,
        likely: int = 0,
    ) -> tuple[dict[str, Value], AnswerInfo]:
        """Infer as `Requester.infer`, for any shapes that the model takes. It also raises RequestError if the model
        cannot be run with these shapes, and Infeasible if no device has room for them."""
        deadline = self._loop.time() + deadline_s
        while True:
            left_s = deadline - self._loop.time()
            plan, order = self._requester.active(deployment), self._core.follower.active(deployment)
            shapes = find_binding(plan.inputs, inputs) if plan is not None else {}
            if plan is None or not shapes:
                return await self._requester.infer(deployment, inputs, left_s, outputs, step, likely)
            if order is None:
                raise Unavailable(f"no plan of {deployment!r} is active here; `edgepart status` says why")
            wanted = _Wanted(deployment, order.version, shapes)
            try:
                return await self._run(wanted, plan, inputs, left_s, outputs, step, likely)
            except _Moved:
                continue
            except Unavailable as error:
                text = f"{str(error).rstrip('.')} ({format_shapes(shapes)}). {ADVICE}"
                raise Unavailable(text, max(error.retry_after_s, REPEAT_S)) from error

    async def _run(
        self,
        wanted: _Wanted,
        plan: Plan,
        inputs: Mapping[str, Value],
        left_s: float,
        outputs: Sequence[str],
        step: SequenceStep | None,
        likely: int,
    ) -> tuple[dict[str, Value], AnswerInfo]:
        checked = check_inputs(bind_infos(plan.inputs, wanted.shapes), inputs)
        names = output_names(wanted.deployment, plan, outputs)
        name = self._admit(wanted, plan)
        with self._hold_variant(name, wanted):
            return await self._requester.run(name, checked, left_s, names, step=step, likely=likely)

    def _admit(self, wanted: _Wanted, plan: Plan) -> str:
        """The variant's name. Raises an EdgepartError if requests for it are refused here."""
        name = variant_name(wanted.deployment, wanted.version, wanted.shapes)
        entry = self._core.deployments.get(wanted.deployment)
        if entry is not None and entry.options.bindings == 0:
            refuse_other_shapes(wanted, plan)
        error, until = self._refused.get(name, (None, 0.0))
        if error is not None and self._loop.time() < until:
            raise error()
        waiting = self.waiting_shapes(wanted.deployment)
        known = self._requester.active(name) is not None or wanted.shapes in waiting
        if len(waiting) >= MAX_WAITING and not known:
            raise Unavailable(f"requests wait for {len(waiting)} other new shapes of {wanted.deployment!r}")
        return name

    def plan_for(self, deployment: str, inputs: Mapping[str, Value]) -> tuple[str, Epoch] | None:
        """The plan on which a request of these shapes would run now: the name of the deployment or variant, and the epoch.
        None if it would wait for a plan, which the leader is then told is wanted, and if it would be refused."""
        plan, order = self._requester.active(deployment), self._core.follower.active(deployment)
        if plan is None or order is None:
            return None
        name = deployment
        try:
            if shapes := find_binding(plan.inputs, inputs):
                wanted = _Wanted(deployment, order.version, shapes)
                name = self._admit(wanted, plan)
                self._want(name, wanted)
        except EdgepartError:
            return None  # A request of its own finds out, and tells its client.
        epoch = self._requester.epoch(name)
        return None if epoch is None else (name, epoch)

    def serves(self, plan: tuple[str, Epoch]) -> bool:
        """Whether requests run on this plan now, as `plan_for` names it."""
        return self._requester.epoch(plan[0]) == plan[1]

    def waiting_shapes(self, deployment: str) -> list[Shapes]:
        """The shapes of the deployment for which requests on this gateway wait for a plan."""
        return [
            wanted.shapes
            for name, wanted in self._wanted.items()
            if wanted.deployment == deployment and wanted.requests and self._requester.active(name) is None
        ]

    def _want(self, name: str, new: _Wanted) -> _Wanted:
        """Tell the leader that the variant is wanted, now and once more."""
        if name not in self._wanted:
            self._wanted[name] = new
            self._tell(new)
        wanted = self._wanted[name]
        wanted.used = True
        if self._timer is None:
            self._timer = self._loop.call_later(REPEAT_S, self._repeat)
        return wanted

    @contextmanager
    def _hold_variant(self, name: str, new: _Wanted) -> Iterator[None]:
        """Tell the leader that the variant is wanted, now and again as long as the block lasts."""
        wanted = self._want(name, new)
        wanted.requests += 1
        try:
            yield
        finally:
            wanted.requests -= 1
            if not wanted.requests and self._requester.active(name) is None:
                self._wanted.pop(name, None)

    def _tell(self, wanted: _Wanted) -> None:
        self._post(events.BindingWanted(wanted.deployment, wanted.version, wanted.shapes))

    def _repeat(self) -> None:
        for name, wanted in list(self._wanted.items()):
            order = self._core.follower.active(wanted.deployment)
            moved = order is not None and order.version != wanted.version
            if moved and self._requester.active(name) is None:
                self._requester.refuse(name, partial(_Moved, f"{wanted.deployment!r} was deployed again"))
            elif wanted.requests or wanted.used:
                wanted.used = False
                self._tell(wanted)
            else:
                del self._wanted[name]
        self._timer = self._loop.call_later(REPEAT_S, self._repeat) if self._wanted else None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def refused(self, standing: Standing) -> None:
        """Handle the leader's message that there will be no plan for a binding: answer its requests with the error."""
        if (wanted := self._wanted.get(standing.deployment)) is None:
            return
        error, lasts_s = _error_of(standing, wanted)
        self._refused[standing.deployment] = error, self._loop.time() + lasts_s
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)
        self._requester.refuse(standing.deployment, error)


def refuse_other_shapes(wanted: _Wanted, plan: Plan) -> None:
    """Raises RequestError, which says that the deployment takes its first shapes only."""
    first = format_shapes(
        {info.name: info.shape for info in plan.inputs if info.shape is not None and info.free}
    )
    raise RequestError(
        f"{wanted.deployment!r} was deployed for {first} only, not {format_shapes(wanted.shapes)} (--bindings 0)"
    )


def _error_of(standing: Standing, wanted: _Wanted) -> tuple[Callable[[], EdgepartError], float]:
    """A function that makes the leader's answer into an error, anew for each request, and the seconds for which the answer
    holds."""
    kind = getattr(errors, standing.error_kind, ClusterError)
    shapes, why = format_shapes(wanted.shapes), standing.error
    if issubclass(kind, errors.UserError):
        return partial(RequestError, f"{wanted.deployment!r} cannot be run with {shapes}: {why}"), inf
    if issubclass(kind, errors.InternalError):
        return partial(kind, f"{wanted.deployment!r} with {shapes}: {why}"), inf
    if issubclass(kind, Infeasible):
        return partial(Infeasible, f"{wanted.deployment!r} with {shapes}: {why}"), REFUSED_S
    text = f"no plan for these shapes of {wanted.deployment!r}: {why}"
    return partial(Unavailable, text, REFUSED_S), 0.0
