"""Fuzz target for the messages that a member sends to the cluster logic.

Whatever it sends, this device can encode and others can read what it sends next, it can read back what it
persists, it removes no member, and it plans only with cards that it can read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.membership.election import FREE_ROUNDS, MAX_LEAP_ROUNDS, term_round
from edgepart.agent.cluster.membership.own_state import MAX_INCARNATION_LEAP, OwnFacts
from edgepart.agent.cluster.state import cards, deployments
from edgepart.agent.cluster.state.events import (
    CardReady,
    ComputePlan,
    DeployRequested,
    Effect,
    Event,
    LinkUp,
    MessageReceived,
    ModelsStored,
    PersistDeployments,
    PersistDrains,
    PersistIncarnation,
    PersistTerm,
    RemovedFromCluster,
    SendMessage,
)
from edgepart.agent.net.dispatch import CONTROL_KINDS
from edgepart.agent.wire.codec import frame_to_message, message_to_frame
from edgepart.agent.wire.control import Card, Drains, Heartbeat, Hello, Report, View
from edgepart.agent.wire.frames import MEMBER, Frame, encode
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.devices.cluster import Device
from edgepart.planner.errors import FrameError
from tests.agent.wire.decoder import Decoder
from tests.fuzz.doors.samples import NODES, sample
from tests.fuzz.forms import Frames
from tests.fuzz.target import Target, expect, plainly

ME, HONEST, LIAR = NODES
CARD = cards.write_card(cards.MeasuredDevice(Device("pi", "x86", 1e9, 1e9, 1e9)))
MODEL = "1" * 64
MOST_MESSAGES = 20
"""Maximum number of messages of one case."""


def _bytes(frame: Frame) -> bytes:
    return b"".join(map(bytes, encode(frame)))


def _leader() -> tuple[Core, float]:
    """Return a core that leads two others and has a deployment to plan, and the time."""
    core = Core(
        OwnFacts(ME, "me", "b0", 5), 0.0, genuine=lambda entry: False, card_fault=cards.find_card_fault
    )
    hello = Hello(HONEST, "pi", "b0", 1, ("127.0.0.1:1",), "", "0.1.0")
    events: list[tuple[float, Event]] = [(0.0, CardReady(CARD)), (0.0, ModelsStored((MODEL,)))]
    for node in (HONEST, LIAR):
        told = Hello(node, hello.name, "b0", 1, hello.listen, "", hello.version)
        events += [
            (3.0, LinkUp(node)),
            (3.0, MessageReceived(node, told)),
            (3.1, MessageReceived(node, Card(node, CARD))),
        ]
    core.wake(2.0)
    for at, event in events:
        core.handle(event, at)
    core.handle(DeployRequested("net", MODEL, 5, DeployOptions()), 3.2)
    return core, 3.3


def _hear(data: bytes) -> None:
    core, now = _leader()
    before = core.membership.facts.incarnation
    messages = [frame_to_message(frame, CONTROL_KINDS) for frame in Decoder(MEMBER).feed(data)]
    for message in messages[:MOST_MESSAGES]:
        now += 0.01
        _check(core.handle(MessageReceived(LIAR, message), now), before)
    for _ in range(5):
        now = max(now, min(core.wake_at(), now + 1.0))
        _check(core.wake(now), before)
    expect(
        core.membership.facts.incarnation
        <= before + MAX_INCARNATION_LEAP + MOST_MESSAGES * (MAX_INCARNATION_LEAP + 1),
        "an incarnation leapt",
    )


def _check(effects: Iterable[Effect], before: int) -> None:
    for effect in effects:
        match effect:
            case SendMessage(_, message):
                told = Decoder(MEMBER).feed(_bytes(message_to_frame(message)))[0]
                try:
                    frame_to_message(told, CONTROL_KINDS)
                except FrameError as error:
                    expect(False, f"what it says next is not taken by others: {error}")
            case PersistTerm(term):
                expect(term_round(term) <= FREE_ROUNDS + MAX_LEAP_ROUNDS + MOST_MESSAGES, "a term leapt")
            case PersistIncarnation(incarnation):
                expect(0 < incarnation < 2**53, "an incarnation that is not read again")
            case PersistDeployments(entries):
                document = json.loads(json.dumps(deployments.to_json(entries)))
                expect(deployments.from_json(document) == entries, "deployments are others when read again")
            case PersistDrains() | RemovedFromCluster():
                expect(False, "a member's word drained or removed somebody")
            case ComputePlan(key, _, told_cards):
                cluster = cards.build_cluster(told_cards, {node: name for node, name, _ in key.devices})
                expect(len(cluster.devices) == len(key.devices), "a plan for a device that is not known")
            case _:
                continue


def _seeds() -> list[bytes]:
    draw = random.Random(11)
    kinds = [cls for name, cls in CONTROL_KINDS.items() if name != "Charter"]
    found = [_bytes(message_to_frame(sample(cls, draw))) for cls in kinds for _ in range(3)]
    beat = Heartbeat("b0", 1, 2**52, LIAR, 2**52)
    lies = [beat, sample(View, draw), sample(Drains, draw), sample(Report, draw), Card(LIAR, CARD)]
    return [*found, b"".join(_bytes(message_to_frame(lie)) for lie in lies)]


TARGETS = (Target("a member's messages", _seeds, plainly(_hear), (FrameError,), Frames(), 0.2),)
