"""Plans on one device: loading, switching and dropping in every order, and plans that cannot be loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

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
from edgepart.agent.execution.prepared import LoadUrgency, RunnableProgram
from edgepart.agent.execution.runtime.sessions import Sessions
from edgepart.agent.serving import loaded_plans
from edgepart.agent.serving.arriving_weights import Arrived
from edgepart.agent.serving.loaded_plans import LoadedPlans
from edgepart.agent.serving.state_carrier import StateCarrier
from edgepart.agent.serving.state_exchange import StateExchange
from edgepart.agent.wire.control import Profile, Version
from edgepart.agent.wire.inference import Cancel, Epoch, Failed, Tensors
from edgepart.planner.errors import RequestError, Unavailable
from edgepart.planner.plans.plan import Plan, Port, Program, Transfer, WeightRef
from edgepart.planner.plans.plan_bytes import plan_to_bytes
from edgepart.planner.region import Array
from tests.agent.handmade import NODES, read_weight, segment, split_plan

EPOCH, LATER = Epoch(1, 1), Epoch(1, 2)
A = NODES["a"]


class Gateway:
    """In place of the Requester: keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def activate(
        self,
        name: str,
        epoch: Epoch,
        plan: Plan,
        nodes: Mapping[str, str],
        constants: Mapping[str, Array],
        *,
        number: int,
    ) -> None:
        self.told.append(("activate", name, epoch))

    def suspend(self, name: str) -> None:
        self.told.append(("suspend", name))

    def remove(self, name: str) -> None:
        self.told.append(("remove", name))

    def deliver(self, message: Any, values: Sequence[Any] = (), source: str = "") -> None:
        self.told.append(("deliver", message))


class Loading:
    """Sessions of this process, as Plans wants them."""

    def __init__(self) -> None:
        self.sessions = Sessions(1, read_weight)
        self.abandoned: list[tuple[str, str]] = []
        self.ready: list[str] = []
        """What it was to get ready for now."""
        self.prepared_ready = 0
        """Number of programs for which it was to get ready before."""
        self.urgencies: list[LoadUrgency] = []
        """How urgent the programs were that it prepared."""

    def prepare(
        self,
        deployment: str,
        model: str,
        program: Program,
        transfers: Sequence[Transfer],
        *,
        urgency: LoadUrgency = LoadUrgency.COMING,
    ) -> RunnableProgram:
        self.prepared_ready += deployment in self.ready
        self.urgencies.append(urgency)
        return self.sessions.prepare(program, transfers)

    def release(self, prepared: Any) -> None:
        self.sessions.release(prepared)

    @contextmanager
    def getting_ready(self, deployment: str, model: str) -> Iterator[None]:
        self.ready.append(deployment)
        try:
            yield
        finally:
            self.ready.remove(deployment)

    def abandon(self, deployment: str, model: str) -> None:
        self.abandoned.append((deployment, model))


class Bench:
    """Plans with real sessions and a real executor (not started: nothing is to be computed)."""

    def __init__(self, node: str = A) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.loaded: asyncio.Queue[PlanLoaded | SegmentsTimed | DriftMeasured] = asyncio.Queue()
        self.arrived: list[WeightsArrived] = []
        self.loading = Loading()
        self.sessions = self.loading.sessions
        self.executor = Executor(lambda node, message, _: self.sent.append((node, message)))
        self.gateway = Gateway()
        self.fetching = asyncio.Event()
        self.fetching.set()
        exchange = StateExchange(
            node, lambda *_: None, self.executor.carried, lambda *key: self.plans.held(*key)
        )
        self.carrier = StateCarrier(exchange, lambda *_: None)
        self.fails = False
        """Whether segments cannot be timed."""
        self.plans = LoadedPlans(
            node,
            self.loading,
            self.executor,
            self.gateway,  # type: ignore[arg-type]
            self._fetch,
            self._constants,
            self._note,
            self.carrier,
            self._time,
        )

    async def _fetch(
        self, plan: Plan, refs: Sequence[WeightRef], sources: Sequence[str], arrived: Arrived
    ) -> None:
        if not sources:
            raise Unavailable("no member holds it")
        await self.fetching.wait()
        for ref in refs:
            arrived(ref.digest, ref.nbytes)

    def _note(self, told: PlanLoaded | SegmentsTimed | DriftMeasured | WeightsArrived) -> None:
        if isinstance(told, WeightsArrived):
            self.arrived.append(told)
        else:
            self.loaded.put_nowait(told)

    async def _constants(self, plan: Plan, sources: Sequence[str]) -> Mapping[str, Array]:
        return {}

    def _time(self, deployment: str, prepared: RunnableProgram) -> list[SegmentsTimed | DriftMeasured]:
        if self.fails:
            raise RequestError("it does not run on ones")
        return [SegmentsTimed(tuple(Profile(one.digest, "k", 1, 1.0) for one in prepared.program.segments))]

    async def told(self) -> PlanLoaded | SegmentsTimed | DriftMeasured:
        async with asyncio.timeout(20):
            return await self.loaded.get()

    async def answer(self) -> PlanLoaded:
        told = await self.told()
        assert isinstance(told, PlanLoaded)
        return told

    def is_stale(self, epoch: Epoch = EPOCH) -> bool:
        """Whether a frame of that epoch is handed back."""
        before = len(self.sent)
        self.executor.deliver(
            Tensors("m", epoch, f"gate/boot/{before}", 0, ()), [np.zeros((1, 2, 5, 6), "f4")]
        )
        return [type(message) for _, message in self.sent[before:]] == [Failed]


def order(plan: Plan | bytes | None = None, epoch: Epoch = EPOCH, **changes: Any) -> LoadPlan:
    packed = plan if isinstance(plan, bytes) else plan_to_bytes(plan or split_plan())
    made = LoadPlan("m", Version(1, "x"), epoch, packed, tuple(NODES.items()), "0" * 64, ("b",))
    return replace(made, **changes)


def run(work: Callable[[Bench], Awaitable[None]], node: str = A) -> Bench:
    async def main() -> Bench:
        bench = Bench(node)
        await work(bench)
        return bench

    return asyncio.run(main())


def test_it_tells_how_far_the_weights_are_that_a_plan_needs_here() -> None:
    plan = split_plan()
    needed = {ref.digest: ref.nbytes for one in plan.programs["a"].segments for ref in one.weights}

    async def work(bench: Bench) -> None:
        bench.fetching.clear()
        bench.plans.load(order(plan))
        async with asyncio.timeout(20):
            while not bench.arrived:
                await asyncio.sleep(0)
        assert bench.arrived == [WeightsArrived("m", EPOCH, 0, sum(needed.values()))]
        assert bench.loading.ready == ["m"]
        bench.fetching.set()
        await bench.answer()
        assert bench.loading.ready == [] and bench.loading.prepared_ready == 1
        assert bench.arrived[-1] == WeightsArrived("m", EPOCH, sum(needed.values()), sum(needed.values()))

    assert run(work).arrived
    assert run(loaded_elsewhere, node="f" * 16).arrived == []


async def loaded_elsewhere(bench: Bench) -> None:
    bench.plans.load(order())
    await bench.answer()


def test_a_plan_that_has_to_beat_another_is_timed_before_it_is_loaded() -> None:
    async def work(bench: Bench) -> None:
        bench.plans.load(order(weighed=True))
        timed = await bench.told()
        assert isinstance(timed, SegmentsTimed) and len(timed.timings) == 2
        assert await bench.answer() == PlanLoaded("m", EPOCH)

    run(work)


def test_a_plan_that_cannot_be_timed_is_loaded_all_the_same() -> None:
    async def work(bench: Bench) -> None:
        bench.fails = True
        bench.plans.load(order(weighed=True))
        assert await bench.answer() == PlanLoaded("m", EPOCH)

    run(work)


def test_programs_of_steps_in_several_sequences_come_last_and_until_then_the_device_is_not_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loaded_plans, "BATCH_AFTER_S", 0.001)

    async def work(bench: Bench) -> None:
        bench.plans.load(order())
        assert bench.plans.unfinished == ["m"]
        assert await bench.answer() == PlanLoaded("m", EPOCH)
        assert bench.plans.unfinished == []
        held = bench.plans.held("m", EPOCH)
        assert held is not None
        held.plan = replace(held.plan, batch=held.plan)
        prepared = len(bench.loading.urgencies)
        bench.plans.switch(SwitchTo("m", EPOCH))
        assert bench.plans.unfinished == ["m"] and not bench.plans.loading
        async with asyncio.timeout(20):
            while bench.plans.unfinished:
                await asyncio.sleep(0.001)
        assert bench.loading.urgencies[prepared:] == [LoadUrgency.BACKGROUND]

    run(work)


def test_a_plan_is_loaded_switched_to_and_dropped() -> None:
    async def work(bench: Bench) -> None:
        bench.plans.load(order())
        assert bench.plans.loading
        assert await bench.answer() == PlanLoaded("m", EPOCH)
        assert not bench.plans.loading
        assert bench.plans.active("m") is None
        bench.plans.switch(SwitchTo("m", EPOCH))
        assert bench.plans.active("m")
        assert len(bench.plans.weights()) == 2
        assert bench.sessions.held == (2, 2)
        bench.plans.load(order())  # asked again: answered again
        assert await bench.answer() == PlanLoaded("m", EPOCH)
        bench.plans.drop(DropPlan("m", EPOCH))
        assert bench.plans.active("m") is None
        assert bench.plans.weights() == frozenset()

    bench = run(work)
    assert bench.sessions.held == (0, 0)
    assert bench.is_stale()
    assert bench.gateway.told == [("activate", "m", EPOCH)]


def test_a_later_plan_shares_sessions_and_the_older_one_goes() -> None:
    async def work(bench: Bench) -> None:
        for epoch in (EPOCH, LATER):
            bench.plans.load(order(epoch=epoch))
            assert (await bench.answer()).error == ""
            bench.plans.switch(SwitchTo("m", epoch))
        bench.plans.load(replace(order(epoch=Epoch(1, 9)), spare=True))
        assert (await bench.answer()).error == ""
        # Requests wait for the first plan alone.
        assert bench.loading.urgencies == [LoadUrgency.AWAITED, LoadUrgency.COMING, LoadUrgency.BACKGROUND]
        bench.plans.drop(DropPlan("m", Epoch(1, 9)))
        assert bench.sessions.held == (2, 2)
        bench.plans.drop(DropPlan("m", EPOCH))
        active = bench.plans.active("m")
        assert active is not None
        assert active[0] == LATER

    bench = run(work)
    assert bench.sessions.held == (2, 2)
    assert (bench.is_stale(EPOCH), bench.is_stale(LATER)) == (True, False)


def test_dropped_while_loading_and_loaded_again_at_once() -> None:
    """The order that was given up says nothing; the one that follows is answered, once."""

    async def work(bench: Bench) -> None:
        bench.fetching.clear()
        bench.plans.load(order())
        await asyncio.sleep(0.05)
        bench.plans.drop(DropPlan("m", EPOCH))
        assert bench.is_stale()
        bench.plans.load(order())
        bench.fetching.set()
        assert await bench.answer() == PlanLoaded("m", EPOCH)
        assert bench.sessions.held == (2, 2)
        bench.plans.drop(DropPlan("m", EPOCH))
        await asyncio.sleep(0.05)
        assert bench.loaded.empty()

    assert run(work).sessions.held == (0, 0)


def test_dropped_just_when_it_is_loaded() -> None:
    """Between the last step of loading and its announcement: nothing is held, and nothing announced."""

    async def work(bench: Bench) -> None:
        bench.plans.load(order())
        (task,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("load")]
        task.add_done_callback(lambda _: None)
        while not task.done():
            await asyncio.sleep(0)
            if bench.plans.weights():
                break
        bench.plans.drop(DropPlan("m", EPOCH))
        await asyncio.sleep(0.05)
        assert not bench.plans.loading

    bench = run(work)
    assert bench.sessions.held == (0, 0)
    assert bench.is_stale()


def test_sessions_that_are_made_too_late_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(bench: Bench) -> None:
        began, go_on = asyncio.Event(), asyncio.Event()
        loop, prepare = asyncio.get_running_loop(), bench.sessions.prepare

        def slow(program: Any, transfers: Any) -> Any:
            loop.call_soon_threadsafe(began.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)
            return prepare(program, transfers)

        monkeypatch.setattr(bench.sessions, "prepare", slow)
        bench.plans.load(order())
        async with asyncio.timeout(20):
            await began.wait()
            bench.plans.drop(DropPlan("m", EPOCH))
            go_on.set()
            await asyncio.get_running_loop().shutdown_default_executor()
        await asyncio.sleep(0.01)
        assert bench.loaded.empty()

    assert run(work).sessions.held == (0, 0)


def broken() -> Iterator[Any]:
    plan = split_plan()
    a = plan.programs["a"]
    yield pytest.param(order(b"no plan"), "", id="no plan at all")
    yield pytest.param(order(plan_to_bytes(plan)[:-7]), "", id="a plan cut off")
    without = replace(plan, programs={"a": replace(a, steps=a.steps[1:])})
    yield pytest.param(order(without), "breaks its rules", id="a plan that breaks its rules")
    yield pytest.param(order(sources=()), "no member holds it", id="weights that nobody holds")
    yield pytest.param(order(names=(("a", A),)), "which nodes they are", id="devices without a node")
    damaged = replace(a.segments[0], model=b"no model", digest="d" * 64)
    bad = replace(plan, programs={**plan.programs, "a": replace(a, segments=(damaged, a.segments[1]))})
    yield pytest.param(order(bad), "cannot load segment dddddddd", id="a segment that is no model")
    first = a.segments[0]
    nothing = segment([], [Port("in", first.inputs[0].piece)], first.outputs, first.weights)
    empty = replace(plan, programs={**plan.programs, "a": replace(a, segments=(nothing, a.segments[1]))})
    yield pytest.param(order(empty), "cannot load segment", id="a segment without operators")


@pytest.mark.parametrize(("bad", "words"), list(broken()))
def test_what_cannot_be_loaded_says_why_and_holds_nothing(bad: LoadPlan, words: str) -> None:
    async def work(bench: Bench) -> None:
        bench.plans.load(bad)
        answer = await bench.answer()
        assert answer.error
        assert words in answer.error
        assert not bench.plans.loading
        bench.plans.switch(SwitchTo("m", EPOCH))  # an order that cannot be obeyed changes nothing
        assert bench.plans.active("m") is None
        assert bench.is_stale()
        bench.plans.drop(DropPlan("m", EPOCH))
        bench.plans.load(order())  # the same epoch, sound
        assert (await bench.answer()).error == ""

    bench = run(work)
    assert bench.sessions.held == (2, 2)
    assert bench.gateway.told == []


def test_a_program_that_cannot_be_installed_lets_go_of_its_sessions() -> None:
    async def work(bench: Bench) -> None:
        prepared = bench.sessions.prepare(split_plan().programs["a"])
        bench.executor.install("m", EPOCH, prepared, split_plan().transfers, NODES)
        bench.sessions.release(prepared)
        bench.plans.load(order())
        assert "installed already" in (await bench.answer()).error

    assert run(work).sessions.held == (0, 0)


def test_a_device_without_a_program_expects_no_frames() -> None:
    async def work(bench: Bench) -> None:
        bench.plans.load(order())
        assert (await bench.answer()).error == ""
        bench.plans.switch(SwitchTo("m", EPOCH))
        assert bench.is_stale()
        assert bench.plans.weights() == frozenset()

    bench = run(work, "node-elsewhere")
    assert bench.gateway.told == [("activate", "m", EPOCH)]


def test_frames_that_come_while_loading_are_kept() -> None:
    async def work(bench: Bench) -> None:
        bench.fetching.clear()
        bench.plans.load(order())
        assert not bench.is_stale()
        bench.fetching.set()
        await bench.answer()

    bench = run(work)
    assert bench.executor.count_waiting()[0] == 1


def test_each_frame_finds_its_way() -> None:
    async def work(bench: Bench) -> None:
        bench.plans.load(order())
        await bench.answer()
        mine, other = f"{A}/boot/1", "gate/boot/1"
        to_gateway = Tensors("m", EPOCH, mine, 4, ())
        bench.plans.arrived(to_gateway, [], "node-b")
        bench.plans.arrived(Failed("m", EPOCH, mine, True, "gone"), [], "node-b")
        bench.plans.arrived(Tensors("m", EPOCH, other, 0, ()), [np.zeros((1, 2, 5, 6), "f4")], "gate")
        assert bench.executor.count_waiting()[0] == 1
        bench.plans.arrived(Cancel("m", EPOCH, other), [], "gate")
        assert bench.executor.count_waiting()[0] == 0

    told = run(work).gateway.told
    assert [type(message).__name__ for _, message in told] == ["Tensors", "Failed"]


def test_what_is_undeployed_serves_no_more() -> None:
    async def work(bench: Bench) -> None:
        bench.plans.load(order())
        await bench.answer()
        bench.plans.switch(SwitchTo("m", EPOCH))
        bench.plans.undeployed("m")
        bench.plans.undeployed("m")
        assert bench.plans.active("m") is None

    assert run(work).gateway.told[1:] == [("remove", "m")] * 2


def test_variants_are_plans_of_their_own_and_go_with_their_deployment() -> None:
    async def work(bench: Bench) -> None:
        for name in ("m", "m@1", "m@2"):
            bench.plans.load(order(deployment=name))
            await bench.answer()
            bench.plans.switch(SwitchTo(name, EPOCH))
        assert bench.loading.urgencies == [LoadUrgency.AWAITED] * 3
        assert [epoch for epoch, _ in bench.plans.variants("m")] == [EPOCH, EPOCH]
        bench.plans.switch_off("m@1")
        assert bench.plans.active("m@1") is None and len(bench.plans.variants("m")) == 1
        bench.plans.drop(DropPlan("m@1", EPOCH))
        bench.plans.undeployed("m")
        assert bench.plans.variants("m") == []

    bench = run(work)
    assert bench.gateway.told[3:] == [("suspend", "m@1"), ("remove", "m")]
    assert bench.sessions.held == (2, 2)  # what they share is held once, and is still there
