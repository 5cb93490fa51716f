"""Cost of a message between compute threads of two processes on this machine: the time one way, and the processor time at
both ends, over TCP and through a broker, beside those of the same bytes over bare TLS and bare TCP.

    python -m benchmarks.messages [--sizes 200,2304] [--rounds N] [--markdown] [--json FILE]

The two ends take turns, as parts of a model do that exchange partial sums: each computes nothing, sends, and waits for the
other. With --pause, each sleeps before it sends, as a slow device computes; the caches then are cold. All ways have a round
in turn, and each is compared with bare TLS round by round, so that other work on the machine weighs on both. The broker's
own processor time is not counted. Needs mosquitto, which it starts itself. Prints a table; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import wires
from benchmarks.latency import numbers
from benchmarks.machine import describe, sentence, show_table
from benchmarks.mosquitto import Mosquitto
from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.executor import Executor
from edgepart.agent.execution.nchwc_array import KeptBlocked
from edgepart.agent.net.dispatch import FrameDispatcher
from edgepart.agent.security import identity
from edgepart.agent.wire.address import parse_address
from edgepart.agent.wire.inference import Epoch, RequestMessage, StateMessage, Tensors
from edgepart.agent.wire.tensors import Value
from edgepart.cli.output import note, say
from edgepart.planner.errors import InternalError
from edgepart.planner.figures import format_bytes, format_seconds
from edgepart.planner.plans.plan import (
    GATEWAY,
    Piece,
    Port,
    Program,
    Receive,
    Run,
    Segment,
    Send,
    Step,
    Transfer,
)
from edgepart.planner.region import Array, Region

SIZES = (200, 2304, 16 << 10, 128 << 10, 1 << 20)
EXCHANGES = 100
"""Messages each way in one round."""
WAIT_S = 120.0
NEAR, FAR = "near", "far"
BARE_TLS, BARE_TCP = "bare TLS", "bare TCP"
OURS = {"edgepart": "tcp", "edgepart, MQTT": "mqtt"}
"""Our ways, and what the wires are called below them (wires.py)."""
WAYS = (BARE_TCP, BARE_TLS, *OURS)
AIM = "aim 1.5x"
DEPLOYMENT, EPOCH = "messages", Epoch(1, 1)


@dataclass(frozen=True)
class Message:
    """The figures of messages of one size on one way."""

    way: str
    nbytes: int
    one_way_s: float
    """From the time when one end begins to send until the other does; median of the rounds. Without the pause."""
    cpu_s: float
    """Processor time of both ends together for one message, of all threads, in user and system mode; median."""
    one_way_share: float
    """The time one way as a multiple of that over bare TLS in the same round; median."""
    cpu_share: float
    """The same of the processor time."""


@dataclass(frozen=True)
class Job:
    """What the two ends do."""

    folder: str
    url: str
    """The broker's."""
    way: str
    nbytes: int
    pause_s: float


Figures = tuple[float, float]
"""The seconds of a round, and the processor time of both ends in it."""
Turn = Callable[[], Awaitable[Figures]]
"""Does one round."""


class Idle:
    """A program that computes nothing: its segments return their input after a pause."""

    dtypes: Mapping[str, np.dtype[Any]] = {}
    kept = KeptBlocked()

    def __init__(self, program: Program, pause_s: float) -> None:
        self.program = program
        self._pause_s = pause_s

    def run(self, segment: int, inputs: Sequence[Value], *_: object) -> list[Value]:
        if self._pause_s:
            time.sleep(self._pause_s)
        return list(inputs)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.empty(shape, dtype)

    def stop(self) -> None: ...

    def scratch(self) -> Scratch:
        return Scratch(lambda nbytes: np.empty(nbytes, np.uint8))

    def best_s(self, segment: int, budget_s: float) -> float | None:
        return None


def programs(nbytes: int) -> tuple[dict[str, Program], tuple[Transfer, ...]]:
    """Return the programs of the two ends, which send EXCHANGES messages each, and their transfers."""

    def piece(number: int) -> Piece:
        return Piece(f"t{number}", Region.full((nbytes,)))

    segments = tuple(
        Segment("", b"", (Port("x", piece(n)),), (Port("y", piece(n + 1)),), (), (), 0.0, 0.0, 0)
        for n in range(2 * EXCHANGES)
    )
    ends = (GATEWAY, *(NEAR, FAR) * EXCHANGES, GATEWAY)
    transfers = [Transfer(n, ends[n], ends[n + 1], (piece(n),), nbytes) for n in range(len(ends) - 1)]
    steps: dict[str, list[Step]] = {NEAR: [], FAR: []}
    for n in range(2 * EXCHANGES):
        steps[ends[n + 1]] += [Receive(n), Run(n), Send(n + 1)]
    made = {name: Program(name, tuple(steps[name]), segments, 0, 0) for name in steps}
    return made, tuple(transfers)


class End:
    """One end: a transport and an executor, as agents have them."""

    def __init__(self, job: Job, name: str, stack: ExitStack) -> None:
        folder = Path(job.folder) / name
        self.me = identity.load(folder)
        self.answered = Event()
        opened = wires.open_transport(folder, OURS[job.way], job.url, self._take)
        self.transport, self.address = stack.enter_context(opened)
        self.post = FrameDispatcher(self.me.node_id, self.transport.send)
        self.post.connect(self, self, *[_ignore] * 3)
        self.executor = Executor(self.post.values, data_from=self.transport.data_from)
        self.executor.start()
        stack.callback(self.executor.stop)

    def _take(self, node: str, channel: str, frame: Any) -> None:
        self.post.take(node, channel, frame)

    def arrived(self, message: RequestMessage | StateMessage, values: Sequence[Value], source: str) -> None:
        if not isinstance(message, Tensors):
            raise InternalError(f"the other end sent {message}")
        if message.transfer == 2 * EXCHANGES:
            self.answered.set()
        else:
            self.executor.deliver(message, values, source)

    def came(self, *_: object) -> None: ...

    def install(self, job: Job, name: str, nodes: Mapping[str, str]) -> None:
        made, transfers = programs(job.nbytes)
        self.executor.install(DEPLOYMENT, EPOCH, Idle(made[name], job.pause_s), transfers, nodes)


def _ignore(*_: object) -> None: ...


@asynccontextmanager
async def _near(job: Job, far: Connection[Any, Any]) -> AsyncIterator[Turn]:
    """Yield what takes turns with the far end."""
    with ExitStack() as stack:
        end = End(job, NEAR, stack)
        other = end.transport.connect(None, [parse_address(far.recv())])
        end.install(job, NEAR, {NEAR: end.me.node_id, FAR: other})
        far.send(end.me.node_id)
        far.recv()
        values, numbers = [np.ones(job.nbytes, np.uint8)], count()

        async def exchange() -> None:
            end.answered.clear()
            start = Tensors(DEPLOYMENT, EPOCH, f"{end.me.node_id}/0/{next(numbers)}", 0, ())
            end.executor.deliver(start, values)
            if not await asyncio.to_thread(end.answered.wait, WAIT_S):
                raise InternalError("the ends lost each other")

        yield lambda: _timed(far, exchange)
        far.send("done")


async def _timed(far: Connection[Any, Any], exchange: Callable[[], Awaitable[None]]) -> Figures:
    """Do one round, which the far end is told of, and return its figures."""
    far.send("round")
    used_s = far.recv() + time.process_time()
    began_s = time.perf_counter()
    await exchange()
    took_s = time.perf_counter() - began_s
    far.send("used")
    return took_s, far.recv() + time.process_time() - used_s


async def _far(job: Job, near: Connection[Any, Any]) -> None:
    """Take turns with the near end, and tell it the processor time of this one, until it ends."""
    with ExitStack() as stack:
        end = End(job, FAR, stack)
        near.send(end.address)
        end.install(job, FAR, {FAR: end.me.node_id, NEAR: await asyncio.to_thread(near.recv)})
        near.send("ready")
        while await asyncio.to_thread(near.recv) != "done":
            near.send(time.process_time())


@contextmanager
def _line(job: Job, other: Connection[Any, Any], name: str) -> Iterator[Callable[[], None]]:
    """Connect the ends by one bare connection; yield what does this end's part of a round."""
    me, near = identity.load(Path(job.folder) / name), name == NEAR
    if near:
        raw = socket.create_connection(tuple(other.recv()))
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            other.send(listener.getsockname())
            raw, _ = listener.accept()
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line: socket.socket = raw
    if job.way == BARE_TLS:
        context: ssl.SSLContext = me.client_context() if near else me.server_context()
        line = context.wrap_socket(raw, server_side=not near)
    payload, into = bytes(job.nbytes), memoryview(bytearray(job.nbytes))

    def receive() -> None:
        filled = 0
        while filled < job.nbytes:
            filled += line.recv_into(into[filled:])

    def exchange() -> None:
        for _ in range(EXCHANGES):
            if not near:
                receive()
            if job.pause_s:
                time.sleep(job.pause_s)
            line.sendall(payload)
            if near:
                receive()

    with line:
        yield exchange


@asynccontextmanager
async def _bare_near(job: Job, far: Connection[Any, Any]) -> AsyncIterator[Turn]:
    with _line(job, far, NEAR) as exchange:

        async def take_turns() -> None:
            exchange()

        yield lambda: _timed(far, take_turns)
        far.send("done")


def _bare_far(job: Job, near: Connection[Any, Any]) -> None:
    with _line(job, near, FAR) as exchange:
        while (told := near.recv()) != "done":
            near.send(time.process_time())
            if told == "round":
                exchange()


def _run_far(job: Job, near: Connection[Any, Any]) -> None:
    if job.way in OURS:
        asyncio.run(_far(job, near))
    else:
        _bare_far(job, near)


@asynccontextmanager
async def _open(job: Job) -> AsyncIterator[Turn]:
    """Start the far end of a way; yield what takes turns with it."""
    spawn = multiprocessing.get_context("spawn")
    near, far = spawn.Pipe()
    process = spawn.Process(target=_run_far, args=(job, far))
    process.start()
    try:
        async with (_near if job.way in OURS else _bare_near)(job, near) as turn:
            yield turn
        process.join(WAIT_S)
    finally:
        process.kill()


async def measure(folder: str, url: str, nbytes: int, rounds: int, pause_s: float) -> list[Message]:
    """Return the figures of messages of one size, in all ways."""
    found: dict[str, list[Figures]] = {way: [] for way in WAYS}
    async with AsyncExitStack() as stack:
        turns = {
            way: await stack.enter_async_context(_open(Job(folder, url, way, nbytes, pause_s)))
            for way in WAYS
        }
        for number in range(rounds + 1):
            for way, turn in turns.items():
                took_s, used_s = await turn()
                if number:  # The first one warms up.
                    found[way].append((took_s / (2 * EXCHANGES) - pause_s, used_s / (2 * EXCHANGES)))
    bare = found[BARE_TLS]
    return [
        Message(
            way,
            nbytes,
            median(took_s for took_s, _ in figures),
            median(used_s for _, used_s in figures),
            median(one[0] / other[0] for one, other in zip(figures, bare, strict=True)),
            median(one[1] / other[1] for one, other in zip(figures, bare, strict=True)),
        )
        for way, figures in found.items()
    ]


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=numbers, default=SIZES, help="bytes of each message, as in 200,2304")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds that each end sleeps before it sends"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as documents have it")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    found: list[Message] = []
    with tempfile.TemporaryDirectory(prefix="edgepart-") as folder, Mosquitto(Path(folder)) as broker:
        wires.make_members(Path(folder))
        for nbytes in options.sizes:
            note(f"{nbytes} bytes, all ways in turn")
            found += asyncio.run(measure(folder, broker.url, nbytes, options.rounds, options.pause))
    say(f"On {sentence()}.\n")
    of_bare = f"of bare TLS ({AIM})"
    shown = Table("message", "way", "time one way", of_bare, "processor time, both ends", of_bare)
    for one in found:
        shown.add_row(
            format_bytes(one.nbytes),
            one.way,
            format_seconds(one.one_way_s),
            f"{one.one_way_share:.1f}x",
            format_seconds(one.cpu_s),
            f"{one.cpu_share:.1f}x",
        )
    show_table(shown, options.markdown)
    if options.json is not None:
        document = {"machine": describe(), "messages": [asdict(one) for one in found]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
