"""Service: one agent, wired together; starts, runs until told to stop, and leaves in order. Door: everything.

Start: state files, probe, links, cluster logic, HTTP, discovery, then READY. Stop: it says that it leaves and serves until
others have taken over (shutdown.py); then no new requests, goodbye to the members (they count us as left, not as failed),
links, sessions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from edgepart import __version__
from edgepart.agent.admission.joining import Doorkeeper
from edgepart.agent.admission.renewal import REVOKED, Warden
from edgepart.agent.admission.signed_drains import Seals
from edgepart.agent.api.node import NodeApi
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.membership.membership import Facts
from edgepart.agent.cluster.membership.roster import named
from edgepart.agent.cluster.state import events
from edgepart.agent.cluster.state.cards import MeasuredDevice, fault, read
from edgepart.agent.cluster.state.drift import DriftBook
from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.discovery.hints import Lookout
from edgepart.agent.doctor.report import Doctor
from edgepart.agent.driver import Doors, Shell
from edgepart.agent.execution.compile.cache import Compiled
from edgepart.agent.execution.executor import Executor
from edgepart.agent.host.jobs import Begin, repeat
from edgepart.agent.host.process_memory import keep_within, share_heaps, within
from edgepart.agent.host.system import cores, have_temporary_folder, memory, resident_bytes
from edgepart.agent.host.systemd import Notifier, Watchdog
from edgepart.agent.http.bodies import BodyLimits
from edgepart.agent.http.server import HttpServer
from edgepart.agent.maintenance import MaintainedState, Upkeep, disk_document
from edgepart.agent.measure.card import Measuring
from edgepart.agent.measure.clock_exchange import Clocks
from edgepart.agent.measure.cpu_wait import Starving
from edgepart.agent.measure.echoes import Echoes
from edgepart.agent.measure.probe_process import probe_apart
from edgepart.agent.measure.segment_times import SegmentTimer
from edgepart.agent.measure.trace_collector import TraceCollector, speaking
from edgepart.agent.net.dispatch import Post
from edgepart.agent.net.endpoints import bind, own_addresses, parsed, reachable_text
from edgepart.agent.net.rpc_client import Asks
from edgepart.agent.net.transport import Transport
from edgepart.agent.options import AgentOptions
from edgepart.agent.planwork import model_process
from edgepart.agent.planwork.model_process import Aside
from edgepart.agent.planwork.plan_process import Planwork
from edgepart.agent.replication.blobs import Fetching, Load, Serving
from edgepart.agent.replication.throttle import UNKNOWN_BYTES_S, Business
from edgepart.agent.rpc_server import Answering
from edgepart.agent.security.charter import CHARTERS, ISSUER
from edgepart.agent.security.identity import Identity, load
from edgepart.agent.serving.loaded_plans import Plans
from edgepart.agent.serving.requester import Requester
from edgepart.agent.serving.shape_routing import Router
from edgepart.agent.shutdown import Withdrawal
from edgepart.agent.state_files import StateFiles
from edgepart.agent.storage.integrity import Soundness
from edgepart.agent.storage.store import Source, Store
from edgepart.agent.storage.write_queue import DiskQueue
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.verify.reference_process import Referee
from edgepart.agent.verify.rounding_error import Active, Comparison
from edgepart.agent.verify.tryout import Tryout
from edgepart.agent.wire.address import Address
from edgepart.agent.wire.control import DRAINS, LEAVES, LEFT, REMOVED, STARVES
from edgepart.agent.wire.frames import Frame
from edgepart.agent.workers.orders import WorkerSettings
from edgepart.agent.workers.supervisor import Workers
from edgepart.planner.devices.cluster import Device
from edgepart.planner.errors import FrameError, Removed

log = logging.getLogger(__name__)

REST = 2.0
"""Times as long as it worked on a plan to come a device rests where requests are computed. More slows those down less, and
brings plans later."""
LOOK_S = 0.02
"""Between two looks at whether others have taken over."""
STRAGGLING_S = 2.0
"""How long threads that are still at work when all else has ended hold up the process."""
SHARED_BYTES = 64 << 30
"""That values of one deployment may take, where the machine does not say what it has: only what is used is taken."""
UNWATCHED_S = 60.0
"""The watchdog's interval where there is none."""


class Agent:
    """One device's agent. `start` and `stop` belong to the event loop."""

    def __init__(self, options: AgentOptions) -> None:
        """UsageError where the state directory is in no cluster yet, damaged, or another agent's; `stop` is due."""
        self._options = options
        self.identity: Identity = load(options.state)
        self._files = StateFiles(options.state)
        lock = self._files.lock()  # before the store, which sweeps away what no running agent can be writing
        self._drains = self._files.drains()
        if any(d.node == self.identity.node_id and d.state == REMOVED for d in self._drains):
            os.close(lock)
            raise Removed(
                f"this device was removed from its cluster. To have it in again, delete {self.identity.directory} and "
                "join with a new token"
            )
        if self.identity.node_id in self.identity.revoked():
            os.close(lock)
            raise Removed(
                f"{REVOKED}. To have it in again, delete {self.identity.directory} and join with a new token"
            )
        self._files.take_ballast()
        self._store = Store(options.state / "store")
        self._soundness = Soundness(self._store, self._files.damaged.append)
        self._soundness.look()
        self.discharged: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the reason, when this device was removed from the cluster: the agent has to stop then."""
        self._notify = Notifier.from_environment()
        self._name = options.name or socket.gethostname().partition(".")[0]
        self._members: tuple[events.Member, ...] = ()
        self._names: dict[str, str] = {}
        """By node id, what members are called, and what those were that are gone."""
        self._loop = asyncio.get_running_loop()
        self._ending = AsyncExitStack()
        """How to undo what was started, last first."""
        self._ending.callback(os.close, lock)
        self._disk = DiskQueue(self._loop)
        self._ending.push_async_callback(asyncio.to_thread, self._disk.stop)
        self._recorder = Recorder()
        self._wired = threading.Event()
        """Until it is set nobody is there to take frames and news of links; the transport's threads wait."""

    async def start(self) -> None:
        """Returns when links and HTTP are served. UsageError, Unavailable where an address cannot be had."""
        self._notify.status("measuring this device")
        threads = self._options.threads or cores()
        device = await asyncio.to_thread(probe_apart, self._name, threads)
        self._make_data_plane(threads, device)
        listener = bind(self._options.http)
        self._ending.callback(listener.close)
        listen = self._transport.listen(*self._options.listen)
        self._make_logic(listen, listener)
        node, post = self.identity.node_id, self._shell.post
        device = within(device, self._options.memory_limit_bytes, resident_bytes())
        self._measuring = Measuring(
            node, device, self._echoes, self._asks, post, self._measured_by, self._starved
        )
        self._answering = Answering(
            self._post, self._serving, self._measuring, self._tracing, self._warden, self._seals
        )
        self._post.connect(
            self._plans,
            self._echoes,
            self._shell.post,
            self._answering.asked,
            self._asks.answered,
            self._clocks.came,
            self._warden.came,
        )
        self._wired.set()
        self._ending.callback(self._leave)
        self._shell.start()
        self._ending.push_async_callback(self._http.stop)
        await self._http.start()
        for what, work in self._lookout.start(
            self._name, listen, self._files.members(), self._http_address, self._shell.post
        ):
            self._keep_doing(what, work)
        self._keep_doing("keeping charter and certificate", self._warden.run)
        self._keep_doing("measuring", self._measuring.run)
        self._keep_doing(
            "timing",
            lambda: self._timing.watch(
                self._plans.programs,
                lambda: self._executor.counters().segments,
                self._requester.alone,
                self._starved,
            ),
        )
        comparison = Comparison(self._requester.run, self._shell.post)
        self._keep_doing("comparing rounded answers", lambda: comparison.watch(self._led))
        self._keep_doing("deleting what nothing uses", self._upkeep.collect_garbage)
        self._keep_doing("watching the disk", self._upkeep.watch_disk)
        self._keep_doing("looking for damage", self._upkeep.scrub)
        if (limit := self._options.memory_limit_bytes) is not None:
            self._keep_doing(
                "keeping to the memory limit", lambda: keep_within(limit, self._options.state, self._workers)
            )
        self._keep_doing("feeding the watchdog", lambda: self._notify.feed(self._progressing))
        where = reachable_text(listen)
        self._ending.callback(self._files.withdraw)
        announce = lambda: self._files.announce(self._name, where, self._http.url)  # noqa: E731
        await self._disk.written("addresses", announce)
        self._notify.ready()
        log.info("agent %s (%s) listens on %s, %s", self._name, self.identity.node_id, where, self._http.url)

    def _make_data_plane(self, threads: int, device: Device) -> None:
        node = self.identity.node_id
        doorkeeper = Doorkeeper(self.identity, self._addresses, self._addresses)
        self._lookout = Lookout(self._options, self.identity)
        self._ending.push_async_callback(asyncio.to_thread, self._lookout.stop)
        self._transport = Transport(
            self.identity,
            self._frame,
            self._link,
            doorkeeper,
            recorder=self._recorder,
            carrier=self._lookout.carrier,
            witness=self._lookout,
        )
        self._ending.push_async_callback(asyncio.to_thread, self._transport.stop)
        self._ending.callback(self._wired.set)  # also where the start fails before that
        self._post = Post(node, self._transport.send)
        self._asks = Asks(self._post.data)
        self._clocks = Clocks(self._post.control)
        self._warden = Warden(self.identity, self._transport, self._post.control, self._asks.ask)
        self._seals = Seals(self.identity, self._asks.ask, lambda: self._shell.core)
        self._warden.put_out = self._discharge
        self._lookout.revoked = lambda: self._warden.revoked
        self._echoes = Echoes(self._post.arrays)
        self._ending.push_async_callback(asyncio.to_thread, self._echoes.stop)
        self._aside = Aside()
        self._ending.push_async_callback(asyncio.to_thread, self._aside.stop)

        def cut(wanted: Sequence[tuple[str, Source]]) -> None:
            self._aside.do(model_process.cut, self._store.root, wanted)

        self._executor = Executor(self._post.values, recorder=self._recorder)
        business = Business()

        def busy() -> bool:
            executor = self._executor
            return business.look(executor.counters().requests_done, executor.waiting()[0], time.monotonic())

        load = Load(busy, self._link_bytes_s)
        self._serving = Serving(self._store, self._post.data, cut, load)
        self._ending.callback(self._serving.stop)
        self._fetching = Fetching(
            self._store,
            self._asks,
            cut,
            load=load,
            soundness=self._soundness,
            free_bytes=lambda: self._files.free_bytes,
        )
        self._requester = Requester(node, self._post.values, recorder=self._recorder)
        compiled = Compiled(self._options.state / "compiled", self._options.compiled_bytes)
        compiled.make_room()  # which an earlier life may have left to us
        limit = self._options.memory_limit_bytes
        self._workers = Workers(
            WorkerSettings(self._store.root, compiled.root, self._options.compiled_bytes, threads, limit),
            limit or memory()[1] or SHARED_BYTES,
            self._rest,
            self._model_crashed,
        )
        self._ending.push_async_callback(asyncio.to_thread, self._workers.stop)
        self._referee = Referee(self._store.root)
        self._ending.push_async_callback(asyncio.to_thread, self._referee.stop)
        self._plans = Plans(
            node,
            self._workers,
            self._executor,
            self._requester,
            self._fetching.weights,
            self._fetching.constants,
            lambda event: self._shell.post(event),
            lambda name, prepared: self._timing.time(name, prepared),
        )
        self._starving = Starving(self._workers.processes, lambda event: self._shell.post(event))
        self._profiles = ProfileBook(self._files.profiles())
        self._drifts = DriftBook()
        self._timing = SegmentTimer(
            node,
            device,
            self._options.profile_budget_s,
            self._profiles,
            self._drifts,
            lambda event: self._shell.post(event),
            self._rest,
            self._starving,
        )
        self._executor.start()
        self._ending.push_async_callback(asyncio.to_thread, self._executor.stop)

    def _room_bytes(self) -> int:
        """Memory that one more process may take here for a moment."""
        free, limit = memory()[0] // 2, self._options.memory_limit_bytes
        return free if limit is None else min(free, limit - resident_bytes() - self._workers.own_bytes())

    def _rest(self, took_s: float) -> None:
        """After some of the work on a plan that is to come: requests that are computed here meanwhile get their share."""
        if self._executor.waiting()[0]:
            time.sleep(REST * took_s)

    def _make_logic(self, listen: Address, listener: socket.socket) -> None:
        node, files = self.identity.node_id, self._files
        files.keep(incarnation=files.incarnation + 1)
        http: Address = listener.getsockname()[:2]
        self._http_address: Callable[[], str] = lambda: f"http://{own_addresses(http)[0]}"
        facts = Facts(
            node=node,
            name=self._name,
            boot=self._transport.boot,
            incarnation=files.incarnation,
            listen=own_addresses(listen),
            http=self._http_address(),
            version=".".join(
                (
                    speaking(__version__),
                    LEAVES,
                    DRAINS,
                    CHARTERS,
                    STARVES,
                    *([ISSUER] if self.identity.is_issuer else []),
                )
            ),
        )
        core = Core(
            facts,
            self._loop.time(),
            term=files.term,
            deployments=files.deployments(),
            models=self._store.models(),
            profiles=self._profiles,
            drifts=self._drifts,
            drains=self._drains,
            spares=self._options.spares,
            card_fault=fault,
            genuine=self._seals.genuine,
            tries=True,
        )
        router = Router(core, self._requester, lambda event: self._shell.post(event))
        self._ending.callback(router.stop)
        self._tracing = TraceCollector(
            node, self._recorder, self._asks, self._clocks, core.membership.members, core.follower.serving
        )
        self._face = NodeApi(
            self._name,
            self.identity.fingerprint,
            core,
            self._plans,
            router,
            self._store,
            lambda event: self._shell.post(event),
            lambda: self._http.url,
            self._requester.latencies,
            lambda path, shapes: self._aside.do(model_process.examine, path, shapes),
            lambda: self._executor.counters().requests_done,
            self._tracing,
            Doctor(
                self._name,
                self.identity.fingerprint,
                self._options,
                listen,
                core,
                self._plans,
                self._lookout,
                self._warden.warnings,
            ),
            self._warden.document,
            self._seals.sealed,
            lambda: disk_document(self._files, self._disk),
            self._disk.caught_up,
            self._workers.deaths,
        )
        self._http = HttpServer(
            self._face,
            lambda: self._warden.credential,
            listener=listener,
            spool=self._store.root / "partial",
            recorder=self._recorder,
            limits=BodyLimits(
                client_rate=self._options.client_rate, client_burst=2 * self._options.client_rate
            ),
            inference=self._options.inference,
        )
        planwork = Planwork(self._store.root, node)
        self._shell = Shell(
            core,
            Doors(
                self._transport,
                self._post,
                self._plans,
                planwork,
                self._fetching,
                self._store,
                files,
                self._disk,
                self._members_changed,
                self._face.standing_changed,
                self._discharge,
                Tryout(self._requester, self._plans.held, self._referee, self._room_bytes),
            ),
        )
        self._upkeep = Upkeep(
            MaintainedState(
                core,
                files,
                self._disk,
                self._store,
                self._soundness,
                self._plans,
                self._fetching,
                lambda: self._face.uploading,
                self._shell.post,
                self._shell.caught_up,
            )
        )

    def _keep_doing(self, what: str, begin: Begin) -> None:
        """Until the agent stops; where it fails before, the log says so at once, and it is begun again."""
        task = asyncio.create_task(repeat(what, begin), name=what)
        self._ending.push_async_callback(_ended, task)

    # What comes in

    def _frame(self, node: str, channel: str, frame: Frame) -> None:
        self._wired.wait()
        self._post.take(node, channel, frame)

    def _link(self, node: str, up: bool, text: str) -> None:
        """From the transport's thread."""
        self._wired.wait()
        self._lookout.linked(node, up, text)
        if up:
            self._requester.found(node)
            event: events.Event = events.LinkUp(node, text)
        else:
            self._executor.lost(node)
            self._requester.lost(node)
            self._echoes.lost(node)
            self._loop.call_soon_threadsafe(self._asks.lost, node)
            event = events.LinkDown(node, text)
        self._loop.call_soon_threadsafe(self._shell.post, event)

    def _model_crashed(self, deployment: str, model: str, why: str) -> None:
        """A model ends the processes that compute it. Any thread."""
        event = events.ModelCrashed(deployment, model, why)
        self._loop.call_soon_threadsafe(lambda: self._shell.post(event))

    def _members_changed(self, members: tuple[events.Member, ...]) -> None:
        others = {member.node for member in members} - {self.identity.node_id}
        for node in {member.node for member in self._members} - others - {self.identity.node_id}:
            # Silent, not closed: the link may still be up, and what was sent over it is not coming back.
            self._executor.lost(node)
            self._requester.lost(node)
        self._members = members
        self._names = self._names | {member.node: member.name for member in members}
        self._lookout.members(members)
        self._measuring.members(others)
        self._warden.members(members)
        self._notify.status(f"{len(members)} members: {', '.join(m.name for m in members)}")
        remembered = self._lookout.remembered(self._is_gone)
        self._disk.put("members", lambda: self._files.keep_members(remembered))

    def with_names(self, record: logging.LogRecord) -> bool:
        """A filter of the log, which people read: members are called by their names, not by their ids. Any thread."""
        record.msg, record.args = named(record.getMessage(), self._names), None
        return True

    def _is_gone(self, node: str) -> bool:
        """Whether it left on purpose, or was removed."""
        core = self._shell.core
        seen = core.membership.peers.get(node)
        return core.draining.is_removed(node) or (seen is not None and seen.status == LEFT)

    def _measured_by(self, node: str) -> MeasuredDevice | None:
        card = self._shell.core.cards.get(node)
        try:
            return read(card.document) if card else None
        except FrameError as error:
            log.warning("what %s measured is not used: %s", node, error)
            return None

    def _starved(self) -> set[str]:
        """Members, this device among them, on which nothing that is measured counts now, as far as they have said."""
        core, now = self._shell.core, self._loop.time()
        said = {node: core.membership.starved(node, now) for node in (core.node, *core.membership.alive())}
        return {node for node, starved in said.items() if starved.share and not starved.lasting}

    def _link_bytes_s(self, node: str) -> float:
        """What the link to a member carries, as either end measured it; any thread."""
        mine, theirs = self._measured_by(self.identity.node_id), self._measured_by(node)
        links = [mine and mine.links.get(node), theirs and theirs.links.get(self.identity.node_id)]
        return min((link.bytes_per_s for link in links if link), default=UNKNOWN_BYTES_S)

    def _discharge(self, why: str) -> None:
        if not self.discharged.done():
            log.error("%s: this agent stops", why)
            self.discharged.set_result(why)

    def _addresses(self) -> list[Address]:
        """Where other members listen; any thread."""
        return [each for member in self._members for each in parsed(member.listen)]

    # What goes on

    def _led(self) -> list[Active]:
        """Deployments and the plans that serve, where this device leads."""
        core = self._shell.core
        names = [entry.name for entry in core.deployments.in_use()] if core.leader == core.node else []
        found = [(name, self._plans.active(name)) for name in names]
        return [(name, active[0], active[1].plan) for name, active in found if active is not None]

    def _progressing(self) -> bool:
        """Whether the event loop gets on and the compute threads are there: what the watchdog lives on."""
        watchdog = Watchdog(self._notify.watchdog_s or UNWATCHED_S)
        return watchdog.should_ping(self._loop.time(), self._shell.ticked_at, self._executor.computes)

    def _leave(self) -> None:
        """Say goodbye: the others count this device as left, and replan at once."""
        self._shell.post(events.LeaveRequested())
        self._shell.stop()

    async def withdraw(self, at_once: asyncio.Event) -> None:
        """Go on serving until others have taken over, or it is in vain, or `at_once` is set."""
        self._notify.status("leaving as soon as others have taken over")
        self._shell.post(events.LeaveAnnounced())
        withdrawal, core = Withdrawal(self._loop.time()), self._shell.core
        while not at_once.is_set() and not withdrawal.may_go(
            self._loop.time(), needed=core.needed, busy=self._executor.waiting()[0] > 0
        ):
            await asyncio.sleep(LOOK_S)
        if core.needed:
            log.warning("leaving, though plans that serve need this device")

    async def stop(self) -> None:
        """Undo the start, also one that failed half-way."""
        self._notify.stopping()
        await self._ending.aclose()


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel and wait: what it says in parting is said when this returns."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def serve(options: AgentOptions) -> str:
    """Run until SIGTERM or SIGINT, and until others have taken over; a second one does not wait for them. Why this device
    is in its cluster no more, if that is what ended it."""
    loop = asyncio.get_running_loop()
    stop, at_once = asyncio.Event(), asyncio.Event()

    def told() -> None:
        (at_once if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    agent = Agent(options)
    for handler in logging.getLogger().handlers:
        handler.addFilter(agent.with_names)
    agent.discharged.add_done_callback(lambda _: stop.set())
    try:
        await agent.start()
        await stop.wait()
        await agent.withdraw(at_once)
    finally:
        await agent.stop()
    return agent.discharged.result() if agent.discharged.done() else ""


def run(options: AgentOptions) -> None:
    """What `edgepart agent` calls. Removed where this device was removed from its cluster."""
    share_heaps()
    have_temporary_folder(options.state)
    with asyncio.Runner() as runner:
        why = runner.run(serve(options))
        # All is said and on disk. A thread that still loads or computes cannot be stopped, and need not be waited for.
        leaving = threading.Timer(STRAGGLING_S, os._exit, [Removed.exit_status if why else 0])
        leaving.daemon = True
        leaving.start()
    if why:
        raise Removed(
            f"{why}; this agent has stopped for good. To have this device in again, join with a new token"
        )
