"""Driver: gives events to the cluster logic (core.py) and carries out its effects. Door: the event loop, its
clock, and the doors that it is given.

Events are handled one after another in the event loop's thread, and their effects are carried out in order.
State files are written in another thread, so that a slow disk delays nothing else; the core is told when they
are on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.state import events
from edgepart.agent.cluster.state.bindings import is_variant
from edgepart.agent.host.process_memory import give_back_all
from edgepart.agent.net.dispatch import FrameDispatcher
from edgepart.agent.planwork.plan_process import PlanProcess
from edgepart.agent.replication.blobs import BlobFetcher
from edgepart.agent.serving.loaded_plans import LoadedPlans
from edgepart.agent.state_files import StateFiles
from edgepart.agent.storage.store import Store
from edgepart.agent.storage.write_queue import DiskQueue
from edgepart.agent.wire.address import Address, parse_address
from edgepart.agent.wire.control import Deployment, Standing, Version
from edgepart.planner.errors import EdgepartError, InternalError, Unavailable, UsageError

log = logging.getLogger(__name__)

DIALLERS = 8
"""The most links that are connected or closed at once."""
NAMED_LINES, NAMED_S, NAMED_LETTERS = 8, 60.0, 500
"""The log gets at most NAMED_LINES lines in NAMED_S seconds about one distrusted member, each with a reason
of at most NAMED_LETTERS characters, because that member decides how much it sends."""


class DriverLinks(Protocol):
    """The part of Transport (agent/net/transport.py) that the driver uses."""

    def connect(self, node_id: str | None, addresses: list[Address]) -> str: ...
    def close(self, node_id: str, why: str = ...) -> None: ...
    def linked_nodes(self) -> frozenset[str]: ...


async def refuse_trial(order: events.TryPlan) -> events.PlanTried:
    """Refuse the trial, for agents that try no plans."""
    return events.PlanTried(order.deployment, order.epoch, events.UNTRIED, "this agent tries no plans")


@dataclass(frozen=True)
class DriverParts:
    """The parts of the agent with which the driver carries out effects."""

    links: DriverLinks
    post: FrameDispatcher
    plans: LoadedPlans
    planwork: PlanProcess
    fetching: BlobFetcher
    store: Store
    files: StateFiles
    disk: DiskQueue
    """The queue that writes `files`; nothing else may write them."""
    members: Callable[[tuple[events.Member, ...]], None]
    """Called with the members whenever they change."""
    standing: Callable[[Standing], None]
    """Called when the standing of a deployment changes."""
    discharged: Callable[[str], None] = lambda why: None
    """Called with the reason when this device was removed from the cluster."""
    tries: Callable[[events.TryPlan], Awaitable[events.PlanTried]] = refuse_trial
    """Runs a plan on made-up inputs; never raises."""
    witness: Callable[[events.Event | events.Effect], None] = lambda thing: None
    """Called with each event, and with each effect once it was carried out; never raises."""


class Driver:
    """Runs one Core. All methods are for the event loop's thread."""

    def __init__(self, core: Core, doors: DriverParts) -> None:
        self.core = core
        self._doors = doors
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._dialling = ThreadPoolExecutor(DIALLERS, thread_name_prefix="dial")
        self._planning = ThreadPoolExecutor(2, thread_name_prefix="plan")
        self._orders: dict[tuple[str, bool], events.ComputePlan] = {}
        self._planners: dict[bool, asyncio.Task[None]] = {}
        """What has plans computed: those that take no search, and others."""
        self._searching: events.ComputePlan | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._members: tuple[events.Member, ...] = ()
        self._named: dict[str, tuple[float, int]] = {}
        """For each distrusted member: the start of its current NAMED_S seconds, and the number of lines about
        it since then, logged or not."""
        self._stopped = False
        self._unkept: tuple[tuple[str, Version], ...] | None = None
        """The versions of deployments that could not be written; writing them is tried again."""
        self.ticked_at = self._loop.time()
        """The time when the core last ran, for the watchdog."""

    def start(self) -> None:
        self._run([])

    def stop(self) -> None:
        """Stop for good: handle no more events, and carry out no more effects."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (*self._tasks, *self._planners.values()):
            task.cancel()
        self._dialling.shutdown(wait=False, cancel_futures=True)
        self._planning.shutdown(wait=False, cancel_futures=True)
        self._doors.planwork.stop()

    def post(self, event: events.Event) -> None:
        """Give an event to the core and carry out its effects. An effect that fails is logged, and the agent
        goes on."""
        if not self._stopped:
            self._doors.witness(event)
            self._run(self.core.handle(event, self._loop.time()))

    def expect_plan(self) -> None:
        """Start the planning process, because a plan is likely to be wanted soon. What that fails with, the order itself
        will fail with."""
        if not self._stopped:
            self._planning.submit(self._doors.planwork.get_ready)

    def caught_up(self) -> None:
        """Tell the core which deployments are on disk now, if writing them had failed and no file is behind
        any more."""
        if self._unkept is not None and not self._doors.files.behind:
            self.post(events.DeploymentsKept(self._unkept))
            self._unkept = None

    def _wake(self) -> None:
        self._run(self.core.wake(self._loop.time()))

    def _run(self, effects: list[events.Effect]) -> None:
        self.ticked_at = self._loop.time()
        for effect in effects:
            try:
                self._obey(effect)
            except Unavailable as error:
                log.debug("%s: %s", type(effect).__name__, error)
            except (EdgepartError, OSError) as error:  # OSError: a full disk; what is in memory still serves
                log.error("%s: %s", type(effect).__name__, error)
            self._doors.witness(effect)
        if self._stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        wake_at = self.core.wake_at()
        self._timer = self._loop.call_at(max(wake_at, self._loop.time()), self._wake)

    def _obey(self, effect: events.Effect) -> None:
        doors = self._doors
        match effect:
            case events.SendMessage(node, message):
                doors.post.control(node, message)
            case events.Connect():
                self._spawn(self._connect(effect))
            case events.Disconnect(node, why):
                self._spawn(self._in_dialler(doors.links.close, node, why))
            case events.MembersChanged(members):
                for line in news_of(self._members, members):
                    log.info("%s", line)
                self._members = members
                doors.members(members)
            case events.PersistTerm(term):
                self._persist_term(term)
            case events.PersistIncarnation(incarnation):
                doors.disk.put("incarnation", lambda: doors.files.keep(incarnation=incarnation))
            case events.PersistDeployments(entries):
                self._persist_deployments(entries)
                for entry in entries:
                    if entry.deleted:
                        doors.plans.undeployed(entry.name)
                    elif entry.fault:
                        doors.plans.set_aside(entry.name, entry.fault)
                # Models and their requests leave free memory in the heap, and pages of libraries that are seldom needed.
                self._spawn(asyncio.to_thread(give_back_all))
            case events.PersistPlan(name, order):
                doors.disk.put(f"plan of {name}", lambda: doors.files.keep_plan(name, order))
            case events.PersistDrains(drains):
                doors.disk.put("drains", lambda: doors.files.keep_drains(drains))
            case events.RemovedFromCluster(why):
                self._spawn(self._discharge(why))
            case events.MemberDistrusted(node, why):
                self._name(node, why)
            case events.PersistProfiles(timings):
                doors.disk.put("profiles", lambda: doors.files.keep_profiles(timings))
            case events.LoadPlan():
                doors.plans.load(effect)
            case events.SwitchTo(name, epoch):
                doors.plans.switch(effect)
                log.info("%s is served on epoch %s from now on", name, epoch)
            case events.SwitchOff(variant):
                doors.plans.switch_off(variant)
            case events.DropPlan():
                doors.plans.drop(effect)
            case events.StoreModel():
                self._spawn(self._store_model(effect))
            case events.ComputePlan():
                self._order(effect)
            case events.TryPlan():
                self._spawn(self._try(effect))
            case events.StandingChanged(standing):
                doors.standing(standing)
            case events.LeaderChanged(leader, term):
                log.info("leader is %s, term %d", leader or "nobody", term)
            case _:
                raise InternalError(f"an effect that the driver does not know: {effect!r}")

    def _name(self, node: str, why: str) -> None:
        """Log that a member is not believed, but only so often, because the member may cause this as often as
        it likes."""
        now = self._loop.time()
        since, lines = self._named.get(node, (now, 0))
        if now >= since + NAMED_S:
            since, lines = now, 0
        self._named[node] = since, lines + 1
        if lines < NAMED_LINES:
            log.warning("%s is not believed: %s", node, why[:NAMED_LETTERS])

    # The disk

    def _persist_term(self, term: int) -> None:
        """Write the term before all other files, because a device waits for that before it leads. If the disk
        cannot be written, the device leads all the same."""
        files = self._doors.files
        told = lambda _: self.post(events.TermKept(term))  # noqa: E731
        self._doors.disk.put("term", lambda: files.keep(term=term), told, first=True)

    def _persist_deployments(self, entries: tuple[Deployment, ...]) -> None:
        versions = tuple((entry.name, entry.version) for entry in entries)

        def told(on_disk: bool) -> None:
            self._unkept = None if on_disk else versions
            if on_disk:
                self.post(events.DeploymentsKept(versions))

        self._doors.disk.put("deployments", lambda: self._doors.files.keep_deployments(entries), told)

    async def _discharge(self, why: str) -> None:
        """Report the removal once it is on disk, because the agent has to know of it at its next start."""
        await self._doors.disk.caught_up()
        self._doors.discharged(why)

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the driver failed", exc_info=error)

    # Links

    async def _in_dialler(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._loop.run_in_executor(self._dialling, function, *arguments)

    async def _connect(self, order: events.Connect) -> None:
        links = self._doors.links
        before = links.linked_nodes()
        try:
            addresses = [parse_address(text) for text in order.addresses]
            node = await self._in_dialler(links.connect, order.node or None, addresses)
        except (Unavailable, UsageError) as error:
            self.post(events.ConnectFailed(order.node, order.addresses, str(error)))
        except EdgepartError as error:
            log.info("no link to %s at %s: %s", order.node or "a peer", order.addresses, error)
            self.post(events.ConnectFailed(order.node, order.addresses, str(error)))
        else:
            if node in before:
                self.post(events.LinkUp(node, order.addresses[0] if not order.node else ""))

    # Models

    async def _store_model(self, order: events.StoreModel) -> None:
        try:
            await self._doors.fetching.model(order.model, order.sources)
        except (EdgepartError, OSError) as error:  # OSError: a full disk
            log.warning("model %s is not stored here yet: %s", order.model[:12], error)
        self.post(events.ModelsStored(self._doors.store.models()))

    async def _try(self, order: events.TryPlan) -> None:
        found = await self._doors.tries(order)
        if found.verdict in (events.WRONG, events.SUSPECT):
            log.error("a plan for %s is not served: %s", order.deployment, found.text)
        elif found.verdict == events.UNTRIED:
            log.warning("a plan for %s could not be tried: %s", order.deployment, found.text)
        self.post(found)

    # Plans: one search at a time, and beside it one plan that takes no search. Urgent ones come first, deployments before
    # their variants; a newer order replaces an older one.

    def _order(self, order: events.ComputePlan) -> None:
        self._orders[order.key.deployment, order.urgent] = order
        if self._searching is not None and _gives_way(self._searching, order):
            self._spawn(asyncio.to_thread(self._doors.planwork.abort, self._searching))
        planner = self._planners.get(order.prompt)
        if planner is None or planner.done():
            planner = self._loop.create_task(self._plan_all(prompt=order.prompt), name="plan")
            planner.add_done_callback(self._ended)
            self._planners[order.prompt] = planner

    async def _plan_all(self, *, prompt: bool) -> None:
        while orders := {key: one for key, one in self._orders.items() if one.prompt == prompt}:
            key = min(orders, key=lambda k: (not k[1], not orders[k].hasty, is_variant(k[0]), k[0]))
            order = self._orders.pop(key)
            if not prompt:
                self._searching = order
            try:
                answer = await self._loop.run_in_executor(self._planning, self._doors.planwork.compute, order)
            except Unavailable as error:
                if key in self._orders or any(_gives_way(order, one) for one in self._orders.values()):
                    # It is made again, unless a newer order has replaced it. This one stays given up.
                    self._orders.setdefault(key, replace(order))
                    continue
                answer = events.PlanFailed(order.key, str(error), "Unavailable", final=False)
            finally:
                if not prompt:
                    self._searching = None
            _tell(order, answer)
            self.post(answer)


def _gives_way(searching: events.ComputePlan, order: events.ComputePlan) -> bool:
    """Whether a search is given up for the order, and made again later unless the order replaces it. A deployment waits for
    urgent plans, and devices or requests for quick comparisons; nothing waits for other searches."""
    if order.prompt or searching.urgent:
        return False
    return order.urgent or (order.hasty and not searching.quick)


def news_of(before: tuple[events.Member, ...], now: tuple[events.Member, ...]) -> Iterator[str]:
    """Yield a sentence for each member that came, is gone or has another status."""
    known = {(member.node, member.boot): member for member in before}
    there = {(member.node, member.boot): member for member in now}
    yield from (f"{known[key].name} is gone" for key in known if key not in there)
    for key, member in there.items():
        if key not in known or known[key].status != member.status:
            yield f"{member.name} is {member.status}"


def _tell(order: events.ComputePlan, answer: events.PlanComputed | events.PlanFailed) -> None:
    name = order.key.deployment
    on = ", ".join(device for _, device, _ in order.key.devices)
    if isinstance(answer, events.PlanFailed):
        log.warning("no plan for %s on %s: %s", name, on, answer.error)
        return
    now = f"now {answer.current_latency_s:.4f} s" if order.current else "not served now"
    log.info("a plan for %s on %s: %.4f s (%s)", name, on, answer.latency_s, now)
