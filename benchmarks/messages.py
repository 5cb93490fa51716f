"""Cost of a message between compute threads of two processes on this machine: the time one way, and the processor time at
both ends, beside those of the same bytes over bare TLS and bare TCP.

    python -m benchmarks.messages [--sizes 200,2304] [--rounds N] [--markdown] [--json FILE]

The two ends take turns, as parts of a model do that exchange partial sums: each computes nothing, sends, and waits for the
other. With --pause, each sleeps before it sends, as a slow device computes; the caches then are cold. Prints a table;
nothing here passes or fails.
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.executor import Executor
from edgepart.agent.execution.nchwc_array import KeptBlocked
from edgepart.agent.net.dispatch import FrameDispatcher
from edgepart.agent.net.transport import Transport
from edgepart.agent.security import identity
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
WAYS = ("edgepart", "bare TLS", "bare TCP")
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


@dataclass(frozen=True)
class Job:
    """What the two ends do."""

    folder: str
    way: str
    nbytes: int
    rounds: int
    pause_s: float


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

    def __init__(self, job: Job, name: str) -> None:
        self.me = identity.load(Path(job.folder) / name)
        self.answered = Event()
        self.transport = Transport(self.me, self._take, lambda *_: None)
        self.address = self.transport.listen("127.0.0.1", 0)
        self.post = FrameDispatcher(self.me.node_id, self.transport.send)
        self.post.connect(self, self, *[_ignore] * 3)
        self.executor = Executor(self.post.values, data_from=self.transport.data_from)
        self.executor.start()

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

    def stop(self) -> None:
        self.executor.stop()
        self.transport.stop(0.0)


def _ignore(*_: object) -> None: ...


async def _near(job: Job, far: Connection[Any, Any]) -> list[tuple[float, float]]:
    """Take turns with the far end; return the seconds, and the processor time of both ends, of each round."""
    end = End(job, NEAR)
    other = end.transport.connect(None, [tuple(far.recv())])
    end.install(job, NEAR, {NEAR: end.me.node_id, FAR: other})
    far.send(end.me.node_id)
    far.recv()
    values, found = [np.ones(job.nbytes, np.uint8)], []
    for number in range(job.rounds):
        end.answered.clear()
        far.send("used")
        began_s, used_s = time.perf_counter(), time.process_time() + far.recv()
        start = Tensors(DEPLOYMENT, EPOCH, f"{end.me.node_id}/0/{number}", 0, ())
        end.executor.deliver(start, values)
        if not await asyncio.to_thread(end.answered.wait, WAIT_S):
            raise InternalError("the ends lost each other")
        took_s = time.perf_counter() - began_s
        far.send("used")
        found.append((took_s, time.process_time() + far.recv() - used_s))
    far.send("done")
    end.stop()
    return found


async def _far(job: Job, near: Connection[Any, Any]) -> None:
    """Take turns with the near end, and tell it the processor time of this one, until it ends."""
    end = End(job, FAR)
    near.send(end.address)
    end.install(job, FAR, {FAR: end.me.node_id, NEAR: await asyncio.to_thread(near.recv)})
    near.send("ready")
    while await asyncio.to_thread(near.recv) == "used":
        near.send(time.process_time())
    end.stop()


def _bare(job: Job, other: Connection[Any, Any], name: str) -> list[tuple[float, float]]:
    """Take the same turns over one connection; return the same figures if this is the near end."""
    me, near, found = identity.load(Path(job.folder) / name), name == NEAR, []
    if near:
        raw = socket.create_connection(tuple(other.recv()))
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            other.send(listener.getsockname())
            raw, _ = listener.accept()
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line: socket.socket = raw
    if job.way == "bare TLS":
        context: ssl.SSLContext = me.client_context() if near else me.server_context()
        line = context.wrap_socket(raw, server_side=not near)
    payload, into = bytes(job.nbytes), memoryview(bytearray(job.nbytes))

    def receive() -> None:
        filled = 0
        while filled < job.nbytes:
            filled += line.recv_into(into[filled:])

    for _ in range(job.rounds):
        used_s = time.process_time()
        if near:
            other.send("used")
            used_s += other.recv()
        else:
            other.recv()
            other.send(used_s)
        began_s = time.perf_counter()
        for _ in range(EXCHANGES):
            if not near:
                receive()
            if job.pause_s:
                time.sleep(job.pause_s)
            line.sendall(payload)
            if near:
                receive()
        took_s, used_now_s = time.perf_counter() - began_s, time.process_time()
        if near:
            found.append((took_s, used_now_s + other.recv() - used_s))
        else:
            other.send(used_now_s)
    return found


def _run_far(job: Job, near: Connection[Any, Any]) -> None:
    if job.way == "edgepart":
        asyncio.run(_far(job, near))
    else:
        _bare(job, near, FAR)


def measure(job: Job) -> Message:
    """Return the figures of one way and size."""
    spawn = multiprocessing.get_context("spawn")
    near, far = spawn.Pipe()
    process = spawn.Process(target=_run_far, args=(job, far))
    process.start()
    try:
        found = asyncio.run(_near(job, near)) if job.way == "edgepart" else _bare(job, near, NEAR)
        process.join(WAIT_S)
    finally:
        process.kill()
    messages = 2 * EXCHANGES
    times = [took_s / messages - job.pause_s for took_s, _ in found[1:]]
    return Message(job.way, job.nbytes, median(times), median(used / messages for _, used in found[1:]))


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
    with tempfile.TemporaryDirectory(prefix="edgepart-") as folder:
        wires.make_members(Path(folder))
        for nbytes in options.sizes:
            for way in WAYS:
                note(f"{way}, {nbytes} bytes")
                found.append(measure(Job(folder, way, nbytes, options.rounds + 1, options.pause)))
    say(f"On {sentence()}.\n")
    shown = Table("message", "way", "time one way", "processor time, both ends")
    for one in found:
        shown.add_row(
            format_bytes(one.nbytes), one.way, format_seconds(one.one_way_s), format_seconds(one.cpu_s)
        )
    show_table(shown, options.markdown)
    if options.json is not None:
        document = {"machine": describe(), "messages": [asdict(one) for one in found]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
