"""Plays one seed, from the start of a cluster until it is calm again: `play`. Raises Broken if an invariant
does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from edgepart.agent.cluster.state.events import UndeployRequested
from edgepart.agent.wire.control import DRAINED, IN, REMOVING, Deployment
from edgepart.planner.errors import UsageError
from tests.simulation.cluster import SimNet, node_id
from tests.simulation.decoder_layers import CHAT, PLACES
from tests.simulation.disk import Disk
from tests.simulation.schedule import LARGE, Fault, Schedule, schedule
from tests.simulation.sequences import PAUSES_S, SequenceClient
from tests.simulation.texts import make_up_prompt
from tests.simulation.trace import Broken, Trace, short

SETTLE_S = 45.0
"""Bound on the virtual seconds from the last fault until all is calm. Most of it is the time for which a
device that was lost for long is not dialled, and quarantines."""
FINAL_S = 5.0
"""Bound on the virtual seconds in which requests of a calm cluster are answered."""
LOOK_S = 0.25
SHARED = 10
"""Successive seeds that begin alike in a large cluster, in which finding each other is half of the work."""
FOUND_S = 0.9
"""Virtual seconds that those seeds share."""
SEQUENCES_S = 30.0
"""Bound on the virtual seconds in which sequences of a calm cluster end. Many wait for room on devices."""
FULL = 0.02
"""The share of steps of texts for which a device has no room among its requests, while there are faults."""
WAITING = 5
"""One seed of so many has texts that wait for the room of others (SPARED_S). Waiting takes long to simulate."""
TEXTS_WAIT_S = 75.0
"""The same bound for those seeds: three times the time for which a text that has ended keeps its room."""
BEGINNING = 2
"""Gateways that begin a sequence of each deployment at the end."""
ASKING = 8
"""Gateways that ask for each deployment at the end."""


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
    net.full = FULL
    for name in ("net", CHAT) if plan.texts else ("net",):
        net.deploy(net.running[plan.seed % len(net.running)], name)
    for fault in plan.faults:
        net.run(fault.after_s)
        strike(net, fault, texts=plan.texts)
    _repair(net, plan)
    settled_s = _settle(net)
    _all_is_well(net, plan)
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
                    _begin_sequence(net, node, entry, steps, deadline_s)
        case "text" if awake and net.core(node).deployments.get(CHAT):
            _begin_texts(net, node, 2 + int(5 * fault.amount), 24)


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


def _begin_sequence(
    net: SimNet, node: str, entry: Deployment, steps: int, deadline_s: float
) -> SequenceClient:
    device = net.boxes[node].device
    assert device is not None
    return device.begin_sequence(entry.name, steps, deadline_s)


def _begin_texts(net: SimNet, node: str, count: int, most: int) -> None:
    """Let so many texts of up to `most` tokens begin at once."""
    device = net.boxes[node].device
    assert device is not None
    for _ in range(count):
        device.texts.begin(make_up_prompt(device), net.random.randint(1, most))


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


def _settle(net: SimNet) -> float:
    start = net.now
    while faults := net.settled_faults():
        if net.now > start + SETTLE_S:
            raise Broken("not calm: " + "; ".join(faults))
        net.run(LOOK_S)
    return net.now - start


def _all_is_well(net: SimNet, plan: Schedule) -> None:
    net.run(LOOK_S)  # until everything that is being written is on disk
    if lost := net.invariants.lost_deployments(net):
        raise Broken("; ".join(lost))
    stored = [entry for entry in net.core(net.running[0]).deployments.list_live() if _served(net, entry)]
    asked = [number for number, deadline in net.ledger.whole.items() if deadline > net.now + 2 * FINAL_S]
    asked += [_last(net, node, entry) for entry in stored for node in net.running[:ASKING]]
    end = net.now + FINAL_S + 0.5
    while net.now < end and not net.ledger.answered.issuperset(asked):
        net.run(LOOK_S)
    removed = {number for number, why in net.ledger.failed.items() if why.startswith("removed")}
    accounted = net.ledger.answered | net.ledger.orphaned | removed
    if unanswered := [number for number in asked if number not in accounted]:
        why = [net.ledger.failed.get(number, "nothing") for number in unanswered]
        raise Broken(f"requests {unanswered} of a calm cluster: {why[:3]}")
    _sequences_end(net, stored, texts_wait=plan.seed % WAITING == 0)
    _end_texts(net)
    if CHAT in {entry.name for entry in stored} and not net.ledger.texts:
        _texts_go_on(net)
    net.run(1.0)
    if left := _states_left(net):
        raise Broken("; ".join(left))
    late = [number for number, deadline in net.ledger.accepted.items() if deadline < net.now - 1.0]
    if late:
        raise Broken(f"requests {late} were neither answered nor failed by their deadline")
    if faults := net.settled_faults():
        net.until(lambda: not net.settled_faults(), 8.0)  # the plan may have been changing
        net.note(net.boxes[net.running[0]], f"was restless: {faults}")


def _sequences_end(net: SimNet, served: Sequence[Deployment], *, texts_wait: bool) -> None:
    """Check that all sequences of a calm cluster come to their end, those that begin now too. `texts_wait`: texts that have
    ended take room on devices until others may have it."""
    for entry in served:
        for node in net.running[:BEGINNING]:
            if entry.name == CHAT:
                _begin_texts(net, node, PLACES, 6)
            else:
                _begin_sequence(net, node, entry, 3, FINAL_S)
    names = {entry.name for entry in served}
    end = net.now + (TEXTS_WAIT_S if texts_wait else SEQUENCES_S)
    while True:
        going = [one for one in net.ledger.sequences if one.history.key[0] in names]
        texts = net.ledger.texts if CHAT in names else set()
        if not going and not texts:
            return
        if net.now > end:
            left = sorted([*(one.history.name for one in going), *(text.name for text in texts)])
            raise Broken(f"sequences {left} of a calm cluster do not end")
        for client in (*going, *texts):
            client.pause_s = min(PAUSES_S)
        if not texts_wait:
            _end_texts(net)
        net.run(LOOK_S)


def _texts_go_on(net: SimNet) -> None:
    """Check that texts of a calm cluster that have room are not read again, unless their plan has changed meanwhile."""

    def plans() -> list[object]:
        return [(node, net.boxes[node].life, net.boxes[node].active.get(CHAT)) for node in net.running]

    net.run(LOOK_S)
    before, replays = plans(), net.ledger.replayed_texts
    _begin_texts(net, net.running[-1], PLACES, 12)
    end = net.now + SEQUENCES_S
    while net.ledger.texts and net.now < end:
        for text in net.ledger.texts:
            text.pause_s = min(PAUSES_S)
        net.run(LOOK_S)
    if net.ledger.texts:
        raise Broken(f"texts {sorted(text.name for text in net.ledger.texts)} of a calm cluster do not end")
    replays = net.ledger.replayed_texts - replays
    if replays and plans() == before:
        raise Broken(f"texts of a calm cluster were read again {replays} times")
    _end_texts(net)


def _end_texts(net: SimNet) -> None:
    """Let all gateways forget their texts; their caches are kept for the next turn of a chat otherwise."""
    for node in net.running:
        if (device := net.boxes[node].device) is not None:
            device.texts.sequences.keep(())


def _states_left(net: SimNet) -> list[str]:
    """Say which devices keep states of sequences that have ended."""
    going = {client.history.name for client in net.ledger.sequences}
    going |= {text.name for text in net.ledger.texts}
    return [
        f"{short(node)} still keeps states of sequence {name}"
        for node in net.running
        if (device := net.boxes[node].device) is not None
        for _, _, name in device.states.kept_now
        if name not in going
    ]


def _served(net: SimNet, entry: Deployment) -> bool:
    """Whether the deployment is served. It cannot be if boxes that are gone for good had the last copy of the
    model."""
    box = net.boxes[net.running[0]]
    return entry.name in box.active and net.devices(box, entry.name) <= set(net.running)


def _last(net: SimNet, node: str, entry: Deployment) -> int:
    device = net.boxes[node].device
    assert device is not None
    return device.ask(entry.name, FINAL_S)
