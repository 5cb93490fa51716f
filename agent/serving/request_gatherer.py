"""Request gatherer: runs requests that wait at the same time as one request of many rows. Door: the event loop, its clock.

gathering.py decides which requests are run as one, and when. While there is no plan for the rows of a full run, requests
run one by one, and the leader is told that the plan is wanted. Where a run fails, its requests are run singly, so that only
the one that is at fault fails. The first run by each plan is compared with runs of its requests alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.serving.gathering import GatherLimits, GatherLine, PlanVerdict
from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.serving.stacked_rows import RowsKey, cut, rows_of, shaped, stack
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import ClusterError, DeadlinePassed, EdgepartError, InternalError

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""Seconds between two looks whether the plan of a run is still there. If it is not, the run's requests are run singly at
once."""
MOST_VERDICTS = 256
"""The most plans of which a verdict is kept; the oldest are forgotten, and tried again."""

PlanKey = tuple[str, Epoch]
"""The name of a deployment or variant, and the plan's epoch."""
Answered = tuple[dict[str, Value], AnswerInfo]


class Router(Protocol):
    """What ShapeRouter offers."""

    async def infer(
        self, deployment: str, inputs: Mapping[str, Value], deadline_s: float, outputs: Sequence[str] = ()
    ) -> Answered: ...

    def plan_for(self, deployment: str, inputs: Mapping[str, Value]) -> PlanKey | None:
        """The plan on which a request of these shapes would run now. None if there is none, which is then wanted."""

    def serves(self, plan: PlanKey) -> bool:
        """Whether requests run on this plan now."""


Compare = Callable[[Mapping[str, Any], Mapping[str, Any], float | None], list[str]]
"""Takes the outputs of a run and of a request alone, and the tolerance; returns a text for each output that differs."""


@dataclass(eq=False)
class _Member:
    """A request that waits, or is run with others."""

    inputs: dict[str, Value]
    rows: int
    outputs: tuple[str, ...]
    came_s: float
    until: float
    answer: asyncio.Future[Answered]
    runs: int = 1
    """The runs that its own run counts for: also those with others whose answers were not used."""


LaneKey = tuple[str, int, float, RowsKey]


@dataclass(eq=False)
class _Lane:
    key: LaneKey
    deployment: str
    options: DeployOptions
    line: GatherLine
    members: dict[int, _Member]
    timer: asyncio.TimerHandle | None = None


class RequestGatherer:
    """Gathers the requests of this agent's clients. For the event loop's thread."""

    def __init__(self, router: Router, compare: Compare) -> None:
        self._router = router
        self._compare = compare
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[LaneKey, _Lane] = {}
        self._verdicts: dict[PlanKey, PlanVerdict] = {}
        self._runs: set[asyncio.Task[None]] = set()
        self._count = 0

    async def infer(
        self,
        deployment: str,
        options: DeployOptions,
        inputs: Mapping[str, Value],
        deadline_s: float,
        outputs: Sequence[str] = (),
    ) -> Answered:
        """Infer as ShapeRouter.infer, with other requests that come at the same time if the options want that. Raises the
        same errors, and DeadlinePassed if the deadline passes while the request waits."""
        found = rows_of(inputs) if options.batch_rows > 1 else None
        if (
            found is None
            or not 0 < found[0] < options.batch_rows
            or not self._may_gather(deployment, options, inputs)
        ):
            return await self._router.infer(deployment, inputs, deadline_s, outputs)
        rows, key = found
        now = self._loop.time()
        answer: asyncio.Future[Answered] = self._loop.create_future()
        member = _Member(dict(inputs), rows, tuple(outputs), now, now + deadline_s, answer)
        lane = self._lane_of(deployment, options, key)
        self._count += 1
        number = self._count
        lane.members[number] = member
        lane.line.arrive(number, rows, now, member.until)
        try:
            self._go_on(lane)
            async with asyncio.timeout_at(member.until):
                return await answer
        except TimeoutError as error:
            raise DeadlinePassed(f"{deadline_s:g} s have passed before the request was answered") from error
        finally:
            del lane.members[number]
            lane.line.withdraw(number)
            self._go_on(lane)

    def note(self, deployment: str) -> str:
        """Why requests of the deployment are not gathered by a plan that serves now; "" if they may be."""
        found = (
            verdict.fault
            for plan, verdict in self._verdicts.items()
            if verdict.fault and parent_of(plan[0]) == deployment and self._router.serves(plan)
        )
        return next(found, "")

    def _may_gather(self, deployment: str, options: DeployOptions, inputs: Mapping[str, Value]) -> bool:
        plan = self._router.plan_for(deployment, shaped(inputs, options.batch_rows))
        return plan is not None and not self._verdict(plan).fault

    def _verdict(self, plan: PlanKey) -> PlanVerdict:
        while len(self._verdicts) >= MOST_VERDICTS and plan not in self._verdicts:
            del self._verdicts[next(iter(self._verdicts))]
        return self._verdicts.setdefault(plan, PlanVerdict())

    def _lane_of(self, deployment: str, options: DeployOptions, rows_key: RowsKey) -> _Lane:
        key = (deployment, options.batch_rows, options.batch_delay_s, rows_key)
        if key not in self._lanes:
            line = GatherLine(GatherLimits(options.batch_rows, options.batch_delay_s))
            self._lanes[key] = _Lane(key, deployment, options, line, {})
        return self._lanes[key]

    def _go_on(self, lane: _Lane) -> None:
        """Begins the runs that may begin now, and looks again when the next one may. An idle lane is forgotten."""
        while numbers := lane.line.next(self._loop.time()):
            task = self._loop.create_task(self._run(lane, [lane.members[number] for number in numbers]))
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)
        if lane.timer is not None:
            lane.timer.cancel()
        wake_at = lane.line.wake_at
        lane.timer = self._loop.call_at(wake_at, self._go_on, lane) if wake_at < inf else None
        if lane.line.is_empty and not lane.members:
            self._lanes.pop(lane.key, None)

    # A run

    async def _run(self, lane: _Lane, members: Sequence[_Member]) -> None:
        """Answers these requests, together or singly."""
        try:
            if len(members) > 1:
                await self._together(lane, members)
            await self._singly(lane, members)
        finally:
            for member in members:
                if not member.answer.done():  # A fault of ours, which the task's own exception tells.
                    member.answer.set_exception(InternalError("gathered requests could not be run"))
            lane.line.end()
            self._go_on(lane)

    async def _singly(self, lane: _Lane, members: Sequence[_Member]) -> None:
        """Runs each of the requests that are not answered yet alone."""
        await asyncio.gather(*(self._alone(lane, one) for one in members if not one.answer.done()))

    async def _alone(self, lane: _Lane, member: _Member) -> None:
        """Answers a request with what its own run gives, be it an error."""
        began = self._loop.time()
        running = asyncio.ensure_future(
            self._router.infer(lane.deployment, member.inputs, member.until - began, member.outputs)
        )
        await asyncio.wait([running])
        error = running.exception()
        if member.answer.done():
            return  # Its client has gone.
        if error is not None:
            member.answer.set_exception(error)
        else:
            values, info = running.result()
            member.answer.set_result(
                (values, replace(info, waited_s=began - member.came_s, runs=member.runs))
            )

    async def _together(self, lane: _Lane, members: Sequence[_Member]) -> None:
        """Answers all these requests by one run. Where that cannot be done, some or all have no answer yet."""
        began, rows = self._loop.time(), lane.options.batch_rows
        inputs = stack([member.inputs for member in members], rows)
        plan = self._router.plan_for(lane.deployment, inputs)
        if plan is None:
            return
        # Half of the time that is left is for running the requests singly, if this run is not answered.
        left_s = (min(member.until for member in members) - began) / 2
        try:
            values, info = await self._run_while_planned(lane.deployment, inputs, left_s)
        except ClusterError as error:
            log.info("%s: requests that were gathered are run singly (%s)", lane.deployment, error)
            return
        except EdgepartError as error:
            await self._blame(lane, members, plan, str(error))
            return
        verdict = self._verdict((plan[0], info.epoch))
        parts = cut(values, [member.rows for member in members], rows)
        if isinstance(parts, str) or not verdict.is_right:
            members[0].runs += 1
        if isinstance(parts, str):
            self._condemn(lane.deployment, verdict, parts)
        elif not verdict.is_right:
            await self._compare_with_single_runs(lane, members, parts, verdict)
        else:
            counted = 1
            for member, part in zip(members, parts, strict=True):
                if not member.answer.done() and part.keys() >= set(member.outputs):
                    told = replace(info, waited_s=began - member.came_s, runs=counted)
                    member.answer.set_result((_wanted(part, member), told))
                    counted = 0

    async def _run_while_planned(self, deployment: str, inputs: dict[str, Value], left_s: float) -> Answered:
        """The answer of a run, which is given up when there is no plan for it any more: single requests may be answered
        sooner. Raises ClusterError then."""
        running = asyncio.ensure_future(self._router.infer(deployment, inputs, left_s))
        try:
            while not (await asyncio.wait([running], timeout=LOOK_S))[0]:
                if self._router.plan_for(deployment, inputs) is None:
                    raise ClusterError("their plan is gone")
            return running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _blame(self, lane: _Lane, members: Sequence[_Member], plan: PlanKey, error: str) -> None:
        """Runs the requests of a run that failed singly. If none of them fails, the run itself is at fault."""
        await self._singly(lane, members)
        if all(one.answer.cancelled() or one.answer.exception() is None for one in members):
            text = f"a run of {lane.options.batch_rows} rows failed, and its requests alone did not: {error}"
            self._condemn(lane.deployment, self._verdict(plan), text)

    async def _compare_with_single_runs(
        self, lane: _Lane, members: Sequence[_Member], parts: Sequence[dict[str, Value]], verdict: PlanVerdict
    ) -> None:
        """Answers the requests by runs of their own, and judges the plan by them."""
        await self._singly(lane, members)
        pairs = [
            (part, member.answer.result()[0])
            for part, member in zip(parts, members, strict=True)
            if not member.answer.cancelled() and member.answer.exception() is None
        ]
        tolerance = lane.options.batch_tolerance
        found = [
            text
            for part, alone in pairs
            for text in self._compare({name: part.get(name) for name in alone}, alone, tolerance)
        ]
        if found:
            why = f"the answers of a batch differ from those of single requests: {found[0]}"
            self._condemn(lane.deployment, verdict, why)
        elif pairs:
            verdict.is_right = True

    def _condemn(self, deployment: str, verdict: PlanVerdict, why: str) -> None:
        verdict.fault = f"requests are not batched: {why}"
        log.warning("%s: %s", deployment, verdict.fault)


def _wanted(part: dict[str, Value], member: _Member) -> dict[str, Value]:
    return {name: part[name] for name in member.outputs} if member.outputs else part
