"""The client for programs without asyncio: any thread, a running loop, Ctrl-C, a fork, and the end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import edgepart
from edgepart.client.client import Client
from edgepart.planner.errors import UnknownDeployment, UsageError
from tests.agent.http.conftest import CREDENTIAL, Served
from tests.agent.http.fake_text import PARTS, TEXT
from tests.agent.http.fakes import A, add_model
from tests.client.pairs import pair

THREAD = "edgepart client"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    with pair(tmp_path) as served:
        yield served


def threads() -> int:
    return sum(thread.name == THREAD for thread in threading.enumerate())


def right(client: Client) -> bool:
    return np.array_equal(client.infer("add", {"a": A, "b": A})["total"], 2 * A)


def test_everything_that_a_client_can_do(two: tuple[Served, Served], tmp_path: Path) -> None:
    one, _ = two
    path = tmp_path / "m.onnx"
    path.write_bytes(add_model())
    with edgepart.connect(one.url, credential=CREDENTIAL, state=tmp_path) as client:
        assert right(client)
        assert client.status()["name"] == client.get("/api/status")["name"] == "pi-a"
        assert client.devices() == {"devices": [], "links": []}
        assert "add" in {card["name"] for card in client.models()}
        assert client.plan("add")["strategy"] == "single"
        assert client.deploy(path, "m").devices == ("pi-a",)
        assert client.chat("chat", "Hello").text == TEXT
        assert list(client.stream_chat("chat", "Hello")) == [part for part in PARTS if part]
        one.node.trace_document = {"model": "add", "gateway": "pi-a", "began_s": 1.0, "ended_s": 3.0,
                                   "devices": [], "plans": [], "missing": {}}  # fmt: skip
        with client.trace("add") as recording:
            assert right(client)
        assert recording.trace.model == "add"
        with pytest.raises(ZeroDivisionError), client.trace("add"):
            _ = 1 / 0
        assert client.undeploy("add") == {"undeployed": "add"}
        with pytest.raises(UnknownDeployment):
            client.infer("add", {"a": A})
    assert threads() == 0


def test_a_candidate_is_tried_promoted_and_given_up(two: tuple[Served, Served], tmp_path: Path) -> None:
    path = tmp_path / "new.onnx"
    path.write_bytes(add_model())
    with edgepart.connect(two[0].url, credential=CREDENTIAL, state=tmp_path) as client:
        assert client.deploy(path, "add", share=10).document["candidate_of"] == "add"
        assert client.share("add", 30)["candidate"]["share"] == 30
        assert client.share("add", shadow=True)["candidate"]["shadow"]
        assert client.promote("add")["version"] == "2"
        with pytest.raises(UsageError, match="has no candidate"):
            client.share("add", 5)
        client.deploy(path, "add", shadow=True)
        assert client.undeploy("add", candidate=True)["discarded"] == "add"
        with pytest.raises(UsageError, match="exclude each other"):
            client.deploy(path, "add", share=10, shadow=True)


def test_a_stream_may_be_left_before_its_end(two: tuple[Served, Served], tmp_path: Path) -> None:
    with edgepart.connect(two[0].url, state=tmp_path) as client:
        parts = client.stream_chat("chat", "Hello")
        assert next(parts) == "Once"
        parts.close()  # type: ignore[attr-defined]  # generators have it
        assert right(client)


def test_many_threads_use_one_client_and_go_on_when_an_agent_stops(
    two: tuple[Served, Served], tmp_path: Path
) -> None:
    one, other = two
    with edgepart.connect(one.url, state=tmp_path) as client, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: right(client), range(40)))
        one.on_loop(one.server.stop)
        assert all(pool.map(lambda _: right(client), range(40)))
        assert client.url == other.url


def test_it_works_where_a_loop_runs_already(two: tuple[Served, Served], tmp_path: Path) -> None:
    async def notebook() -> bool:
        with edgepart.connect(two[0].url, state=tmp_path) as client:
            return right(client)

    assert asyncio.run(notebook())


def test_after_the_end_calls_say_so_and_a_second_end_does_nothing(
    two: tuple[Served, Served], tmp_path: Path
) -> None:
    client = edgepart.connect(two[0].url, state=tmp_path)
    client.close()
    client.close()
    with pytest.raises(UsageError, match="is closed; connect again"):
        client.status()


def test_the_end_of_a_client_ends_calls_of_other_threads(two: tuple[Served, Served], tmp_path: Path) -> None:
    one, _ = two
    arrived = threading.Event()

    async def hold(*_: object, **named: object) -> Any:
        arrived.set()
        await asyncio.Event().wait()

    one.node.infer = hold  # type: ignore[method-assign]
    client = edgepart.connect(one.url, state=tmp_path)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(right, client)
        arrived.wait()
        client.close()
        with pytest.raises(UsageError, match="while a call was under way"):
            waiting.result()


def test_a_client_that_nobody_closes_ends_with_its_last_reference(
    two: tuple[Served, Served], tmp_path: Path
) -> None:
    client = edgepart.connect(two[0].url, state=tmp_path)
    assert threads() == 1
    del client
    gc.collect()
    assert threads() == 0


def test_nothing_is_left_if_connecting_fails(tmp_path: Path) -> None:
    for url, error in (("http://127.0.0.1:1", edgepart.errors.Unavailable), ("ftp://x", UsageError)):
        with pytest.raises(error):
            edgepart.connect(url, state=tmp_path)
    with pytest.raises(edgepart.errors.Unavailable, match="no agent runs with state"):
        edgepart.connect(state=tmp_path)
    with pytest.raises(UsageError, match="credential"):
        edgepart.connect("pi-a:1", credential="two\nlines", state=tmp_path)
    assert threads() == 0


def test_the_environment_names_the_agent(
    two: tuple[Served, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEPART_AGENT", f"http://127.0.0.1:1,{two[1].url}")
    with edgepart.connect(state=tmp_path) as client:
        assert client.url == two[1].url


PROGRAM = """
import os, signal, sys
import numpy as np
import edgepart
signal.signal(signal.SIGINT, signal.default_int_handler)  # Whoever runs the tests in the background ignores it.
client = edgepart.connect(sys.argv[1])
child = os.fork()
if child == 0:
    try:
        client.status()
    except edgepart.errors.UsageError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
try:
    client.infer("add", {"a": np.ones((2, 3), np.float32), "b": np.ones((2, 3), np.float32)})
except KeyboardInterrupt:
    print("stopped", flush=True)
print(client.status()["name"])
"""


def test_a_fork_is_told_to_connect_again_and_ctrl_c_ends_a_call_and_nothing_else(
    two: tuple[Served, Served], tmp_path: Path
) -> None:
    """In a process of its own, which ends without closing its client, and without a word about it."""
    one, _ = two
    held = threading.Event()

    class Gate(asyncio.Event):
        async def wait(self) -> Literal[True]:
            held.set()
            return await super().wait()

    async def hold() -> None:
        one.node.gate = Gate()

    one.on_loop(hold)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, one.url]
    env = {**os.environ, "EDGEPART_STATE": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as program:
        assert held.wait(60)
        program.send_signal(signal.SIGINT)
        told, faults = program.communicate(timeout=60)
    assert (program.returncode, faults) == (0, "")
    assert told.splitlines() == [
        "the client belongs to the process that was forked; connect again",
        "stopped",
        "pi-a",
    ]


def test_importing_the_package_imports_nothing_and_a_client_needs_no_runtime(tmp_path: Path) -> None:
    code = (
        "import sys, edgepart\n"
        "assert not [m for m in ('numpy', 'aiohttp', 'onnx') if m in sys.modules]\n"
        "edgepart.connect, edgepart.Answer\n"
        "import edgepart.client.tensors, edgepart.client.texts, edgepart.client.deploying\n"
        "assert 'aiohttp' in sys.modules\n"
        "print([m for m in ('onnx', 'onnxruntime', 'cryptography', 'typer', 'rich') if m in sys.modules])\n"
        "print(set(edgepart.__all__) <= set(dir(edgepart)), [getattr(edgepart, n) for n in edgepart.__all__] != [])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n") == ["[]", "True True", ""]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = edgepart.nothing
