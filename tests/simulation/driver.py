"""A simulated box's driver, which obeys its core in order, as agent/driver.py does.

Plans are made by a formula; loading, copying and planning take virtual time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING
from zlib import crc32

from edgepart.agent.cluster.state.events import (
    ComputePlan,
    Connect,
    DeploymentsKept,
    Disconnect,
    DropPlan,
    Effect,
    LeaderChanged,
    LoadPlan,
    MemberDistrusted,
    MembersChanged,
    MessageReceived,
    ModelsStored,
    PersistDeployments,
    PersistDrains,
    PersistIncarnation,
    PersistPlan,
    PersistProfiles,
    PersistTerm,
    PlanComputed,
    PlanFailed,
    PlanLoaded,
    PlanTried,
    RemovedFromCluster,
    SendMessage,
    StandingChanged,
    StoreModel,
    SwitchOff,
    SwitchTo,
    TermKept,
    TryPlan,
)
from edgepart.agent.serving.request_state import Suspended
from edgepart.agent.wire.control import REFUSED, ControlMessage, Deployment, Prepare, Standing
from tests.simulation.network import CONTROL
from tests.simulation.trace import Broken, short

if TYPE_CHECKING:
    from tests.simulation.box import Box
    from tests.simulation.cluster import SimNet

FEW = 8
"""A message for more members than these reaches several of them at the same moment, which is faster to simulate."""
NAMED = 64
"""Maximum number of members that a trace shows by name."""
MOST_DEVICES = 4
"""Maximum number of devices of a plan."""


def obey(net: SimNet, box: Box, effects: list[Effect]) -> None:
    """Obey the effects in order, until the box dies."""
    life, here = box.life, box.node
    at, end = 0, len(effects)
    while at < end:
        effect = effects[at]
        if box.fuse >= 0:
            box.fuse -= 1
            if box.fuse < 0:
                net.crash(here)
                return
        if type(effect) is SendMessage:
            to = at + 1 if box.fuse >= 0 else _same(effects, at)
            _send(net, box, [e.node for e in effects[at:to]], effect.message)  # type: ignore[union-attr]
            at = to
        else:
            at += 1
            _obey(net, box, effect)
            if box.life != life or box.core is None:
                return
    plan_wake(net, box)


def _same(effects: list[Effect], at: int) -> int:
    """Return the end of the run of effects that send the same message."""
    effect, end = effects[at], len(effects)
    assert type(effect) is SendMessage
    message = effect.message
    while at < end and type(other := effects[at]) is SendMessage and other.message is message:
        at += 1
    return at


def _send(net: SimNet, box: Box, nodes: list[str], message: ControlMessage) -> None:
    if net.trace.show is not None:
        for node in nodes:
            net.trace.message(net.now, box.node, node, message)
    event = MessageReceived(box.node, message)
    if len(nodes) > FEW:
        net.network.spread(box.node, [net.boxes[node] for node in nodes], net.arrive_all, event)
        return
    for node in nodes:
        other = net.boxes[node]
        net.network.send(box.node, node, CONTROL, net.arrive, other, other.life, event)


def plan_wake(net: SimNet, box: Box) -> None:
    if box.core is None:
        return
    box.planned_at = box.core.wake_at()
    at = box.when(box.planned_at)
    if at <= net.now:
        at = net.now
        box.spins += 1
        if box.spins > 50:
            raise Broken(f"{box.node} wants to be woken again and again at {at}")
    else:
        box.spins = 0
    if at != box.woken_at and at != float("inf"):
        box.woken_at = at
        net.network.at(at + box.lag_s, _wake, net, box, box.life, at)


def _wake(net: SimNet, box: Box, life: int, at: float) -> None:
    if box.life != life or box.core is None or at != box.woken_at or net.now < box.stalled_until:
        return
    box.woken_at = -1.0
    due, now = box.core.wake_at(), box.clock(net.now)
    if now >= due - 1e-6:  # clocks are compared in floating point
        obey(net, box, box.core.wake(max(now, due)))
    else:
        plan_wake(net, box)


def _obey(net: SimNet, box: Box, effect: Effect) -> None:
    match effect:
        case Connect(node):
            net.connect(box, node)
            return
        case Disconnect(node):
            net.disconnect(box, node)
            return
        case PersistTerm(term):
            _write(net, box, "term", lambda: _keep_term(net, box, term))
        case PersistIncarnation(incarnation):
            _write(net, box, "incarnation", lambda: setattr(box.disk, "incarnation", incarnation))
        case PersistDeployments(entries):
            assert box.device is not None
            for gone in (entry.name for entry in entries if entry.deleted):
                box.device.undeployed(gone)
            _write(net, box, "deployments", lambda: _keep_deployments(net, box, entries))
        case PersistPlan(name, order):
            _write(net, box, f"plan of {name}", lambda: _keep_plan(box, name, order))
        case PersistDrains(drains):
            _write(net, box, "drains", lambda: setattr(box.disk, "drains", drains))
        case PersistProfiles():
            pass
        case MembersChanged(members):
            now = frozenset(member.node for member in members)
            assert box.device is not None
            for node in box.members - now - {box.node}:
                box.device.lost(node)
            if now != box.members:
                many = f"sees {len(now)}"  # the names would not fit into memory for a thousand viewers
                text = (lambda: "sees " + " ".join(sorted(map(short, now)))) if len(now) <= NAMED else many
                net.note(box, text)
            box.members = now
        case LeaderChanged(leader, term):
            if leader == box.node:
                net.invariants.leads(box, term)
            net.note(box, f"follows {short(leader) or 'nobody'}, term {term}")
        case StandingChanged(standing):
            _stand(net, box, standing)
        case _:
            _work(net, box, effect)
    net.changes += 1


def _work(net: SimNet, box: Box, effect: Effect) -> None:
    assert box.device is not None
    match effect:
        case LoadPlan():
            _load(net, box, effect)
        case SwitchTo(name, epoch):
            net.invariants.switches(box, name, epoch)
            box.active[name] = box.latest[name] = epoch
            net.note(box, f"switches {name} to {epoch.number} of {epoch.term} on {devices(net, box, name)}")
            box.device.switched(box.plans[name, epoch])
        case SwitchOff(name):
            del box.active[name]
            box.device.handle(Suspended(name))
        case DropPlan(name, epoch):
            box.plans.pop((name, epoch), None)
            box.loaded.discard((name, epoch))
            if box.active.get(name) == epoch:
                del box.active[name]
            box.device.left(name, epoch)
        case StoreModel(model, _, sources):
            _copy(net, box, model, sources)
        case ComputePlan():
            _compute(net, box, effect)
        case TryPlan():
            _try(net, box, effect)
        case MemberDistrusted(node, why):
            net.distrusted.append((box.node, node, why))
            if node not in net.liars:
                raise Broken(f"{short(box.node)} does not believe {short(node)}, who is honest: {why}")
        case RemovedFromCluster():
            _write(net, box, "discharge", lambda: net.discharge(box))
        case _:
            raise Broken(f"unknown effect {effect}")


def _write(net: SimNet, box: Box, file: str, do: Callable[[], None]) -> None:
    """Write files one after the other: of each file the newest waiting version, and the term before others."""
    box.to_write[file] = do
    if not box.writing:
        _write_next(net, box)


def _write_next(net: SimNet, box: Box) -> None:
    waiting = box.to_write
    do = waiting.pop("term" if "term" in waiting else next(iter(waiting)))
    box.writing, box.disk.busy_until = True, net.now + box.disk.write_s

    def done() -> None:
        box.writing = False
        do()
        if box.to_write and not box.writing:
            _write_next(net, box)

    later(net, box, box.disk.write_s, done)


def _keep_term(net: SimNet, box: Box, term: int) -> None:
    net.invariants.persists_term(box, term)
    box.disk.term = term
    net.give(box, TermKept(term))


def _keep_deployments(net: SimNet, box: Box, entries: tuple[Deployment, ...]) -> None:
    if not box.disk.full:
        box.disk.deployments = entries
        net.give(box, DeploymentsKept(box.disk.versions()))


def _keep_plan(box: Box, name: str, order: Prepare | None) -> None:
    if order is None:
        box.disk.plans.pop(name, None)
    elif not box.disk.full:
        box.disk.plans[name] = order


def _load(net: SimNet, box: Box, order: LoadPlan) -> None:
    key = (order.deployment, order.epoch)
    net.invariants.loads(box, order)
    box.plans[key] = order
    mine = box.node in dict(order.names).values()
    error = net.load_error(box.node) if mine else ""

    def done() -> None:
        if box.plans.get(key) is order and box.device is not None and not error:
            box.loaded.add(key)
            box.device.loaded(*key)
        net.give(box, PlanLoaded(*key, error))

    later(net, box, net.random.uniform(0.01, 0.4), done)


def _try(net: SimNet, box: Box, order: TryPlan) -> None:
    """Try a plan with the result of `net.verdict`, on the box that was ordered to."""
    net.tried.append((box.node, order))
    verdict, text = net.verdict(order)
    found = PlanTried(order.deployment, order.epoch, verdict, text)
    later(net, box, net.random.uniform(0.01, net.most_try_s), lambda: net.give(box, found))


def _copy(net: SimNet, box: Box, model: str, sources: tuple[str, ...]) -> None:
    def done() -> None:
        reachable = [s for s in sources if (b := net.boxes[s]).core is not None and model in b.disk.models]
        if any(net.network.reach_each_other(box.node, s) for s in reachable):
            box.disk.models.add(model)
        net.changes += 1
        net.give(box, ModelsStored(tuple(box.disk.models)))

    later(net, box, net.random.uniform(0.05, 0.5), done)


def _compute(net: SimNet, box: Box, order: ComputePlan) -> None:
    """Make a plan, which is the list of its devices. More devices are faster, up to `MOST_DEVICES`."""
    net.computed += 1
    error, final = net.plan_error(order)
    if error:
        failed = PlanFailed(order.key, error, "Infeasible", final)
        later(net, box, 0.1, lambda: net.give(box, failed))
        return
    names = tuple(name for _, name, _ in order.key.devices)
    best = names
    if len(names) > MOST_DEVICES:
        best = tuple(sorted(sorted(names, key=lambda name: crc32(name.encode()))[:MOST_DEVICES]))
    if order.key.alone or (order.awaited and net.alone_fits):
        best = (min(names, key=lambda name: crc32(name.encode())),)
    refused = {structure for structure, _ in order.key.refused}
    while json.dumps(best) in refused and len(best) > 1:
        best = best[:-1]
    before = json.loads(order.current) if order.current else []
    current_s = 1 / len(before) if before and set(before) <= set(names) else float("inf")
    made = json.dumps(best)
    result = PlanComputed(
        order.key,
        made.encode(),
        best,
        1 / len(best),
        current_s,
        order.quick,
        structure=made,
        is_model_itself=net.alone_is_right and len(best) == 1,
    )
    later(net, box, net.search_s(order), lambda: net.give(box, result))


def _stand(net: SimNet, box: Box, standing: Standing) -> None:
    if standing.state == REFUSED:
        net.refused.append((box.node, standing))
        return
    net.standings[standing.deployment] = standing
    if standing.acknowledged:
        net.invariants.acknowledges(net, box, standing)


def later(net: SimNet, box: Box, seconds: float, do: Callable[[], None]) -> None:
    """Do something after that time if the box is still in the same life; during a stall, it waits."""
    life = box.life

    def due() -> None:
        if box.life != life or box.core is None:
            return
        if net.now < box.stalled_until:
            box.waiting.append(do)
        else:
            do()

    net.network.at(net.now + seconds, due)


def devices(net: SimNet, box: Box, name: str) -> str:
    return " ".join(sorted(map(short, net.devices(box, name)))) or "gateways alone"
