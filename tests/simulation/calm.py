"""What must hold in a simulated cluster once its faults are over: it gets calm, answers everybody, and sequences and texts
come to their end."""

from __future__ import annotations

from collections.abc import Sequence

from edgepart.agent.wire.control import Deployment
from tests.simulation.cluster import SimNet
from tests.simulation.decoder_layers import CHAT, PLACES
from tests.simulation.schedule import Schedule
from tests.simulation.sequences import PAUSES_S, SequenceClient
from tests.simulation.texts import make_up_prompt
from tests.simulation.trace import Broken, short

SETTLE_S = 45.0
"""Bound on the virtual seconds from the last fault until all is calm. Most of it is the time for which a
device that was lost for long is not dialled, and quarantines."""
FINAL_S = 5.0
"""Bound on the virtual seconds in which requests of a calm cluster are answered."""
LOOK_S = 0.25
SEQUENCES_S = 30.0
"""Bound on the virtual seconds in which sequences of a calm cluster end. Many wait for room on devices."""
WAITING = 5
"""One seed of so many has texts that wait for the room of others (SPARED_S). Waiting takes long to simulate."""
TEXTS_WAIT_S = 75.0
"""The same bound for those seeds: three times the time for which a text that has ended keeps its room."""
OLD_PLANS_S = 60.0
"""Bound on the virtual seconds for which devices of a calm cluster hold plans that do not serve any more."""
BEGINNING = 2
"""Gateways that begin a sequence of each deployment at the end."""
ASKING = 8
"""Gateways that ask for each deployment at the end."""


def begin_sequence(
    net: SimNet, node: str, entry: Deployment, steps: int, deadline_s: float
) -> SequenceClient:
    device = net.boxes[node].device
    assert device is not None
    return device.begin_sequence(entry.name, steps, deadline_s)


def begin_texts(net: SimNet, node: str, count: int, most: int) -> None:
    """Let so many texts of up to `most` tokens begin at once."""
    device = net.boxes[node].device
    assert device is not None
    for _ in range(count):
        device.texts.begin(make_up_prompt(device), net.random.randint(1, most))


def settle(net: SimNet) -> float:
    start = net.now
    while faults := net.settled_faults():
        if net.now > start + SETTLE_S:
            raise Broken("not calm: " + "; ".join(faults))
        net.run(LOOK_S)
    return net.now - start


def all_is_well(net: SimNet, plan: Schedule) -> None:
    net.run(LOOK_S)  # until everything that is being written is on disk
    if lost := net.invariants.lost_deployments(net):
        raise Broken("; ".join(lost))
    stored = [entry for entry in net.core(net.running[0]).deployments.list_live() if _served(net, entry)]
    # Others wait in vain: a box that lost its disk had the last copy of their model.
    waiting = net.ledger.in_flight({entry.name for entry in stored})
    asked = [number for number, deadline in waiting.items() if deadline > net.now + 2 * FINAL_S]
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
    if _states_left(net, old=True):
        # Their gateway has dropped that plan, and cannot tell the device any more: they go with the plan.
        net.until(lambda: not _states_left(net, old=True), OLD_PLANS_S)
    if left := _states_left(net, old=False):
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
                begin_texts(net, node, PLACES, 6)
            else:
                begin_sequence(net, node, entry, 3, FINAL_S)
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
        for client in going:
            client.pause_s = min(PAUSES_S)
        for text in texts:
            text.pause_s = min(PAUSES_S)
        if not texts_wait:
            _end_texts(net)
        net.run(LOOK_S)


def _texts_go_on(net: SimNet) -> None:
    """Check that texts of a calm cluster that have room are not read again, unless their plan has changed meanwhile."""

    def plans() -> list[object]:
        return [(node, net.boxes[node].life, net.boxes[node].active.get(CHAT)) for node in net.running]

    net.run(LOOK_S)
    before, replays = plans(), net.ledger.replayed_texts
    asked = net.boxes[net.running[-1]].device
    assert asked is not None
    # Two revisions of which devices have seen no step in between are read again: where a client goes back twice, or a
    # step gets too little time after it went back.
    asked.texts.hurried = False
    begin_texts(net, net.running[-1], PLACES, 12)
    for text in net.ledger.texts:
        text.edits = 0
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


def _states_left(net: SimNet, *, old: bool) -> list[str]:
    """Say which devices keep states of sequences that have ended, their own or copies of others': those of plans that do
    not serve any more, or others."""
    going = {client.history.name for client in net.ledger.sequences}
    going |= {text.name for text in net.ledger.texts}
    found = []
    for node in net.running:
        if (device := net.boxes[node].device) is None:
            continue
        kept = [("states", *key) for key in device.states.kept_now]
        kept += [("copies", *one.plan, one.sequence) for one in device.carrier.copies]
        for what, deployment, epoch, name in kept:
            if name not in going and old == (net.boxes[node].active.get(deployment) != epoch):
                found.append(f"{short(node)} still keeps {what} of sequence {name}")
        waits = [name for name in device.carrier.unfinished if name not in going and not old]
        found += [f"{short(node)} still waits for states of sequence {name}" for name in waits]
    return found


def _served(net: SimNet, entry: Deployment) -> bool:
    """Whether the deployment is served. It cannot be if boxes that are gone for good had the last copy of the
    model."""
    box = net.boxes[net.running[0]]
    return entry.name in box.active and net.devices(box, entry.name) <= set(net.running)


def _last(net: SimNet, node: str, entry: Deployment) -> int:
    device = net.boxes[node].device
    assert device is not None
    return device.ask(entry.name, FINAL_S)
