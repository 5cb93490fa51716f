"""Load on one gateway: two thousand idle clients, some that are slow on purpose, and many that ask. `make load`

Real agents run on this machine's loopback. Each busy client has an address of its own (127.0.x.y), so that the gateway
can tell them apart. One of them, the greedy one, uses twice as many connections as all others together. Then, for the
overload, eight times as many requests are sent at once as the gateway has places.

Required: every request is answered correctly or refused with 503 and Retry-After; the agent grows by no more than
`GROWN_BYTES`; and no busy client gets less than `FAIR` of an equal share of all answers. The rest of what the greedy
client gets is capacity for which no other client was waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.host.open_files import open_files
from edgepart.cli.local import LocalCluster, edgepart
from edgepart.client.tensors import read_answer, request_body
from edgepart.planner.region import Array

GROWN_BYTES = 512 << 20
"""Bound on the agent's growth: unread answers may take 256 MiB, and thousands of connections the rest."""
FAIR = 0.6
"""Minimum share of an equal part of all answers that each busy client has to get."""
ASK_S = 120.0
"""Seconds after which a request without an answer is lost."""
LAYERS = 16
"""Matrix products in the deep model. They take some milliseconds in all, which is longer than asking takes."""
WIDE = 2_000_000
"""Numbers in the answer that slow readers ask for: 8 MB."""
LOST = (OSError, EOFError, asyncio.IncompleteReadError, ValueError)


@dataclass(frozen=True)
class Crowd:
    """The numbers of clients by kind, and the length of the phases."""

    idle: int = 2000
    busy: int = 64
    slow_readers: int = 64
    slow_writers: int = 128
    half_open: int = 200
    seconds: float = 20.0
    """Length of each phase."""
    overload: int = 8
    agents: int = 1


@dataclass
class Phase:
    """The result of one phase."""

    name: str
    answered: int = 0
    wrong: int = 0
    refused: int = 0
    """Requests refused with 503 and Retry-After."""
    unsaid: int = 0
    """Requests refused with 503 and without Retry-After."""
    reopened: int = 0
    """Requests on a connection that the gateway had just closed to make room."""
    lost: int = 0
    why: Counter[str] = field(default_factory=Counter)
    """Reasons of lost requests."""
    other: Counter[int] = field(default_factory=Counter)
    """Answers with any other status, by status."""
    seconds: list[float] = field(default_factory=list, repr=False)
    """Seconds that each answer took."""
    by_client: Counter[str] = field(default_factory=Counter, repr=False)
    peak_rss: int = 0

    def quantile_s(self, part: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


@dataclass(frozen=True)
class Scene:
    """The gateway, and the requests that it is sent."""

    host: str
    port: int
    body: bytes
    head_bytes: int
    expected: Array
    wide: bytes
    wide_head_bytes: int
    pids: tuple[int, ...]

    def rss(self) -> int:
        return max(int(psutil.Process(pid).memory_info().rss) for pid in self.pids)

    def request(self, model: str, body: bytes, head_bytes: int, announced: int | None = None) -> bytes:
        size = len(body) if announced is None else announced
        return (
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n"
            f"Inference-Header-Content-Length: {head_bytes}\r\n\r\n".encode()
            + body
        )

    async def connect(
        self, address: str, limit: int = 1 << 16
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port, local_addr=(address, 0), limit=limit)


def address(group: int, number: int) -> str:
    return f"127.{group}.{number // 250}.{number % 250 + 1}"


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


# Clients that only occupy connections


async def idler(scene: Scene, number: int) -> None:
    """Hold a connection open; every second client has sent one request before."""
    reader, writer = await scene.connect(address(1, number))
    try:
        if number % 2:
            writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await answer(reader)
        await reader.read(1)
    finally:
        writer.close()


async def half_open(scene: Scene, number: int) -> None:
    """Send a request's head without its body, or only half a head."""
    reader, writer = await scene.connect(address(2, number))
    try:
        head = scene.request("deep", b"", scene.head_bytes, len(scene.body))
        writer.write(head if number % 2 else head[:40])
        await reader.read(1)
    finally:
        writer.close()


async def slow_writer(scene: Scene, number: int) -> None:
    """Send a byte of the body each second."""
    reader, writer = await scene.connect(address(3, number))
    try:
        writer.write(scene.request("deep", b"", scene.head_bytes, len(scene.body)))
        for byte in scene.body:
            writer.write(bytes((byte,)))
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await reader.read(1)
                    return
    finally:
        writer.close()


async def slow_reader(scene: Scene, number: int) -> None:
    """Read a byte of a long answer each second."""
    reader, writer = await scene.connect(address(4, number), limit=1)
    try:
        writer.write(scene.request("wide", scene.wide, scene.wide_head_bytes))
        await writer.drain()
        while await reader.read(1):
            await asyncio.sleep(1.0)
    finally:
        writer.close()


async def again_and_again(one: Callable[[Scene, int], Awaitable[None]], scene: Scene, number: int) -> None:
    """Run a client again whenever its connection ends."""
    while True:
        with suppress(*LOST):
            await one(scene, number)
        await asyncio.sleep(1.0 + random.random())


# Clients that ask


async def busy(scene: Scene, phase: Phase, client: str, until: float) -> None:
    """Send requests on one connection until `until`: each after the last answer, or after the wait that it
    demanded."""
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while time.monotonic() < until:
        began, kept = time.monotonic(), connection is not None
        try:
            async with asyncio.timeout(ASK_S):
                connection = connection or await scene.connect(client)
                connection[1].write(scene.request("deep", scene.body, scene.head_bytes))
                status, headers, body = await answer(connection[0])
        except (*LOST, TimeoutError) as error:
            connection = None
            if kept and is_closed(error):
                phase.reopened += 1
                continue
            phase.lost += 1
            phase.why[repr(error)] += 1
            await asyncio.sleep(0.2)
            continue
        if headers.get("connection") == "close":
            connection[1].close()
            connection = None
        await asyncio.sleep(_count(scene, phase, client, time.monotonic() - began, (status, headers, body)))
    if connection is not None:
        connection[1].close()


def is_closed(error: Exception) -> bool:
    """Whether the connection was closed while it was idle, as a server may do to a kept connection.

    A request that was sent too late to be read is sent again on a new connection, as every HTTP client does.
    """
    return isinstance(error, ConnectionError) or (
        isinstance(error, asyncio.IncompleteReadError) and not error.partial
    )


def _count(
    scene: Scene, phase: Phase, client: str, took_s: float, found: tuple[int, dict[str, str], bytes]
) -> float:
    """Count an answer and return the seconds to wait before the next request."""
    status, headers, body = found
    if status == 200:
        _, arrays = read_answer(body, headers.get("inference-header-content-length"))
        phase.wrong += not np.allclose(arrays["y"], scene.expected, rtol=1e-4, atol=1e-5)
        phase.answered += 1
        phase.by_client[client] += 1
        phase.seconds.append(took_s)
        return 0.0
    if status == 503 and headers.get("retry-after", "").isdigit():
        phase.refused += 1
        return int(headers["retry-after"]) * (0.5 + random.random())
    phase.unsaid += status == 503
    phase.other[status] += 1
    return 0.2


async def phase_of(scene: Scene, name: str, clients: list[str], seconds: float) -> Phase:
    """Run a connection for each of these client addresses for so many seconds, and return the phase."""
    phase = Phase(name)
    until = time.monotonic() + seconds
    asking = [asyncio.create_task(busy(scene, phase, client, until)) for client in clients]
    while not all(task.done() for task in asking):
        phase.peak_rss = max(phase.peak_rss, scene.rss())
        await asyncio.wait(asking, timeout=0.25, return_when=asyncio.ALL_COMPLETED)
    await asyncio.gather(*asking)
    return phase


async def crowded(scene: Scene, crowd: Crowd) -> list[Phase]:
    """Return all phases, run one after the other. The clients that only occupy connections stay from the
    second one to the last but one."""
    each = [address(5, n) for n in range(crowd.busy)]
    phases = [await phase_of(scene, "busy clients alone", each, crowd.seconds)]
    kinds = (
        (idler, crowd.idle),
        (half_open, crowd.half_open),
        (slow_writer, crowd.slow_writers),
        (slow_reader, crowd.slow_readers),
    )
    tasks = [
        asyncio.create_task(again_and_again(kind, scene, n)) for kind, count in kinds for n in range(count)
    ]
    try:
        await asyncio.sleep(3.0)
        phases.append(await phase_of(scene, "and the crowd", each, crowd.seconds))
        greedy = [address(6, 0)] * (2 * crowd.busy)
        phases.append(await phase_of(scene, "and a greedy one", each + greedy, crowd.seconds))
        many = [each[n % crowd.busy] for n in range(crowd.overload * BodyLimits().in_flight)]
        phases.append(await phase_of(scene, f"{crowd.overload}-fold overload", many, crowd.seconds))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    phases.append(await phase_of(scene, "afterwards", each, crowd.seconds / 4))
    return phases


# The models and the cluster


def deep_model(path: Path) -> Array:
    """Save a model of products that take some milliseconds; return its weight."""
    weight = np.random.default_rng(3).standard_normal((1024, 1024)).astype(np.float32) / 32
    nodes = [
        helper.make_node("MatMul", [f"h{n}" if n else "x", "w"], [f"h{n + 1}" if n < LAYERS - 1 else "y"])
        for n in range(LAYERS)
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1024]) for name in ("x", "y")]
    save(path, nodes, values, [numpy_helper.from_array(weight, "w")])
    return weight


def wide_model(path: Path) -> None:
    """Save a model with a long answer to a short request."""
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDE]),
    ]
    shape = numpy_helper.from_array(np.array([1, WIDE], np.int64), "s")
    save(path, [helper.make_node("Expand", ["x", "s"], ["y"])], values, [shape])


def save(path: Path, nodes: list[Any], values: list[Any], weights: list[Any]) -> None:
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def measured(crowd: Crowd, folder: Path) -> tuple[int, list[Phase]]:
    """Return the resident bytes before the phases, and the phases."""
    weight = deep_model(folder / "deep.onnx")
    wide_model(folder / "wide.onnx")
    names = [f"n{n}" for n in range(crowd.agents)]
    with LocalCluster(
        names, options=("--threads", "1", "--no-mdns"), folder=folder, listen="127.0.0.1:0"
    ) as cluster:
        for model in ("deep", "wide"):
            edgepart(
                "deploy",
                str(folder / f"{model}.onnx"),
                "--name",
                model,
                "--strategy",
                "single",
                "--state",
                str(cluster.first.state),
                timeout_s=180,
            )
        url = urlsplit(cluster.first.url)
        x = np.random.default_rng(4).standard_normal((1, 1024)).astype(np.float32)
        asked = [bytes(piece) for piece in request_body({"x": x}, None)(60.0)]
        wide = [bytes(piece) for piece in request_body({"x": np.ones((1, 1), np.float32)}, None)(60.0)]
        expected = np.linalg.multi_dot([x, *[weight] * LAYERS])
        pids = tuple(agent.addresses["pid"] for agent in cluster.living)
        scene = Scene(
            str(url.hostname),
            int(url.port or 0),
            b"".join(asked),
            len(asked[0]),
            expected,
            b"".join(wide),
            len(wide[0]),
            pids,
        )
        asyncio.run(phase_of(scene, "warm", [address(5, 0)], 1.0))
        before = scene.rss()
        return before, asyncio.run(crowded(scene, crowd))


def faults(crowd: Crowd, before: int, phases: list[Phase]) -> list[str]:
    """Return a sentence for each requirement that does not hold."""
    found = []
    for phase in phases:
        bad = phase.wrong + phase.lost + phase.unsaid + phase.other.total()
        if bad:
            found.append(
                f"{phase.name}: {phase.wrong} wrong, {phase.lost} lost {dict(phase.why)}, "
                f"{phase.unsaid} without Retry-After, "
                f"others {dict(phase.other)}"
            )
        if phase.peak_rss - before > GROWN_BYTES:
            found.append(f"{phase.name}: the agent grew by {(phase.peak_rss - before) / 1e6:.0f} MB")
        if (least := shares(crowd, phase)[0]) < FAIR:
            found.append(f"{phase.name}: one client had {least:.2f} of an equal part")
    return found


def shares(crowd: Crowd, phase: Phase) -> tuple[float, float]:
    """Return the fewest and the most answers of a client, relative to an equal share of all answers."""
    counts = [phase.by_client[address(5, n)] for n in range(crowd.busy)]
    greedy = phase.by_client[address(6, 0)]
    equal = max(1.0, (sum(counts) + greedy) / (crowd.busy + (greedy > 0)))
    return min(counts) / equal, max(*counts, greedy) / equal


def table(crowd: Crowd, before: int, phases: list[Phase]) -> str:
    lines = [
        "| phase | answered | wrong | lost | 503, later | reopened | other | p50 / p99 s | least, most | MB more |",
        "| - | - | - | - | - | - | - | - | - | - |",
    ]
    for phase in phases:
        least, most = shares(crowd, phase)
        lines.append(
            f"| {phase.name} | {phase.answered} | {phase.wrong} | {phase.lost} | {phase.refused} | "
            f"{phase.reopened} | {phase.other.total()} | "
            f"{phase.quantile_s(0.5):.3f} / {phase.quantile_s(0.99):.3f} | {least:.2f} / {most:.2f} | "
            f"{(phase.peak_rss - before) / 1e6:.0f} |"
        )
    return "\n".join(lines)


def row(crowd: Crowd, phase: Phase) -> dict[str, Any]:
    """Return a phase's figures for scripts."""
    kept = ("name", "answered", "wrong", "refused", "unsaid", "reopened", "lost", "peak_rss")
    return {name: getattr(phase, name) for name in kept} | {
        "other": dict(phase.other),
        "p50_s": phase.quantile_s(0.5),
        "p99_s": phase.quantile_s(0.99),
        "shares": shares(crowd, phase),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    for name, value in asdict(Crowd()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--json", type=Path)
    given = vars(parser.parse_args())
    out = given.pop("json")
    crowd = Crowd(**given)
    open_files()  # each client needs an open file
    with tempfile.TemporaryDirectory(prefix="edgepart-load-") as folder:
        before, phases = measured(crowd, Path(folder))
    found = faults(crowd, before, phases)
    print(table(crowd, before, phases))
    print("\n".join(found) or "all of it holds")
    if out is not None:
        rows = [row(crowd, phase) for phase in phases]
        document = {"crowd": asdict(crowd), "rss_before": before, "faults": found, "phases": rows}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
