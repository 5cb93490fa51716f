"""The letter box: what goes out, what comes in, and to whom; frames that are none of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from edgepart.agent.cluster.state.events import MessageReceived
from edgepart.agent.net.dispatch import FrameDispatcher
from edgepart.agent.net.links import CONTROL, DATA
from edgepart.agent.wire.codec import message_to_frame
from edgepart.agent.wire.control import Goodbye, Heartbeat
from edgepart.agent.wire.frames import PREFIX, Frame, encode, parse_frame
from edgepart.agent.wire.inference import Cancel, Epoch, Failed, Tensors
from edgepart.agent.wire.queries import Echo, Echoed, EchoTogether, Part, WantFiles
from edgepart.planner.errors import FrameError, Unavailable

EPOCH = Epoch(1, 2)


class Echoing:
    """In place of the echoes."""

    def __init__(self, written: list[tuple[Any, ...]]) -> None:
        self.written = written

    def came(self, node: str, message: Any, values: Any) -> None:
        self.written.append(("echo", node, message, values))


class Box:
    """A post whose other ends write down what comes."""

    def __init__(self) -> None:
        self.out: list[tuple[str, str, Frame]] = []
        self.came: list[tuple[Any, ...]] = []
        self.post = FrameDispatcher("me", lambda *frame: self.out.append(frame))

    def connect(self) -> None:
        self.post.connect(self, Echoing(self.came), self.came_to_core, self.question, self.answer)

    def arrived(self, message: Any, values: Any, source: str) -> None:
        self.came.append(("request", message, values, source))

    def came_to_core(self, event: MessageReceived) -> None:
        self.came.append(("core", event))

    def question(self, node: str, message: Any) -> None:
        self.came.append(("question", node, message))

    def answer(self, node: str, message: Any, payload: memoryview) -> None:
        self.came.append(("answer", node, message, bytes(payload)))


def run(work: Callable[[Box], Awaitable[None] | None]) -> Box:
    async def main() -> Box:
        box = Box()
        box.connect()
        if (waiting := work(box)) is not None:
            await waiting
        await asyncio.sleep(0)
        return box

    return asyncio.run(main())


def over(box: Box) -> Frame:
    """The last frame out, as it comes in elsewhere: its payload in one piece."""
    head, *payload = encode(box.out[-1][2])
    header = bytes(head)[PREFIX.size :]
    return parse_frame(header, memoryview(b"".join(payload)) if payload else None)


def test_tensors_go_over_the_wire_and_come_back_the_same() -> None:
    values = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(["a", "ß"], object), [1, {"k": 2.5}]]

    def work(box: Box) -> None:
        box.post.values("you", Tensors("net", EPOCH, "me/1", 3, ()), values)
        assert box.out[-1][:2] == ("you", DATA)
        box.post.take("you", DATA, over(box))

    ((_, message, got, source),) = run(work).came
    assert (message.deployment, message.epoch, message.request, message.transfer) == ("net", EPOCH, "me/1", 3)
    assert source == "you"
    assert np.array_equal(got[0], values[0])  # type: ignore[arg-type]
    assert got[0].dtype == np.float32
    assert got[1].tolist() == ["a", "ß"]


def test_echoes_travel_as_tensors_do() -> None:
    def work(box: Box) -> None:
        for message in (Echo(7), Echoed(7)):
            box.post.arrays("you", message, [np.arange(5, dtype=np.uint8)])
            box.post.take("you", DATA, over(box))

    came = run(work).came
    assert [(what, node, type(message), message.ticket) for what, node, message, _ in came] == [
        ("echo", "you", Echo, 7),
        ("echo", "you", Echoed, 7),
    ]
    assert [values[0].tolist() for *_, values in came] == [[0, 1, 2, 3, 4]] * 2


def test_what_is_for_this_device_is_not_packed() -> None:
    values = [np.ones(3)]

    def work(box: Box) -> None:
        box.post.values("me", Tensors("net", EPOCH, "me/1", 3, ()), values)
        box.post.values("me", Failed("net", EPOCH, "me/1", True, "x"), ())

    box = run(work)
    assert box.out == []
    assert box.came[0][2] is values
    assert len(box.came) == 2


def test_each_message_finds_its_way() -> None:
    control: list[Any] = [Goodbye(1), Heartbeat("boot", 1, 0, "", 0)]
    data: list[tuple[Any, list[bytes]]] = [
        (Cancel("net", EPOCH, "you/1"), []),
        (WantFiles(1, "0"), []),
        (EchoTogether(2, "she", 5, 6, 7), []),
        (Part(3, 10), [b"x"]),
    ]

    def work(box: Box) -> None:
        for message in control:
            box.post.control("you", message)
            box.post.take("you", CONTROL, over(box))
        for message, payload in data:
            box.post.data("you", message, payload)
            box.post.take("you", DATA, over(box))

    came = run(work).came
    assert [entry for entry in came if entry[0] == "core"] == [
        ("core", MessageReceived("you", message)) for message in control
    ]
    assert [entry for entry in came if entry[0] == "request"] == [("request", data[0][0], [], "you")]
    assert [entry for entry in came if entry[0] == "question"] == [
        ("question", "you", data[1][0]),
        ("question", "you", data[2][0]),
    ]
    assert [entry for entry in came if entry[0] == "answer"] == [("answer", "you", data[3][0], b"x")]


TENSORS = Tensors("net", EPOCH, "you/1", 3, ())


@pytest.mark.parametrize(
    ("channel", "frame"),
    [
        (CONTROL, Frame("Surprise")),
        (DATA, Frame("Surprise")),
        (DATA, message_to_frame(Goodbye(1))),
        (CONTROL, message_to_frame(TENSORS)),
        (CONTROL, Frame("Heartbeat", {"boot": 5})),
        (DATA, Frame("Echo", {"ticket": "x", "arrays": ()})),
        (DATA, message_to_frame(Echo(1), [b"more than announced"])),
        (DATA, Frame("Tensors", message_to_frame(TENSORS).header | {"arrays": ((1, 2, 3),)}, (b"abc",))),
        (DATA, Frame("Tensors", message_to_frame(TENSORS).header, (b"more than announced",))),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_frames_that_are_none_of_ours_end_the_link(channel: str, frame: Frame) -> None:
    def work(box: Box) -> None:
        with pytest.raises(FrameError):
            box.post.take("you", channel, frame)

    assert run(work).came == []


def test_what_comes_before_anybody_is_there_is_dropped() -> None:
    async def main() -> None:
        box = Box()
        for message in (Echo(1), Cancel("net", EPOCH, "you/1")):
            box.post.take("you", DATA, message_to_frame(message))
        box.post.take("you", CONTROL, message_to_frame(Goodbye(1)))
        await asyncio.sleep(0)
        assert box.came == box.out == []

    asyncio.run(main())


def test_a_link_that_is_down_is_said_so() -> None:
    async def main() -> None:
        def down(*_: Any) -> None:
            raise Unavailable("no link")

        post = FrameDispatcher("me", down)
        with pytest.raises(Unavailable):
            post.control("you", Goodbye(1))
        with pytest.raises(Unavailable):
            post.values("you", TENSORS, [np.ones(3)])

    asyncio.run(main())
