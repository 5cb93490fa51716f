"""Every control message travels as a frame and comes back the same."""

from __future__ import annotations

from typing import get_args

import pytest

from edgepart.agent.net.dispatch import CONTROL_KINDS
from edgepart.agent.wire.codec import frame_to_message, message_to_frame
from edgepart.agent.wire.control import (
    Activate,
    AskAbout,
    Card,
    ControlMessage,
    Deployment,
    Deployments,
    Doors,
    Drain,
    Drains,
    DrainStanding,
    Drift,
    FetchModel,
    Goodbye,
    Heartbeat,
    Hello,
    Holding,
    Latency,
    Leaving,
    Opinion,
    Prepare,
    Profile,
    Report,
    Retire,
    Sighting,
    Standing,
    Starved,
    Timed,
    Version,
    View,
    Want,
)
from edgepart.agent.wire.frames import encode
from edgepart.agent.wire.inference import DeployOptions, Epoch
from tests.agent.wire.decoder import Decoder

EPOCH = Epoch(2**50, 3)
VERSION = Version(4, "a")
OPTIONS = DeployOptions(shapes={"x": (1, 3)}, devices=("pi",), memory_limit_bytes=9, search_budget_s=2.5)
MESSAGES: list[ControlMessage] = [
    Hello("a", "pi", "boot", 3, ("h:1", "[::1]:2"), "http://h:8433", "0.1", True),
    Heartbeat("boot", 3, 2**50, "a", 2**50),
    View((Sighting("a", 3, "alive", "pi", ("h:1",)), Sighting("b", 0, "dead", "", ()))),
    AskAbout("b"),
    Opinion("b", "suspect"),
    Leaving("boot"),
    Starved(0.62, True),
    Doors("boot", "h:8434"),
    Goodbye(3),
    Card("a", b"{}"),
    Deployments(
        (Deployment("net", "m", 10**10, OPTIONS, VERSION), Deployment("o", "m", 0, OPTIONS, VERSION, True))
    ),
    Report("boot", (Holding("net", EPOCH, "ready", True),), ("m",), (("net", VERSION),)),
    Prepare(2**50, "net", VERSION, EPOCH, b"\x00\xff", (("pi", "a"),), "m", ("a", "b"), 0.25, {"x": (1, 3)}),
    Want("net", VERSION, {"x": (2, 3), "scalar": ()}),
    Activate(2**50, "net", EPOCH),
    Retire(2**50, "net", EPOCH),
    FetchModel(2**50, "m", 10**10, ("a",)),
    Timed((Profile("d", "kind~66", 4, 0.25),)),
    Drift("net", 4.0),
    Latency("net", EPOCH, 0.5, 7),
    Drains((Drain("a", "pi", "drained", VERSION),)),
    DrainStanding(2**50, "a", VERSION, False, "net still runs on it"),
    Standing(2**50, "net", VERSION, "serving", "serving on pi", True, EPOCH, ("pi",)),
]


def test_no_message_is_left_out() -> None:
    assert {type(message) for message in MESSAGES} == set(get_args(ControlMessage))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_the_same(message: ControlMessage) -> None:
    registry = CONTROL_KINDS
    decoder = Decoder()
    data = b"".join(bytes(part) for part in encode(message_to_frame(message)))
    (frame,) = decoder.feed(data)
    assert frame_to_message(frame, registry) == message
