"""The service: runs one agent, from its start to an orderly end; wiring/ makes its parts. Door: everything.

Start: state files, the probe, links, cluster logic, HTTP, gRPC, then READY, and discovery. Stop: the agent announces
that it leaves, and serves until others have taken over (shutdown.py). Then it takes no new requests, says
goodbye to the members (they count it as left, not as failed), and ends links and sessions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from edgepart.agent.admission.renewal import REVOKED
from edgepart.agent.chronicle.log_lines import LogKeeper, LogLine
from edgepart.agent.chronicle.numbered_log import NumberedLog
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.membership.roster import replace_node_ids
from edgepart.agent.cluster.state import events
from edgepart.agent.cluster.state.cards import MeasuredDevice, parse_card
from edgepart.agent.engines.installed import installed_runtime
from edgepart.agent.engines.verdicts import VerdictBook
from edgepart.agent.host.core_sets import allowed_cpus, confine, read_topology, sets_to_try
from edgepart.agent.host.jobs import Begin, repeat
from edgepart.agent.host.log_rate import LogRate
from edgepart.agent.host.process_memory import give_back_all, keep_within, share_heaps, within
from edgepart.agent.host.system import cores, have_temporary_folder, resident_bytes
from edgepart.agent.host.systemd import Notifier, Watchdog
from edgepart.agent.measure.card import CardMeasurement
from edgepart.agent.measure.engine_probe_process import MOST_TRIAL_S, measure_engines
from edgepart.agent.measure.probe_process import measure_device
from edgepart.agent.measure.remeasuring import Remeasurement
from edgepart.agent.measure.thread_probe import find_quickest
from edgepart.agent.net.endpoints import bind, own_addresses, parse_addresses, reachable_text
from edgepart.agent.options import AgentOptions, parse_cpus
from edgepart.agent.replication.throttle import UNKNOWN_BYTES_S, ServingWatch
from edgepart.agent.rpc_server import RpcServer
from edgepart.agent.security.identity import Identity, load
from edgepart.agent.serving.continued_sequences import watch_sequences
from edgepart.agent.shutdown import Withdrawal
from edgepart.agent.state_files import StateFiles
from edgepart.agent.storage.integrity import StoreIntegrity
from edgepart.agent.storage.store import Store
from edgepart.agent.storage.write_queue import DiskQueue
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.verify.rounding_error import RoundingComparison, ServingPlan
from edgepart.agent.wire.address import Address
from edgepart.agent.wire.control import LEFT, REMOVED, Drain
from edgepart.agent.wire.frames import Frame
from edgepart.agent.wire.queries import ONE_WAY
from edgepart.agent.wire.versions import understands
from edgepart.agent.wiring.base import AgentBase
from edgepart.agent.wiring.computation import make_compute
from edgepart.agent.wiring.links import make_links
from edgepart.agent.wiring.logic import make_logic
from edgepart.planner.devices.cluster import Device
from edgepart.planner.errors import FrameError, Removed

log = logging.getLogger(__name__)

LOOK_S = 0.02
"""The interval at which a stopping agent checks whether others have taken over."""
STRAGGLING_S = 2.0
"""How long threads that still work after everything else has ended may delay the end of the process."""
UNWATCHED_S = 60.0
"""The interval within which the agent has to make progress if systemd sets none."""


class Agent:
    """One device's agent. `start` and `stop` belong to the event loop."""

    def __init__(self, options: AgentOptions, log_lines: NumberedLog[LogLine]) -> None:
        """Claim the state directory; call `stop` in the end. `log_lines` are the last lines of this process's log.
        Raises UsageError if the directory is in no cluster yet, is damaged, or is in use by another agent."""
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._base = self._claim(options, log_lines)
        self.discharged: asyncio.Future[str] = self._loop.create_future()
        """Gets the reason as its result when this device is removed from the cluster; the agent has to stop
        then."""
        self._notify = Notifier.from_environment()
        self._serving = ServingWatch()
        self._members: tuple[events.Member, ...] = ()
        self._names: dict[str, str] = {}
        """The names of members by node id, including members that are gone."""
        self._wired = threading.Event()
        """Set when the parts are connected. Until then the transport's threads wait with frames and news of
        links."""

    def _claim(self, options: AgentOptions, log_lines: NumberedLog[LogLine]) -> AgentBase:
        """Lock the state folder for this agent alone, and open what is in it."""
        identity = load(options.state)
        files = StateFiles(options.state)
        lock = files.lock()  # before the store, which deletes files that another running agent may write
        drains = files.drains()
        if (why := _removal(identity, drains)) is not None:
            os.close(lock)
            raise Removed(
                f"{why}. To have it in again, delete {identity.directory} and join with a new token"
            )
        files.take_ballast()
        store = Store(options.state / "store")
        integrity = StoreIntegrity(store, files.damaged.append)
        integrity.look()
        name = options.name or socket.gethostname().partition(".")[0]
        ending = AsyncExitStack()
        ending.callback(os.close, lock)
        disk = DiskQueue(self._loop)
        base = AgentBase(
            options, name, identity, files, drains, store, integrity, disk, Recorder(), ending, log_lines
        )
        base.undo(disk.stop)
        return base

    async def start(self) -> None:
        """Start the agent; return when it serves links, HTTP and gRPC, and its jobs have begun. Raises UsageError, or
        Unavailable if an address cannot be used."""
        base, options = self._base, self._options
        self._notify.status("measuring this device")
        made_with = installed_runtime()
        threads = await asyncio.to_thread(choose_threads, options, made_with)
        kept = options.device_measured
        device = await asyncio.to_thread(measure_device, base.name, threads, kept, made_with)
        engines = await asyncio.to_thread(
            measure_engines,
            device,
            options.providers,
            options.engines_measured,
            made_with,
            lambda: self._notify.starting_still(2 * MOST_TRIAL_S),
        )
        device = replace(device, engines=engines.engines)
        self._links = make_links(base, self)
        base.ending.callback(self._wired.set)  # also if the start fails before the parts are connected
        self._compute = make_compute(base, self._links, self, threads, device, made_with)
        listener = bind(options.http)
        base.ending.callback(listener.close)
        listen = self._links.transport.listen(*options.listen)
        self._logic = make_logic(base, self._links, self._compute, self, listen, listener)
        clients = self._logic.clients
        self._connect(within(device, options.memory_limit_bytes, resident_bytes()), engines.left_out)
        self._remeasurement = Remeasurement(device, kept, made_with, self._is_quiet, self._device_measured)
        base.ending.callback(self._leave)
        self._logic.driver.start()
        base.ending.push_async_callback(clients.http.stop)
        await clients.http.start()
        base.ending.push_async_callback(clients.grpc.close)
        await clients.grpc.open()
        self._tell_doors()
        where, http, grpc = reachable_text(listen), clients.http.url, clients.grpc.address
        base.ending.callback(base.files.withdraw)
        announce = lambda: base.files.announce(base.name, where, http, grpc)  # noqa: E731
        await base.disk.write("addresses", announce)
        self._notify.ready()
        places = ", ".join((where, http, f"gRPC {grpc}" if grpc else "no gRPC"))
        log.info("agent %s (%s) listens on %s", base.name, base.identity.node_id, places)
        self._begin(listen)

    def _connect(self, device: Device, left_out: Mapping[str, str]) -> None:
        """Connect the parts, so that incoming frames and questions reach the parts that handle them. `left_out` says of
        engines why they are not used."""
        links, compute, post = self._links, self._compute, self.post
        node = self._base.identity.node_id
        self._measuring = CardMeasurement(
            node,
            device,
            links.echoes,
            links.asks,
            self._card_ready,
            self._measurement_of,
            self._starved_members,
            self._echoes_one_way,
            self._base.files.card(),
        )
        self._measuring.engines_judged(left_out, compute.verdicts)
        rpc_server = RpcServer(
            links.post,
            compute.serving,
            self._measuring,
            self._logic.clients.tracing,
            links.renewal,
            links.drain_signer,
        )
        links.post.connect(
            compute.plans,
            links.echoes,
            post,
            rpc_server.asked,
            links.asks.answered,
            links.clocks.came,
            links.renewal.came,
        )
        self._wired.set()

    def _tell_doors(self) -> None:
        """Tell the members where clients of other machines reach this agent's gRPC server."""
        bound = self._logic.clients.grpc.bound
        self.post(events.DoorsOpened("" if bound is None else own_addresses(bound)[0]))

    def _hear_hint(self, event: events.Event) -> None:
        self.post(event)
        if isinstance(event, events.AddressesChanged):
            self._tell_doors()

    def _begin(self, listen: Address) -> None:
        """Begin all jobs that last as long as the agent runs."""
        base, links, compute, maintenance = self._base, self._links, self._compute, self._logic.maintenance
        saved, http_address = base.files.members(), self._logic.http_address
        for what, work in links.hint_collector.start(base.name, listen, saved, http_address, self._hear_hint):
            self._keep_doing(what, work)
        self._keep_doing("keeping charter and certificate", links.renewal.run)
        self._keep_doing("measuring", self._measuring.run)
        self._keep_doing("timing", self._time_segments)
        self._keep_doing("measuring this device again", self._remeasurement.run)
        continued = compute.executor.continued_sequences
        self._keep_doing("telling of sequences", lambda: watch_sequences(continued, self.post))
        comparison = RoundingComparison(compute.requester.run, self.post)
        self._keep_doing("comparing rounded answers", lambda: comparison.watch(self._led_plans))
        self._keep_doing("deleting what nothing uses", maintenance.collect_garbage)
        self._keep_doing("watching the disk", maintenance.watch_disk)
        self._keep_doing("looking for damage", maintenance.scrub)
        if (limit := self._options.memory_limit_bytes) is not None:
            state, workers = self._options.state, compute.workers
            self._keep_doing("keeping to the memory limit", lambda: keep_within(limit, state, workers))
        self._keep_doing("feeding the watchdog", lambda: self._notify.feed(self._is_progressing))

    def _time_segments(self) -> Coroutine[Any, Any, None]:
        compute = self._compute
        return compute.timing.watch(
            compute.plans.programs,
            lambda: compute.executor.counters().segments,
            compute.requester.alone,
            self._starved_members,
        )

    def _keep_doing(self, what: str, begin: Begin) -> None:
        """Run a job until the agent stops. If it fails before, that is logged at once and the job is started
        again."""
        task = asyncio.create_task(repeat(what, begin), name=what)
        self._base.ending.push_async_callback(_cancel_and_wait, task)

    # What the parts tell (Reactions of wiring/base.py)

    def frame(self, node: str, channel: str, frame: Frame) -> None:
        """Take a frame; called in the transport's threads."""
        self._wired.wait()
        self._links.post.take(node, channel, frame)

    def link(self, node: str, up: bool, text: str) -> None:
        """Take the news that a link came up or was lost; called in the transport's threads."""
        self._wired.wait()
        self._links.hint_collector.linked(node, up, text)
        if up:
            self._compute.remember(node)
            event: events.Event = events.LinkUp(node, text)
        else:
            self._forget(node)
            event = events.LinkDown(node, text)
        self._loop.call_soon_threadsafe(self.post, event)

    def _forget(self, node: str) -> None:
        """Tell all parts that wait for a node that no answer will come. Any thread may call this.

        This is the only place that does so. It does not wait in the event loop until the core has handled
        LinkDown, so that requests are started again at once even while the event loop is busy."""
        self._compute.forget(node)
        self._links.echoes.lost(node)
        self._loop.call_soon_threadsafe(self._links.asks.lost, node)

    def post(self, event: events.Event) -> None:
        """Give an event to the core; called in the event loop's thread."""
        self._logic.driver.post(event)

    def core(self) -> Core:
        return self._logic.driver.core

    def model_crashed(self, deployment: str, model: str, why: str) -> None:
        """Report that a model ends the processes that compute it. Any thread may call this."""
        event = events.ModelCrashed(deployment, model, why)
        self._loop.call_soon_threadsafe(lambda: self.post(event))

    def engine_judged(self, verdicts: VerdictBook) -> None:
        """Keep and tell what was found of an engine. Any thread may call this."""

        def take() -> None:
            self._base.disk.put("verdicts", lambda: self._base.files.keep_verdicts(verdicts.all()))
            self._measuring.engines_judged(None, verdicts)

        self._loop.call_soon_threadsafe(take)

    def members_changed(self, members: tuple[events.Member, ...]) -> None:
        me = self._base.identity.node_id
        others = {member.node for member in members} - {me}
        for node in {member.node for member in self._members} - others - {me}:
            self._forget(node)  # Its link may still be up although it is silent.
        joined = others - {member.node for member in self._members}
        # Where nothing serves yet, planning has begun, or the plan that served before takes no search.
        if joined and self._led_plans():
            self._logic.driver.expect_plan()  # While they measure their links.
        self._members = members
        self._names = self._names | {member.node: member.name for member in members}
        self._links.hint_collector.members(members)
        self._measuring.members(others)
        self._links.renewal.members(members)
        self._notify.status(f"{len(members)} members: {', '.join(m.name for m in members)}")
        remembered = self._links.hint_collector.addresses_to_keep(self._is_gone)
        self._base.disk.put("members", lambda: self._base.files.keep_members(remembered))
        if urls := [member.http for member in members if member.node != me and member.http]:
            self._base.disk.put("urls", lambda: self._base.files.keep_urls(urls))  # Those known last stay.

    def discharge(self, why: str) -> None:
        """Have the agent stop, because this device was removed from the cluster."""
        if not self.discharged.done():
            log.error("%s: this agent stops", why)
            self.discharged.set_result(why)

    def addresses(self) -> list[Address]:
        """The addresses at which the members listen, this device included. Any thread may call this."""
        return [each for member in self._members for each in parse_addresses(member.listen)]

    def link_bytes_s(self, node: str) -> float:
        """The rate of the link to a member, in bytes per second: the lowest of the rates, of both directions, that the two
        ends measured, or UNKNOWN_BYTES_S if neither did. Any thread may call this."""
        me = self._base.identity.node_id
        cards = (self._measurement_of(me), node), (self._measurement_of(node), me)
        rates = [rate for card, other in cards if card and other in card.links for rate in card.rates(other)]
        return min(rates, default=UNKNOWN_BYTES_S)

    def _card_ready(self, event: events.CardReady) -> None:
        """Take this device's new card, and keep it for the next start."""
        self._base.disk.put("card", lambda: self._base.files.keep_card(event.document))
        self.post(event)

    def _is_quiet(self) -> bool:
        """Whether this device has computed nothing since it was last asked."""
        executor, now = self._compute.executor, self._loop.time()
        done, waiting = executor.counters().requests_done, executor.count_waiting()[0]
        return not self._serving.look(done, waiting, now)

    def _device_measured(self, device: Device) -> None:
        """Take what this device was found to do now."""
        self._measuring.device_measured(device)
        self._compute.timing.device = device

    # What is known of the members

    def _echoes_one_way(self, node: str) -> bool:
        """Whether a member answers echoes whose payload goes one way only."""
        return any(member.node == node and understands(member.version, ONE_WAY) for member in self._members)

    def with_names(self, record: logging.LogRecord) -> bool:
        """Replace node ids in a log record by the names of members, for people; a filter of log handlers. Any
        thread may call this."""
        record.msg, record.args = replace_node_ids(record.getMessage(), self._names), None
        return True

    def _is_gone(self, node: str) -> bool:
        """Whether a member left on purpose, or was removed."""
        core = self.core()
        seen = core.membership.peers.get(node)
        return core.draining.is_removed(node) or (seen is not None and seen.status == LEFT)

    def _measurement_of(self, node: str) -> MeasuredDevice | None:
        card = self.core().cards.get(node)
        try:
            return parse_card(card.document) if card else None
        except FrameError as error:
            log.warning("what %s measured is not used: %s", node, error)
            return None

    def _starved_members(self) -> set[str]:
        """The members, perhaps this device too, whose measurements do not count now because they said that
        they are starved."""
        core, now = self.core(), self._loop.time()
        said = {
            node: core.membership.starvation_of(node, now) for node in (core.node, *core.membership.alive())
        }
        return {node for node, starved in said.items() if starved.share and not starved.lasting}

    def _led_plans(self) -> list[ServingPlan]:
        """The deployments and their serving plans if this device leads; else none."""
        core = self.core()
        names = [entry.name for entry in core.deployments.in_use()] if core.leader == core.node else []
        found = [(name, self._compute.plans.active(name)) for name in names]
        return [(name, active[0], active[1].plan) for name, active in found if active is not None]

    def _is_progressing(self) -> bool:
        """Whether the event loop turns and the compute threads are alive, so that the watchdog may be fed."""
        watchdog = Watchdog(self._notify.watchdog_s or UNWATCHED_S)
        ticked_at, computes = self._logic.driver.ticked_at, self._compute.executor.computes
        return watchdog.should_ping(self._loop.time(), ticked_at, computes)

    # The end

    def _leave(self) -> None:
        """Say goodbye, so that the other members count this device as left and replan at once."""
        self.post(events.LeaveRequested())
        self._logic.driver.stop()

    async def withdraw(self, at_once: asyncio.Event) -> None:
        """Go on serving until others have taken over, the time for that is over, or `at_once` is set."""
        self._notify.status("leaving as soon as others have taken over")
        self.post(events.LeaveAnnounced())
        withdrawal, core = Withdrawal(self._loop.time()), self.core()
        while not at_once.is_set() and not withdrawal.may_go(
            self._loop.time(), needed=core.needed, busy=self._compute.executor.count_waiting()[0] > 0
        ):
            await asyncio.sleep(LOOK_S)
        if core.needed:
            log.warning("leaving, though plans that serve need this device")

    async def stop(self) -> None:
        """Undo the start, even if it failed half-way."""
        self._notify.stopping()
        await self._base.ending.aclose()


def choose_threads(options: AgentOptions, made_with: str = "") -> int:
    """The number of threads to compute with by the software `made_with`. This process, and those that it starts, are
    confined to the cores that the user gave, or that are quickest. Raises UsageError if the user's are not there."""
    if options.cpus is not None:
        confine(parse_cpus(options.cpus))
    allowed = allowed_cpus()
    if options.threads is not None or not allowed:
        return options.threads or cores()
    tried = sets_to_try(read_topology(allowed), options.leave_cores)
    chosen = find_quickest(tried, options.cores_measured, made_with)
    if chosen.cpus < allowed:
        log.info("computing on %s (%s): that is quicker than on all", chosen.what, sorted(chosen.cpus))
        confine(chosen.cpus)
    return chosen.threads


def _removal(identity: Identity, drains: Sequence[Drain]) -> str | None:
    """Why this device may not be in its cluster; None if it may."""
    if any(drain.node == identity.node_id and drain.state == REMOVED for drain in drains):
        return "this device was removed from its cluster"
    return REVOKED if identity.node_id in identity.revoked_nodes() else None


async def _cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end, so that its last messages are sent when this returns."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def serve(options: AgentOptions, started: Callable[[], None]) -> str:
    """Run an agent until SIGTERM or SIGINT, and then until others have taken over; a second signal ends that
    wait. `started` is called once the agent serves. Return why this device was removed from its cluster if that ended the
    agent, else ""."""
    loop = asyncio.get_running_loop()
    stop, at_once = asyncio.Event(), asyncio.Event()

    def told() -> None:
        (at_once if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    keeper = LogKeeper()
    keeper.addFilter(LogRate(time.monotonic))
    logging.getLogger().addHandler(keeper)
    agent = Agent(options, keeper.lines)
    for handler in logging.getLogger().handlers:
        handler.addFilter(agent.with_names)
    agent.discharged.add_done_callback(lambda _: stop.set())
    try:
        await agent.start()
        started()
        await asyncio.to_thread(give_back_all)
        await stop.wait()
        await agent.withdraw(at_once)
    finally:
        await agent.stop()
        logging.getLogger().removeHandler(keeper)
    return agent.discharged.result() if agent.discharged.done() else ""


def run(options: AgentOptions, started: Callable[[], None]) -> None:
    """Run an agent until it stops, for `edgepart agent`. `started` is called once the agent serves. Raises Removed if this
    device was removed from its cluster."""
    share_heaps()
    have_temporary_folder(options.state)
    with asyncio.Runner() as runner:
        why = runner.run(serve(options, started))
        # All is said and on disk. A thread that still loads or computes cannot be stopped, and need not be waited for.
        leaving = threading.Timer(STRAGGLING_S, os._exit, [Removed.exit_status if why else 0])
        leaving.daemon = True
        leaving.start()
    if why:
        raise Removed(
            f"{why}; this agent has stopped for good. To have this device in again, join with a new token"
        )
