"""Who sends much that is worth nothing to one of three real agents takes nothing from the others."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest
from tritonclient import grpc as triton

from edgepart.agent.wire.address import parse_address
from edgepart.cli.local import LocalAgent, LocalCluster, Place
from tests.processes.asking import deploy, infer, requests_during
from tests.processes.test_slow_disk import missed, scaled

pytestmark = pytest.mark.processes

BOUND_S = 30.0
BRACKETS = b"[" * (31 << 20)
BOMB = gzip.compress(bytes(256 << 20), 1)
"""Each unpacks to four times what one may."""
BOMBS = 12
MOST_BYTES = 600_000_000
REQUESTS = 100


def send(agent: LocalAgent, body: bytes, headers: dict[str, str]) -> int:
    """The status; without a credential. 0 where the agent ended the connection before it had read all."""
    url = urlsplit(agent.url)
    connection = http.client.HTTPConnection(str(url.hostname), int(url.port or 0), timeout=BOUND_S)
    try:
        connection.request("POST", "/v2/models/victim/infer", body, headers)
        return connection.getresponse().status
    except ConnectionError:
        return 0
    finally:
        connection.close()


@contextlib.contextmanager
def watched(agent: LocalAgent) -> Iterator[list[int]]:
    """What is resident of the agent's process meanwhile, in bytes."""
    process, seen, over = psutil.Process(agent.addresses["pid"]), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            seen.append(process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@pytest.mark.nightly
def test_brackets_and_bombs_take_neither_memory_nor_answers_nor_links(tmp_path: Path) -> None:
    options = ("--threads", "1", "--no-mdns")
    with LocalCluster(["a", "b", "c"], options=options, folder=tmp_path) as cluster:
        victim = cluster.first
        for name in ("victim", "other"):
            deploy(cluster, scaled(tmp_path, 2.0), name, "--strategy", "single")
        x = np.arange(4, dtype=np.float32)
        statuses: list[int] = []

        def flood() -> None:
            with ThreadPoolExecutor(BOMBS + 1) as pool:
                bombs = [pool.submit(send, victim, BOMB, {"Content-Encoding": "gzip"}) for _ in range(BOMBS)]
                assert pool.submit(send, victim, BRACKETS, {}).result() == 400
                statuses.extend(bomb.result() for bomb in bombs)

        with watched(victim) as resident:
            tally = requests_during(victim, "other", {"x": x}, {"y": 2 * x}, REQUESTS, flood)
        assert (tally.sent, tally.wrong, tally.lost) == (REQUESTS, 0, [])
        assert len(statuses) == BOMBS and set(statuses) <= {0, 413, 503} and 413 in statuses
        assert max(resident) < MOST_BYTES, f"{max(resident) / 1e6:.0f} MB"
        assert not [line for agent in cluster.living for line in missed(cluster, agent)]


@pytest.mark.nightly
def test_with_64_files_an_agent_answers_beside_hundreds_of_connections(tmp_path: Path) -> None:
    place = Place(prefix=("sh", "-c", 'ulimit -n 64; exec "$@"', "sh"), listen="127.0.0.1:0")
    options = ("--threads", "1", "--no-mdns")
    with LocalCluster(("box",), options=options, folder=tmp_path, places=lambda name: place) as cluster:
        box = cluster.first
        deploy(cluster, scaled(tmp_path, 2.0), "net")
        url = urlsplit(box.url)
        x = np.arange(4, dtype=np.float32)
        for half in (
            b"",
            b"POST /v2/models/net/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
        ):
            with contextlib.ExitStack() as held:
                for _ in range(100):
                    for to in (
                        (str(url.hostname), int(url.port or 0)),
                        parse_address(box.addresses["listen"]),
                        parse_address(box.grpc),
                    ):
                        connection = held.enter_context(socket.create_connection(to, BOUND_S))
                        with contextlib.suppress(ConnectionError):  # it may be full already
                            connection.sendall(half)
                if not half:
                    np.testing.assert_array_equal(infer(box, "net", {"x": x})["y"], 2 * x)
        cluster.wait(lambda: (infer(box, "net", {"x": x})["y"] == 2 * x).all(), "it to answer again", box)
        deploy(cluster, scaled(tmp_path, 3.0), "another")
        with triton.InferenceServerClient(box.grpc) as client:
            assert client.is_model_ready("another")
        assert "Traceback" not in box.log.read_text()
