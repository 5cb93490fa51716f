"""Two agents' data channels on this machine, each end in a process of its own: times and throughput of messages.

    python -m benchmarks.wires STATE WAY URL

runs the far end, which prints "ready ADDRESS" and ends when its standard input ends.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from edgepart.agent.mqtt.broker import parse_broker
from edgepart.agent.mqtt.session import Session
from edgepart.agent.mqtt.tunnel_sockets import TunnelOptions, TunnelSockets
from edgepart.agent.net.transport import Transport
from edgepart.agent.security import certificates, identity
from edgepart.agent.wire.address import parse_address
from edgepart.agent.wire.frames import Frame
from edgepart.planner.errors import Unavailable

WAYS = {"tcp": None, "mqtt": TunnelOptions(), "mqtt, QoS 1": TunnelOptions(qos=1)}
"""How the two ends reach each other."""
WAIT_S = 60.0
ROUND_BYTES = 16 << 20
"""About how many bytes are sent one way in one round; at least four messages."""


@dataclass(frozen=True)
class Trips:
    """The figures of messages of one size on one way."""

    way: str
    nbytes: int
    trip_s: float
    """Round trip of one message at a time; median."""
    bytes_per_s: float
    """One way, with many messages queued; median."""
    cpu_s_per_mb: float
    """CPU seconds of the sender per 10^6 bytes."""


class Wire:
    """The near end of a data channel."""

    def __init__(self, transport: Transport, node: str, came: queue.SimpleQueue[Frame], way: str) -> None:
        self.way = way
        self._transport = transport
        self._node = node
        self._came = came

    def trip_s(self, payload: memoryview) -> float:
        began = time.perf_counter()
        self._send("echo", payload)
        self._came.get(timeout=WAIT_S)
        return time.perf_counter() - began

    def flood(self, payload: memoryview) -> tuple[float, float]:
        """Return bytes per second, and CPU seconds of this process per 10^6 bytes."""
        count = min(2000, max(4, ROUND_BYTES // len(payload)))
        began, used = time.perf_counter(), time.process_time()
        for number in range(count):
            self._send("last" if number == count - 1 else "take", payload)
        self._came.get(timeout=WAIT_S)
        seconds, used = time.perf_counter() - began, time.process_time() - used
        return count * len(payload) / seconds, used / (count * len(payload) / 1e6)

    def _send(self, kind: str, payload: memoryview) -> None:
        self._transport.send(self._node, "data", Frame(kind, {}, (payload,)))


def make_members(folder: Path) -> None:
    """Make two members of one cluster, whose states are the folders "near" and "far"."""
    first = identity.create_cluster(folder / "near", time.time())
    key = certificates.new_key()
    encoded = first.issue(certificates.new_request(key), time.time())
    node, _ = certificates.read_node(encoded, first.ca)
    identity.write_identity(folder / "far", first.ca, node, key, first.admin)


def measure(folder: Path, url: str, sizes: list[int], rounds: int) -> list[Trips]:
    """Measure all ways in turn, so that other load on the machine weighs on all of them."""
    make_members(folder)
    found = []
    with ExitStack() as stack:
        wires = [stack.enter_context(_open(folder, way, url)) for way in WAYS]
        for nbytes in sizes:
            payload = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8).data
            each = max(3, min(50, (4 << 20) // nbytes))
            trips: list[list[float]] = [[] for _ in wires]
            floods: list[list[tuple[float, float]]] = [[] for _ in wires]
            for number in range(rounds + 1):
                for wire, its_trips, its_floods in zip(wires, trips, floods, strict=True):
                    times = [wire.trip_s(payload) for _ in range(each)]
                    flood = wire.flood(payload)
                    if number:  # the first one warms up
                        its_trips += times
                        its_floods.append(flood)
            found += [
                Trips(wire.way, nbytes, median(t), median(b for b, _ in f), median(c for _, c in f))
                for wire, t, f in zip(wires, trips, floods, strict=True)
            ]
    return found


@contextmanager
def _open(folder: Path, way: str, url: str) -> Iterator[Wire]:
    came: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    command = [sys.executable, "-m", "benchmarks.wires", str(folder / "far"), way, url]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as far,
        open_transport(folder / "near", way, url, lambda _, __, frame: came.put(frame)) as (near, _),
    ):
        assert far.stdin is not None and far.stdout is not None
        try:
            text = far.stdout.readline().split()
            if text[:1] != ["ready"]:
                raise Unavailable("the far end did not start")
            yield Wire(near, near.connect(None, [parse_address(text[1])]), came, way)
        finally:
            far.stdin.close()


@contextmanager
def open_transport(state: Path, way: str, url: str, on_frame: object) -> Iterator[tuple[Transport, str]]:
    """Yield a transport, and the address at which it is reached."""
    me = identity.load(state)
    options = WAYS[way]
    with ExitStack() as stack:
        tunnels = None
        if options is not None:
            number = list(WAYS).index(way)
            session = Session(parse_broker(url), f"wires-{os.getpid()}-{number}", None)
            stack.callback(session.stop)
            tunnels = TunnelSockets(session, f"edgepart/wires-{number}", me.node_id, options)
        transport = Transport(me, on_frame, lambda *_: None, carrier=tunnels)  # type: ignore[arg-type]
        stack.callback(transport.stop, 0.5)
        host, port = transport.listen("127.0.0.1", 0)
        if tunnels is not None:
            session.start([tunnels])
            session.await_up(10.0)
        yield transport, host if tunnels is not None else f"{host}:{port}"


def main() -> None:
    state, way, url = sys.argv[1:]

    def on_frame(node: str, channel: str, frame: Frame) -> None:
        if frame.kind == "echo":
            transport.send(node, channel, Frame("echo", {}, () if frame.body is None else (frame.body,)))
        elif frame.kind == "last":
            transport.send(node, channel, Frame("done", {}))

    with open_transport(Path(state), way, url, on_frame) as (transport, address):
        print("ready", address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
