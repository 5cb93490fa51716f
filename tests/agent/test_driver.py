"""The driver: effects obeyed in order, whatever fails; links, models and plans that come back as events."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from edgepart.agent.cluster.state import events
from edgepart.agent.driver import Driver, DriverParts
from edgepart.agent.storage.write_queue import DiskQueue
from edgepart.agent.wire.control import Deployment, Goodbye, Standing, Version
from edgepart.agent.wire.inference import NO_EPOCH, DeployOptions, Epoch
from edgepart.planner.errors import NotAuthorised, Unavailable

MODEL = "0" * 64
ENTRY = Deployment("net", MODEL, 1, DeployOptions(), Version(1, "a"))
GONE = Deployment("old", MODEL, 0, DeployOptions(), Version(2, "a"), deleted=True)


class Script:
    """In place of the Core: gives the effects that the test wrote, and keeps the events."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.effects: list[events.Effect] = []
        self.at = math.inf

    def handle(self, event: Any, now: float) -> list[events.Effect]:
        self.heard.put_nowait(event)
        return self._take()

    def wake(self, now: float) -> list[events.Effect]:
        self.heard.put_nowait("woken")
        self.at = math.inf
        return self._take()

    def wake_at(self) -> float:
        return self.at if self.at < math.inf else 1e9

    def _take(self) -> list[events.Effect]:
        taken, self.effects = self.effects, []
        return taken

    async def next(self) -> Any:
        async with asyncio.timeout(10):
            return await self.heard.get()


class Fakes:
    """Every door, writing down what it is told; `faults` names calls that fail, and how."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.witnessed: list[Any] = []
        self.faults: dict[str, Exception] = {}
        self.up: set[str] = set()
        self.plan = threading.Event()
        self.planning = threading.Semaphore(0)
        self.aborted: list[events.ComputePlan] = []
        self.unwanted: list[events.ComputePlan] = []
        """All that were ever aborted: the planning process takes none of these again."""
        self.behind: frozenset[str] = frozenset()
        self.disk = threading.Event()
        """Set while the disk gets on."""
        self.disk.set()

    def _say(self, name: str) -> Callable[..., None]:
        def say(*arguments: Any, **named: Any) -> None:
            self.told.append((name, *arguments, *named.values()))
            if name in self.faults:
                raise self.faults[name]

        return say

    def __getattr__(self, name: str) -> Any:
        return self._say(name)

    def _write(self, name: str, *arguments: Any, **named: Any) -> bool:
        assert self.disk.wait(10)
        self._say(name)(*arguments, **named)
        return True

    def keep(self, **counts: int) -> bool:
        return self._write("keep", **counts)

    def keep_deployments(self, entries: Any) -> bool:
        return self._write("keep_deployments", entries)

    def keep_drains(self, entries: Any) -> bool:
        return self._write("keep_drains", entries)

    def linked_nodes(self) -> frozenset[str]:
        return frozenset(self.up)

    def connect(self, node: str | None, addresses: list[Any]) -> str:
        self._say("connect")(node, addresses)
        return node or "found"

    async def model(self, digest: str, sources: Any) -> None:
        self._say("model")(digest, sources)

    def models(self) -> tuple[str, ...]:
        return (MODEL,)

    # The planning process

    def compute(self, order: events.ComputePlan) -> events.PlanFailed:
        self.told.append(("compute", order.key.deployment, order.urgent, order.quick))
        assert not any(one is order for one in self.unwanted)
        self.planning.release()
        if order.prompt:
            return events.PlanFailed(order.key, "no room", "Infeasible", final=True)
        assert self.plan.wait(10)
        if order in self.aborted:
            self.plan.clear()
            self.aborted.remove(order)
            raise Unavailable("given up")
        if "compute" in self.faults:
            raise self.faults["compute"]
        return events.PlanFailed(order.key, "none", "Infeasible", final=True)

    def abort(self, order: events.ComputePlan) -> None:
        self.aborted.append(order)
        self.unwanted.append(order)
        self.plan.set()


def run(work: Callable[[Driver, Script, Fakes], Awaitable[None]]) -> Fakes:
    async def main() -> Fakes:
        fakes, script = Fakes(), Script()
        disk = DiskQueue(asyncio.get_running_loop())
        doors: Any = [*[fakes] * 7, disk]
        say = fakes._say
        doors += [say("members"), say("standing"), say("discharged")]
        parts = replace(DriverParts(*doors), witness=fakes.witnessed.append)
        driver = Driver(script, parts)  # type: ignore[arg-type]
        try:
            await work(driver, script, fakes)
        finally:
            fakes.plan.set()
            fakes.disk.set()
            driver.stop()
            await asyncio.to_thread(disk.stop)
        return fakes

    return asyncio.run(main())


def names(fakes: Fakes) -> list[str]:
    return [call[0] for call in fakes.told]


ALL: list[events.Effect] = [
    events.PersistTerm(7),
    events.PersistDeployments((ENTRY, GONE)),
    events.MembersChanged(()),
    events.SendMessage("b", Goodbye(1)),
    events.LoadPlan("net", Version(1, "a"), Epoch(1, 1), b"", (), MODEL, ()),
    events.SwitchTo("net", Epoch(1, 1)),
    events.SwitchOff("net@1"),
    events.DropPlan("net", Epoch(1, 1)),
    events.StandingChanged(Standing(1, "net", Version(1, "a"), "serving", "", True, NO_EPOCH, (), "", "")),
    events.LeaderChanged("", 7),
    events.PersistIncarnation(3),
]
DOORS = ["undeployed", "members", "control", "load", "switch", "switch_off", "drop", "standing"]
FILES = ["keep", "keep_deployments", "keep"]


def in_their_order(fakes: Fakes) -> bool:
    """Whatever the disk does meanwhile, and what it was to write."""
    doors = [name for name in names(fakes) if name not in FILES]
    return doors[: len(DOORS)] == DOORS and sorted(n for n in names(fakes) if n in FILES) == sorted(FILES)


def test_all_events_and_effects_are_witnessed_also_those_that_fail() -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        fakes.faults = {"load": OSError("full"), "control": Unavailable("no link")}
        script.effects = list(ALL)
        driver.post(events.LeaveRequested())

    assert run(work).witnessed[: len(ALL) + 1] == [events.LeaveRequested(), *ALL]


def test_effects_are_obeyed_in_their_order() -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        script.effects = list(ALL)
        driver.post(events.LeaveRequested())

    fakes = run(work)
    assert in_their_order(fakes)
    assert ("undeployed", "old") in fakes.told
    assert ("undeployed", "net") not in fakes.told


def test_memory_is_given_back_when_deployments_change(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = threading.Event()
    monkeypatch.setattr("edgepart.agent.driver.give_back_all", given_back.set)

    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        script.effects = [events.PersistDeployments((GONE,))]
        driver.post(events.LeaveRequested())
        assert await asyncio.to_thread(given_back.wait, 60)

    run(work)


@pytest.mark.parametrize(
    ("door", "fault"),
    [
        ("keep", OSError(28, "No space left on device")),
        ("members", OSError(28, "No space left on device")),
        ("control", Unavailable("no link")),
        ("switch", NotAuthorised("a plan of nobody's")),
    ],
)
def test_what_fails_holds_up_nothing_else(door: str, fault: Exception) -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        fakes.faults[door] = fault
        script.effects = list(ALL)
        script.at = 0.0
        driver.post(events.LeaveRequested())
        assert isinstance(await script.next(), events.LeaveRequested)
        while await script.next() != "woken":
            pass  # the disk has its say in between

    assert in_their_order(run(work))


def test_a_disk_that_hangs_holds_up_nothing_and_the_core_is_told_when_it_has_written() -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        fakes.disk.clear()
        script.effects = [*ALL, events.PersistTerm(8), events.PersistDeployments((GONE,))]
        script.effects += [events.PersistDrains(()), events.RemovedFromCluster("removed")]
        script.at = 0.0
        driver.post(events.LeaveRequested())
        assert isinstance(await script.next(), events.LeaveRequested)
        assert await script.next() == "woken"
        assert names(fakes) == [*DOORS, "undeployed"]
        assert script.heard.empty()
        fakes.disk.set()
        assert await script.next() == events.TermKept(7)
        assert await script.next() == events.TermKept(8), "before what else waits"
        both = events.DeploymentsKept((("net", Version(1, "a")), ("old", Version(2, "a"))))
        assert await script.next() == both
        assert await script.next() == events.DeploymentsKept((("old", Version(2, "a")),))
        while "discharged" not in names(fakes):
            await asyncio.sleep(0.001)

    told = names(run(work))
    assert told.count("keep_deployments") == 1, "of what waits, only the newest is written"
    assert told.index("keep_drains") < told.index("discharged")


def test_deployments_that_the_disk_did_not_take_are_told_when_it_has() -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        fakes.faults["keep_deployments"] = OSError(28, "No space left on device")
        fakes.behind = frozenset({"deployments.json"})
        script.effects = [events.PersistDeployments((ENTRY,)), events.PersistTerm(7)]
        driver.post(events.LeaveRequested())
        assert isinstance(await script.next(), events.LeaveRequested)
        assert await script.next() == events.TermKept(7)
        await driver._doors.disk.caught_up()
        driver.caught_up()
        assert script.heard.empty()
        fakes.behind = frozenset()
        driver.caught_up()
        driver.caught_up()
        assert await script.next() == events.DeploymentsKept((("net", Version(1, "a")),))
        assert script.heard.empty()

    run(work)


def test_the_core_is_woken_when_it_wants_and_not_after_the_end() -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        script.at = 0.0
        driver.start()
        assert await script.next() == "woken"
        driver.stop()
        driver.post(events.LeaveRequested())
        await asyncio.sleep(0.01)
        assert script.heard.empty()

    run(work)


def test_a_dialled_address_answers_with_an_event() -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        def dial(node: str, *addresses: str) -> None:
            script.effects = [events.Connect(node, addresses)]
            driver.post(events.LeaveRequested())

        dial("b", "1.2.3.4:5")
        await script.next()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.001)
        assert script.heard.empty()  # a new link is told by the links themselves
        fakes.up = {"b"}
        dial("b", "1.2.3.4:5")
        await script.next()
        assert await script.next() == events.LinkUp("b", "")  # up before, so the links say nothing
        dial("b", "no address")
        await script.next()
        failed = await script.next()
        assert isinstance(failed, events.ConnectFailed)
        assert "HOST:PORT" in failed.why
        for fault in (Unavailable("nobody there"), NotAuthorised("another cluster")):
            fakes.faults["connect"] = fault
            dial("c", "1.2.3.4:5")
            await script.next()
            assert await script.next() == events.ConnectFailed("c", ("1.2.3.4:5",), str(fault))

    run(work)


@pytest.mark.parametrize("fault", [None, Unavailable("no member holds it")])
def test_a_model_is_fetched_and_what_is_here_is_told(fault: Exception | None) -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        if fault is not None:
            fakes.faults["model"] = fault
        script.effects = [events.StoreModel(MODEL, 1, ("b",))]
        driver.post(events.LeaveRequested())
        await script.next()
        assert await script.next() == events.ModelsStored((MODEL,))

    run(work)


def plan_for(name: str, *, urgent: bool = False, quick: bool = False) -> events.ComputePlan:
    key = events.PlanKey(name, Version(1, "a"), ())
    return events.ComputePlan(key, ENTRY, (), b"", urgent=urgent, quick=quick)


def test_the_planning_process_is_started_when_a_plan_is_expected() -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        driver.expect_plan()
        script.effects = [plan_for("a")]
        fakes.plan.set()
        driver.post(events.LeaveRequested())
        for _ in range(2):
            await script.next()
        driver.stop()
        driver.expect_plan()

    told = [call[0] for call in run(work).told]
    assert told.index("get_ready") < told.index("compute")
    assert told.count("get_ready") == 1


def test_urgent_plans_come_first_and_newer_orders_replace_older_ones() -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        script.effects = [
            plan_for("a"),
            plan_for("b"),
            plan_for("b", quick=True),
            plan_for("a@1", urgent=True),
            plan_for("c", urgent=True),
            plan_for("c", urgent=True, quick=True),
        ]
        fakes.plan.set()
        driver.post(events.LeaveRequested())
        await script.next()
        for name in ("c", "a@1", "a", "b"):
            assert (await script.next()).key.deployment == name

    fakes = run(work)
    assert [call for call in fakes.told if call[0] == "compute"] == [
        ("compute", "c", True, True),
        ("compute", "a@1", True, False),
        ("compute", "a", False, False),
        ("compute", "b", False, True),
    ]


def test_what_is_urgent_sets_aside_what_is_not() -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        script.effects = [plan_for("a")]
        driver.post(events.LeaveRequested())
        await script.next()
        await asyncio.to_thread(fakes.planning.acquire, timeout=10)
        script.effects = [plan_for("b", urgent=True)]
        driver.post(events.LeaveRequested())
        await script.next()
        await asyncio.to_thread(fakes.planning.acquire, timeout=10)
        fakes.plan.set()
        for name in "ba":
            answer = await script.next()
            assert (answer.key.deployment, answer.kind) == (name, "Infeasible")

    fakes = run(work)
    assert [call[1] for call in fakes.told if call[0] == "compute"] == ["a", "b", "a"]


@pytest.mark.parametrize("current", [b"", b"serves"])
def test_a_quick_comparison_replaces_a_thorough_one_under_way(current: bytes) -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        script.effects = [replace(plan_for("a"), current=current)]
        driver.post(events.LeaveRequested())
        await script.next()
        await asyncio.to_thread(fakes.planning.acquire, timeout=10)
        script.effects = [replace(plan_for("a", quick=True), current=current)]
        driver.post(events.LeaveRequested())
        await script.next()
        if not current:  # That is no comparison.
            fakes.plan.set()
        await asyncio.to_thread(fakes.planning.acquire, timeout=10)
        fakes.plan.set()
        assert (await script.next()).kind == "Infeasible"
        if not current:
            assert (await script.next()).kind == "Infeasible"
        assert script.heard.empty()

    fakes = run(work)
    assert [call[3] for call in fakes.told if call[0] == "compute"] == [False, True]


@pytest.mark.parametrize(
    ("order", "set_aside"),
    [
        (plan_for("b", urgent=True), True),
        (plan_for("a@1", urgent=True), True),
        (replace(plan_for("b", quick=True), current=b"serves"), True),
        (plan_for("b", quick=True), False),
        (replace(plan_for("b"), current=b"serves"), False),
    ],
)
def test_searches_give_way_to_those_that_something_waits_for(
    order: events.ComputePlan, set_aside: bool
) -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        script.effects = [plan_for("a")]
        driver.post(events.LeaveRequested())
        await script.next()
        await asyncio.to_thread(fakes.planning.acquire, timeout=10)
        script.effects = [order]
        driver.post(events.LeaveRequested())
        await script.next()
        if not set_aside:
            fakes.plan.set()
        await asyncio.to_thread(fakes.planning.acquire, timeout=10)
        fakes.plan.set()
        for _ in range(2):
            await script.next()

    computed = [call[1] for call in run(work).told if call[0] == "compute"]
    assert computed == ["a", order.key.deployment, *(["a"] if set_aside else [])]


def test_plans_that_take_no_search_are_made_beside_a_search() -> None:
    """The search under way ends last, though all others come later, some of them less urgent than another."""
    refuge = plan_for("a")

    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        script.effects = [plan_for("b", urgent=True), plan_for("c", urgent=True)]
        driver.post(events.LeaveRequested())
        await script.next()
        await asyncio.to_thread(fakes.planning.acquire, timeout=10)
        script.effects = [
            replace(refuge, key=replace(refuge.key, alone=True)),
            replace(plan_for("a@1", urgent=True), awaited=True),
        ]
        driver.post(events.LeaveRequested())
        await script.next()
        for name in ("a@1", "a"):
            answer = await script.next()
            assert (answer.key.deployment, answer.error) == (name, "no room")
        assert fakes.aborted == []
        fakes.plan.set()
        for name in "bc":
            assert (await script.next()).key.deployment == name

    run(work)


def test_a_planning_process_that_dies_is_an_answer_too() -> None:
    async def work(driver: Driver, script: Script, fakes: Fakes) -> None:
        fakes.faults["compute"] = Unavailable("the planning process ended before it had a plan")
        fakes.plan.set()
        script.effects = [plan_for("a")]
        driver.post(events.LeaveRequested())
        await script.next()
        answer = await script.next()
        assert (answer.kind, answer.final) == ("Unavailable", False)

    run(work)
