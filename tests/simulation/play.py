"""Plays one seed, from the start of a cluster until it is calm again: `play`. Raises Broken if an invariant
does not hold."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from edgepart.agent.cluster.state.events import RollbackRequested, UndeployRequested
from edgepart.agent.wire.control import DRAINED, IN, REMOVING
from edgepart.planner.errors import UsageError
from tests.simulation.calm import all_is_well, begin_sequence, begin_texts, settle
from tests.simulation.cluster import SimNet, node_id
from tests.simulation.decoder_layers import CHAT
from tests.simulation.disk import Disk
from tests.simulation.schedule import LARGE, Fault, Schedule, schedule
from tests.simulation.trace import Broken, Trace

SHARED = 10
"""Successive seeds that begin alike in a large cluster, in which finding each other is half of the work."""
FOUND_S = 0.9
"""Virtual seconds that those seeds share."""
FULL = 0.02
"""The share of steps of texts for which a device has no room among its requests, while there are faults."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one seed."""

    seed: int
    settled_s: float
    """Virtual seconds from the last fault until all was calm."""
    virtual_s: float
    messages: int
    answered: int
    failed: int
    refused: int
    orphaned: int
    replays: int
    steps: int
    """Answers to steps of sequences."""
    replayed_sequences: int
    tokens: int
    """Tokens of texts."""
    blocks: int
    batches: int
    replayed_texts: int
    resumed_texts: int


def play(seed: int, agents: int, trace: Trace | None = None) -> Outcome:
    return go_on(begun(seed, agents, trace), seed)


def begun(seed: int, agents: int, trace: Trace | None = None) -> SimNet:
    """Return the cluster of that seed, just started. The agents of a large one have found each other, in the
    same way for SHARED successive seeds."""
    if agents < LARGE:
        net = SimNet(agents, seed, trace=trace, skewed=True)
    else:
        net = SimNet(agents, seed // SHARED, trace=trace, skewed=True)
    late = schedule(seed, agents).late
    net.start(*[node for node in net.boxes if int(node, 16) not in late])
    if agents >= LARGE:
        net.run(FOUND_S)
    return net


def go_on(net: SimNet, seed: int) -> Outcome:
    """Play the rest, which depends on that seed only."""
    plan = schedule(seed, len(net.boxes))
    net.network.takes(seed, plan.lossy)
    try:
        return _play(net, plan)
    except (AssertionError, UsageError) as error:
        raise Broken(f"seed {seed}, {plan.agents} agents, at {net.now:.3f} s: {error}") from error
    finally:
        for box in net.boxes.values():
            if box.device is not None:
                box.device.died()


def _play(net: SimNet, plan: Schedule) -> Outcome:
    net.run(plan.first_s)
    net.full, net.mirrors = FULL, plan.mirrors
    for name in ("net", CHAT) if plan.texts else ("net",):
        net.deploy(net.running[plan.seed % len(net.running)], name)
    for fault in plan.faults:
        net.run(fault.after_s)
        strike(net, fault, texts=plan.texts)
    _repair(net, plan)
    settled_s = settle(net)
    all_is_well(net, plan)
    tally = net.ledger
    return Outcome(
        plan.seed,
        settled_s,
        net.now,
        net.network.messages,
        len(tally.answered),
        len(tally.failed),
        tally.refused,
        len(tally.orphaned),
        tally.replays,
        tally.steps,
        tally.replayed_sequences,
        tally.tokens,
        tally.blocks,
        tally.batches,
        tally.replayed_texts,
        tally.resumed_texts,
    )


def strike(net: SimNet, fault: Fault, *, texts: bool = False) -> None:
    """Let a fault happen, if it can. `texts`: there are texts, so that their decoder may be deployed (again)."""
    nodes = [node_id(number) for number in fault.boxes]
    if fault.kind == "split":
        net.partition(nodes, [node for node in net.boxes if node not in nodes])
    elif fault.kind in ("cut", "cut one way"):
        net.cut(nodes[0], nodes[1], one_way=fault.kind != "cut")
    elif fault.kind == "heal":
        net.heal()
    elif fault.kind == "start":
        for node in nodes:
            if net.boxes[node].core is None:
                net.start(node)
    else:
        for node in nodes:
            if net.boxes[node].core is not None:
                _hit(net, node, fault, texts=texts)


def _hit(net: SimNet, node: str, fault: Fault, *, texts: bool) -> None:
    box = net.boxes[node]
    awake = box.stalled_until <= net.now
    match fault.kind:
        case "kill":
            net.crash(node)
        case "tear":
            box.fuse = int(fault.amount * 6)
        case "power":
            net.crash(node, power=True)
        case "wipe":
            net.crash(node, wipe=True)
        case "freeze":
            net.stall(node, 0.2 + 6 * fault.amount**2)
        case "slow":
            net.slow(node, 0.05 + 0.4 * fault.amount)
        case "slow disk":
            net.slow_disk(node, 0.1 + 3 * fault.amount**2)
        case "jump":
            net.jump(node, 30 * fault.amount**2)
        case "leave" if awake:
            net.leave(node)
        case "deploy" if awake and fault.amount < 0.2 and _kept(net, node, "other"):
            net.give(box, RollbackRequested("other"))
        case "deploy" if awake:
            net.deploy(
                node, "other" if fault.amount < 0.4 else "net" if fault.amount < 0.8 or not texts else CHAT
            )
        case "undeploy" if awake and net.core(node).deployments.get("other"):
            net.give(box, UndeployRequested("other"))
        case "drain" if awake:
            _wish(net, node, fault, DRAINED)
        case "undrain" if awake:
            _wish(net, node, fault, IN)
        case "remove" if awake:
            _wish(net, node, fault, REMOVING)
        case "want" if awake and net.core(node).follower.active("net"):
            net.want(node, {"x": (1 + int(fault.amount * 3),)}, 3.0)
        case "ask" if awake:
            _ask(net, node, 0.5 + 25 * fault.amount**2)
        case "sequence" if awake:
            for entry in net.core(node).deployments.list_live():
                if entry.name != CHAT:
                    steps, deadline_s = 4 + int(24 * fault.amount), 0.5 + 25 * fault.amount**2
                    begin_sequence(net, node, entry, steps, deadline_s)
        case "text" if awake and net.core(node).deployments.get(CHAT):
            begin_texts(net, node, 2 + int(5 * fault.amount), 24)


def _kept(net: SimNet, node: str, name: str) -> bool:
    """Whether the box knows a version of that deployment before the serving one."""
    entry = net.core(node).deployments.get(name)
    return entry is not None and any(one.number < entry.number for one in entry.kept)


def _wish(net: SimNet, node: str, fault: Fault, state: str) -> None:
    """Let a user tell a box which state some box, which may be off, is to have."""
    about = fault.boxes[-1] if state == REMOVING else int(fault.amount * len(net.boxes)) + 1
    with suppress(UsageError):  # no device would be left
        net.wish(node, node_id(about), state)


def _ask(net: SimNet, node: str, deadline_s: float) -> None:
    device = net.boxes[node].device
    assert device is not None
    for entry in net.core(node).deployments.list_live():
        for _ in range(3):
            device.ask(entry.name, deadline_s)


def _repair(net: SimNet, plan: Schedule) -> None:
    """Restore cables, start boxes except those that are gone for good, and end slowness."""
    net.full = 0.0
    gone = {node_id(number) for number in plan.gone}
    removed = net.removed()
    for node, box in net.boxes.items():
        if box.lag_s:
            net.slow(node, 0.0)
        box.fuse, box.disk.write_s = -1, Disk().write_s
        if node in gone and box.core is not None:
            net.crash(node, power=node_id(plan.seed % plan.agents + 1) == node)
    net.invariants.gone(net, gone | removed)
    net.heal()
    ends = [max(box.stalled_until, box.disk.busy_until) for box in net.boxes.values()]
    net.network.run_until(max(net.now, *ends))
    off = [node for node, box in net.boxes.items() if box.core is None and node not in gone | removed]
    if off:
        net.start(*off)
